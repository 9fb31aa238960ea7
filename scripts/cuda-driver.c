/* An NVIDIA driver with one GPU that computes nothing.
 *
 *   cc -shared -fPIC -o libcuda.so.1 cuda-driver.c
 *
 * With it in LD_LIBRARY_PATH, a run on CUDA does everything but execute its kernels: they are
 * compiled to PTX and launched, and memory holds what was copied to it, or zeros. It shows, on a
 * machine without an NVIDIA GPU, whether all kernels compile with a driver alone.
 *
 * CUDA_DRIVER_CAPABILITY is the compute capability (default 86), CUDA_DRIVER_VERSION the version that
 * the driver reports (default 12080, CUDA 12.8), CUDA_DRIVER_MEMORY the memory in MiB (default 12
 * GiB); allocations beyond it are refused. If CUDA_DRIVER_PTX is set, each kernel is written to a file
 * in that folder. If CUDA_DRIVER_CONTEXT is set, the first context on the GPU creates that file.
 *
 * If CUDA_DRIVER_KERNELS is set, the kernels of shaders/cuda do compute, on the CPU: each is a library in that
 * folder, NAME.so, which scripts/cuda-kernels.py makes from the kernel's source and the emulator in tests/cuda.
 */
#include <dlfcn.h>
#include <malloc.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
typedef int Device;
typedef unsigned long long Pointer;

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2 };

/* The GPU's memory in bytes, and how much of it is allocated. */
static size_t room(void);
static _Atomic size_t taken;

/* Every handle points here: only this driver dereferences them. */
static int object;

static int setting(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static size_t room(void)
{
    return (size_t)setting("CUDA_DRIVER_MEMORY", 12 << 10) << 20;
}

static Result handle(void **out)
{
    *out = &object;
    return SUCCESS;
}

static void *memory(Pointer pointer)
{
    return (void *)(uintptr_t)pointer;
}

/* --- the driver and its GPU ------------------------------------------------------------------- */

Result cuInit(unsigned flags)
{
    (void)flags;
    return SUCCESS;
}

Result cuDriverGetVersion(int *version)
{
    *version = setting("CUDA_DRIVER_VERSION", 12080);
    return SUCCESS;
}

Result cuGetErrorName(Result error, const char **name)
{
    *name = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_INVALID_VALUE";
    return SUCCESS;
}

Result cuGetErrorString(Result error, const char **text)
{
    return cuGetErrorName(error, text);
}

Result cuDeviceGetCount(int *count)
{
    *count = 1;
    return SUCCESS;
}

Result cuDeviceGet(Device *device, int number)
{
    *device = number;
    return number == 0 ? SUCCESS : INVALID_VALUE;
}

Result cuDeviceGetName(char *name, int size, Device device)
{
    (void)device;
    snprintf(name, (size_t)size, "a GPU that computes nothing");
    return SUCCESS;
}

Result cuDeviceGetPCIBusId(char *id, int size, Device device)
{
    (void)device;
    snprintf(id, (size_t)size, "0000:01:00.0");
    return SUCCESS;
}

Result cuDeviceTotalMem_v2(size_t *bytes, Device device)
{
    (void)device;
    *bytes = room();
    return SUCCESS;
}

Result cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    *total = room();
    *free_bytes = *total - taken;
    return SUCCESS;
}

/* Values of CUdevice_attribute. */
Result cuDeviceGetAttribute(int *value, int attribute, Device device)
{
    int capability = setting("CUDA_DRIVER_CAPABILITY", 86);
    (void)device;
    switch (attribute) {
    case 1: /* threads per block */
    case 2: /* its x */
    case 3: *value = 1024; break;
    case 4: *value = 64; break;
    case 5: *value = INT32_MAX; break; /* a grid's x */
    case 6:
    case 7: *value = 65535; break;
    case 8: *value = 48 << 10; break; /* shared memory of a block */
    case 10: *value = 32; break;      /* a warp */
    case 16: *value = 28; break;      /* multiprocessors */
    case 75: *value = capability / 10; break;
    case 76: *value = capability % 10; break;
    case 97: *value = 99 << 10; break; /* shared memory of a block that asks for more */
    default: *value = 1;
    }
    return SUCCESS;
}

Result cuDevicePrimaryCtxRetain(void **context, Device device)
{
    const char *file = getenv("CUDA_DRIVER_CONTEXT");
    FILE *created = file ? fopen(file, "w") : NULL;
    (void)device;
    if (created)
        fclose(created);
    return handle(context);
}

Result cuCtxSetCurrent(void *context)
{
    (void)context;
    return SUCCESS;
}

Result cuCtxGetCurrent(void **context)
{
    return handle(context);
}

Result cuCtxSynchronize(void)
{
    return SUCCESS;
}

Result cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return SUCCESS;
}

/* --- streams and events: everything completes at once ----------------------------------------- */

Result cuStreamCreate(void **stream, unsigned flags)
{
    (void)flags;
    return handle(stream);
}

Result cuStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    return handle(stream);
}

Result cuStreamDestroy_v2(void *stream)
{
    (void)stream;
    return SUCCESS;
}

Result cuStreamSynchronize(void *stream)
{
    (void)stream;
    return SUCCESS;
}

Result cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    return SUCCESS;
}

Result cuEventCreate(void **event, unsigned flags)
{
    (void)flags;
    return handle(event);
}

Result cuEventRecord(void *event, void *stream)
{
    (void)event, (void)stream;
    return SUCCESS;
}

