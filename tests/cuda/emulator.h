// Runs the kernels of shaders/cuda on the CPU: defines what mma.cuh does, and `launch`.
//
// Every thread of a workgroup is a fiber. A warp runs until all its threads wait for other warps, and `Schedule`
// decides which warp is next. Copies arrive when they are waited for or at once. Shared memory is NaN at first, and
// tensors end at memory that cannot be read. So a missing barrier or wait shows as a wrong value under some
// schedule, which is no proof that there is no race.
#pragma once
#include <csetjmp>
#include <csignal>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <algorithm>
#include <deque>
#include <vector>
#define EMULATED
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
struct Dim { int x, y, z; };
static Dim threadIdx, blockIdx, gridDim;
using std::max;
using std::min;
typedef unsigned int u32;
typedef unsigned short u16;
static u32 shared_address(const void* p);
static void copy16(u32 to, const void* from);
template <bool T> static void ldmatrix4(u32 (&r)[4], u32 p);
#include "../../shaders/cuda/mma.cuh"

#define SHARED_MEMORY(type, name) type* name = (type*)shared_memory
static char* shared_memory;
static size_t shared_bytes;

// Reports a mistake of the kernel that no result needs to show.
[[noreturn]] static void fault(const char* what) {
    printf("fault: %s, thread %d of workgroup %d %d\n", what, threadIdx.x, blockIdx.x, blockIdx.y);
    fflush(stdout);
    _exit(3);
}

static void fault_of_memory(int) { fault("memory outside of a tensor is accessed"); }

enum Schedule { EVEN, FIRST, LAST, RANDOM };
static Schedule schedule = EVEN;
static bool copies_land_late = true;
// How often the rows of a matrix of ldmatrix, or the lanes of a load, met in a bank, and how many were loaded.
static long conflicts, rows_loaded;

struct Copy { char* to; const char* from; u32 bytes; };
struct Fiber {
    ucontext_t start;
    jmp_buf at;
    std::vector<char> stack;
    bool begun, done, blocked;
    std::deque<std::vector<Copy>> groups;
    std::vector<Copy> open;
};
struct Warp {
    int waiting = 0;
    long generation = 0;
    int operation = 0;
    u32 p[32], r[32][4], a[32][4], b[32][2];
    float c[32][4];
    // The addresses that each lane loaded since the lanes last met.
    std::vector<u32> loads[32];
    void count_banks() {
        for (size_t i = 0; i < loads[0].size(); i++) {
            u32 used[32];
            memset(used, 0xff, sizeof used);
            for (auto& lane : loads) {
                u32& bank = used[lane.at(i) / 4 % 32];
                conflicts += bank != ~0u && bank != lane[i];
                bank = lane[i];
                rows_loaded++;
            }
        }
        for (auto& lane : loads) lane.clear();
    }
};
static std::vector<Fiber> fibers;
static std::vector<Warp> warps;
static ucontext_t scheduler_context;
static jmp_buf scheduler;
static int current, waiting_block;
// Counts what lets some thread go on.
static long progress;
static long generation_block;
static void (*kernel_of_fibers)();

static void yield() {
    if (!_setjmp(fibers[current].at)) _longjmp(scheduler, 1);
}
static void fiber_main() {
    kernel_of_fibers();
    fibers[current].done = true;
    progress++;
    _longjmp(scheduler, 1);
}
static void resume(int fiber) {
    if (fibers[fiber].done) return;
    current = fiber;
    threadIdx = {fiber, 0, 0};
    if (_setjmp(scheduler)) return;
    Fiber& f = fibers[fiber];
    if (f.begun) _longjmp(f.at, 1);
    f.begun = true;
    setcontext(&f.start);
}

static void __syncthreads() {
    const long generation = generation_block;
    progress++;
    if (++waiting_block == (int)fibers.size()) {
        waiting_block = 0;
        generation_block++;
        for (Fiber& f : fibers) f.blocked = false;
        return;
    }
    fibers[current].blocked = true;
    while (generation_block == generation) yield();
}

// Waits for the other lanes of the warp; the last runs `act`.
template <typename Act> static void meet(int operation, Act act) {
    Warp& w = warps[current / 32];
    const long generation = w.generation;
    if (w.waiting && w.operation != operation) fault("lanes of a warp are at different operations");
    w.operation = operation;
    progress++;
    if (++w.waiting == 32) {
        w.waiting = 0;
        w.count_banks();
        act(w);
        w.generation++;
        return;
    }
    while (w.generation == generation) yield();
}
static void __syncwarp() { meet(1, [](Warp&) {}); }

