// Tests the built page in a browser: it trains like the desktop, stores its runs, and exports them.
//
// Needs web/dist (web/build.sh) and the program (cargo build --release), or the paths in WGPT_DIST and
// WGPT_PROGRAM. The program needs the SwiftShader of Debian's chromium.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { after, before, test } from 'node:test';
import { errorsOf, open } from './browser.mjs';
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
  batch_size: 1,
  block_size: 32,
  eval_iters: 1,
  eval_interval: 10,
  sample_tokens: 8,
  vram_budget: '1GiB',
};
const MINUTES = 60_000;

const scratch = mkdtempSync(join(tmpdir(), 'wgpt-web-test-'));
let server;
let expected;

/** Runs the program on the same software device as the browser; returns what it prints. */
function wgpt(...args) {
  const env = { ...process.env, VK_ICD_FILENAMES: driver, VK_DRIVER_FILES: driver };
  const options = { env, encoding: 'utf8', maxBuffer: 1 << 28, stdio: ['ignore', 'pipe', 'inherit'] };
  return execFileSync(program, args, options);
}

before(async () => {
  assert.ok(existsSync(join(dist, 'index.html')), `${dist}: no page found; run web/build.sh`);
  server = await serve(dist);
  const flags = Object.entries(SETTINGS).map(([key, value]) => `--${key}=${value}`);
  const lines = wgpt('train', ...flags, '--device=vulkan', '--json', `--run=${join(scratch, 'native')}`);
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

/** Records the messages of the page's workers; to be called before the page is loaded. */
async function recordMessages(page) {
  await page.addInitScript(() => {
    window.messages = [];
    const Native = window.Worker;
    window.Worker = class extends Native {
      constructor(...args) {
        super(...args);
        window.worker = this;
        this.addEventListener('message', ({ data }) => {
          const message = JSON.parse(data[0]);
          // An event's fields are next to the kind of the message.
          const event = message.message === 'event' ? { event: message } : {};
          window.messages.push({ at: performance.now(), ...message, ...event });
        });
      }
    };
  });
}

/** Records the names of the kernels that workers compile; to be called before the page is loaded. */
async function recordKernels(context) {
  const record = `
    self.kernels = [];
    const { createShaderModule } = GPUDevice.prototype;
    GPUDevice.prototype.createShaderModule = function (descriptor) {
      self.kernels.push(descriptor.code.split('\\n')[0]);
      return createShaderModule.call(this, descriptor);
    };`;
  await context.route(/\/worker-[^/]*\.js$/, async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, body: `${record}\n${await response.text()}` });
  });
}

/** Waits for the first message that `matches` accepts. */
async function message(page, matches) {
  const end = Date.now() + 15 * MINUTES;
  for (;;) {
    const all = await page.evaluate(() => window.messages);
    const found = all.find(matches);
    if (found) {
      return found;
    }
    assert.ok(Date.now() < end, `no message matches ${matches}; last ${JSON.stringify(all.at(-1))}`);
    await page.waitForTimeout(250);
  }
}

const isStep = (least) => ({ event }) => event?.event === 'step' && event.iter >= least;
const isEvent = (name) => ({ event }) => event?.event === name;
const hasEnded = ({ message }) => message === 'ended';

async function events(page) {
  const all = await page.evaluate(() => window.messages);
  return all.filter(({ message }) => message === 'event').map(({ event }) => event);
}

/** Asserts that the losses equal those of the native run to 1e-3. */
function assertSame(found) {
  for (const [iter, loss] of found) {
    const [, native] = expected[iter];
    assert.ok(Math.abs(loss - native) <= 1e-3, `iteration ${iter}: ${loss} here, ${native} there`);
  }
}

/** Settings as the page's URL has them. */
function written(settings) {
  return Object.entries(settings).map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join('&');
}

