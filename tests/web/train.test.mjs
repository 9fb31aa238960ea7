// The built page in a browser: it trains as the desktop does, keeps what it trained, and hands it on.
//
// Needs web/dist (web/build.sh) and the program (cargo build --release), else the folders in
// WGPT_DIST and WGPT_PROGRAM; SwiftShader as Debian's chromium brings it for the program's side.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { after, before, test } from 'node:test';
import { complaints, open } from './browser.mjs';
import { serve } from './serve.mjs';

const here = dirname(fileURLToPath(import.meta.url));
const root = resolve(here, '../..');
const target = process.env.CARGO_TARGET_DIR ?? join(root, 'target');
const dist = process.env.WGPT_DIST ?? join(root, 'web/dist');
const program = process.env.WGPT_PROGRAM ?? join(target, 'release/wgpt');
const driver = process.env.WGPT_SWIFTSHADER ?? '/usr/lib/chromium/vk_swiftshader_icd.json';

const STEPS = 30;
const SETTINGS = {
  preset: 'demo',
  max_iters: STEPS,
  log_interval: 1,
  eval_iters: 2,
  eval_interval: 10,
  sample_tokens: 20,
  vram_budget: '1GiB',
};
const MINUTES = 60_000;

const scratch = mkdtempSync(join(tmpdir(), 'wgpt-web-test-'));
let server;
let expected;

/** Runs the program on the same software device as the browser; gives what it prints. */
function run(...args) {
  const env = { ...process.env, VK_ICD_FILENAMES: driver, VK_DRIVER_FILES: driver };
  const options = { env, encoding: 'utf8', maxBuffer: 1 << 28, stdio: ['ignore', 'pipe', 'inherit'] };
  return execFileSync(program, args, options);
}

before(async () => {
  assert.ok(existsSync(join(dist, 'index.html')), `${dist}: there is no page; run web/build.sh`);
  server = await serve(dist);
  const flags = Object.entries(SETTINGS).map(([key, value]) => `--${key}=${value}`);
  const lines = run('train', ...flags, '--device=vulkan', '--json', `--run=${join(scratch, 'native')}`);
  expected = losses(lines.trim().split('\n').map((line) => JSON.parse(line)));
  assert.equal(expected.length, STEPS);
}, { timeout: 20 * MINUTES });

after(() => {
  server?.close();
  rmSync(scratch, { recursive: true, force: true });
});

function losses(events) {
  return events.filter((event) => event.event === 'step').map((step) => [step.iter, step.loss]);
}

/** Has the page remember what its workers say; to be called before it is loaded. */
async function listen(page) {
  await page.addInitScript(() => {
    window.heard = [];
    const Native = window.Worker;
    window.Worker = class extends Native {
      constructor(...args) {
        super(...args);
        window.trainer = this;
        this.addEventListener('message', (message) => {
          window.heard.push({ at: performance.now(), ...JSON.parse(message.data[0]) });
        });
      }
    };
  });
}

/** Waits for a reply of which `wanted`, a function in the page, says so. */
async function heard(page, wanted, minutes = 10) {
  const text = `(${wanted})`;
  const found = await page.waitForFunction(
    (text) => window.heard.find(eval?.(text)) ?? null, text, { timeout: minutes * MINUTES, polling: 200 });
  return found.jsonValue();
}

const address = (page = '') => {
  const fragment = new URLSearchParams(SETTINGS).toString();
  return `${server.address}${page}#${fragment}`;
};
