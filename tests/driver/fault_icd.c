/*
 * A Vulkan driver for tests: it forwards every call to a real driver, counts what the program
 * under test does, and fails it on request. README.md next to this file says what each variable
 * does.
 *
 * It is a driver and not a layer because the loader needs only VK_DRIVER_FILES for it, and no call
 * can bypass it. The real driver's handles are passed on unchanged. Their first word already holds
 * what the loader requires, so only functions are replaced, where their addresses are returned.
 *
 * Two locks. `state` guards the counters, the table of handles and the report. A device's `queues`
 * serializes submits and the loss of that device; it is locked before `state`, never after it.
 *
 * VKAPI_ATTR and VKAPI_CALL are left out: they are empty on Linux.
 */
#define _GNU_SOURCE /* RTLD_NODELETE, dladdr, environ, asprintf */
#define VK_NO_PROTOTYPES
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <vulkan/vulkan_core.h>

/* The functions that this file replaces. It calls no others of the real driver's. */
#define INSTANCE_FUNCTIONS(X)                                                                      \
    X(CreateDevice) X(EnumerateDeviceExtensionProperties) X(GetDeviceProcAddr)                     \
    X(GetPhysicalDeviceMemoryProperties) X(GetPhysicalDeviceMemoryProperties2)                     \
    X(GetPhysicalDeviceProperties) X(GetPhysicalDeviceProperties2)
#define DEVICE_FUNCTIONS(X)                                                                        \
    X(AllocateMemory) X(DeviceWaitIdle) X(FreeMemory) X(GetDeviceQueue) X(GetDeviceQueue2)         \
    X(GetFenceStatus) X(GetSemaphoreCounterValue) X(QueueBindSparse) X(QueueSubmit)                \
    X(QueueSubmit2) X(QueueWaitIdle) X(WaitForFences) X(WaitSemaphores) KERNEL_FUNCTIONS(X)
/* Those of "Kernels" below. */
#define KERNEL_FUNCTIONS(X)                                                                        \
    X(AllocateCommandBuffers) X(CmdBindDescriptorSets) X(CmdBindPipeline) X(CmdDispatch)           \
    X(CmdFillBuffer) X(CreateComputePipelines) X(CreateShaderModule) X(UpdateDescriptorSets)
