// What the kernels of this folder use of a GPU beyond C++: asynchronous copies, matrices and 16-bit numbers.
// For compute capability 8.0 and later.
//
// tests/cuda/emulator.h defines the same names on the CPU. It includes this file for the types.
#pragma once

// The dtype of 16-bit elements: float16 or bfloat16.
#ifndef F16
#define F16 0
#endif

typedef unsigned int u32;
typedef unsigned short u16;
struct alignas(16) u32x4 { u32 v[4]; };
struct alignas(16) f32x4 { float v[4]; };
struct alignas(8) u16x4 { u16 v[4]; };

#ifndef EMULATED
#if F16
#define HALF "f16"
#else
#define HALF "bf16"
#endif

// Declares the dynamic shared memory of the workgroup as an array.
#define SHARED_MEMORY(type, name) extern __shared__ __align__(1024) type name[]

// Returns the address of an element in shared memory, in bytes.
__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Copies 16 bytes to shared memory, which arrive before a later `wait` of this thread returns.
__device__ __forceinline__ void copy16(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
}

// The same with 4 bytes.
__device__ __forceinline__ void copy4(u32 to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(from) : "memory");
}

// Brings 128 bytes of device memory into the L2 cache.
__device__ __forceinline__ void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" :: "l"(p)); }

// Ends a group of copies.
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but the last `N` groups of this thread have arrived.
template <int N> __device__ __forceinline__ void wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}

// Loads four matrices of 8 x 8 16-bit elements. Lane `l` gives the address of row `l % 8` of matrix `l / 8`. It
// gets elements `l % 4 * 2` and the next of row `l / 4` of each, of column `l / 4` if `T`.
template <bool T> __device__ __forceinline__ void ldmatrix4(u32 (&r)[4], u32 p) {
    if (T)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
            : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
            : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p) : "memory");
}

// Adds `a b` to `c`: `a` is 16 x 16, `b` 16 x 8. Lane `l` has columns `l % 4 * 2` and the next of rows `l / 4` and
// `l / 4 + 8` of `c`, and the same of the left half of `a`, then of its right half.
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." HALF "." HALF ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Adds `a b` to `c` in tf32: `a` is 16 x 8, `b` 8 x 8. Lane `l` has element `l % 4` of rows `l / 4` and `l / 4 + 8` of
// the left half of `a`, then of its right half.
__device__ __forceinline__ void mma_tf32(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Rounds to the nearest tf32.
__device__ __forceinline__ u32 to_tf32(u32 f) {
    u32 d;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(d) : "f"(__uint_as_float(f)));
    return d;
}

__device__ __forceinline__ float as_float(u32 bits) { return __uint_as_float(bits); }
__device__ __forceinline__ u32 bits_of(float f) { return __float_as_uint(f); }

// Rounds to the nearest float16, the even one of two.
__device__ __forceinline__ u32 f16_of(float f) {
    u16 d;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(d) : "f"(f));
    return d;
}

// Returns the value of the lower 16 bits.
__device__ __forceinline__ float widen(u32 half) {
#if F16
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((u16)half));
    return f;
#else
    return __uint_as_float(half << 16);
#endif
}

// Rounds two values to the nearest 16-bit ones; the first is in the lower bits. float16 may overflow to infinity.
__device__ __forceinline__ u32 narrow2(float low, float high) {
    u32 d;
    asm("cvt.rn." HALF "x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float log2_of(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Returns `x / y`, to two units in the last place.
__device__ __forceinline__ float divide(float x, float y) {
    float z;
    asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

// Loads 32 bits of shared memory.
__device__ __forceinline__ u32 load_shared(u32 p) {
    u32 d;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(d) : "r"(p) : "memory");
    return d;
}

// Returns `x` of the lane whose index differs in the bits of `by`.
__device__ __forceinline__ float xor_lane(float x, int by) { return __shfl_xor_sync(0xffffffffu, x, by); }

// Returns true if the condition holds in any lane of the warp.
__device__ __forceinline__ bool any_lane(bool condition) { return __any_sync(0xffffffffu, condition); }
#endif

#define LOG2_E 1.4426950408889634f

// The same with pointers.
__device__ __forceinline__ void copy16(void* to, const void* from) { copy16(shared_address(to), from); }
template <bool T> __device__ __forceinline__ void ldmatrix4(u32 (&r)[4], const void* p) { ldmatrix4<T>(r, shared_address(p)); }
