// Causal attention and its gradient, for heads of SIZE elements in float16 or bfloat16: FlashAttention-2 (Dao 2023,
// arXiv:2307.08691).
//
// A workgroup owns 64 positions of one head of one sequence, and each of its 4 warps 16 of them. It walks over the
// positions of the other side in stages, and copies the next stage while it computes with the current one. Scores,
// probabilities and their gradients stay in registers, because mma returns its sums in the layout in which it takes
// left factors.
//
// The gradient has two kernels, one for queries and one for keys and values. Every sum has a fixed order, so results
// do not depend on scheduling.
//
// A variant has SIZE 32, 64, 80, 96 or 128, and F16 and DROPOUT 0 or 1. KERNELS is the sum of 1 for `attend`, 2 for
// `backward_queries` and 4 for `backward_keys`. SHARED is the shared memory with which a kernel will be launched.
#include "mma.cuh"

#ifndef SIZE
#define SIZE 64
#endif
#ifndef DROPOUT
#define DROPOUT 0
#endif
#ifndef KERNELS
#define KERNELS 7
#endif

typedef unsigned long long u64;

// Positions that a workgroup owns, and its threads.
constexpr int ROWS = 64, THREADS = 128;

// Each kernel has three constants: the positions of a stage, the workgroups for which a multiprocessor shall have
// registers, and the bytes of shared memory. A large stage takes fewer instructions for each position, a small one
// leaves registers and shared memory for another workgroup.

// Parts of 16 bytes of a row, and its bytes.
constexpr int CHUNKS = SIZE / 8, ROW_BYTES = SIZE * 2;

// What a score is if its key is later than its query.
#define NEVER -1e30f

// `qkv` is `[batch * time, (heads + 2 kv_heads) * SIZE]`: queries, keys and values side by side. Outputs and their
// gradients are `[batch * time, heads * SIZE]`, statistics `[batch, heads, time]`. Tensors of 16-bit elements start at
// a multiple of 16 bytes.
struct Shape {
    int time, heads, kv_heads;
    // The index of the launch's first pair of a sequence and a head; of a head of keys in `backward_keys`.
    int first_pair;
    // 1 / sqrt(SIZE)
    float scale;
    // The dropout of the probabilities, see src/ops/dropout.
    u32 key0, key1, first_sequence, threshold;
    float kept_scale;
};
struct Attend {
    const u16* qkv;
    u16* out;
    float* log_sum_exp;
    Shape shape;
};
struct BackwardQueries {
    const u16 *qkv, *out, *dout;
    const float* log_sum_exp;
    float* delta;
    u16* dqkv;
    Shape shape;
};
struct BackwardKeys {
    const u16 *qkv, *dout;
    const float *log_sum_exp, *delta;
    u16* dqkv;
    Shape shape;
};

// Returns the index of a head's first element in packed qkv. Its heads are those of queries, keys and values.
__device__ __forceinline__ long long packed(const Shape& s, int sequence, int head) {
    return ((long long)sequence * s.time * (s.heads + 2 * s.kv_heads) + head) * SIZE;
}
__device__ __forceinline__ int packed_stride(const Shape& s) { return (s.heads + 2 * s.kv_heads) * SIZE; }

// Returns the index of a head's first element in the output.
__device__ __forceinline__ long long merged(const Shape& s, int sequence, int head) {
    return ((long long)sequence * s.time * s.heads + head) * SIZE;
}

__device__ __forceinline__ u32 mix32(u32 x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}
__device__ __forceinline__ u32 sequence_key(const Shape& s, int sequence) {
    return mix32(mix32((s.first_sequence + sequence) ^ s.key0) ^ s.key1);
}
// Returns true if dropout keeps the probability at this place of its sequence.
__device__ __forceinline__ bool keeps(const Shape& s, u32 key, u32 place) {
    return mix32(mix32(place ^ key) ^ s.key1) >> 8 >= s.threshold;
}