static u32 shared_address(const void* p) { return (const char*)p - shared_memory; }
static void check_shared(u32 at, u32 bytes) {
    if (at % bytes) fault("an address in shared memory is not aligned");
    if (at + bytes > shared_bytes) fault("an address is outside of shared memory");
}
static void copy(u32 to, const void* from, u32 bytes) {
    check_shared(to, bytes);
    if ((size_t)from % bytes) fault("a copy is not aligned");
    // Reads it here, because only here the fault has a place.
    volatile char read = *((const char*)from + bytes - 1);
    (void)read;
    Copy copy = {shared_memory + to, (const char*)from, bytes};
    if (copies_land_late) fibers[current].open.push_back(copy);
    else memcpy(copy.to, copy.from, bytes);
}
static void copy16(u32 to, const void* from) { copy(to, from, 16); }
static void copy4(u32 to, const void* from) { copy(to, from, 4); }
static void prefetch(const void*) {}
static void commit() {
    Fiber& f = fibers[current];
    f.groups.push_back(f.open);
    f.open.clear();
}
template <int N> static void wait() {
    Fiber& f = fibers[current];
    while ((int)f.groups.size() > N) {
        for (Copy& c : f.groups.front()) memcpy(c.to, c.from, c.bytes);
        f.groups.pop_front();
    }
}

template <bool T> static void ldmatrix4(u32 (&r)[4], u32 p) {
    Warp& w = warps[current / 32];
    check_shared(p, 16);
    w.p[current % 32] = p;
    meet(2 + T, [](Warp& w) {
        for (int i = 0; i < 4; i++) {
            bool used[8] = {};
            for (int row = 0; row < 8; row++) {
                const int bank = w.p[i * 8 + row] / 16 % 8;
                conflicts += used[bank];
                used[bank] = true;
                rows_loaded++;
            }
            for (int l = 0; l < 32; l++) {
                auto row = [&](int at) { return (const u16*)(shared_memory + w.p[i * 8 + at]); };
                const int pair = l % 4 * 2;
                u32 low = T ? row(pair)[l / 4] : row(l / 4)[pair];
                u32 high = T ? row(pair + 1)[l / 4] : row(l / 4)[pair + 1];
                w.r[l][i] = low | high << 16;
            }
        }
    });
    memcpy(r, w.r[current % 32], 16);
}

static float as_float(u32 bits) { float f; memcpy(&f, &bits, 4); return f; }
static u32 bits_of(float f) { u32 bits; memcpy(&bits, &f, 4); return bits; }
// The nearest float16, the even one of two.
static u32 f16_of(float f) {
    const u32 sign = bits_of(f) >> 16 & 0x8000;
    const double x = fabs((double)f);
    if (std::isnan(f)) return sign | 0x7e00;
    if (x >= 65520.0) return sign | 0x7c00;
    if (x < 6.103515625e-05) return sign | (u32)nearbyint(x * 16777216.0);
    int exponent;
    const double mantissa = frexp(x, &exponent);
    return sign | (u32)((exponent + 13) * 1024 + (long)nearbyint(mantissa * 2048.0));
}
static float value_of_f16(u32 half) {
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    const float f = exponent == 31 ? (fraction ? NAN : INFINITY)
        : exponent == 0 ? ldexpf(fraction, -24) : ldexpf(1024 + fraction, exponent - 25);
    return half >> 15 ? -f : f;
}
static float widen(u32 half) {
    static std::vector<float> values;
    if (!F16) return as_float(half << 16);
    if (values.empty()) for (u32 i = 0; i < 65536; i++) values.push_back(value_of_f16(i));
    return values[half & 0xffff];
}
static u32 half_of(float f) {
    if (F16) return f16_of(f);
    const u32 bits = bits_of(f);
    return std::isnan(f) ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static u32 narrow2(float low, float high) { return half_of(low) | half_of(high) << 16; }
static u32 to_tf32(u32 f) { return std::isnan(as_float(f)) ? 0x7fffffff : (f + 0x1000) & 0xffffe000; }
static float exp2_of(float x) { return exp2f(x); }
static float log2_of(float x) { return log2f(x); }
static float divide(float x, float y) { return x / y; }
static u32 load_shared(u32 p) {
    check_shared(p, 4);
    warps[current / 32].loads[current % 32].push_back(p);
    u32 value;
    memcpy(&value, shared_memory + p, 4);
    return value;
}
static float xor_lane(float x, int by) {
    Warp& w = warps[current / 32];
    const int lane = current % 32;
    w.c[lane][0] = x;
    meet(100 + by, [by](Warp& w) { for (int l = 0; l < 32; l++) w.c[l][1] = w.c[l ^ by][0]; });
    return w.c[lane][1];
}
static bool any_lane(bool condition) {
    Warp& w = warps[current / 32];
    w.p[current % 32] = condition;
    meet(7, [](Warp& w) {
        u32 any = 0;
        for (int l = 0; l < 32; l++) any |= w.p[l];
        for (int l = 0; l < 32; l++) w.r[l][0] = any;
    });
    return w.r[current % 32][0];
}

// Multiplies 16 x K by K x 8; `element` gives element `at` of a lane's registers.
template <int K, typename Element> static void multiply(Warp& w, Element element) {
    float a[16][K], b[K][8];
    const int per = K / 8;
    for (int l = 0; l < 32; l++)
        for (int h = 0; h < per; h++) {
            for (int i = 0; i < 4; i++) a[l / 4 + i % 2 * 8][l % 4 * per + h + i / 2 * K / 2] = element(w.a[l][i], h);
            for (int i = 0; i < 2; i++) b[l % 4 * per + h + i * K / 2][l / 4] = element(w.b[l][i], h);
        }
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) {
            float sum = w.c[l][i];
            for (int k = 0; k < K; k++) sum += a[l / 4 + i / 2 * 8][k] * b[k][l % 4 * 2 + i % 2];
            w.c[l][i] = sum;
        }
}
template <typename Act> static void mma_of(int operation, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, Act act) {
    Warp& w = warps[current / 32];
    const int lane = current % 32;
    memcpy(w.c[lane], c, 16);
    memcpy(w.a[lane], a, 16);
    w.b[lane][0] = b0;
    w.b[lane][1] = b1;
    meet(operation, act);
    memcpy(c, w.c[lane], 16);
}
static void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    mma_of(4, c, a, b0, b1, [](Warp& w) { multiply<16>(w, [](u32 bits, int h) { return widen(bits >> 16 * h); }); });
}
static void mma_tf32(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    // A GPU ignores the lower bits: kernels must round them away.
    mma_of(5, c, a, b0, b1, [](Warp& w) { multiply<8>(w, [](u32 bits, int) { return as_float(bits & 0xffffe000); }); });
}
// Memory that ends where nothing can be read. What lies around it is NaN.
template <typename T> struct Tensor {
    T* data;
    size_t length;
    char* mapped;
    size_t bytes;
    explicit Tensor(size_t length) : length(length) {
        const size_t page = sysconf(_SC_PAGESIZE), used = (length * sizeof(T) + 15) / 16 * 16;
        bytes = (used + 2 * page - 1) / page * page;
        mapped = (char*)mmap(nullptr, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) abort();
        mprotect(mapped + bytes, page, PROT_NONE);
        memset(mapped, 0xff, bytes);
        data = (T*)(mapped + bytes - used);
    }
    Tensor(const Tensor&) = delete;
    ~Tensor() { munmap(mapped, bytes + sysconf(_SC_PAGESIZE)); }
    T& operator[](size_t i) { return data[i]; }
    // Returns true if nothing was written around it.
    bool is_intact() const {
        for (char* p = mapped; p < mapped + bytes; p++)
            if ((p < (char*)data || p >= (char*)(data + length)) && *p != (char)0xff) return false;
        return true;
    }
};

