// The worker that trains: the same module as the page's, by another door.
import { load, worker } from './module.js';

await load();
worker();