Result cuEventSynchronize(void *event)
{
    (void)event;
    return SUCCESS;
}

Result cuEventQuery(void *event)
{
    (void)event;
    return SUCCESS;
}

Result cuEventDestroy_v2(void *event)
{
    (void)event;
    return SUCCESS;
}

Result cuEventElapsedTime_v2(float *ms, void *start, void *end)
{
    (void)start, (void)end;
    *ms = 0.001f;
    return SUCCESS;
}

/* --- memory ----------------------------------------------------------------------------------- */

Result cuMemAllocHost_v2(void **out, size_t bytes)
{
    *out = calloc(bytes ? bytes : 1, 1);
    return *out ? SUCCESS : OUT_OF_MEMORY;
}

Result cuMemFreeHost(void *host)
{
    free(host);
    return SUCCESS;
}

Result cuMemAlloc_v2(Pointer *out, size_t bytes)
{
    *out = 0;
    if (taken + bytes > room())
        return OUT_OF_MEMORY;
    void *got = calloc(bytes ? bytes : 1, 1);
    if (!got)
        return OUT_OF_MEMORY;
    taken += malloc_usable_size(got);
    *out = (Pointer)(uintptr_t)got;
    return SUCCESS;
}

Result cuMemAllocAsync(Pointer *out, size_t bytes, void *stream)
{
    (void)stream;
    return cuMemAlloc_v2(out, bytes);
}

Result cuMemFree_v2(Pointer pointer)
{
    if (pointer)
        taken -= malloc_usable_size(memory(pointer));
    free(memory(pointer));
    return SUCCESS;
}

Result cuMemFreeAsync(Pointer pointer, void *stream)
{
    (void)stream;
    return cuMemFree_v2(pointer);
}

Result cuMemcpyHtoDAsync_v2(Pointer to, const void *from, size_t bytes, void *stream)
{
    (void)stream;
    memcpy(memory(to), from, bytes);
    return SUCCESS;
}

Result cuMemcpyDtoHAsync_v2(void *to, Pointer from, size_t bytes, void *stream)
{
    (void)stream;
    memcpy(to, memory(from), bytes);
    return SUCCESS;
}

Result cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t bytes, void *stream)
{
    (void)stream;
    memmove(memory(to), memory(from), bytes);
    return SUCCESS;
}

Result cuMemsetD8Async(Pointer to, unsigned char value, size_t bytes, void *stream)
{
    (void)stream;
    memset(memory(to), value, bytes);
    return SUCCESS;
}

/* CUDA_MEMCPY2D. */
struct Copy {
    size_t from_x, from_y;
    unsigned from_type;
    const void *from_host;
    Pointer from_device;
    void *from_array;
    size_t from_pitch;
    size_t to_x, to_y;
    unsigned to_type;
    void *to_host;
    Pointer to_device;
    void *to_array;
    size_t to_pitch;
    size_t width, height;
};

Result cuMemcpy2DAsync_v2(const struct Copy *copy, void *stream)
{
    const char *from = copy->from_type == 1 ? copy->from_host : memory(copy->from_device);
    char *to = copy->to_type == 1 ? copy->to_host : memory(copy->to_device);
    (void)stream;
    for (size_t row = 0; row < copy->height; row++)
        memcpy(to + row * copy->to_pitch, from + row * copy->from_pitch, copy->width);
    return SUCCESS;
}

/* --- kernels ---------------------------------------------------------------------------------- */

/* A kernel that computes. It gets its parameters, the grid, and the threads and shared memory of a workgroup. */
struct Emulated {
    void (*run)(const void *parameters, unsigned x, unsigned y, unsigned threads, unsigned bytes);
};

static struct Emulated computes_nothing;

/* wgpt's own kernels begin with a line `//// NAME ...`. */
static Result emulated(void **module, const char *image)
{
    const char *folder = getenv("CUDA_DRIVER_KERNELS");
    char name[256], path[4096];
    *module = &computes_nothing;
    if (!folder || sscanf(image, "//// %255s", name) != 1)
        return SUCCESS;
    snprintf(path, sizeof path, "%s/%s.so", folder, name);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *run = library ? dlsym(library, "emulate") : NULL;
    struct Emulated *kernel = malloc(sizeof *kernel);
    if (!run || !kernel) {
        fprintf(stderr, "no kernel to emulate: %s\n", dlerror());
        return INVALID_VALUE;
    }
    memcpy(&kernel->run, &run, sizeof run);
    *module = kernel;
    return SUCCESS;
}

Result cuModuleLoadData(void **module, const void *image)
{
    static int modules;
    int number = __atomic_add_fetch(&modules, 1, __ATOMIC_RELAXED);
    const char *folder = getenv("CUDA_DRIVER_PTX");
    if (folder) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%05d.ptx", folder, number);
        FILE *file = fopen(path, "w");
        if (!file || fputs(image, file) < 0 || fclose(file) != 0)
            return INVALID_VALUE;
    }
    return emulated(module, image);
}

Result cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)name;
    *function = module;
    return SUCCESS;
}

Result cuModuleUnload(void *module)
{
    (void)module;
    return SUCCESS;
}

Result cuFuncSetAttribute(void *function, int attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    return SUCCESS;
}

Result cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                      void *stream, void **arguments, void **extra)
{
    (void)grid_z, (void)block_y, (void)block_z, (void)stream, (void)extra;
    const struct Emulated *kernel = function;
    if (kernel->run)
        kernel->run(arguments[0], grid_x, grid_y, block_x, shared_bytes);
    return SUCCESS;
}
