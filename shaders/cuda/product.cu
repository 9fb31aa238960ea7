// y = epilogue(a b): a product of matrices with sums in f32.
//
// A workgroup computes TILE_M x TILE_N elements of y, a warp WARP_M x WARP_N of them. 64 bytes of k of both factors
// are a stage; STAGES of them are in shared memory, all but one on their way. Every tile adds up k in the same
// order, so it changes no bit. scripts/cuda-kernels.py has the table of variants.
#include "mma.cuh"

// True if `a` is `[k, m]` in memory, and if `b` is `[n, k]`.
#ifndef A_TRANSPOSED
#define A_TRANSPOSED 0
#define B_TRANSPOSED 0
#endif
// True for f32 elements, which are multiplied in tf32. Otherwise F16 chooses.
#ifndef TF32
#define TF32 0
#endif
#ifndef TILE_M
#define TILE_M 128
#define TILE_N 128
#define WARP_M 64
#define WARP_N 32
#define STAGES 3
#define RESIDENT 2
#endif

#if TF32
typedef float T;
#define MMA mma_tf32
#else
typedef u16 T;
#define MMA mma
#endif

struct Params {
    const T* a;
    const T* b;
    // `[m, n]`; over several ranges of k, `[ranges, m, n]` in f32, without an epilogue.
    void* y;
    // The epilogue, in this order: times the derivative of GELU at this, plus bias, plus residual, plus `y`.
    const float* bias;
    const T* residual;
    const T* derivative;
    // The sums over k of the columns of `b`, `[ranges, n]`. Only if `a` is transposed and `b` is not.
    float* column_sums;
    // n is a multiple of 8, k of 32.
    int m, n, k;
    // Elements between rows in memory, multiples of 8.
    int lda, ldb;
    int k_per_range;
    // True if the epilogue adds `y`.
    int accumulate;
    // True for GELU with the error function, not with tanh.
    int exact;
    // True if `y` is f32, otherwise its dtype is that of the factors.
    int out_f32;
};

const int WARPS_M = TILE_M / WARP_M, WARPS_N = TILE_N / WARP_N;
const int THREADS = 32 * WARPS_M * WARPS_N;
// Elements in 16 bytes, which are copied at once, and of k in a stage.
const int CHUNK = 16 / sizeof(T), DEPTH = 4 * CHUNK;
// Bytes in shared memory.
const int A_BYTES = TILE_M * 64, STAGE_BYTES = A_BYTES + TILE_N * 64;
// Rows of a warp that are in shared memory at once for the epilogue, and the floats between them.
const int EPILOGUE_ROWS = 32, EPILOGUE_STRIDE = WARP_N + 4;
static_assert(THREADS / 32 * EPILOGUE_ROWS * EPILOGUE_STRIDE * 4 <= STAGES * STAGE_BYTES, "the epilogue's memory");

