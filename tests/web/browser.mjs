// Chromium without a window, with WebGPU computed by SwiftShader.
import { existsSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const PLACES = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'];

const QUIET = [
  '--no-sandbox',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  '--no-first-run',
];

const WEBGPU = [
  '--enable-unsafe-webgpu',
  '--use-webgpu-adapter=swiftshader',
  '--enable-features=Vulkan',
  '--use-vulkan=swiftshader',
  '--use-angle=swiftshader',
  '--enable-unsafe-swiftshader',
  '--ignore-gpu-blocklist',
];

const NO_WEBGPU = ['--disable-features=WebGPU,WebGPUService', '--disable-blink-features=WebGPU'];

/** Opens a browser with a new profile; returns its context and a function that closes it. */
export async function open({ webgpu = true } = {}) {
  const executablePath = process.env.CHROMIUM ?? PLACES.find((path) => existsSync(path));
  const profile = await mkdtemp(join(tmpdir(), 'wgpt-web-'));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath,
    headless: true,
    args: [...QUIET, ...(webgpu ? WEBGPU : NO_WEBGPU)],
    viewport: { width: 1280, height: 800 },
    acceptDownloads: true,
  });
  const close = async () => {
    await context.close();
    await rm(profile, { recursive: true, force: true });
  };
  return { context, close };
}

/** Collects the errors of a page and of its console. */
export function errorsOf(page) {
  const found = [];
  page.on('pageerror', (error) => found.push(String(error)));
  page.on('console', (message) => {
    if (message.type() === 'error') {
      found.push(message.text());
    }
  });
  return found;
}