#define FIELD(name) PFN_vk##name name;
/* Looks up a function under its core name, else under its name as an extension. */
#define LOOK_UP(get, handle, field, name)                                                          \
    if (!(field) && !((field) = (PFN_vk##name)get(handle, "vk" #name)))                            \
        (field) = (PFN_vk##name)get(handle, "vk" #name "KHR");
#define MIN(a, b) ((a) < (b) ? (a) : (b))

typedef VkResult (*negotiate)(uint32_t *);
typedef PFN_vkVoidFunction (*get_proc)(VkInstance, const char *);
VkResult vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *);
PFN_vkVoidFunction vk_icdGetInstanceProcAddr(VkInstance, const char *);
PFN_vkVoidFunction vk_icdGetPhysicalDeviceProcAddr(VkInstance, const char *);

/* ---- Settings and report --------------------------------------------------------------------- */

static struct {
    const char *driver, *once, *crash_at;               /* a function's name without vk */
    uint64_t refuse, lose_submit, lose_wait, hang_wait;    /* 0: never */
    uint64_t refuse_submit, hang_submit, crash_matrices;   /* 0: never */
    uint64_t away, lose_for;                            /* seconds */
    uint64_t cap, binding, heap, budget, subgroup;      /* UINT64_MAX: unchanged */
    bool refuse_rest, device_only, discrete, integrated, no_budget;
    const char *name;                          /* NULL: unchanged */
    const char *crash_in, *hang_in, *wrong_in; /* kinds of kernels, or NULL */
    const char *hide;                          /* an extension, or NULL */
    const char *times;                         /* a file for the times of submits, or NULL */
    const char *others;                        /* a file with the bytes that others hold, or NULL */
    int report;                                /* a file descriptor, or -1 */
} config = {.driver = "libvulkan_lvp.so", .cap = -1, .binding = -1, .heap = -1, .budget = -1,
            .subgroup = -1, .report = -1};

static struct {
    uint64_t allocations, frees, bytes, peak_bytes, refused, failed, submits, waits, lost, hung;
    uint64_t matrices, unmarked;
} count;

static pthread_mutex_t state = PTHREAD_MUTEX_INITIALIZER;

/* Rewrites the report in place, under `state`. The line's width is fixed: one pwrite replaces all
 * of it, so the file is complete whenever the process is killed. */
static void report(void)
{
    if (config.report < 0)
        return;
    char line[420];
#define VALUE(name) ",\"" #name "\":%" PRIu64
    int n = snprintf(line, sizeof line,
                     "{\"pid\":%d" VALUE(allocations) VALUE(frees) VALUE(bytes) VALUE(peak_bytes)
                         VALUE(refused) VALUE(failed) VALUE(submits) VALUE(waits) VALUE(lost)
                             VALUE(hung) VALUE(matrices) VALUE(unmarked) "}",
                     (int)getpid(), count.allocations, count.frees, count.bytes, count.peak_bytes,
                     count.refused, count.failed, count.submits, count.waits, count.lost,
                     count.hung, count.matrices, count.unmarked);
    memset(line + n, ' ', sizeof line - n);
    line[sizeof line - 1] = '\n';
    if (pwrite(config.report, line, sizeof line, 0) != sizeof line)
        fprintf(stderr, "wgpt-fault: FAULT_REPORT: %s\n", strerror(errno));
}

/* Returns true if this process may fire its faults. Called under `state` when the first one is due.
 * The file belongs to the process that creates it: all faults of that process fire, and none of a
 * process that finds the file. */
static bool may_fire(void)
{
    static enum { OPEN, OURS, SPENT } once;
    if (config.once && once == OPEN) {
        int fd = open(config.once, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST)
            fprintf(stderr, "wgpt-fault: FAULT_ONCE: %s: %s\n", config.once, strerror(errno));
        once = fd < 0 ? SPENT : OURS;
        if (fd >= 0)
            close(fd);
    }
    return !config.once || once == OURS;
}

/* Returns true for `seconds` from the first attempt to open a device after a fault of any process. That
 * attempt writes a byte into the file of `once`, empty until then. */
static bool is_within(uint64_t seconds)
{
    struct stat file;
    struct timespec now;
    if (!seconds || stat(config.once, &file) || clock_gettime(CLOCK_REALTIME, &now))
        return false;
    if (!file.st_size) {
        int fd = open(config.once, O_WRONLY | O_APPEND | O_CLOEXEC);
        if (fd < 0 || write(fd, "!", 1) != 1)
            fprintf(stderr, "wgpt-fault: FAULT_ONCE: %s: %s\n", config.once, strerror(errno));
        if (fd >= 0)
            close(fd);
        return true;
    }
    double since = difftime(now.tv_sec, file.st_mtim.tv_sec) +
                   (now.tv_nsec - file.st_mtim.tv_nsec) * 1e-9;
    return since < (double)seconds;
}

static bool bad(const char *name, const char *value, const char *why)
{
    fprintf(stderr, "wgpt-fault: FAULT_%s=%s: %s\n", name, value, why);
    return false;
}

/* Parses a number above 0, with an optional `+` after it if `plus` is given. */
static bool number(const char *text, uint64_t *value, bool *plus)
{
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 10);
    if (plus && (*plus = *end == '+'))
        end++;
    return *text >= '0' && *text <= '9' && !*end && !errno && *value;
}

static bool open_report(const char *pattern)
{
    const char *at = strstr(pattern, "%p");
    char *path = NULL;
    if (at && asprintf(&path, "%.*s%d%s", (int)(at - pattern), pattern, getpid(), at + 2) < 0)
        abort();
    config.report = open(at ? path : pattern, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0666);
    free(path);
    return config.report >= 0 || bad("REPORT", pattern, strerror(errno));
}

/* Applies one variable; `name` is without FAULT_. */
static bool set(const char *name, const char *value)
{
    const struct {
        const char *name;
        uint64_t *value;
        bool *plus;
    } numbers[] = {{"AWAY", &config.away, NULL},
                   {"BINDING", &config.binding, NULL},
                   {"CAP", &config.cap, NULL},
                   {"CRASH_MATRICES", &config.crash_matrices, NULL},
                   {"HANG_SUBMIT", &config.hang_submit, NULL},
                   {"HANG_WAIT", &config.hang_wait, NULL},
                   {"HEAP", &config.heap, NULL},
                   {"LOSE_FOR", &config.lose_for, NULL},
                   {"LOSE_SUBMIT", &config.lose_submit, NULL},
                   {"LOSE_WAIT", &config.lose_wait, NULL},
                   {"REFUSE", &config.refuse, &config.refuse_rest},
                   {"REFUSE_SUBMIT", &config.refuse_submit, NULL},
                   {"SUBGROUP", &config.subgroup, NULL}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(name, numbers[i].name))
            return number(value, numbers[i].value, numbers[i].plus) ||
                   bad(name, value, numbers[i].plus ? "write a whole number above 0, N or N+"
                                                    : "write a whole number above 0");
    if (!strcmp(name, "REPORT"))
        return open_report(value);
    const struct {
        const char *name, **kind;
    } kernels[] = {{"CRASH_IN", &config.crash_in},
                   {"HANG_IN", &config.hang_in},
                   {"WRONG_IN", &config.wrong_in}};
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (!strcmp(name, kernels[i].name)) {
            *kernels[i].kind = strdup(value);
            bool known = !strcmp(value, "attention") || !strcmp(value, "cooperative");
            return known || bad(name, value, "write attention or cooperative");
        }
    if (!strcmp(name, "HIDE")) {
        config.hide = strdup(value);
        return true;
    }
    if (!strcmp(name, "DRIVER")) {
        config.driver = value;
        return *value || bad(name, value, "write a library's path");
    }
    if (!strcmp(name, "CRASH_AT")) {
        config.crash_at = strdup(value);
        return (*value >= 'A' && *value <= 'Z') || bad(name, value, "write a function without vk");
    }
    if (!strcmp(name, "ONCE")) {
        config.once = strdup(value); /* used late: the program may change its environment */
        char *copy = strdup(value), *folder = dirname(copy);
        bool can = *value && !access(folder, W_OK | X_OK);
        free(copy);
        return can || bad(name, value, "cannot create a file there");
    }
    if (!strcmp(name, "BUDGET")) {
        config.no_budget = !strcmp(value, "none");
        return config.no_budget || number(value, &config.budget, NULL) ||
               bad(name, value, "write a whole number above 0, or none");
    }
    if (!strcmp(name, "KIND")) {
        config.discrete = !strcmp(value, "discrete");
        config.integrated = !strcmp(value, "integrated");
        bool known = config.discrete || config.integrated;
        return known || bad(name, value, "write discrete or integrated");
    }
    if (!strcmp(name, "TIMES")) {
        config.times = strdup(value);
        return *value || bad(name, value, "write the name of a file");
    }
    if (!strcmp(name, "OTHERS")) {
        config.others = strdup(value); /* used late, like the file of FAULT_ONCE */
        return *value || bad(name, value, "write the name of a file");
    }
    if (!strcmp(name, "NAME")) {
        config.name = strdup(value); /* used late, like the file of FAULT_ONCE */
        return *value || bad(name, value, "write a name");
    }
    if (!strcmp(name, "MEMORY")) {
        config.device_only = !strcmp(value, "device");
        bool known = config.device_only || !strcmp(value, "all");
        return known || bad(name, value, "write all or device");
    }
    return bad(name, value, "unknown variable");
}

/* Reads every variable with the prefix, so that a misspelt one is an error and not a test that
 * passes because nothing was injected. */
static bool configure(void)
{
    static const char prefix[] = "FAULT_";
    bool fine = true;
    for (char **entry = environ; fine && *entry; entry++) {
        const char *equals = strchr(*entry, '=');
        if (!equals || strncmp(*entry, prefix, sizeof prefix - 1))
            continue;
        char *name = strndup(*entry + sizeof prefix - 1, equals - *entry - (sizeof prefix - 1));
        fine = set(name, equals + 1);
        free(name);
    }
    if (fine && (config.away || config.lose_for) && !config.once)
        fine = bad(config.away ? "AWAY" : "LOSE_FOR", "", "needs FAULT_ONCE");
    return fine;
}

/* The real driver. Its instance functions are stored once and not per instance, because the handle
 * they take identifies the instance. A later instance may add functions that the first lacked. */
static struct {
    negotiate negotiate;
    get_proc instance, physical;
    INSTANCE_FUNCTIONS(FIELD)
    bool ready;
} real;

static void start(void)
{
    /* The loader may unload a driver between two instances. That would reset the counters and the
     * faults that have fired, so this library stays loaded. */
    Dl_info self;
    if (dladdr((void *)vk_icdGetInstanceProcAddr, &self))
        dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
    if (!configure())
        return;
    /* As the loader does: functions that the driver never calls may be missing. */
    void *lib = dlopen(config.driver, RTLD_LAZY | RTLD_LOCAL);
    if (!lib) {
        bad("DRIVER", config.driver, dlerror());
        return;
    }
    real.negotiate = (negotiate)dlsym(lib, "vk_icdNegotiateLoaderICDInterfaceVersion");
    real.instance = (get_proc)dlsym(lib, "vk_icdGetInstanceProcAddr");
    real.physical = (get_proc)dlsym(lib, "vk_icdGetPhysicalDeviceProcAddr");
    real.ready = real.negotiate && real.instance && real.instance != vk_icdGetInstanceProcAddr;
    if (!real.ready)
        bad("DRIVER", config.driver, "not a Vulkan driver that this one can wrap");
    report();
}

static bool started(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
    return real.ready;
}

/* ---- Handles --------------------------------------------------------------------------------- */

/* Devices are few, so their records are never freed: no thread can use a record while another frees
 * it, and memory that outlives its device still has an owner. A handle that the driver reuses
 * replaces the old entry. */
struct device {
    DEVICE_FUNCTIONS(FIELD)
    VkDevice handle;
    VkPhysicalDevice physical;
    VkPhysicalDeviceMemoryProperties memory;
    pthread_mutex_t queues;
    atomic_bool lost, hung;
    bool doomed;   /* lost at its first submit or wait */
    bool matrices; /* opened with cooperative matrices */
};

enum kind { DEVICE, QUEUE, COMMANDS, MEMORY, SEMAPHORE, MODULE, PIPELINE, SET };

static struct object {
    struct object *next;
    enum kind kind;
    uint64_t handle, size; /* of a semaphore: its last reported value */
    struct device *device;
    uint32_t heap;
    const char *kernel;                /* of a module or a pipeline, or bound: its kind, or NULL */
    VkDescriptorBufferInfo buffers[3]; /* of a set, or bound: those of the first bindings */
} *objects[256];

/* Returns the link that points to an object, or the one to add it at. Handles that are not
 * dispatchable are only unique within their device. */
static struct object **slot(enum kind kind, uint64_t handle, struct device *device)
{
    struct object **at = &objects[(handle >> 4 ^ handle >> 12) % 256];
    while (*at && ((*at)->kind != kind || (*at)->handle != handle ||
                   (kind >= MEMORY && (*at)->device != device)))
        at = &(*at)->next;
    return at;
}

static struct object *put(enum kind kind, uint64_t handle, struct device *device)
{
    struct object **at = slot(kind, handle, device);
    if (!*at && !(*at = calloc(1, sizeof **at)))
        abort();
    (*at)->kind = kind;
    (*at)->handle = handle;
    (*at)->device = device;
    return *at;
}

static void remember(enum kind kind, const void *handle, struct device *device)
{
    pthread_mutex_lock(&state);
    put(kind, (uintptr_t)handle, device);
    pthread_mutex_unlock(&state);
}

static struct device *device_of(enum kind kind, const void *handle)
{
    pthread_mutex_lock(&state);
    struct object *found = *slot(kind, (uintptr_t)handle, NULL);
    struct device *device = found ? found->device : NULL;
    pthread_mutex_unlock(&state);
    if (!device) {
        static const char *const names[] = {"device", "queue", "command buffer"};
        fprintf(stderr, "wgpt-fault: a %s that this driver did not create\n", names[kind]);
        abort();
    }
    return device;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static bool counts(const VkPhysicalDeviceMemoryProperties *memory, uint32_t heap)
{
    return !config.device_only ||
           memory->memoryHeaps[heap].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT;
}

/* Returns the bytes that other programs hold now, by the file of FAULT_OTHERS. */
static uint64_t others(void)
{
    uint64_t bytes = 0;
    FILE *file = config.others ? fopen(config.others, "r") : NULL;
    if (file) {
        if (fscanf(file, "%" SCNu64, &bytes) != 1)
            bytes = 0;
        fclose(file);
    }
    return bytes;
}

/* Here and below, the lock is held during the driver's call: two threads cannot both pass the check
 * of the cap, and a freed handle cannot be reused before its entry is removed. */
static VkResult fault_AllocateMemory(VkDevice handle, const VkMemoryAllocateInfo *info,
                                     const VkAllocationCallbacks *callbacks, VkDeviceMemory *out)
{
    struct device *d = device_of(DEVICE, handle);
    uint32_t heap = d->memory.memoryTypes[info->memoryTypeIndex].heapIndex;
    uint64_t size = info->allocationSize;
    bool counted = counts(&d->memory, heap);
    VkResult result = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    pthread_mutex_lock(&state);
    uint64_t nth = count.allocations += counted;
    bool due = counted && config.refuse &&
               (config.refuse_rest ? nth >= config.refuse : nth == config.refuse);
    uint64_t cap = MIN(config.cap, config.others ? config.heap : UINT64_MAX);
    cap -= MIN(cap, others());
    bool over = counted && (size > cap || count.bytes > cap - size);
    if (over || (due && may_fire())) {
        count.refused++;
    } else if ((result = d->AllocateMemory(handle, info, callbacks, out)) == VK_SUCCESS) {
        struct object *object = put(MEMORY, (uint64_t)*out, d);
        object->size = size;
        object->heap = heap;
        count.bytes += counted ? size : 0;
        count.peak_bytes = count.bytes > count.peak_bytes ? count.bytes : count.peak_bytes;
    } else {
        count.failed += counted;
    }
    report();
    pthread_mutex_unlock(&state);
    return result;
}

static void fault_FreeMemory(VkDevice handle, VkDeviceMemory memory,
                             const VkAllocationCallbacks *callbacks)
{
    struct device *d = device_of(DEVICE, handle);
    pthread_mutex_lock(&state);
    struct object **at = slot(MEMORY, (uint64_t)memory, d), *gone = *at;
    if (gone && counts(&d->memory, gone->heap)) {
        count.frees++;
        count.bytes -= gone->size;
    }
    if (gone)
        *at = gone->next;
    free(gone);
    d->FreeMemory(handle, memory, callbacks);
    report();
    pthread_mutex_unlock(&state);
}

/* ---- Crashes --------------------------------------------------------------------------------- */

/* Ends the process as a driver's bad access does. It takes the place of any function. */
static void crash(void)
{
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
    abort();
}

/* ---- Submits and waits ----------------------------------------------------------------------- */

/* Counts a call and returns true if its device is lost, by this call or an earlier one. `fatal` is
 * the call that loses the device; calls are counted over all devices, so it occurs once a process.
 *
 * The real driver is still computing when the loss is due, and a program may free everything that
 * a lost device held. So the submitted work completes first, and only then do all threads see the
 * loss. (A submit that waits for a semaphore which only a later call would signal would hang here.)
 *
 * `hanging` is the call from which the device hangs; it only sets a flag. */
static bool lost_at(struct device *d, uint64_t *calls, uint64_t fatal, uint64_t hanging)
{
    pthread_mutex_lock(&state);
    uint64_t nth = ++*calls;
    bool fire = !d->lost && (d->doomed || (nth == fatal && may_fire()));
    if (nth == hanging && !d->lost && may_fire()) {
        d->hung = true;
        count.hung++;
    }
    report();
    pthread_mutex_unlock(&state);
    if (fire) {
        d->DeviceWaitIdle(d->handle);
        pthread_mutex_lock(&state);
        d->lost = true;
        count.lost++;
        report();
        pthread_mutex_unlock(&state);
    }
    return d->lost;
}

/* Waits for a submit, and appends its microseconds to the file of FAULT_TIMES. */
static void take_time(struct device *d, VkQueue queue, const struct timespec *start)
{
    struct timespec end;
    d->QueueWaitIdle(queue);
    clock_gettime(CLOCK_MONOTONIC, &end);
    FILE *file = fopen(config.times, "a");
    if (file) {
        fprintf(file, "%.0f\n",
                (end.tv_sec - start->tv_sec) * 1e6 + (end.tv_nsec - start->tv_nsec) * 1e-3);
        fclose(file);
    }
}

/* A submit that fails does not reach the real driver. */
#define SUBMIT(name, info, fault)                                                                  \
    static VkResult fault_##name(VkQueue queue, uint32_t n, const info *infos, VkFence fence)      \
    {                                                                                              \
        struct device *d = device_of(QUEUE, queue);                                                \
        pthread_mutex_lock(&d->queues);                                                            \
        VkResult result = (fault);                                                                 \
        struct timespec start;                                                                     \
        clock_gettime(CLOCK_MONOTONIC, &start);                                                    \
        if (result == VK_SUCCESS)                                                                  \
            result = d->name(queue, n, infos, fence);                                              \
        if (config.times && result == VK_SUCCESS)                                                  \
            take_time(d, queue, &start);                                                           \
        pthread_mutex_unlock(&d->queues);                                                          \
        return result;                                                                             \
    }
static VkResult fault_at_submit(struct device *d)
{
    bool lost = lost_at(d, &count.submits, config.lose_submit, config.hang_submit);
    pthread_mutex_lock(&state);
    if (d->matrices && config.crash_matrices && count.submits >= config.crash_matrices)
        crash();
    bool refused = !lost && count.submits == config.refuse_submit && may_fire();
    count.refused += refused;
    report();
    pthread_mutex_unlock(&state);
    if (lost)
        return VK_ERROR_DEVICE_LOST;
    return refused ? VK_ERROR_OUT_OF_DEVICE_MEMORY : VK_SUCCESS;
}
#define FAULT_AT_SUBMIT fault_at_submit(d)
SUBMIT(QueueSubmit, VkSubmitInfo, FAULT_AT_SUBMIT)
SUBMIT(QueueSubmit2, VkSubmitInfo2, FAULT_AT_SUBMIT)
SUBMIT(QueueBindSparse, VkBindSparseInfo, d->lost ? VK_ERROR_DEVICE_LOST : VK_SUCCESS)

/* A wait holds no lock while it waits: the submit of another thread may end it. */
static bool lost_at_wait(struct device *d)
{
    pthread_mutex_lock(&d->queues);
    bool lost = lost_at(d, &count.waits, config.lose_wait, config.hang_wait);
    pthread_mutex_unlock(&d->queues);
    return lost;
}

/* A wait on a hung device. Without a timeout it is UINT64_MAX nanoseconds: 584 years. */
static VkResult hang(uint64_t timeout)
{
    struct timespec left = {timeout / 1000000000, timeout % 1000000000};
    while (nanosleep(&left, &left) && errno == EINTR)
        ;
    return VK_TIMEOUT;
}

#define UNLESS(lost_now, if_hung, name, kind, handle, parameters, arguments)                       \
    static VkResult fault_##name parameters                                                        \
    {                                                                                              \
        struct device *d = device_of(kind, handle);                                                \
        if (lost_now)                                                                              \
            return VK_ERROR_DEVICE_LOST;                                                           \
        return d->hung ? (if_hung) : d->name arguments;                                            \
    }
#define UNLESS_AT_WAIT(timeout, ...) UNLESS(lost_at_wait(d), hang(timeout), __VA_ARGS__)
UNLESS_AT_WAIT(UINT64_MAX, QueueWaitIdle, QUEUE, queue, (VkQueue queue), (queue))
UNLESS_AT_WAIT(UINT64_MAX, DeviceWaitIdle, DEVICE, device, (VkDevice device), (device))
UNLESS_AT_WAIT(timeout, WaitForFences, DEVICE, device,
               (VkDevice device, uint32_t n, const VkFence *fences, VkBool32 all, uint64_t timeout),
               (device, n, fences, all, timeout))
UNLESS_AT_WAIT(timeout, WaitSemaphores, DEVICE, device,
               (VkDevice device, const VkSemaphoreWaitInfo *info, uint64_t timeout),
               (device, info, timeout))
/* The next two are queries, not waits: they are not counted. They report a loss, but not the end of
 * work on a hung device. */
UNLESS(d->lost, VK_NOT_READY, GetFenceStatus, DEVICE, device, (VkDevice device, VkFence fence),
       (device, fence))

/* A hung device keeps reporting its last value: wgpu asserts that a value never decreases. */
static VkResult fault_GetSemaphoreCounterValue(VkDevice device, VkSemaphore semaphore,
                                               uint64_t *value)
{
    struct device *d = device_of(DEVICE, device);
    VkResult result = VK_SUCCESS;
    if (d->lost)
        return VK_ERROR_DEVICE_LOST;
    pthread_mutex_lock(&state);
    struct object *object = put(SEMAPHORE, (uint64_t)semaphore, d);
    if (!d->hung)
        result = d->GetSemaphoreCounterValue(device, semaphore, &object->size);
    *value = object->size;
    pthread_mutex_unlock(&state);
    return result;
}

/* ---- Kernels --------------------------------------------------------------------------------- */

/* Returns the kind of a module that faults name, or NULL: `cooperative` if it multiplies cooperative
 * matrices, `attention` if it is attention's forward pass. That is the only kernel of wgpt with four
 * bindings and the constant LOWEST of shaders/attention_rows.wgsl. */
static const char *kind_of(const VkShaderModuleCreateInfo *info)
{
    enum { HEADER = 5, OP_CONSTANT = 43, OP_DECORATE = 71, OP_MULTIPLY_ADD = 4459, BINDING = 33 };
    const uint32_t lowest = 0xff61b1e6, *word = info->pCode, *end = word + info->codeSize / 4;
    uint32_t bindings = 0;
    bool has_lowest = false;
    for (word += HEADER; word < end && *word >> 16; word += *word >> 16) {
        uint32_t op = *word & 0xffff;
        if (op == OP_MULTIPLY_ADD)
            return "cooperative";
        bindings += op == OP_DECORATE && word[2] == BINDING;
        has_lowest |= op == OP_CONSTANT && word[3] == lowest;
    }
    return bindings == 4 && has_lowest ? "attention" : NULL;
}

/* Returns true unless the module loads or stores a cooperative matrix without the memory operand
 * NonPrivatePointer, the last word. */
static bool is_marked(const VkShaderModuleCreateInfo *info)
{
    enum { HEADER = 5, LOAD = 4457, STORE = 4458, NON_PRIVATE = 0x20 };
    const uint32_t *word = info->pCode, *end = word + info->codeSize / 4;
    for (word += HEADER; word < end && *word >> 16; word += *word >> 16) {
        uint32_t op = *word & 0xffff, length = *word >> 16;
        if ((op == LOAD || op == STORE) &&
            (length != (op == LOAD ? 7 : 6) || !(word[length - 1] & NON_PRIVATE)))
            return false;
    }
    return true;
}

static bool is(const char *kernel, const char *faulty)
{
    return kernel && faulty && !strcmp(kernel, faulty);
}

static VkResult fault_CreateShaderModule(VkDevice device, const VkShaderModuleCreateInfo *info,
                                         const VkAllocationCallbacks *callbacks,
                                         VkShaderModule *out)
{
    struct device *d = device_of(DEVICE, device);
    VkResult result = d->CreateShaderModule(device, info, callbacks, out);
    pthread_mutex_lock(&state);
    const char *kernel = kind_of(info);
    if (result == VK_SUCCESS)
        put(MODULE, (uint64_t)*out, d)->kernel = kernel;
    count.matrices += is(kernel, "cooperative");
    count.unmarked += !is_marked(info);
    report();
    pthread_mutex_unlock(&state);
    return result;
}

static VkResult fault_CreateComputePipelines(VkDevice device, VkPipelineCache cache, uint32_t n,
                                             const VkComputePipelineCreateInfo *infos,
                                             const VkAllocationCallbacks *callbacks,
                                             VkPipeline *out)
{
    struct device *d = device_of(DEVICE, device);
    const char **kernels = calloc(n, sizeof *kernels);
    if (!kernels)
        abort();
    pthread_mutex_lock(&state);
    for (uint32_t i = 0; i < n; i++) {
        kernels[i] = put(MODULE, (uint64_t)infos[i].stage.module, d)->kernel;
        if (is(kernels[i], config.crash_in))
            crash();
    }
    pthread_mutex_unlock(&state);
    VkResult result = d->CreateComputePipelines(device, cache, n, infos, callbacks, out);
    pthread_mutex_lock(&state);
    for (uint32_t i = 0; i < n && result == VK_SUCCESS; i++)
        put(PIPELINE, (uint64_t)out[i], d)->kernel = kernels[i];
    pthread_mutex_unlock(&state);
    free(kernels);
    return result;
}

static VkResult fault_AllocateCommandBuffers(VkDevice device,
                                             const VkCommandBufferAllocateInfo *info,
                                             VkCommandBuffer *out)
{
    struct device *d = device_of(DEVICE, device);
    VkResult result = d->AllocateCommandBuffers(device, info, out);
    for (uint32_t i = 0; i < info->commandBufferCount && result == VK_SUCCESS; i++)
        remember(COMMANDS, out[i], d);
    return result;
}

static void fault_UpdateDescriptorSets(VkDevice device, uint32_t n,
                                       const VkWriteDescriptorSet *writes, uint32_t copies,
                                       const VkCopyDescriptorSet *copied)
{
    struct device *d = device_of(DEVICE, device);
    d->UpdateDescriptorSets(device, n, writes, copies, copied);
    pthread_mutex_lock(&state);
    for (uint32_t i = 0; i < n; i++) {
        const VkWriteDescriptorSet *w = &writes[i];
        if (w->descriptorType == VK_DESCRIPTOR_TYPE_STORAGE_BUFFER)
            /* Consecutive bindings may be written at once. */
            for (uint32_t b = w->dstBinding; b < MIN(3, w->dstBinding + w->descriptorCount); b++)
                put(SET, (uint64_t)w->dstSet, d)->buffers[b] = w->pBufferInfo[b - w->dstBinding];
    }
    pthread_mutex_unlock(&state);
}

static void fault_CmdBindDescriptorSets(VkCommandBuffer commands, VkPipelineBindPoint point,
                                        VkPipelineLayout layout, uint32_t first, uint32_t n,
                                        const VkDescriptorSet *sets, uint32_t dynamic,
                                        const uint32_t *offsets)
{
    struct device *d = device_of(COMMANDS, commands);
    d->CmdBindDescriptorSets(commands, point, layout, first, n, sets, dynamic, offsets);
    pthread_mutex_lock(&state);
    if (!first && n)
        memcpy(put(COMMANDS, (uintptr_t)commands, d)->buffers,
               put(SET, (uint64_t)sets[0], d)->buffers, sizeof(VkDescriptorBufferInfo[3]));
    pthread_mutex_unlock(&state);
}

static void fault_CmdBindPipeline(VkCommandBuffer commands, VkPipelineBindPoint point,
                                  VkPipeline pipeline)
{
    struct device *d = device_of(COMMANDS, commands);
    d->CmdBindPipeline(commands, point, pipeline);
    pthread_mutex_lock(&state);
    put(COMMANDS, (uintptr_t)commands, d)->kernel = put(PIPELINE, (uint64_t)pipeline, d)->kernel;
    pthread_mutex_unlock(&state);
}

static void fault_CmdFillBuffer(VkCommandBuffer commands, VkBuffer buffer, VkDeviceSize offset,
                                VkDeviceSize size, uint32_t value)
{
    device_of(COMMANDS, commands)->CmdFillBuffer(commands, buffer, offset, size, value);
}

/* A kernel that is wrong overwrites the last four bytes of its output: one element in float32, in the
 * last tile. A product's output is at binding 2, attention's at binding 1. A kernel that hangs hangs its
 * device. */
static void fault_CmdDispatch(VkCommandBuffer commands, uint32_t x, uint32_t y, uint32_t z)
{
    struct device *d = device_of(COMMANDS, commands);
    d->CmdDispatch(commands, x, y, z);
    pthread_mutex_lock(&state);
    struct object bound = *put(COMMANDS, (uintptr_t)commands, d);
    if (is(bound.kernel, config.hang_in) && !d->hung) {
        d->hung = true;
        count.hung++;
        report();
    }
    pthread_mutex_unlock(&state);
    const VkDescriptorBufferInfo *out = &bound.buffers[is(bound.kernel, "attention") ? 1 : 2];
    if (is(bound.kernel, config.wrong_in) && out->range != VK_WHOLE_SIZE && out->range >= 4)
        d->CmdFillBuffer(commands, out->buffer, out->offset + (out->range - 4) / 4 * 4, 4,
                         0x44004400); /* 513.1 in float32, 4 and 4 in float16 */
}

/* ---- Properties ------------------------------------------------------------------------------ */

/* A discrete GPU may have more memory than the machine. */
static void narrow_heaps(VkPhysicalDeviceMemoryProperties *memory)
{
    for (uint32_t i = 0; i < memory->memoryHeapCount; i++) {
        VkDeviceSize *size = &memory->memoryHeaps[i].size;
        *size = config.discrete && config.heap != UINT64_MAX ? config.heap
                                                             : MIN(*size, config.heap);
    }
}

static void rename_device(VkPhysicalDeviceProperties *properties)
{
    if (config.discrete)
        properties->deviceType = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
    if (config.integrated)
        properties->deviceType = VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
    if (config.discrete || config.integrated || config.name)
        snprintf(properties->deviceName, sizeof properties->deviceName, "%s",
                 config.name ? config.name : "Fault GPU");
}

static void fault_GetPhysicalDeviceProperties(VkPhysicalDevice physical,
                                              VkPhysicalDeviceProperties *out)
{
    real.GetPhysicalDeviceProperties(physical, out);
    out->limits.maxStorageBufferRange = MIN(out->limits.maxStorageBufferRange, config.binding);
    rename_device(out);
}

static void fault_GetPhysicalDeviceProperties2(VkPhysicalDevice physical,
                                               VkPhysicalDeviceProperties2 *out)
{
    real.GetPhysicalDeviceProperties2(physical, out);
    uint32_t *range = &out->properties.limits.maxStorageBufferRange;
    *range = MIN(*range, config.binding);
    rename_device(&out->properties);
    for (VkBaseOutStructure *s = (VkBaseOutStructure *)out; s; s = s->pNext) {
        uint64_t *largest = NULL; /* no allocation is larger than its heap */
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES)
            largest = &((VkPhysicalDeviceMaintenance3Properties *)s)->maxMemoryAllocationSize;
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES)
            largest = &((VkPhysicalDeviceVulkan11Properties *)s)->maxMemoryAllocationSize;
        if (largest)
            *largest = MIN(*largest, config.heap);
        VkPhysicalDeviceSubgroupSizeControlProperties *sizes = (void *)s;
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES)
            sizes->minSubgroupSize = MIN(sizes->minSubgroupSize, config.subgroup);
    }
}