// The side of a factor that is in a stage: rows along k of 64 bytes, or else rows of SIDE elements. The chunks of a
// row change places with the row, so that a warp reads different banks.
template <bool ALONG_K, int SIDE> struct Factor {
    static const int CHUNKS = ALONG_K ? 4 : SIDE / CHUNK, ROWS = THREADS / CHUNKS, COPIES = SIDE * 4 / THREADS;
    // What this thread copies of the next stage, and to where in a stage.
    const char* from[COPIES];
    u32 to;
    long long step;
    // Where this thread reads in a stage.
    u32 at;

    static __device__ __forceinline__ u32 place(int row, int chunk) {
        const int swap = ALONG_K ? row >> 1 & 3 : TF32 ? (row & 3) * 2 : row & 7;
        return (row * CHUNKS + (chunk ^ swap)) * 16;
    }

    // `first` is the tile's first of `side` rows or columns, `warp` the warp's first in the tile. What lies outside
    // is replaced by the last ones: their products are not stored.
    __device__ __forceinline__ void begin(const T* factor, int stride, int k, int first, int side, int warp, bool is_a) {
        const int thread = threadIdx.x, lane = thread % 32;
        const int row = thread / CHUNKS, chunk = thread % CHUNKS;
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const int line = ALONG_K ? min(first + row + i * ROWS, side - 1) : k + row + i * ROWS;
            const int column = ALONG_K ? k + chunk * CHUNK : min(first + chunk * CHUNK, (side - 1) / CHUNK * CHUNK);
            from[i] = (const char*)(factor + (long long)line * stride + column);
        }
        to = place(row, chunk);
        step = ALONG_K ? 64 : (long long)DEPTH * stride * sizeof(T);
        // The second matrix of ldmatrix has the next rows or columns of `a`, and the next of k of `b`.
        const int half = is_a ? lane / 8 % 2 : lane / 16, other = is_a ? lane / 16 : lane / 8 % 2;
        if (ALONG_K) at = place(warp + half * 8 + lane % 8, other);
        else if (TF32) at = place(lane % 4, warp / CHUNK + lane / 16) + lane / 4 % 4 * 4;
        else at = place(other * 8 + lane % 8, warp / CHUNK + half);
    }

    __device__ __forceinline__ void copy(u32 stage) {
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            copy16(stage + to + i * ROWS * CHUNKS * 16, from[i]);
            from[i] += step;
        }
    }

    // Loads 16 rows or columns from `i * 16` on, of half `slice` of a stage.
    __device__ __forceinline__ void load(u32 (&r)[4], u32 stage, int i, int slice, bool is_a) const {
        if (ALONG_K) {
            ldmatrix4<false>(r, (stage + at ^ slice * 32) + i * 16 * 64);
        } else if (!TF32) {
            ldmatrix4<true>(r, (stage + at ^ i * 32) + slice * 16 * CHUNKS * 16);
        } else {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                // The next 8 of the side, the next 4 of k.
                const int half = is_a ? e % 2 : e / 2, other = is_a ? e / 2 : e % 2;
                r[e] = load_shared((stage + at ^ (i * 4 + half * 2) * 16) + (slice * 8 + other * 4) * CHUNKS * 16);
            }
        }
        if (TF32) {
#pragma unroll
            for (int e = 0; e < 4; e++) r[e] = to_tf32(r[e]);
        }
    }
};

// The sums of b's columns. A thread adds a word of columns, of a quarter of each stage's rows.
struct ColumnSums {
    static const int WIDTH = 4 / sizeof(T), WORDS = TILE_N / WIDTH, COUNT = 4 * WORDS / THREADS;
    float sums[COUNT][WIDTH];

    static __device__ __forceinline__ int column(int i) { return (threadIdx.x + i * THREADS) % WORDS * WIDTH; }
    static __device__ __forceinline__ int quarter(int i) { return (threadIdx.x + i * THREADS) / WORDS; }

    __device__ __forceinline__ void begin() {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
#pragma unroll
            for (int e = 0; e < WIDTH; e++) sums[i][e] = 0.0f;
    }

    __device__ __forceinline__ void add(u32 stage) {
        const int rows = DEPTH / 4, row_bytes = TILE_N * sizeof(T);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            // The first row's chunks are in order, so the place in row `r` differs as the first chunk's does.
            const u32 at = stage + quarter(i) * rows * row_bytes + column(i) * sizeof(T);
#pragma unroll
            for (int r = 0; r < rows; r++) {
                const u32 word = load_shared((at ^ Factor<false, TILE_N>::place(r, 0) % row_bytes) + r * row_bytes);
#pragma unroll
                for (int e = 0; e < WIDTH; e++) sums[i][e] += TF32 ? as_float(word) : widen(word >> 16 * e);
            }
        }
    }

    // Stores the sums of each quarter, `[4, TILE_N]`.
    __device__ __forceinline__ void store(float* to) const {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
#pragma unroll
            for (int e = 0; e < WIDTH; e++) to[quarter(i) * TILE_N + column(i) + e] = sums[i][e];
    }
};

// Returns exp(x) for x from -80 to 80.
__device__ __forceinline__ float exp_of(float x) { return exp2_of(min(max(x, -80.0f), 80.0f) * LOG2_E); }

__device__ __forceinline__ float gelu_derivative(float x) {
    const float scale = 0.7978846f, cubic = 0.044715f;
    // With s the logistic function of 2 u: s + 2 x s (1 - s) u'.
    const float slope = scale + 3.0f * scale * cubic * x * x;
    const float e = exp_of(-2.0f * x * (scale + scale * cubic * x * x));
    const float s = divide(1.0f, 1.0f + e);
    return s + 2.0f * x * s * (e * s) * slope;
}

