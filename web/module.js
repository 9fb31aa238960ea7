// The program: one module for the page and for the worker.
import init from './wgpt.js';

export { start, worker } from './wgpt.js';

/** Loads the module from the network, because browsers then cache the compiled code. */
export async function load() {
  const module = await init({ module_or_path: new URL('./wgpt.wasm', import.meta.url) });
  // Runs the constructors that a program with a main function runs before it.
  module.__wasm_call_ctors();
}