// Returns the place of 16 bytes of a row in shared memory. ldmatrix loads the same part of 8 consecutive rows, which
// are in 8 different groups of banks.
constexpr u32 BITS = CHUNKS % 8 == 0 ? 3 : CHUNKS % 4 == 0 ? 2 : 1;
__device__ __forceinline__ u32 place(u32 row, u32 chunk) {
    return row * ROW_BYTES + (chunk ^ (row >> (3 - BITS) & ((1 << BITS) - 1))) * 16;
}
// Returns the address of a part from that of the part 2 d before it, which is the first or second of its row.
__device__ __forceinline__ u32 along(u32 at, u32 d) {
    constexpr u32 MIXED = (16 << BITS) - 1;
    return (at ^ (d * 32 & MIXED)) + (d * 32 & ~MIXED);
}

// Starts to copy WIDTH parts of COUNT rows. A row behind the last one is a copy of it.
template <int COUNT, int FIRST, int WIDTH>
__device__ __forceinline__ void copy_parts(u32 to, const u16* from, u32 stride, u32 last) {
    const u32 chunk = FIRST + threadIdx.x % WIDTH, row = threadIdx.x / WIDTH;
    to += place(row, chunk);
#pragma unroll
    for (u32 i = 0; i < COUNT; i += THREADS / WIDTH)
        if (COUNT % (THREADS / WIDTH) == 0 || i + row < COUNT)
            copy16(to + i * ROW_BYTES, (const char*)from + (min(row + i, last) * (stride * 2) + chunk * 16));
}
template <int COUNT> __device__ __forceinline__ void copy_rows(u32 to, const u16* from, u32 stride, u32 first, u32 last) {
    constexpr int WIDE = CHUNKS < 8 ? CHUNKS : CHUNKS / 8 * 8;
    from += (u64)first * stride;
    last -= first;
    copy_parts<COUNT, 0, WIDE>(to, from, stride, last);
    if constexpr (WIDE < CHUNKS) copy_parts<COUNT, WIDE, CHUNKS - WIDE>(to, from, stride, last);
}

// The places from which a lane loads matrices of 16 x 16, in the order of a left factor (as it is) or of a transposed
// right one, and of a right factor.
struct Lane {
    u32 left, right;
    __device__ __forceinline__ Lane() {
        const u32 lane = threadIdx.x % 32;
        left = place(lane % 16, lane / 16);
        right = place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    }
};

// Loads elements `16 d` to `16 d + 15` of the warp's 16 rows as a left factor.
__device__ __forceinline__ void load_left(u32 (&x)[4], u32 rows, Lane lane, int d) {
    ldmatrix4<false>(x, along(rows + threadIdx.x / 32 * 16 * ROW_BYTES + lane.left, d));
}
typedef u32 Left[SIZE / 16][4];
__device__ __forceinline__ void load_rows(Left& x, u32 rows, Lane lane) {
#pragma unroll
    for (int d = 0; d < SIZE / 16; d++) load_left(x[d], rows, lane, d);
}

template <int N> __device__ __forceinline__ void clear(float (&s)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[j][e] = 0.0f;
}

// Adds the products of elements `16 d` to `16 d + 15` of a left factor and of 8 N rows.
template <int N> __device__ __forceinline__ void add_scores(float (&s)[N][4], const u32 (&x)[4], u32 rows, Lane lane, int d) {
#pragma unroll
    for (int j = 0; j < N / 2; j++) {
        u32 y[4];
        ldmatrix4<false>(y, along(rows + lane.right, d) + j * 16 * ROW_BYTES);
        mma(s[2 * j], x, y[0], y[1]);
        mma(s[2 * j + 1], x, y[2], y[3]);
    }
}
// s = x rows^T
template <int N> __device__ __forceinline__ void scores(float (&s)[N][4], const Left& x, u32 rows, Lane lane) {
    clear(s);
#pragma unroll
    for (int d = 0; d < SIZE / 16; d++) add_scores(s, x[d], rows, lane, d);
}
// The same, with the left factor in shared memory.
template <int N> __device__ __forceinline__ void scores(float (&s)[N][4], u32 left, u32 rows, Lane lane) {
    clear(s);
#pragma unroll
    for (int d = 0; d < SIZE / 16; d++) {
        u32 x[4];
        load_left(x, left, lane, d);
        add_scores(s, x, rows, lane, d);
    }
}

