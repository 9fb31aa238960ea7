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
  const adapter = await navigator.gpu.requestAdapter().catch(() => null);
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

async function open(demo) {
  const canvas = element('window');
  hide('start');
  show('window');
  keepKeys();
  await start(canvas, demo);
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
  hide('loading');
  const isMeant = location.hash.length > 1 || isKnown();
  const wantsDemo = new URLSearchParams(location.search).has('demo');
  element('status').dataset.state = 'ready';
  if (wantsDemo || isMeant) {
    await open(wantsDemo);
    return;
  }
  show('ready');
  const once = { once: true };
  element('demo').addEventListener('click', () => open(true).catch(fail), once);
  element('open').addEventListener('click', () => open(false).catch(fail), once);
  element('demo').focus();
}

element('reload').addEventListener('click', () => location.reload());
main().catch(fail);
