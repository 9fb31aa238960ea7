// The worker that trains: the same module as the page's, by another door.
import init, { worker } from './wgpt.js';

await init({ module_or_path: new URL('./wgpt.wasm', import.meta.url) });
worker();