typedef float Sums[SIZE / 8][4];

// out += s rows, with s rounded to 16 bits.
template <int N> __device__ __forceinline__ void add_rows(Sums& out, const float (&s)[N][4], u32 rows, Lane lane) {
#pragma unroll
    for (int c = 0; c < N / 2; c++) {
        u32 x[4];
#pragma unroll
        for (int e = 0; e < 4; e++) x[e] = narrow2(s[2 * c + e / 2][e % 2 * 2], s[2 * c + e / 2][e % 2 * 2 + 1]);
#pragma unroll
        for (int j = 0; j < SIZE / 16; j++) {
            u32 y[4];
            ldmatrix4<true>(y, along(rows + lane.left, j) + c * 16 * ROW_BYTES);
            mma(out[2 * j], x, y[0], y[1]);
            mma(out[2 * j + 1], x, y[2], y[3]);
        }
    }
}

// Stores the warp's rows, which start at position `first`, multiplied by a factor for rows 0 to 7 and one for 8 to 15.
// The warp has the 16 rows of shared memory at `own` for itself.
__device__ __forceinline__ void store(
    u16* to, int stride, int first, int time, const Sums& s, float factor0, float factor1, char* own) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
        char* at = own + lane % 4 * 4;
        *(u32*)(at + place(lane / 4, j)) = narrow2(s[j][0] * factor0, s[j][1] * factor0);
        *(u32*)(at + place(lane / 4 + 8, j)) = narrow2(s[j][2] * factor1, s[j][3] * factor1);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < CHUNKS / 2; i++) {
        const int at = lane + i * 32, row = at / CHUNKS, chunk = at % CHUNKS;
        if (first + row < time)
            *(u32x4*)(to + (long long)(first + row) * stride + chunk * 8) = *(const u32x4*)(own + place(row, chunk));
    }
}

