/*
 * An NVIDIA GPU that computes nothing, for Mesa's NVK: it answers the calls that NVK makes to libdrm.
 * README.md next to this file says what it is for.
 *
 * It is linked in front of NVK, so that NVK's calls find these functions before the real libdrm's. Work
 * that is submitted completes at once and changes no memory, so everything reads as zeros unless the
 * program has written it through a mapping.
 *
 * Written from the kernel's interface: nouveau_drm.h of linux-libc-dev, xf86drm.h and nvif/ of
 * libdrm-dev.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xf86drm.h>

#include <drm/nouveau_drm.h>
#include <nvif/cl0080.h>
#include <nvif/ioctl.h>

/* The newest family that cl0080.h names is Maxwell. NVK goes by the classes. */
enum { TURING = 0x0c, AMPERE = 0x0d, ADA = 0x0e };

static const struct gpu {
    const char *name; /* of NVIDIA_STUB */
    const char *chip;
    uint16_t pci, chipset;
    uint8_t family;
    uint8_t clusters;        /* graphics processing clusters */
    uint16_t multiprocessors;
    uint64_t memory;         /* MiB */
    int32_t classes[5];      /* 2D, upload, copies, 3D, compute */
} gpus[] = {
    {"2060", "TU106", 0x1f08, 0x166, TURING, 3, 30, 6144, {0x902d, 0xa140, 0xc5b5, 0xc597, 0xc5c0}},
    {"3060", "GA106", 0x2503, 0x176, AMPERE, 3, 28, 12288, {0x902d, 0xa140, 0xc7b5, 0xc797, 0xc7c0}},
    {"4070", "AD104", 0x2786, 0x194, ADA, 4, 46, 12288, {0x902d, 0xa140, 0xc7b5, 0xc997, 0xc9c0}},
};
#define LENGTH(array) (sizeof(array) / sizeof *(array))

/* Returns the GPU that NVIDIA_STUB names, or NULL if it names none of them. */
static const struct gpu *gpu(void)
{
    const char *name = getenv("NVIDIA_STUB");
    if (!name)
        name = "3060";
    for (size_t i = 0; i < LENGTH(gpus); i++)
        if (!strcmp(name, gpus[i].name))
            return &gpus[i];
    fprintf(stderr, "nvidia stub: NVIDIA_STUB=%s: not one of 2060, 3060, 4070\n", name);
    return NULL;
}

/* ---- Objects: buffers and sync objects, by handles from 1 ------------------------------------ */

