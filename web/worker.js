// The worker that trains: the same module as the page's, by another function.
import { load, worker } from './module.js';

await load();
worker();