// Runs a kernel of `threads` threads with `bytes` of dynamic shared memory. `seed` is of the random schedule.
static void launch(void (*kernel)(), int grid_x, int grid_y, int threads, size_t bytes, int seed = 1) {
    static std::vector<char> memory;
    kernel_of_fibers = kernel;
    signal(SIGSEGV, fault_of_memory);
    signal(SIGBUS, fault_of_memory);
    gridDim = {grid_x, grid_y, 1};
    shared_bytes = bytes;
    if ((int)fibers.size() != threads) {
        fibers = std::vector<Fiber>(threads);
        for (Fiber& f : fibers) f.stack.resize(64 << 10);
    }
    srand(seed);
    for (int y = 0; y < grid_y; y++)
        for (int x = 0; x < grid_x; x++) {
            blockIdx = {x, y, 0};
            memory.assign(bytes + 1024, (char)0xff);
            shared_memory = (char*)(((size_t)memory.data() + 1023) & ~(size_t)1023);
            warps.assign(threads / 32, Warp());
            waiting_block = 0;
            for (Fiber& f : fibers) {
                f.begun = f.done = f.blocked = false;
                f.groups.clear();
                f.open.clear();
                getcontext(&f.start);
                f.start.uc_stack.ss_sp = f.stack.data();
                f.start.uc_stack.ss_size = f.stack.size();
                f.start.uc_link = &scheduler_context;
                makecontext(&f.start, fiber_main, 0);
            }
            auto is_ready = [&](int warp) {
                for (int l = 0; l < 32; l++) {
                    Fiber& f = fibers[warp * 32 + l];
                    if (!f.done && !f.blocked) return true;
                }
                return false;
            };
            auto run = [&](int warp) {
                const long before = progress;
                for (int l = 0; l < 32; l++) resume(warp * 32 + l);
                if (progress == before) fault("lanes of a warp wait for each other");
            };
            for (;;) {
                std::vector<int> ready;
                for (int warp = 0; warp < threads / 32; warp++) if (is_ready(warp)) ready.push_back(warp);
                if (ready.empty()) break;
                if (schedule == EVEN) {
                    for (int warp : ready) if (is_ready(warp)) run(warp);
                    continue;
                }
                const int warp = schedule == FIRST ? ready.front() : schedule == LAST ? ready.back() : ready[rand() % ready.size()];
                while (is_ready(warp)) run(warp);
            }
            for (Fiber& f : fibers) if (!f.done) fault("threads wait for each other");
        }
}
