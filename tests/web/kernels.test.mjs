// Tests that Chromium makes every kernel without cooperative matrices into a pipeline. Its compiler is
// Tint, not the one of wgpu that tests/shaders.rs uses. Kernels with float16 only where the browser has it,
// which it has not on SwiftShader.
//
// Needs the sources that `cargo test --release --test shaders` writes, or their path in WGPT_KERNELS.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { test } from 'node:test';
import { open } from './browser.mjs';

const root = resolve(dirname(fileURLToPath(import.meta.url)), '../..');
const target = process.env.CARGO_TARGET_DIR ?? join(root, 'target');
const file = process.env.WGPT_KERNELS ?? join(target, 'tmp/kernels.json');

const AT_ONCE = 20;
/** SwiftShader compiles one kernel at a time in each browser. */
const BROWSERS = Math.min(availableParallelism(), 8);
const usesSubgroups = (source) => /\bsubgroup[A-Z]/.test(source);
const MINUTES = 60_000;

/** Opens a device with the features that kernels use, in the page; returns those that it has. */
async function openDevice() {
  const adapter = await navigator.gpu.requestAdapter();
  const has = ['shader-f16', 'subgroups'].filter((feature) => adapter.features.has(feature));
  window.device = await adapter.requestDevice({ requiredFeatures: has });
  return has;
}

/** Makes pipelines, in the page; returns a text for each message of the compiler. SwiftShader takes a second each. */
async function compile(kernels) {
  const { device } = window;
  const found = [];
  for (const { name, source } of kernels) {
    device.pushErrorScope('validation');
    const module = device.createShaderModule({ code: source });
    const { messages } = await module.getCompilationInfo();
    const lines = source.split('\n');
    found.push(...messages.map((it) => `${name}: ${it.type}: ${it.message}: ${lines[it.lineNum - 1]}`));
    try {
      await device.createComputePipelineAsync({ layout: 'auto', compute: { module, entryPoint: 'main' } });
    } catch (error) {
      found.push(`${name}: ${error.message}`);
    }
    const error = await device.popErrorScope();
    if (error) {
      found.push(`${name}: ${error.message}`);
    }
  }
  return found;
}

/** Compiles the kernels that a new browser can; returns their number, its features and the compiler's messages. */
async function compileInBrowser(kernels) {
  const { context, close } = await open();
  try {
    const page = context.pages()[0] ?? (await context.newPage());
    // Only pages from a safe place have WebGPU.
    await page.route('**/*', (route) => route.fulfill({ contentType: 'text/html', body: '' }));
    await page.goto('http://localhost/');
    const has = await page.evaluate(openDevice);
    const fits = ({ source }) =>
      (has.includes('shader-f16') || !source.includes('enable f16;')) &&
      (has.includes('subgroups') || !usesSubgroups(source));
    const possible = kernels.filter(fits).map(({ name, source }) => ({
      name,
      // wgpu's compiler has subgroups without this line.
      source: usesSubgroups(source) ? `enable subgroups;\n${source}` : source,
    }));
    const found = [];
    for (let first = 0; first < possible.length; first += AT_ONCE) {
      found.push(...(await page.evaluate(compile, possible.slice(first, first + AT_ONCE))));
    }
    return { count: possible.length, has, found };
  } finally {
    await close();
  }
}

test('every kernel becomes a pipeline without a message', async () => {
  const kernels = JSON.parse(readFileSync(file, 'utf8'));
  const shares = [...Array(BROWSERS).keys()].map((n) => kernels.filter((_, i) => i % BROWSERS === n));
  const results = await Promise.all(shares.map(compileInBrowser));
  const count = results.reduce((sum, result) => sum + result.count, 0);
  console.log(`${count} of ${kernels.length} kernels; the browser has ${results[0].has}`);
  assert.deepEqual(results.flatMap(({ found }) => found), []);
  assert.ok(count > 200, 'most kernels need neither float16 nor subgroups');
}, { timeout: 40 * MINUTES });
