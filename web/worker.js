// The worker that trains: the same module as the page's, with another entry point.
import { load, worker } from './module.js';

// wgpu cannot ask for subgroups yet. The kernels for software renderers need them.
if (globalThis.GPUAdapter) {
  const { requestDevice } = GPUAdapter.prototype;
  GPUAdapter.prototype.requestDevice = function (descriptor = {}) {
    const subgroups = ['subgroups'].filter((feature) => this.features.has(feature));
    const requiredFeatures = [...(descriptor.requiredFeatures ?? []), ...subgroups];
    return requestDevice.call(this, { ...descriptor, requiredFeatures });
  };
}

await load();
worker();