// Writes the output and the logarithms of the sums of the exponentials of 64 queries' scores.
//
// Grid: blocks of 64 queries, pairs of a sequence and a head. Shared memory: ATTEND_BYTES.
#if KERNELS & 1
constexpr int ATTEND_STAGE = SIZE > 96 ? 32 : 64, ATTEND_RESIDENT = SIZE > 32 ? 3 : 4;
constexpr int ATTEND_BYTES = 4 * ATTEND_STAGE * ROW_BYTES;
#ifdef SHARED
static_assert(SHARED == ATTEND_BYTES, "the shared memory of attend");
#endif
extern "C" __global__ void __launch_bounds__(THREADS, ATTEND_RESIDENT) attend(Attend p) {
    SHARED_MEMORY(char, shared);
    const Shape& shape = p.shape;
    const u32 memory = shared_address(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, last = shape.time - 1;
    const Lane places;
    const int pair = shape.first_pair + blockIdx.y, sequence = pair / shape.heads, head = pair % shape.heads;
    const int shared_head = shape.heads + head / (shape.heads / shape.kv_heads);
    // The latest queries have the most keys, so they come first.
    const int block = last / ROWS - blockIdx.x;
    const int first = block * ROWS + warp * 16;
    const int stages = min(block * ROWS + ROWS - 1, last) / ATTEND_STAGE + 1;
    const int stride = packed_stride(shape);
    const u16* keys = p.qkv + packed(shape, sequence, shared_head);
    const u16* values = keys + shape.kv_heads * SIZE;
    constexpr int TILE = ATTEND_STAGE * ROW_BYTES;
    auto fetch = [&](int stage) {
        const u32 to = memory + stage % 2 * 2 * TILE;
        copy_rows<ATTEND_STAGE>(to, keys, stride, stage * ATTEND_STAGE, last);
        copy_rows<ATTEND_STAGE>(to + TILE, values, stride, stage * ATTEND_STAGE, last);
    };
    copy_rows<ROWS>(memory + 2 * TILE, p.qkv + packed(shape, sequence, head), stride, block * ROWS, last);
    commit();
    fetch(0);
    commit();
    wait<1>();
    __syncthreads();
    Left queries;
    load_rows(queries, memory + 2 * TILE, places);

    Sums out;
    clear(out);
    // What was subtracted from a row's scaled scores in units of log2, and the sum of the lane's exponentials. The rows
    // of a lane are `lane / 4` and `lane / 4 + 8`.
    float reference[2] = {NEVER, NEVER}, sum[2] = {0.0f, 0.0f};
    const float scale = shape.scale * LOG2_E;
    const u32 key_of_mask = DROPOUT ? sequence_key(shape, sequence) : 0;
    for (int stage = 0; stage < stages; stage++) {
        // The stage has arrived, and all warps are done with the one before.
        wait<0>();
        __syncthreads();
        if (stage + 1 < stages) fetch(stage + 1);
        commit();
        const int key = stage * ATTEND_STAGE;
        if (ATTEND_STAGE < ROWS && key > first + 15) continue;
        const u32 tile = memory + stage % 2 * 2 * TILE;
        float s[ATTEND_STAGE / 8][4];
        scores(s, queries, tile, places);
        // The lane's first column and row.
        const int column = key + lane % 4 * 2, row = first + lane / 4;
        if (key + ATTEND_STAGE - 1 > first)
#pragma unroll
            for (int j = 0; j < ATTEND_STAGE / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (column + j * 8 + e % 2 > row + e / 2 * 8) s[j][e] = NEVER;
        float largest[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            largest[h] = s[0][2 * h];
#pragma unroll
            for (int j = 0; j < ATTEND_STAGE / 8; j++) largest[h] = max(largest[h], max(s[j][2 * h], s[j][2 * h + 1]));
        }
        // The reference need not be the largest score. It grows only if exponentials would exceed 2^8, which is rare
        // after the first stage.
        if (any_lane(largest[0] * scale > reference[0] + 8.0f || largest[1] * scale > reference[1] + 8.0f))
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float most = max(largest[h], xor_lane(largest[h], 1));
                most = max(most, xor_lane(most, 2));
                most = max(reference[h], most * scale);
                const float factor = exp2_of(reference[h] - most);
                reference[h] = most;
                sum[h] *= factor;
#pragma unroll
                for (int j = 0; j < SIZE / 8; j++)
#pragma unroll
                    for (int e = 2 * h; e < 2 * h + 2; e++) out[j][e] *= factor;
            }
#pragma unroll
        for (int j = 0; j < ATTEND_STAGE / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[j][e] = exp2_of(s[j][e] * scale - reference[e / 2]);
                sum[e / 2] += s[j][e];
            }
        if (DROPOUT)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const u32 start = ((u32)head * shape.time + row + 8 * h) * shape.time + column;
#pragma unroll
                for (int j = 0; j < ATTEND_STAGE / 8; j++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        if (!keeps(shape, key_of_mask, start + j * 8 + e)) s[j][2 * h + e] = 0.0f;
            }
        add_rows(out, s, tile + TILE, places);
    }
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] += xor_lane(sum[h], 1);
        sum[h] += xor_lane(sum[h], 2);
        factor[h] = (DROPOUT ? shape.kept_scale : 1.0f) / sum[h];
        const int row = first + lane / 4 + 8 * h;
        if (lane % 4 == 0 && row <= last)
            p.log_sum_exp[(long long)pair * shape.time + row] = (reference[h] + log2_of(sum[h])) * (1.0f / LOG2_E);
    }
    // Other warps may still read the stage.
    __syncthreads();
    u16* to = p.out + merged(shape, sequence, head);
    store(to, shape.heads * SIZE, first, shape.time, out, factor[0], factor[1], shared + warp * 16 * ROW_BYTES);
}
#endif

