// Passes over the tensors of many weights in one launch: the squares of gradients, AdamW, and the last sums of the
// gradients of norms. A launch gets the tensors' addresses in its parameters. For every compute capability.
#include "mma.cuh"

#define UNITS 256
#define WARPS (UNITS / 32)

// The kernels to compile: the sum of 1 for `squares`, 2 for `update_weights` and 4 for `sum_groups`.
#ifndef KERNELS
#define KERNELS 7
#endif

// Returns the last of `count` tensors whose first workgroup is not behind this one. `first` is ascending.
__device__ __forceinline__ u32 tensor_of(const u32* first, u32 count) {
    u32 low = 0, high = count;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (first[middle] <= blockIdx.x) low = middle;
        else high = middle;
    }
    return low;
}

__device__ __forceinline__ bool is_aligned(const void* p, u32 bytes) { return (size_t)p % bytes == 0; }

#define SQUARES_TENSORS 192
#define SQUARES_SPAN (16 * 1024)

struct Squares {
    const float* loss_scale;
    float* sums;
    const float* grads[SQUARES_TENSORS];
    u32 elements[SQUARES_TENSORS];
    // The spans of the tensors before each.
    u32 first[SQUARES_TENSORS];
    u32 tensors, first_sum;
    float divisor;
};

#if KERNELS & 1
// Adds up the squares of a span of a gradient, divided by the loss scale and `divisor`: one sum per workgroup, in a
// fixed order.
extern "C" __global__ void __launch_bounds__(UNITS) squares(const Squares p) {
    SHARED_MEMORY(float, of_warps);
    const u32 k = tensor_of(p.first, p.tensors);
    const u32 begin = (blockIdx.x - p.first[k]) * SQUARES_SPAN, end = min(begin + SQUARES_SPAN, p.elements[k]);
    const float* grad = p.grads[k];
    const float factor = 1.0f / (p.loss_scale[0] * p.divisor);
    f32x4 sum = {};
    u32 i = begin + threadIdx.x * 4;
    if (is_aligned(grad, 16)) {
#pragma unroll 4
        for (; i + 4 <= end; i += UNITS * 4) {
            const f32x4 g = *(const f32x4*)(grad + i);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float value = g.v[e] * factor;
                sum.v[e] += value * value;
            }
        }
    }
    // What is left: all, or up to three elements.
    for (; i < end; i += UNITS * 4)
        for (u32 e = 0; e < 4 && i + e < end; e++) {
            const float value = grad[i + e] * factor;
            sum.v[e] += value * value;
        }
    float total = (sum.v[0] + sum.v[1]) + (sum.v[2] + sum.v[3]);
#pragma unroll
    for (int by = 16; by > 0; by /= 2) total += xor_lane(total, by);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = total;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    total = as_float(load_shared(shared_address(of_warps + threadIdx.x % WARPS)));
#pragma unroll
    for (int by = WARPS / 2; by > 0; by /= 2) total += xor_lane(total, by);
    if (threadIdx.x == 0) p.sums[p.first_sum + blockIdx.x] = total;
}
#endif

#define UPDATE_TENSORS 64
#define UPDATE_TURNS 4
#define UPDATE_SPAN (UPDATE_TURNS * UNITS * 4)

// The dtype of copies.
#define BFLOAT16 0
#define FLOAT16 1

struct Update {
    // The factor of gradients, 0 if nothing is updated, the learning rate, and a factor of roots.
    const float* control;
    float* w[UPDATE_TENSORS];
    // Or 0.
    u16* half[UPDATE_TENSORS];
    const float* grad[UPDATE_TENSORS];
    float* m[UPDATE_TENSORS];
    float* v[UPDATE_TENSORS];
    u32 elements[UPDATE_TENSORS];
    u32 first[UPDATE_TENSORS];
    float decay[UPDATE_TENSORS];
    u32 tensors;
    float beta1, beta2, eps;
    u32 copies;
};