static void fault_GetPhysicalDeviceMemoryProperties(VkPhysicalDevice physical,
                                                    VkPhysicalDeviceMemoryProperties *out)
{
    real.GetPhysicalDeviceMemoryProperties(physical, out);
    narrow_heaps(out);
}

/* Returns true if the budget comes from the settings and the count, and not from the real driver. */
static bool own_budget(void)
{
    return !config.no_budget && (config.budget != UINT64_MAX || config.cap != UINT64_MAX ||
                                 config.heap != UINT64_MAX);
}

/* Returns the bytes that this process holds in a heap, over all its instances. */
static uint64_t used(uint32_t heap)
{
    uint64_t sum = 0;
    pthread_mutex_lock(&state);
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++)
        for (struct object *o = objects[i]; o; o = o->next)
            if (o->kind == MEMORY && o->heap == heap)
                sum += o->size;
    pthread_mutex_unlock(&state);
    return sum;
}

static void fault_GetPhysicalDeviceMemoryProperties2(VkPhysicalDevice physical,
                                                     VkPhysicalDeviceMemoryProperties2 *out)
{
    VkPhysicalDeviceMemoryProperties *memory = &out->memoryProperties;
    real.GetPhysicalDeviceMemoryProperties2(physical, out);
    narrow_heaps(memory);
    uint64_t held_by_others = others();
    for (VkBaseOutStructure *s = (VkBaseOutStructure *)out; s && own_budget(); s = s->pNext) {
        VkPhysicalDeviceMemoryBudgetPropertiesEXT *b = (void *)s;
        if (s->sType != VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT)
            continue;
        for (uint32_t i = 0; i < VK_MAX_MEMORY_HEAPS; i++) {
            uint64_t size = i < memory->memoryHeapCount ? memory->memoryHeaps[i].size : 0;
            uint64_t limit = counts(memory, i) ? MIN(config.budget, config.cap) : UINT64_MAX;
            limit = MIN(size, limit);
            /* 0 would be a driver that reports nothing. */
            b->heapBudget[i] = counts(memory, i) ? limit - MIN(limit - 1, held_by_others) : limit;
            b->heapUsage[i] = used(i);
        }
    }
}

