// A static server for the built page, on a free port of this machine.
import { createServer } from 'node:http';
import { readFile } from 'node:fs/promises';
import { extname, join, normalize } from 'node:path';

const KINDS = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.wasm': 'application/wasm',
};

/** Serves a folder; returns its address and a function that stops it. */
export async function serve(folder) {
  const server = createServer(async (request, response) => {
    const path = normalize(new URL(request.url, 'http://localhost').pathname);
    try {
      const body = await readFile(join(folder, path === '/' ? 'index.html' : path));
      response.writeHead(200, { 'content-type': KINDS[extname(path)] ?? KINDS['.html'] });
      response.end(body);
    } catch {
      response.writeHead(path === '/favicon.ico' ? 204 : 404);
      response.end();
    }
  });
  await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
  const { port } = server.address();
  return { address: `http://localhost:${port}/`, close: () => server.close() };
}