// Rounds to the nearest, the even one of two. GPUs before 8.0 have no instruction for bfloat16.
__device__ __forceinline__ u16 copy_of(float value, u32 dtype) {
    if (dtype == FLOAT16) return f16_of(value);
    const u32 bits = bits_of(value);
    return value != value ? 0x7fff : (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct Factors { float grad, rate, root, decay, beta1, beta2, eps; };

__device__ __forceinline__ void update(const Factors& f, float grad, float& w, float& m, float& v) {
    const float g = grad * f.grad;
    m = f.beta1 * m + (1.0f - f.beta1) * g;
    v = f.beta2 * v + (1.0f - f.beta2) * g * g;
    w = f.decay * w - f.rate * m / (sqrtf(v) * f.root + f.eps);
}

#if KERNELS & 2
// One update by AdamW of a span of a weight, and of the weight's copy in half precision.
extern "C" __global__ void __launch_bounds__(UNITS) update_weights(const Update p) {
    if (p.control[1] == 0.0f) return;
    const u32 k = tensor_of(p.first, p.tensors);
    const Factors f = {p.control[0], p.control[2], p.control[3], p.decay[k], p.beta1, p.beta2, p.eps};
    const u32 begin = (blockIdx.x - p.first[k]) * UPDATE_SPAN, end = min(begin + UPDATE_SPAN, p.elements[k]);
    float *w = p.w[k], *m = p.m[k], *v = p.v[k];
    const float* grad = p.grad[k];
    u16* half = p.half[k];
    const u32 own = begin + threadIdx.x * 4;
    const bool aligned = is_aligned(w, 16) && is_aligned(m, 16) && is_aligned(v, 16) && is_aligned(grad, 16) && is_aligned(half, 8);
    if (aligned && end - begin == UPDATE_SPAN) {
        // Two turns at a time, whose loads are all on their way before one is waited for.
        for (u32 turn = 0; turn < UPDATE_TURNS; turn += 2) {
            f32x4 new_w[2], new_m[2], new_v[2], g[2];
#pragma unroll
            for (u32 t = 0; t < 2; t++) {
                const u32 i = own + (turn + t) * UNITS * 4;
                g[t] = *(const f32x4*)(grad + i);
                new_m[t] = *(const f32x4*)(m + i);
                new_v[t] = *(const f32x4*)(v + i);
                new_w[t] = *(const f32x4*)(w + i);
            }
#pragma unroll
            for (u32 t = 0; t < 2; t++) {
                const u32 i = own + (turn + t) * UNITS * 4;
#pragma unroll
                for (int e = 0; e < 4; e++) update(f, g[t].v[e], new_w[t].v[e], new_m[t].v[e], new_v[t].v[e]);
                *(f32x4*)(m + i) = new_m[t];
                *(f32x4*)(v + i) = new_v[t];
                *(f32x4*)(w + i) = new_w[t];
                if (half) {
                    u16x4 copy;
#pragma unroll
                    for (int e = 0; e < 4; e++) copy.v[e] = copy_of(new_w[t].v[e], p.copies);
                    *(u16x4*)(half + i) = copy;
                }
            }
        }
        return;
    }
    // The end of a weight.
    for (u32 i = begin + threadIdx.x; i < end; i += UNITS) {
        float new_w = w[i], new_m = m[i], new_v = v[i];
        update(f, grad[i], new_w, new_m, new_v);
        w[i] = new_w;
        m[i] = new_m;
        v[i] = new_v;
        if (half) half[i] = copy_of(new_w, p.copies);
    }
}
#endif

#define GROUPS_TENSORS 128

struct Groups {
    // Each [groups, 2, width].
    const float* partial[GROUPS_TENSORS];
    float* gamma[GROUPS_TENSORS];
    float* beta[GROUPS_TENSORS];
    u32 groups, width;
};

#if KERNELS & 4
// The gradients of norms: sums over groups of rows, in their order. A thread has a column, and
// workgroups `y` have those of norm `y`.
extern "C" __global__ void __launch_bounds__(UNITS) sum_groups(const Groups p) {
    const u32 column = blockIdx.x * UNITS + threadIdx.x, columns = 2 * p.width;
    if (column >= columns) return;
    const float* partial = p.partial[blockIdx.y] + column;
    float sum = 0.0f;
#pragma unroll 16
    for (u32 group = 0; group < p.groups; group++) sum += partial[(size_t)group * columns];
    if (column < p.width) p.gamma[blockIdx.y][column] = sum;
    else p.beta[blockIdx.y][column - p.width] = sum;
}
#endif