/* Lists the real driver's extensions. Adds the one for the budget if this file reports it, as old
 * versions of lavapipe lack it, or leaves it out. Returns true if the extension was added. */
static bool extensions(VkPhysicalDevice physical, VkExtensionProperties **list, uint32_t *n)
{
    real.EnumerateDeviceExtensionProperties(physical, NULL, n, NULL);
    if (!(*list = calloc(*n + 1, sizeof **list)))
        abort();
    real.EnumerateDeviceExtensionProperties(physical, NULL, n, *list);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < *n; i++)
        if (!config.hide || strcmp((*list)[i].extensionName, config.hide))
            (*list)[kept++] = (*list)[i];
    *n = kept;
    bool add = own_budget();
    for (uint32_t i = *n; i-- > 0;)
        if (!strcmp((*list)[i].extensionName, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME)) {
            add = false;
            if (config.no_budget)
                (*list)[i] = (*list)[--*n];
        }
    if (add) {
        strcpy((*list)[*n].extensionName, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
        (*list)[(*n)++].specVersion = VK_EXT_MEMORY_BUDGET_SPEC_VERSION;
    }
    return add;
}

static VkResult fault_EnumerateDeviceExtensionProperties(VkPhysicalDevice physical,
                                                         const char *layer, uint32_t *n,
                                                         VkExtensionProperties *out)
{
    VkExtensionProperties *list;
    uint32_t have;
    (void)layer; /* drivers have none */
    extensions(physical, &list, &have);
    *n = out ? MIN(have, *n) : have;
    if (out)
        memcpy(out, list, *n * sizeof *out);
    free(list);
    return *n < have ? VK_INCOMPLETE : VK_SUCCESS;
}

