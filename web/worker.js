// The worker that trains: the same module as the page's, with another entry point.
import { load, worker } from './module.js';

await load();
worker();