// The error function is Abramowitz and Stegun's 7.1.26, to 1.5e-7.
__device__ __forceinline__ float exact_gelu_derivative(float x) {
    const float z = fabsf(x) * 0.70710678f, t = divide(1.0f, 1.0f + 0.3275911f * z), bell = exp_of(-z * z);
    const float series = (((1.0614054f * t - 1.453152f) * t + 1.4214137f) * t - 0.28449674f) * t + 0.2548296f;
    const float tail = 0.5f * series * t * bell;
    return (x < 0.0f ? tail : 1.0f - tail) + x * 0.3989423f * bell;
}

// Reads 8 elements.
__device__ __forceinline__ void read8(float (&v)[8], const u16* from) {
    const u32x4 t = *(const u32x4*)from;
#pragma unroll
    for (int e = 0; e < 8; e++) v[e] = widen(t.v[e / 2] >> 16 * (e % 2));
}
__device__ __forceinline__ void read8(float (&v)[8], const float* from) {
    const f32x4 low = *(const f32x4*)from, high = *(const f32x4*)(from + 4);
#pragma unroll
    for (int e = 0; e < 4; e++) v[e] = low.v[e], v[4 + e] = high.v[e];
}
__device__ __forceinline__ void write8(u16* to, const float (&v)[8]) {
    u32x4 t;
#pragma unroll
    for (int e = 0; e < 4; e++) t.v[e] = narrow2(v[2 * e], v[2 * e + 1]);
    *(u32x4*)to = t;
}
__device__ __forceinline__ void write8(float* to, const float (&v)[8]) {
    f32x4 low, high;
#pragma unroll
    for (int e = 0; e < 4; e++) low.v[e] = v[e], high.v[e] = v[4 + e];
    *(f32x4*)to = low;
    *(f32x4*)(to + 4) = high;
}

// Brings the tile of a tensor that the epilogue reads into the cache, while the factors are multiplied.
__device__ __forceinline__ void prefetch_tile(const T* tensor, const Params& p, int row, int column) {
    const int line = 128 / sizeof(T), lines = TILE_N / line;
#pragma unroll 1
    for (int at = threadIdx.x; at < TILE_M * lines; at += THREADS) {
        const int r = row + at / lines, c = column + at % lines * line;
        if (r < p.m && c < p.n) prefetch(tensor + (long long)r * p.n + c);
    }
}

// Runs the epilogue on 8 elements of a column and stores them.
__device__ __forceinline__ void finish(const Params& p, const float* sums, long long place, int column) {
    const bool whole = gridDim.y == 1;
    float v[8], other[8];
    read8(v, sums);
    if (whole && p.derivative) {
        read8(other, p.derivative + place);
        if (p.exact) {
#pragma unroll
            for (int e = 0; e < 8; e++) v[e] *= exact_gelu_derivative(other[e]);
        } else {
#pragma unroll
            for (int e = 0; e < 8; e++) v[e] *= gelu_derivative(other[e]);
        }
    }
    if (whole && p.bias) {
        read8(other, p.bias + column);
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] += other[e];
    }
    if (whole && p.residual) {
        read8(other, p.residual + place);
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] += other[e];
    }
    const bool is_f32 = TF32 || p.out_f32 || !whole;
    float* y = (float*)p.y + (long long)blockIdx.y * p.m * p.n + place;
    T* narrow = (T*)p.y + place;
    if (whole && p.accumulate) {
        if (is_f32) read8(other, y);
        else read8(other, narrow);
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] += other[e];
    }
    if (is_f32) write8(y, v);
    else write8(narrow, v);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) product(Params p) {
    SHARED_MEMORY(char, shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Workgroups that run at once share factors through the cache if they are neighbours both ways: they take strips
    // of eight rows of tiles.
    const int rows = (p.m + TILE_M - 1) / TILE_M, columns = (p.n + TILE_N - 1) / TILE_N;
    const int first = blockIdx.x / (8 * columns) * 8, strip = min(8, rows - first);
    const int rest = blockIdx.x - first * columns;
    const int row = (first + rest % strip) * TILE_M, column = rest / strip * TILE_N;
    const int warp_m = warp / WARPS_N, warp_n = warp % WARPS_N;
    const int k = blockIdx.y * p.k_per_range, stages = min(p.k_per_range, p.k - k) / DEPTH;

    Factor<!A_TRANSPOSED, TILE_M> a;
    Factor<B_TRANSPOSED, TILE_N> b;
    a.begin(p.a, p.lda, k, row, p.m, warp_m * WARP_M, true);
    b.begin(p.b, p.ldb, k, column, p.n, warp_n * WARP_N, false);
    const u32 memory = shared_address(shared), end = memory + STAGES * STAGE_BYTES;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < stages) {
            a.copy(memory + s * STAGE_BYTES);
            b.copy(memory + s * STAGE_BYTES + A_BYTES);
        }
        commit();
    }