/* ---- Creation and lookup --------------------------------------------------------------------- */

static VkResult fault_CreateInstance(const VkInstanceCreateInfo *info,
                                     const VkAllocationCallbacks *callbacks, VkInstance *out)
{
    PFN_vkCreateInstance create = (PFN_vkCreateInstance)real.instance(NULL, "vkCreateInstance");
    VkResult result = create(info, callbacks, out);
    if (result != VK_SUCCESS)
        return result;
    pthread_mutex_lock(&state);
#define LOOK_UP_INSTANCE(name) LOOK_UP(real.instance, *out, real.name, name)
    INSTANCE_FUNCTIONS(LOOK_UP_INSTANCE)
    pthread_mutex_unlock(&state);
    return VK_SUCCESS;
}

static VkResult fault_CreateDevice(VkPhysicalDevice physical, const VkDeviceCreateInfo *requested,
                                   const VkAllocationCallbacks *callbacks, VkDevice *out)
{
    if (is_within(config.away))
        return VK_ERROR_INITIALIZATION_FAILED;
    VkDeviceCreateInfo info = *requested;
    VkExtensionProperties *list;
    uint32_t n;
    const char **names = calloc(requested->enabledExtensionCount + 1, sizeof *names);
    struct device *d = calloc(1, sizeof *d);
    if (!names || !d)
        abort();
    /* The real driver must not receive an extension that it lacks. */
    bool hide = extensions(physical, &list, &n);
    info.ppEnabledExtensionNames = names;
    info.enabledExtensionCount = 0;
    for (uint32_t i = 0; i < requested->enabledExtensionCount; i++) {
        const char *name = requested->ppEnabledExtensionNames[i];
        d->matrices |= !strcmp(name, "VK_KHR_cooperative_matrix");
        if (!hide || strcmp(name, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME))
            names[info.enabledExtensionCount++] = name;
    }
    VkResult result = real.CreateDevice(physical, &info, callbacks, out);
    free(list);
    free(names);
    if (result != VK_SUCCESS) {
        free(d);
        return result;
    }
#define LOOK_UP_DEVICE(name) LOOK_UP(real.GetDeviceProcAddr, *out, d->name, name)
    DEVICE_FUNCTIONS(LOOK_UP_DEVICE)
    d->handle = *out;
    d->physical = physical;
    d->doomed = is_within(config.lose_for);
    real.GetPhysicalDeviceMemoryProperties(physical, &d->memory);
    pthread_mutex_init(&d->queues, NULL);
    remember(DEVICE, *out, d);
    return VK_SUCCESS;
}