test('the page trains, pauses, continues after it was loaded again, and exports the model', async () => {
  const { context, close } = await open();
  try {
    const page = context.pages()[0] ?? (await context.newPage());
    const errors = errorsOf(page);
    await recordMessages(page);
    await recordKernels(context);
    await page.goto(`${server.address}?demo#${written(SETTINGS)}`);
    const first = await message(page, isStep(0));
    console.log(`first step after ${(first.at / 1000).toFixed(1)} s, worker and kernels included`);
    const kernels = await page.workers()[0].evaluate(() => self.kernels);
    const products = new Set(kernels.filter((name) => name.startsWith('// gemm')));
    // SwiftShader takes 2 s to compile each product for GPUs.
    assert.deepEqual([...products], ['// gemm_shuffled'], 'software renderers have their own products');
    const { run } = await message(page, isEvent('start'));

    await message(page, isStep(12));
    await page.mouse.click(640, 10);
    await page.keyboard.press('Space');
    await page.waitForSelector('#status[data-state="paused"]', { state: 'attached' });
    // The update in progress finishes first. A paused run still takes commands.
    await page.keyboard.press('Control+s');
    const { event: saved } = await message(page, ({ event }) => event?.event === 'checkpoint' && event.iter > 10);
    const held = losses(await events(page));
    assert.equal(saved.iter, held.length);
    await page.waitForTimeout(10_000);
    assert.equal(losses(await events(page)).length, held.length, 'a paused run trains');

    const downloaded = page.waitForEvent('download');
    await page.keyboard.press('Control+e');
    const zip = join(scratch, 'model.zip');
    await (await downloaded).saveAs(zip);
    const text = wgpt('sample', zip, '--device=cpu', '--start=Once', '--max-new-tokens=20');
    assert.ok(text.startsWith('Once') && text.length > 20, text);
    const folder = join(scratch, 'imported');
    wgpt('import', zip, '-o', folder);
    assert.ok(existsSync(join(folder, 'model.safetensors')));

    await page.goto('about:blank');
    await page.goto(server.address);
    const { runs } = await message(page, ({ reply, runs }) => reply === 'runs' && runs.length > 0);
    const [kept] = runs;
    assert.equal(kept.path, run);
    assert.equal(kept.has_checkpoint, true);
    await page.waitForSelector('#status[data-state="interrupted"]', { state: 'attached' });
    await page.mouse.click(640, 10);
    await page.keyboard.press('Space');
    const { event: again } = await message(page, isEvent('start'));
    assert.equal(again.resumed_from, held.length);
    await message(page, hasEnded);
    const all = await events(page);
    assert.equal(all.at(-1).event, 'done', JSON.stringify(all.at(-1)));
    if (process.env.WGPT_SCREENSHOTS) {
      mkdirSync(process.env.WGPT_SCREENSHOTS, { recursive: true });
      await page.waitForTimeout(5000);
      await page.screenshot({ path: join(process.env.WGPT_SCREENSHOTS, 'browser.png') });
    }
    const rest = losses(all);
    assert.deepEqual([...held, ...rest].map(([iter]) => iter), [...Array(STEPS).keys()]);

    assertSame(held);
    assertSame(rest);
    assert.ok(rest.at(-1)[1] < held[0][1] - 0.3, 'the loss does not fall');
    assert.deepEqual(errors, []);
  } finally {
    await close();
  }
}, { timeout: 30 * MINUTES });

test('a crash of the graphics process costs the updates after the last checkpoint', async () => {
  const { context, close } = await open();
  try {
    const page = context.pages()[0] ?? (await context.newPage());
    await recordMessages(page);
    await page.goto(`${server.address}?demo#${written({ ...SETTINGS, max_iters: 5, eval_interval: 2 })}`);
    await message(page, isStep(3));
    const again = page.waitForEvent('domcontentloaded');
    const browser = await context.newCDPSession(page);
    await browser.send('Browser.crashGpuProcess');
    await again;
    const { event: start } = await message(page, isEvent('start'));
    // The fourth iteration's checkpoint may have been written before the crash.
    assert.ok([2, 4].includes(start.resumed_from), `resumed from ${start.resumed_from}`);
    await message(page, hasEnded);
    const all = await events(page);
    assert.equal(all.at(-1).event, 'done', JSON.stringify(all.at(-1)));
    assert.deepEqual(losses(all).map(([iter]) => iter), [2, 3, 4].filter((iter) => iter >= start.resumed_from));
    assertSame(losses(all));
  } finally {
    await close();
  }
}, { timeout: 30 * MINUTES });

test('an exported page imports its model, once, and the model answers', async () => {
  const [site, run] = [join(scratch, 'site'), join(scratch, 'chat')];
  wgpt('train', '--preset=chat', '--max_iters=20', '--sample_tokens=0', '--device=cpu', `--run=${run}`);
  wgpt('export', run, '-o', site, '--format=page', '--web', dist);
  const exported = await serve(site);
  const { context, close } = await open();
  try {
    const page = context.pages()[0] ?? (await context.newPage());
    const errors = errorsOf(page);
    await recordMessages(page);
    await page.goto(exported.address);
    const { model } = await message(page, ({ reply }) => reply === 'imported');
    assert.equal(model.name, 'site');
    assert.equal(model.has_tokenizer, true);
    // The window shows it, ready for a prompt.
    await message(page, ({ reply, run }) => reply === 'run' && run === model.path);
    const shown = await message(page, ({ reply, path }) => reply === 'model' && path === model.path);
    assert.equal(shown.has_chat, true);
    const request = {
      message: 'request',
      request: 'sample',
      path: model.path,
      input: { conversation: [{ role: 'user', content: 'Hello!' }] },
      tokens: 8,
      temperature: 0.8,
      top_k: 0,
      seed: 1,
      device: 'auto',
    };
    await page.evaluate((text) => window.worker.postMessage([text]), JSON.stringify(request));
    const answered = await message(page, ({ reply, done }) => reply === 'answered' && done);
    assert.equal(answered.forgotten, 0);
    await page.goto('about:blank');
    await page.goto(exported.address);
    const { models } = await message(page, ({ reply, models }) => reply === 'stored' && models.length > 0);
    assert.equal(models.length, 1);
    await page.waitForTimeout(5000);
    const again = await page.evaluate(() => window.messages.filter(({ reply }) => reply === 'imported'));
    assert.deepEqual(again, []);
    assert.deepEqual(errors, []);
  } finally {
    await close();
    exported.close();
  }
}, { timeout: 10 * MINUTES });

test('without WebGPU the page says what to do', async () => {
  const { context, close } = await open({ webgpu: false });
  try {
    const page = context.pages()[0] ?? (await context.newPage());
    const errors = errorsOf(page);
    await page.goto(server.address);
    await page.waitForSelector('#status[data-state="obstacle"]', { state: 'attached' });
    const section = page.locator('section.obstacle:visible');
    assert.equal(await section.count(), 1);
    assert.match(await section.innerText(), /What to do/);
    assert.deepEqual(errors, []);
  } finally {
    await close();
  }
}, { timeout: 2 * MINUTES });
