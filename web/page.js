// The page around the window: what is in the way, the first click, and loading.
import { load, start } from './module.js';

const element = (id) => document.getElementById(id);
const show = (id) => element(id).removeAttribute('hidden');
const hide = (id) => element(id).setAttribute('hidden', '');

/** What is in the way of training here, as the id of the section that explains it. */
async function obstacle() {
  if (!window.isSecureContext) {
    return 'insecure';
  }
  if (!navigator.gpu) {
    return 'no-webgpu';
  }
  const found = await adapter();
  if (!found) {
    return 'no-adapter';
  }
  const info = found.info ?? {};
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

/** Losses of the graphics card within this time of each other are counted. */
const PATIENCE = 5 * 60_000;
const MOST_LOSSES = 3;

/** What the page before this one left, if that had lost the graphics card. */
function readLoss() {
  try {
    const told = JSON.parse(sessionStorage.getItem('wgpt_loss') ?? 'null');
    return told && Date.now() - told.at < PATIENCE ? told : null;
  } catch {
    return null;
  }
}

function writeLoss(told) {
  try {
    sessionStorage.setItem('wgpt_loss', JSON.stringify(told));
    return true;
  } catch {
    return false;
  }
}

/** The browser gives a page that has lost the graphics card no other: the next page goes on. */
function comeAgain() {
  const count = (readLoss()?.count ?? 0) + 1;
  const isTraining = ['starting', 'running', 'recovering', 'waiting'].includes(element('status').dataset.state);
  if (count <= MOST_LOSSES && writeLoss({ at: Date.now(), count, isTraining })) {
    location.reload();
  } else {
    explain('lost');
  }
}

/** An adapter; the browser may need a moment after it has lost one. */
async function adapter() {
  for (let tries = readLoss() ? 20 : 1; tries > 0; tries--) {
    const found = await navigator.gpu.requestAdapter().catch(() => null);
    if (found) {
      return found;
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

/** Whether the window was open in this browser before. */
function isKnown() {
  try {
    return localStorage.getItem('egui_memory_ron') !== null;
  } catch {
    return false;
  }
}

/** Keys that mean something to the window, whatever they mean to the browser. */
function keepKeys() {
  const ours = new Set(['s', 'e', 'o', '.', 'Enter']);
  const taken = (event) =>
    event.key === 'F1' || ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && ours.has(event.key));
  addEventListener('keydown', (event) => taken(event) && event.preventDefault(), { capture: true });
}

/** A device that does nothing but tell when the browser has lost the card, and with it the window's. */
let sentinel;

async function watch() {
  sentinel = await (await adapter())?.requestDevice();
  sentinel?.lost.then(({ reason }) => reason !== 'destroyed' && comeAgain());
}

async function open(demo, resume = false) {
  const canvas = element('window');
  hide('start');
  show('window');
  keepKeys();
  await start(canvas, demo, resume);
}

async function main() {
  const found = await obstacle();
  if (found) {
    explain(found);
    return;
  }
  await load();
  // A panic leaves the window as it was, and nothing works any more.
  const look = (error) => error instanceof WebAssembly.RuntimeError && fail(error);
  addEventListener('error', (event) => look(event.error));
  addEventListener('unhandledrejection', (event) => look(event.reason));
  watch().catch(() => {});
  hide('loading');
  const lost = readLoss();
  if (lost) {
    // Nobody who loads the page once more has asked for it.
    writeLoss({ ...lost, isTraining: false });
  }
  const isMeant = location.hash.length > 1 || isKnown() || lost;
  const wantsDemo = new URLSearchParams(location.search).has('demo') && !lost;
  element('status').dataset.state = 'ready';
  if (wantsDemo || isMeant) {
    await open(wantsDemo, lost?.isTraining);
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