// Writes `delta`, the sums of the output times its gradient, and the gradient of 64 queries, from
// ds = p (dout v^T - delta) and dq = scale ds k.
//
// Grid: blocks of 64 queries, pairs of a sequence and a head. Shared memory: QUERIES_BYTES.
#if KERNELS & 2
constexpr int QUERIES_STAGE = 32, QUERIES_RESIDENT = SIZE > 80 ? 2 : 3;
constexpr int QUERIES_BYTES = (2 * QUERIES_STAGE + 2 * ROWS) * ROW_BYTES;
#ifdef SHARED
static_assert(SHARED == QUERIES_BYTES, "the shared memory of backward_queries");
#endif
extern "C" __global__ void __launch_bounds__(THREADS, QUERIES_RESIDENT) backward_queries(BackwardQueries p) {
    SHARED_MEMORY(char, shared);
    const Shape& shape = p.shape;
    const u32 memory = shared_address(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, last = shape.time - 1;
    const Lane places;
    const int pair = shape.first_pair + blockIdx.y, sequence = pair / shape.heads, head = pair % shape.heads;
    const int shared_head = shape.heads + head / (shape.heads / shape.kv_heads);
    const int block = last / ROWS - blockIdx.x;
    const int first = block * ROWS + warp * 16;
    const int stages = min(block * ROWS + ROWS - 1, last) / QUERIES_STAGE + 1;
    const int stride = packed_stride(shape), out_stride = shape.heads * SIZE;
    const u16* keys = p.qkv + packed(shape, sequence, shared_head);
    const u16* values = keys + shape.kv_heads * SIZE;
    constexpr int TILE = QUERIES_STAGE * ROW_BYTES;
    auto fetch = [&](int stage) {
        const u32 to = memory + stage % 2 * 2 * TILE;
        copy_rows<QUERIES_STAGE>(to, keys, stride, stage * QUERIES_STAGE, last);
        copy_rows<QUERIES_STAGE>(to + TILE, values, stride, stage * QUERIES_STAGE, last);
    };
    // The rows are where the second stage will be, and behind it.
    constexpr int QUERIES_AT = 2 * TILE, DOUT_AT = QUERIES_AT + ROWS * ROW_BYTES;
    copy_rows<ROWS>(memory + QUERIES_AT, p.qkv + packed(shape, sequence, head), stride, block * ROWS, last);
    copy_rows<ROWS>(memory + DOUT_AT, p.dout + merged(shape, sequence, head), out_stride, block * ROWS, last);
    commit();
    fetch(0);
    commit();

    // Rows of the output, whose parts are spread over four lanes.
    constexpr int PARTS = (CHUNKS + 3) / 4;
    u32x4 out[2][PARTS];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = min(first + lane / 4 + 8 * h, last);
#pragma unroll
        for (int c = 0; c < PARTS; c++) {
            const int chunk = lane % 4 + 4 * c;
            if (chunk < CHUNKS)
                out[h][c] = *(const u32x4*)(p.out + merged(shape, sequence, head) + (long long)row * out_stride + chunk * 8);
        }
    }
    wait<1>();
    __syncthreads();
    Left queries, dout;
    load_rows(queries, memory + QUERIES_AT, places);
    load_rows(dout, memory + DOUT_AT, places);
    // The negative logarithms in units of log2.
    float reference[2], delta[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        delta[h] = 0.0f;
#pragma unroll
        for (int c = 0; c < PARTS; c++) {
            const int chunk = lane % 4 + 4 * c;
            if (chunk < CHUNKS) {
                const u32x4 d = *(const u32x4*)(shared + DOUT_AT + place(warp * 16 + lane / 4 + 8 * h, chunk));
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    const int shift = e % 2 * 16;
                    delta[h] += widen(out[h][c].v[e / 2] >> shift & 0xffff) * widen(d.v[e / 2] >> shift & 0xffff);
                }
            }
        }
        delta[h] += xor_lane(delta[h], 1);
        delta[h] += xor_lane(delta[h], 2);
        const int row = first + lane / 4 + 8 * h;
        const long long statistic = (long long)pair * shape.time + min(row, last);
        if (lane % 4 == 0 && row <= last) p.delta[statistic] = delta[h];
        reference[h] = p.log_sum_exp[statistic] * -LOG2_E;
    }

    Sums dq;
    clear(dq);
    const float scale = shape.scale * LOG2_E;
    const u32 key_of_mask = DROPOUT ? sequence_key(shape, sequence) : 0;
    for (int stage = 0; stage < stages; stage++) {
        wait<0>();
        __syncthreads();
        if (stage + 1 < stages) fetch(stage + 1);
        commit();
        const int key = stage * QUERIES_STAGE;
        if (key > first + 15) continue;
        const u32 tile = memory + stage % 2 * 2 * TILE;
        float s[QUERIES_STAGE / 8][4], g[QUERIES_STAGE / 8][4];
        scores(s, queries, tile, places);
        scores(g, dout, tile + TILE, places);
        const int column = key + lane % 4 * 2, row = first + lane / 4;
        if (key + QUERIES_STAGE - 1 > first)
#pragma unroll
            for (int j = 0; j < QUERIES_STAGE / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (column + j * 8 + e % 2 > row + e / 2 * 8) s[j][e] = NEVER;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const u32 start = ((u32)head * shape.time + row + 8 * h) * shape.time + column;
#pragma unroll
            for (int j = 0; j < QUERIES_STAGE / 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float& gradient = g[j][2 * h + e];
                    if (DROPOUT) gradient = keeps(shape, key_of_mask, start + j * 8 + e) ? gradient * shape.kept_scale : 0.0f;
                    s[j][2 * h + e] = exp2_of(s[j][2 * h + e] * scale + reference[h]) * (gradient - delta[h]);
                }
        }
        add_rows(dq, s, tile, places);
    }
    __syncthreads();
    u16* to = p.dqkv + packed(shape, sequence, head);
    store(to, stride, first, shape.time, dq, shape.scale, shape.scale, shared + warp * 16 * ROW_BYTES);
}
#endif

