// The page around the canvas: loading, the start buttons, and the messages that replace the window.
import { load, start } from './module.js';

const element = (id) => document.getElementById(id);
const show = (id) => element(id).removeAttribute('hidden');
const hide = (id) => element(id).setAttribute('hidden', '');

/** Returns the id of the section that explains why this browser cannot train, or null if it can. */
async function findObstacle() {
  if (!window.isSecureContext) {
    return 'insecure';
  }
  if (!navigator.gpu) {
    return 'no-webgpu';
  }
  const adapter = await requestAdapter();
  if (!adapter) {
    return 'no-adapter';
  }
  const info = adapter.info ?? {};
  if (info.isFallbackAdapter || /swiftshader|llvmpipe|software/i.test(`${info.architecture} ${info.description}`)) {
    show('software');
  }
  return null;
}

function explain(id) {
  document.querySelector('#insecure .origin').textContent = location.origin;
  if (/linux/i.test(navigator.userAgent) && !/android/i.test(navigator.userAgent)) {
    document.querySelector('#no-adapter .linux').removeAttribute('hidden');
  }
  hide('loading');
  hide('ready');
  hide('window');
  show('start');
  show(id);
  const status = element('status');
  status.dataset.state = 'obstacle';
  status.dataset.obstacle = id;
  status.textContent = element(id).querySelector('h2').textContent;
}

/** Device losses within this time of each other count as consecutive, in milliseconds. */
const LOSS_WINDOW = 5 * 60_000;
/** Consecutive device losses after which the page stops reloading itself. */
const MAX_LOSSES = 3;

/** Returns the record that the page left before it reloaded because of a device loss, or null. */
function readLoss() {
  try {
    const loss = JSON.parse(sessionStorage.getItem('wgpt_loss') ?? 'null');
    return loss && Date.now() - loss.at < LOSS_WINDOW ? loss : null;
  } catch {
    return null;
  }
}

function writeLoss(loss) {
  try {
    sessionStorage.setItem('wgpt_loss', JSON.stringify(loss));
    return true;
  } catch {
    return false;
  }
}

/** Reloads the page after a device loss, because the browser gives this page no other device. */
function reloadAfterLoss() {
  const count = (readLoss()?.count ?? 0) + 1;
  const isTraining = ['starting', 'running', 'recovering', 'waiting'].includes(element('status').dataset.state);
  if (count <= MAX_LOSSES && writeLoss({ at: Date.now(), count, isTraining })) {
    location.reload();
  } else {
    explain('lost');
  }
}

/** Returns an adapter, or null. After a device loss the browser may need a few seconds to offer one. */
async function requestAdapter() {
  for (let tries = readLoss() ? 20 : 1; tries > 0; tries--) {
    const adapter = await navigator.gpu.requestAdapter().catch(() => null);
    if (adapter) {
      return adapter;
    }
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
  return null;
}

function fail(error) {
  const fault = element('fault');
  if (!fault.textContent) {
    fault.textContent = String(error?.message ?? error);
    explain('broken');
  }
}

/** Keeps the browser from acting on wgpt's keyboard shortcuts. */
function reserveShortcuts() {
  const keys = new Set(['s', 'e', 'o', '.', 'Enter']);
  const isShortcut = (event) =>
    event.key === 'F1' || ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && keys.has(event.key));
  addEventListener('keydown', (event) => isShortcut(event) && event.preventDefault(), { capture: true });
}

/** A device that only detects device losses. The variable keeps it from being collected. */
let sentinel;

/** Reloads the page when the browser loses the graphics card, and with it the window's device. */
async function watchDevice() {
  sentinel = await (await requestAdapter())?.requestDevice();
  sentinel?.lost.then(({ reason }) => reason !== 'destroyed' && reloadAfterLoss());
}

/** The element with the zip name and hash of the model that this page was exported with, or null. */
const exported = document.querySelector('meta[name="wgpt-model"]');

/** Imports the exported model, once in this browser. */
async function importModel() {
  const key = `wgpt_model_${exported.dataset.hash}`;
  if (isSet(key)) {
    return;
  }
  const name = exported.content;
  const response = await fetch(new URL(name, document.baseURI));
  if (!response.ok) {
    throw new Error(`${name}, the model of this page, is missing (${response.status})`);
  }
  const files = new DataTransfer();
  files.items.add(new File([await response.blob()], name));
  // This acts as if the visitor had dropped it on the window, which imports dropped files.
  element('window').dispatchEvent(new DragEvent('drop', { dataTransfer: files }));
  set(key);
}

/** Returns true if this browser has stored a key. */
function isSet(key) {
  try {
    return localStorage.getItem(key) !== null;
  } catch {
    return false;
  }
}

function set(key) {
  try {
    localStorage.setItem(key, '');
  } catch {
    // The model will be imported again next time.
  }
}

async function open(demo, resume = false) {
  const canvas = element('window');
  hide('start');
  show('window');
  reserveShortcuts();
  await start(canvas, demo, resume);
  if (exported) {
    await importModel();
  }
}

async function main() {
  const obstacle = await findObstacle();
  if (obstacle) {
    explain(obstacle);
    return;
  }
  await load();
  // After a panic the last frame stays on the screen, and nothing responds.
  const failOnPanic = (error) => error instanceof WebAssembly.RuntimeError && fail(error);
  addEventListener('error', (event) => failOnPanic(event.error));
  addEventListener('unhandledrejection', (event) => failOnPanic(event.reason));
  watchDevice().catch(() => {});
  hide('loading');
  const loss = readLoss();
  if (loss) {
    // The run continues after this reload only, not after one by the user.
    writeLoss({ ...loss, isTraining: false });
  }
  // eframe has stored its settings if wgpt was opened in this browser before.
  const opensAtOnce = location.hash.length > 1 || isSet('egui_memory_ron') || loss || exported;
  const wantsDemo = new URLSearchParams(location.search).has('demo') && !loss;
  element('status').dataset.state = 'ready';
  if (wantsDemo || opensAtOnce) {
    await open(wantsDemo, loss?.isTraining);
    return;
  }
  show('ready');
  const once = { once: true };
  element('demo').addEventListener('click', () => open(true).catch(fail), once);
  element('open').addEventListener('click', () => open(false).catch(fail), once);
  element('demo').focus();
}

for (const button of document.querySelectorAll('button.reload')) {
  button.addEventListener('click', () => location.reload());
}
main().catch(fail);