struct object {
    uint64_t video_memory; /* bytes of a buffer in the GPU's memory */
    uint64_t point;        /* the last point of a timeline that was reached */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct object *objects; /* a handle is an index plus one */
static uint32_t made, *unused, unused_count;
static uint64_t video_memory_used;

static void *grown(void *array, size_t count, size_t size)
{
    /* Doubles at each power of two. */
    if (count & (count - 1))
        return array;
    array = realloc(array, (count ? 2 * count : 1) * size);
    if (!array)
        abort();
    return array;
}

/* Returns a handle, or 0 if the GPU has less memory than this left. */
static uint32_t create(uint64_t video_memory)
{
    uint32_t handle = 0;
    pthread_mutex_lock(&lock);
    if (video_memory <= (gpu()->memory << 20) - video_memory_used) {
        if (unused_count) {
            handle = unused[--unused_count];
        } else {
            objects = grown(objects, made, sizeof *objects);
            handle = ++made;
        }
        objects[handle - 1] = (struct object){.video_memory = video_memory};
        video_memory_used += video_memory;
    }
    pthread_mutex_unlock(&lock);
    return handle;
}

static int destroy(uint32_t handle)
{
    pthread_mutex_lock(&lock);
    video_memory_used -= objects[handle - 1].video_memory;
    unused = grown(unused, unused_count, sizeof *unused);
    unused[unused_count++] = handle;
    pthread_mutex_unlock(&lock);
    return 0;
}

static uint64_t point(uint32_t handle)
{
    pthread_mutex_lock(&lock);
    uint64_t value = objects[handle - 1].point;
    pthread_mutex_unlock(&lock);
    return value;
}

static void reach(uint32_t handle, uint64_t value)
{
    pthread_mutex_lock(&lock);
    if (objects[handle - 1].point < value)
        objects[handle - 1].point = value;
    pthread_mutex_unlock(&lock);
}

/* ---- The kernel's requests ------------------------------------------------------------------- */

static int get_param(struct drm_nouveau_getparam *get)
{
    struct timespec now;
    switch (get->param) {
    case NOUVEAU_GETPARAM_PCI_VENDOR: get->value = 0x10de; break;
    case NOUVEAU_GETPARAM_PCI_DEVICE: get->value = gpu()->pci; break;
    case NOUVEAU_GETPARAM_BUS_TYPE: get->value = NV_DEVICE_INFO_V0_PCIE; break;
    case NOUVEAU_GETPARAM_CHIPSET_ID: get->value = gpu()->chipset; break;
    case NOUVEAU_GETPARAM_FB_SIZE:
    case NOUVEAU_GETPARAM_VRAM_BAR_SIZE: get->value = gpu()->memory << 20; break;
    case NOUVEAU_GETPARAM_AGP_SIZE: get->value = 16ull << 30; break;
    case NOUVEAU_GETPARAM_VRAM_USED:
        pthread_mutex_lock(&lock);
        get->value = video_memory_used;
        pthread_mutex_unlock(&lock);
        break;
    case NOUVEAU_GETPARAM_GRAPH_UNITS:
        /* Clusters, and pairs of multiprocessors. */
        get->value = gpu()->clusters | gpu()->multiprocessors / 2 << 8;
        break;
    case NOUVEAU_GETPARAM_PTIMER_TIME:
        clock_gettime(CLOCK_MONOTONIC, &now);
        get->value = now.tv_sec * 1000000000ull + now.tv_nsec;
        break;
    case NOUVEAU_GETPARAM_EXEC_PUSH_MAX: get->value = 256; break;
    case NOUVEAU_GETPARAM_HAS_BO_USAGE:
    case NOUVEAU_GETPARAM_HAS_VMA_TILEMODE: get->value = 1; break;
    default: return -EINVAL;
    }
    return 0;
}

/* Requests about objects of the hardware: the device's description, the classes of a channel. */
static int nvif(struct nvif_ioctl_v0 *request, size_t size)
{
    struct nvif_ioctl_sclass_v0 *list = (void *)request->data;
    struct nvif_ioctl_mthd_v0 *method = (void *)request->data;
    struct nv_device_info_v0 *info = (void *)method->data;
    switch (request->type) {
    case NVIF_IOCTL_V0_NEW:
    case NVIF_IOCTL_V0_DEL: return 0;
    case NVIF_IOCTL_V0_SCLASS:
        for (size_t i = 0; i < LENGTH(gpu()->classes) && i < list->count; i++)
            list->oclass[i] = (struct nvif_ioctl_sclass_oclass_v0){gpu()->classes[i], -1, -1};
        list->count = LENGTH(gpu()->classes);
        return 0;
    case NVIF_IOCTL_V0_MTHD:
        if (method->method != NV_DEVICE_V0_INFO ||
            size < sizeof *request + sizeof *method + sizeof *info)
            return -EINVAL;
        *info = (struct nv_device_info_v0){
            .platform = NV_DEVICE_INFO_V0_PCIE,
            .chipset = gpu()->chipset,
            .revision = 0xa1,
            .family = gpu()->family,
            .ram_size = gpu()->memory << 20,
            .ram_user = gpu()->memory << 20,
        };
        snprintf(info->chip, sizeof info->chip, "%s", gpu()->chip);
        snprintf(info->name, sizeof info->name, "NV%X", gpu()->chipset);
        return 0;
    default: return -EINVAL;
    }
}

static int new_buffer(struct drm_nouveau_gem_new *new)
{
    bool local = new->info.domain & NOUVEAU_GEM_DOMAIN_VRAM;
    new->info.handle = create(local ? new->info.size : 0);
    /* The nodes are /dev/zero: each mapping is fresh memory. */
    new->info.map_handle = 0;
    new->info.offset = 0;
    return new->info.handle ? 0 : -ENOMEM;
}

static void signal_all(uint64_t array, uint32_t count)
{
    const struct drm_nouveau_sync *sync = (void *)(uintptr_t)array;
    for (uint32_t i = 0; i < count; i++)
        reach(sync[i].handle, sync[i].timeline_value);
}

static int request(unsigned long command, void *data, unsigned long size)
{
    struct drm_nouveau_channel_alloc *channel = data;
    struct drm_nouveau_vm_bind *bind = data;
    struct drm_nouveau_exec *exec = data;
    switch (command) {
    case DRM_NOUVEAU_GETPARAM: return get_param(data);
    case DRM_NOUVEAU_NVIF: return nvif(data, size);
    case DRM_NOUVEAU_GEM_NEW: return new_buffer(data);
    case DRM_NOUVEAU_CHANNEL_ALLOC:
        channel->channel = 1;
        channel->pushbuf_domains = NOUVEAU_GEM_DOMAIN_VRAM | NOUVEAU_GEM_DOMAIN_GART;
        return 0;
    case DRM_NOUVEAU_VM_BIND: signal_all(bind->sig_ptr, bind->sig_count); return 0;
    case DRM_NOUVEAU_EXEC: signal_all(exec->sig_ptr, exec->sig_count); return 0;
    case DRM_NOUVEAU_VM_INIT:
    case DRM_NOUVEAU_CHANNEL_FREE:
    case DRM_NOUVEAU_GPUOBJ_FREE:
    case DRM_NOUVEAU_GEM_CPU_PREP:
    case DRM_NOUVEAU_GEM_CPU_FINI: return 0;
    default: return -EINVAL;
    }
}

/* ---- The functions of libdrm ----------------------------------------------------------------- */

int drmCommandRead(int fd, unsigned long command, void *data, unsigned long size)
{
    (void)fd;
    return request(command, data, size);
}

int drmCommandWrite(int fd, unsigned long command, void *data, unsigned long size)
{
    (void)fd;
    return request(command, data, size);
}

int drmCommandWriteRead(int fd, unsigned long command, void *data, unsigned long size)
{
    (void)fd;
    return request(command, data, size);
}

int drmIoctl(int fd, unsigned long number, void *data)
{
    (void)fd;
    int command = (int)_IOC_NR(number) - DRM_COMMAND_BASE;
    int code = command < 0 ? -EINVAL : request((unsigned long)command, data, _IOC_SIZE(number));
    errno = -code;
    return code ? -1 : 0;
}

int drmCloseBufferHandle(int fd, uint32_t handle)
{
    (void)fd;
    return destroy(handle);
}

/* A PCI device, whose two nodes are /dev/zero. One allocation, which drmFreeDevice frees. */
static drmDevicePtr device(void)
{
    static char node[] = "/dev/zero";
    struct {
        drmDevice device;
        drmPciBusInfo bus;
        drmPciDeviceInfo info;
        char *nodes[DRM_NODE_MAX];
    } *all = calloc(1, sizeof *all);
    if (!all)
        abort();
    all->bus = (drmPciBusInfo){.bus = 1};
    all->info = (drmPciDeviceInfo){.vendor_id = 0x10de,
                                   .device_id = gpu()->pci,
                                   .subvendor_id = 0x10de,
                                   .subdevice_id = gpu()->pci,
                                   .revision_id = 0xa1};
    all->nodes[DRM_NODE_PRIMARY] = all->nodes[DRM_NODE_RENDER] = node;
    all->device = (drmDevice){.nodes = all->nodes,
                              .available_nodes = 1 << DRM_NODE_PRIMARY | 1 << DRM_NODE_RENDER,
                              .bustype = DRM_BUS_PCI,
                              .businfo.pci = &all->bus,
                              .deviceinfo.pci = &all->info};
    return &all->device;
}

int drmGetDevices2(uint32_t flags, drmDevicePtr devices[], int most)
{
    (void)flags;
    if (!gpu())
        return 0;
    if (devices && most > 0)
        devices[0] = device();
    return 1;
}

int drmGetDevice2(int fd, uint32_t flags, drmDevicePtr *out)
{
    (void)fd, (void)flags;
    *out = device();
    return 0;
}

int drmGetDeviceFromDevId(dev_t id, uint32_t flags, drmDevicePtr *out)
{
    (void)id;
    return drmGetDevice2(-1, flags, out);
}

void drmFreeDevice(drmDevicePtr *device)
{
    free(*device);
    *device = NULL;
}

void drmFreeDevices(drmDevicePtr devices[], int count)
{
    for (int i = 0; i < count; i++)
        drmFreeDevice(&devices[i]);
}

drmVersionPtr drmGetVersion(int fd)
{
    (void)fd;
    static char name[] = "nouveau", empty[] = "";
    drmVersionPtr version = malloc(sizeof *version);
    if (version)
        *version = (drmVersion){.version_major = 1,
                                .version_minor = 4,
                                .version_patchlevel = 2,
                                .name = name,
                                .name_len = sizeof name - 1,
                                .date = empty,
                                .desc = empty};
    return version;
}

void drmFreeVersion(drmVersionPtr version)
{
    free(version);
}

int drmGetCap(int fd, uint64_t capability, uint64_t *value)
{
    (void)fd;
    *value = capability == DRM_CAP_SYNCOBJ || capability == DRM_CAP_SYNCOBJ_TIMELINE;
    return 0;
}

/* ---- Sync objects: always signalled ---------------------------------------------------------- */

int drmSyncobjCreate(int fd, uint32_t flags, uint32_t *handle)
{
    (void)fd, (void)flags;
    *handle = create(0);
    return 0;
}

int drmSyncobjDestroy(int fd, uint32_t handle)
{
    (void)fd;
    return destroy(handle);
}

int drmSyncobjReset(int fd, const uint32_t *handles, uint32_t count)
{
    (void)fd, (void)handles, (void)count;
    return 0;
}

int drmSyncobjSignal(int fd, const uint32_t *handles, uint32_t count)
{
    return drmSyncobjReset(fd, handles, count);
}

int drmSyncobjWait(int fd, uint32_t *handles, unsigned count, int64_t timeout, unsigned flags,
                   uint32_t *first)
{
    (void)fd, (void)handles, (void)count, (void)timeout, (void)flags;
    if (first)
        *first = 0;
    return 0;
}

int drmSyncobjTimelineWait(int fd, uint32_t *handles, uint64_t *points, unsigned count,
                           int64_t timeout, unsigned flags, uint32_t *first)
{
    (void)points;
    return drmSyncobjWait(fd, handles, count, timeout, flags, first);
}

int drmSyncobjTimelineSignal(int fd, const uint32_t *handles, uint64_t *points, uint32_t count)
{
    (void)fd;
    for (uint32_t i = 0; i < count; i++)
        reach(handles[i], points[i]);
    return 0;
}

int drmSyncobjQuery2(int fd, uint32_t *handles, uint64_t *points, uint32_t count, uint32_t flags)
{
    (void)fd, (void)flags;
    for (uint32_t i = 0; i < count; i++)
        points[i] = point(handles[i]);
    return 0;
}

int drmSyncobjTransfer(int fd, uint32_t to, uint64_t to_point, uint32_t from, uint64_t from_point,
                       uint32_t flags)
{
    (void)fd, (void)from, (void)from_point, (void)flags;
    reach(to, to_point);
    return 0;
}