#pragma unroll 1
    for (int which = 0; which < 2 && gridDim.y == 1; which++) {
        const T* tensor = which ? p.residual : p.derivative;
        if (tensor) prefetch_tile(tensor, p, row, column);
    }

    float sums[WARP_M / 16][WARP_N / 8][4];
#pragma unroll
    for (int i = 0; i < WARP_M / 16; i++)
#pragma unroll
        for (int j = 0; j < WARP_N / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums[i][j][e] = 0.0f;
#if A_TRANSPOSED
    ColumnSums column_sums;
    column_sums.begin();
    const bool adds_columns = p.column_sums && row == 0;
#endif

    u32 filled = memory, free = memory + (STAGES - 1) * STAGE_BYTES;
#pragma unroll 1
    for (int s = 0; s < stages; s++) {
        wait<STAGES - 2>();
        __syncthreads();
        if (s + STAGES - 1 < stages) {
            a.copy(free);
            b.copy(free + A_BYTES);
        }
        commit();
        free = filled;
#pragma unroll
        for (int slice = 0; slice < 2; slice++) {
            u32 x[WARP_M / 16][4], y[WARP_N / 16][4];
#pragma unroll
            for (int i = 0; i < WARP_M / 16; i++) a.load(x[i], filled, i, slice, true);
#pragma unroll
            for (int j = 0; j < WARP_N / 16; j++) b.load(y[j], filled + A_BYTES, j, slice, false);
#pragma unroll
            for (int i = 0; i < WARP_M / 16; i++)
#pragma unroll
                for (int j = 0; j < WARP_N / 8; j++) MMA(sums[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
        }
#if A_TRANSPOSED
        if (adds_columns) column_sums.add(filled + A_BYTES);
#endif
        filled += STAGE_BYTES;
        if (filled == end) filled = memory;
    }
    wait<0>();
    __syncthreads();
#if A_TRANSPOSED
    if (adds_columns) {
        float* total = (float*)shared;
        column_sums.store(total);
        __syncthreads();
        const int at = threadIdx.x;
        if (at < TILE_N && column + at < p.n) {
            float sum = total[at];
#pragma unroll
            for (int part = 1; part < 4; part++) sum += total[part * TILE_N + at];
            p.column_sums[(long long)blockIdx.y * p.n + column + at] = sum;
        }
        __syncthreads();
    }
#endif
    // A warp's sums go through its part of shared memory, so that a lane stores 8 of a row.
    float* own = (float*)shared + warp * EPILOGUE_ROWS * EPILOGUE_STRIDE;
#pragma unroll 1
    for (int part = 0; part < WARP_M / EPILOGUE_ROWS; part++) {
#pragma unroll
        for (int i = 0; i < WARP_M / 16; i++)
            if (i * 16 / EPILOGUE_ROWS == part)
#pragma unroll
                for (int j = 0; j < WARP_N / 8; j++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        float* to = own + (i * 16 % EPILOGUE_ROWS + h * 8 + lane / 4) * EPILOGUE_STRIDE + j * 8 + lane % 4 * 2;
                        to[0] = sums[i][j][2 * h];
                        to[1] = sums[i][j][2 * h + 1];
                    }
        __syncwarp();
#pragma unroll 1
        for (int at = lane; at < EPILOGUE_ROWS * WARP_N / 8; at += 32) {
            const int r = at / (WARP_N / 8), c = at % (WARP_N / 8) * 8;
            const int y_row = row + warp_m * WARP_M + part * EPILOGUE_ROWS + r, y_column = column + warp_n * WARP_N + c;
            if (y_row < p.m && y_column < p.n) finish(p, own + r * EPILOGUE_STRIDE + c, (long long)y_row * p.n + y_column, y_column);
        }
        __syncwarp();
    }
}