// Writes the gradients of 64 keys and values: dk = scale ds^T q and dv = p^T dout, over the heads of queries that share
// them, one after the other. Rows of scores are keys here, and columns queries.
//
// Grid: blocks of 64 keys, pairs of a sequence and a head of keys. Shared memory: KEYS_BYTES.
#if KERNELS & 4
constexpr int KEYS_STAGE = 32, KEYS_RESIDENT = SIZE > 64 ? 2 : 3;
constexpr int KEYS_BYTES = (2 * KEYS_STAGE + 2 * ROWS) * ROW_BYTES + 4 * KEYS_STAGE * 4;
// The rows of large values don't fit into registers, so they are loaded for each stage.
constexpr bool VALUES_IN_REGISTERS = SIZE < 128;
#ifdef SHARED
static_assert(SHARED == KEYS_BYTES, "the shared memory of backward_keys");
#endif
extern "C" __global__ void __launch_bounds__(THREADS, KEYS_RESIDENT) backward_keys(BackwardKeys p) {
    SHARED_MEMORY(char, shared);
    const Shape& shape = p.shape;
    const u32 memory = shared_address(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, last = shape.time - 1;
    const Lane places;
    const int pair = shape.first_pair + blockIdx.y, sequence = pair / shape.kv_heads, kv_head = pair % shape.kv_heads;
    const int sharing = shape.heads / shape.kv_heads;
    // The earliest keys have the most queries, so they come first.
    const int first = blockIdx.x * ROWS + warp * 16;
    const int first_stage = blockIdx.x * ROWS / KEYS_STAGE, stages = last / KEYS_STAGE + 1;
    const int stride = packed_stride(shape), out_stride = shape.heads * SIZE;
    const long long keys_at = packed(shape, sequence, shape.heads + kv_head), values_at = keys_at + shape.kv_heads * SIZE;
    constexpr int TILE = KEYS_STAGE * ROW_BYTES;
    // The rows of the keys are where the second stage will be, those of the values behind it, then the statistics.
    constexpr int OWN_KEYS = 2 * TILE, OWN_VALUES = OWN_KEYS + ROWS * ROW_BYTES, STATISTICS = OWN_VALUES + ROWS * ROW_BYTES;
    constexpr int STATISTICS_BYTES = 2 * KEYS_STAGE * 4;
    auto fetch = [&](int buffer, int nth, int stage) {
        const int head = kv_head * sharing + nth, query = stage * KEYS_STAGE;
        const u32 to = memory + buffer * 2 * TILE;
        copy_rows<KEYS_STAGE>(to, p.qkv + packed(shape, sequence, head), stride, query, last);
        copy_rows<KEYS_STAGE>(to + TILE, p.dout + merged(shape, sequence, head), out_stride, query, last);
        const int at = threadIdx.x;
        if (at < 2 * KEYS_STAGE) {
            const float* from = at < KEYS_STAGE ? p.log_sum_exp : p.delta;
            const long long start = ((long long)sequence * shape.heads + head) * shape.time;
            copy4(memory + STATISTICS + buffer * STATISTICS_BYTES + at * 4, from + start + min(query + at % KEYS_STAGE, last));
        }
    };
    copy_rows<ROWS>(memory + OWN_KEYS, p.qkv + keys_at, stride, blockIdx.x * ROWS, last);
    copy_rows<ROWS>(memory + OWN_VALUES, p.qkv + values_at, stride, blockIdx.x * ROWS, last);
    commit();
    fetch(0, 0, first_stage);
    commit();
    wait<1>();
    __syncthreads();
    Left keys, values;
    load_rows(keys, memory + OWN_KEYS, places);
    if (VALUES_IN_REGISTERS) load_rows(values, memory + OWN_VALUES, places);

    Sums dk, dv;
    clear(dk);
    clear(dv);
    const float scale = shape.scale * LOG2_E;
    const u32 key_of_mask = DROPOUT ? sequence_key(shape, sequence) : 0;
    u32 buffer = 0;
    for (int nth = 0, stage = first_stage; nth < sharing;) {
        wait<0>();
        __syncthreads();
        const int query = stage * KEYS_STAGE, head = kv_head * sharing + nth;
        const u32 tile = memory + buffer * 2 * TILE;
        const float* statistics = (const float*)(shared + STATISTICS + buffer * STATISTICS_BYTES) + lane % 4 * 2;
        buffer = 1 - buffer;
        stage++;
        if (stage == stages) {
            stage = first_stage;
            nth++;
        }
        if (nth < sharing) fetch(buffer, nth, stage);
        commit();
        if (query + KEYS_STAGE <= first) continue;
        const int column = query + lane % 4 * 2, row = first + lane / 4;
        float s[KEYS_STAGE / 8][4], g[KEYS_STAGE / 8][4];
        scores(s, keys, tile, places);
        if (query < first + 15 || query + KEYS_STAGE > shape.time)
#pragma unroll
            for (int j = 0; j < KEYS_STAGE / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int at = column + j * 8 + e % 2;
                    if (row + e / 2 * 8 > at || at > last) s[j][e] = NEVER;
                }
        if (VALUES_IN_REGISTERS) scores(g, values, tile + TILE, places);
        else scores(g, memory + OWN_VALUES, tile + TILE, places);
        const u32 start = (u32)head * shape.time;
#pragma unroll
        for (int j = 0; j < KEYS_STAGE / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float reference = statistics[j * 8 + e] * -LOG2_E, delta = statistics[KEYS_STAGE + j * 8 + e];
                const u32 place = (start + column + j * 8 + e) * shape.time + row;
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float &probability = s[j][2 * h + e], &gradient = g[j][2 * h + e];
                    probability = exp2_of(probability * scale + reference);
                    if (DROPOUT) {
                        const bool kept = keeps(shape, key_of_mask, place + 8 * h);
                        gradient = probability * ((kept ? gradient * shape.kept_scale : 0.0f) - delta);
                        if (!kept) probability = 0.0f;
                    } else {
                        gradient = probability * (gradient - delta);
                    }
                }
            }
        add_rows(dv, s, tile + TILE, places);
        add_rows(dk, g, tile, places);
    }
    __syncthreads();
    char* own = shared + warp * 16 * ROW_BYTES;
    const float kept_scale = DROPOUT ? shape.kept_scale : 1.0f;
    store(p.dqkv + keys_at, stride, first, shape.time, dk, shape.scale, shape.scale, own);
    store(p.dqkv + values_at, stride, first, shape.time, dv, kept_scale, kept_scale, own);
}
#endif