static void fault_GetDeviceQueue(VkDevice device, uint32_t family, uint32_t index, VkQueue *out)
{
    struct device *d = device_of(DEVICE, device);
    d->GetDeviceQueue(device, family, index, out);
    remember(QUEUE, *out, d);
}

static void fault_GetDeviceQueue2(VkDevice device, const VkDeviceQueueInfo2 *info, VkQueue *out)
{
    struct device *d = device_of(DEVICE, device);
    d->GetDeviceQueue2(device, info, out);
    remember(QUEUE, *out, d);
}

/* Returns this file's function in place of the real driver's, or NULL if that lacks it. */
static PFN_vkVoidFunction replace(PFN_vkVoidFunction function, const char *name);

static PFN_vkVoidFunction fault_GetDeviceProcAddr(VkDevice device, const char *name)
{
    return replace(real.GetDeviceProcAddr(device, name), name);
}

static PFN_vkVoidFunction fault_GetInstanceProcAddr(VkInstance instance, const char *name)
{
    return vk_icdGetInstanceProcAddr(instance, name);
}

static PFN_vkVoidFunction replace(PFN_vkVoidFunction function, const char *name)
{
#define ENTRY(name) {"vk" #name, (PFN_vkVoidFunction)fault_##name},
    static const struct {
        const char *name;
        PFN_vkVoidFunction function;
    } table[] = {
        INSTANCE_FUNCTIONS(ENTRY) DEVICE_FUNCTIONS(ENTRY)
        ENTRY(CreateInstance) ENTRY(GetInstanceProcAddr)
        /* Newer loaders look these up here too. */
        {"vk_icdGetInstanceProcAddr", (PFN_vkVoidFunction)vk_icdGetInstanceProcAddr},
        {"vk_icdGetPhysicalDeviceProcAddr", (PFN_vkVoidFunction)vk_icdGetPhysicalDeviceProcAddr},
        {"vk_icdNegotiateLoaderICDInterfaceVersion",
         (PFN_vkVoidFunction)vk_icdNegotiateLoaderICDInterfaceVersion},
    };
    size_t crashing = config.crash_at ? strlen(config.crash_at) : 0;
    if (function && crashing && !strncmp(name + 2, config.crash_at, crashing) &&
        (!name[2 + crashing] || !strcmp(name + 2 + crashing, "KHR")))
        return (PFN_vkVoidFunction)crash;
    for (size_t i = 0; function && i < sizeof table / sizeof *table; i++) {
        size_t length = strlen(table[i].name);
        if (!strncmp(name, table[i].name, length) &&
            (!name[length] || !strcmp(name + length, "KHR")))
            return table[i].function;
    }
    return function;
}

/* The loader drops a driver without vkCreateInstance. Some loaders check only that and not the
 * result of the negotiation, so a driver that could not start has no functions at all. */
PFN_vkVoidFunction vk_icdGetInstanceProcAddr(VkInstance instance, const char *name)
{
    return started() ? replace(real.instance(instance, name), name) : NULL;
}

PFN_vkVoidFunction vk_icdGetPhysicalDeviceProcAddr(VkInstance instance, const char *name)
{
    return started() && real.physical ? replace(real.physical(instance, name), name) : NULL;
}

/* The real driver decides, up to version 7, the newest that this file supports. */
VkResult vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version)
{
    if (!started())
        return VK_ERROR_INITIALIZATION_FAILED;
    *version = MIN(*version, 7);
    return real.negotiate(version);
}
