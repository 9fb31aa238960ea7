// The program: the same module for the page and for the worker.
import init from './wgpt.js';

export { start, worker } from './wgpt.js';

/** Loads it, straight from the network: browsers keep what they compile of that. */
export async function load() {
  const module = await init({ module_or_path: new URL('./wgpt.wasm', import.meta.url) });
  // What its libraries register before main, where there is a main.
  module.__wasm_call_ctors();
}
