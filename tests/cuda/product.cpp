// Compares a variant of product.cu with an f64 oracle, on the CPU. Prints a hash of each result: variants that differ
// in their tiles give the same bits.
#include "emulator.h"
#include "../../shaders/cuda/product.cu"

static Params params;
static void kernel() { product(params); }

static u32 state = 1;
// Returns a number between -1 and 1.
static float random_number() {
    state = state * 1664525 + 1013904223;
    return (int)(state >> 8) / 8388608.0f - 1.0f;
}
static void set(u16& to, float value) { to = half_of(value); }
static void set(float& to, float value) { to = value; }
static double get(u16 from) { return widen(from); }
static double get(float from) { return from; }
// The value that is multiplied: the nearest of 11 bits, away from zero between two, for tf32.
static double factor(u16 from) { return widen(from); }
static double factor(float from) {
    int exponent;
    const double mantissa = frexp(from, &exponent);
    return ldexp(round(mantissa * 2048.0), exponent - 11);
}

static double slope(double x, bool exact) {
    if (exact) return 0.5 * (1.0 + erf(x / sqrt(2.0))) + x * exp(-0.5 * x * x) / sqrt(2.0 * M_PI);
    const double c = sqrt(2.0 / M_PI), t = tanh(c * (x + 0.044715 * x * x * x));
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * c * (1.0 + 3.0 * 0.044715 * x * x);
}

enum { BIAS = 1, RESIDUAL = 2, TANH = 4, ERF = 8, ACCUMULATE = 16, OUT_F32 = 32, SUMS = 64 };
struct Case { int m, n, k, ranges, parts; };

[[noreturn]] static void report(const Case& c, const char* what, double error) {
    printf("wrong: %d x %d x %d, %d ranges, parts %d: %s, error %g\n", c.m, c.n, c.k, c.ranges, c.parts, what, error);
    exit(1);
}
static unsigned long hash_of(const void* data, size_t bytes, unsigned long hash = 1469598103934665603ul) {
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ ((const unsigned char*)data)[i]) * 1099511628211ul;
    return hash;
}

// Runs a case under schedules from `first` to `last`, copies landing late and at once. All give the same bits.
static void check(const Case& c, int first, int last) {
    const int m = c.m, n = c.n, k = c.k;
    const bool is_f32 = TF32 || c.parts & OUT_F32 || c.ranges > 1;
    // Rows are longer than what is multiplied, and NaN is there.
    const int lda = ((A_TRANSPOSED ? m : k) + 15) / 8 * 8, ldb = (B_TRANSPOSED ? k : n) + 8;
    Tensor<T> a((size_t)(A_TRANSPOSED ? k : m) * lda), b((size_t)(B_TRANSPOSED ? n : k) * ldb);
    Tensor<T> residual((size_t)m * n), derivative((size_t)m * n);
    Tensor<float> bias(n), sums((size_t)c.ranges * n);
    const size_t bytes = (size_t)c.ranges * m * n * (is_f32 ? 4 : 2);
    Tensor<char> y(bytes);
    std::vector<char> before(bytes, (char)0xff), results;
    std::vector<float> results_of_sums;
    for (int r = 0; r < (A_TRANSPOSED ? k : m); r++) for (int i = 0; i < (A_TRANSPOSED ? m : k); i++) set(a[(size_t)r * lda + i], random_number());
    for (int r = 0; r < (B_TRANSPOSED ? n : k); r++) for (int i = 0; i < ldb - 8; i++) set(b[(size_t)r * ldb + i], random_number());
    for (size_t i = 0; i < (size_t)m * n; i++) set(residual[i], 4.0f * random_number()), set(derivative[i], 4.0f * random_number());
    for (int i = 0; i < n; i++) bias[i] = 4.0f * random_number();
    if (c.parts & ACCUMULATE)
        for (size_t i = 0; i < (size_t)m * n; i++) {
            if (is_f32) set(((float*)before.data())[i], 4.0f * random_number());
            else set(((u16*)before.data())[i], 4.0f * random_number());
        }
    params = {a.data, b.data, y.data, c.parts & BIAS ? bias.data : nullptr, c.parts & RESIDUAL ? residual.data : nullptr,
        c.parts & (TANH | ERF) ? derivative.data : nullptr, c.parts & SUMS ? sums.data : nullptr,
        m, n, k, lda, ldb, k / c.ranges, !!(c.parts & ACCUMULATE), !!(c.parts & ERF), !!(c.parts & OUT_F32)};
    for (int number = first; number <= last; number++)
        for (int late = 0; late < 2; late++) {
            schedule = (Schedule)std::min(number, (int)RANDOM);
            copies_land_late = late;
            memcpy(y.data, before.data(), bytes);
            memset(sums.data, 0xff, sums.length * 4);
            const int tiles = ((m + TILE_M - 1) / TILE_M) * ((n + TILE_N - 1) / TILE_N);
            launch(kernel, tiles, c.ranges, THREADS, STAGES * STAGE_BYTES, number + 1);
            if (number == first && !late) {
                results.assign(y.data, y.data + bytes);
                results_of_sums.assign(sums.data, sums.data + sums.length);
            } else if (memcmp(results.data(), y.data, bytes) || memcmp(results_of_sums.data(), sums.data, sums.length * 4)) {
                char what[80];
                snprintf(what, sizeof what, "schedule %d with %s copies gives other bits", number, late ? "late" : "early");
                report(c, what, 0);
            }
            if (!y.is_intact() || !sums.is_intact()) report(c, "it stores in front of a tensor", 0);
        }
    double worst = 0, worst_of_sums = 0;
    for (int range = 0; range < c.ranges; range++) {
        const int from = range * (k / c.ranges), to = from + k / c.ranges;
        for (int j = 0; j < n; j++) {
            std::vector<double> column(k);
            double total = 0, magnitude_of_total = 1e-3;
            for (int q = from; q < to; q++) {
                const T& at = b[B_TRANSPOSED ? (size_t)j * ldb + q : (size_t)q * ldb + j];
                column[q] = factor(at);
                total += get(at);
                magnitude_of_total += fabs(get(at));
            }
            if (c.parts & SUMS) {
                const double error = fabs(results_of_sums[(size_t)range * n + j] - total) / magnitude_of_total / 1e-6;
                worst_of_sums = std::max(worst_of_sums, std::isnan(error) ? 1e9 : error);
            }
            for (int i = 0; i < m; i++) {
                double value = 0, magnitude = 1e-3;
                for (int q = from; q < to; q++) {
                    const double term = factor(a[A_TRANSPOSED ? (size_t)q * lda + i : (size_t)i * lda + q]) * column[q];
                    value += term;
                    magnitude += fabs(term);
                }
                const size_t at = (size_t)i * n + j, in_y = (size_t)range * m * n + at;
                auto stored = [&](const std::vector<char>& bytes) {
                    return is_f32 ? ((const float*)bytes.data())[in_y] : widen(((const u16*)bytes.data())[in_y]);
                };
                if (c.ranges == 1) {
                    if (c.parts & (TANH | ERF)) value *= slope(get(derivative[at]), c.parts & ERF);
                    if (c.parts & BIAS) value += bias[j];
                    if (c.parts & RESIDUAL) value += get(residual[at]);
                    if (c.parts & ACCUMULATE) value += stored(before);
                    magnitude += 12;
                }
                // Rounding of the sums, then of the result.
                const double allowed = magnitude * 1e-6 + (is_f32 ? 0.0 : fabs(value) * (F16 ? 0x1p-11 : 0x1p-8) * 1.001);
                const double error = fabs(stored(results) - value) / allowed;
                worst = std::max(worst, std::isnan(error) ? 1e9 : error);
            }
        }
    }
    if (worst > 1) report(c, "y differs from the oracle", worst);
    if (worst_of_sums > 1) report(c, "column sums differ from the oracle", worst_of_sums);
    printf("case %d x %d x %d, %d ranges, parts %d: %016lx\n", m, n, k, c.ranges, c.parts,
        hash_of(results.data(), bytes, hash_of(results_of_sums.data(), results_of_sums.size() * 4)));
}

int main() {
    const int sums = A_TRANSPOSED ? SUMS : 0;
    // More stages than are in shared memory, tiles in both directions, every schedule.
    check({200, 136, 192, 1, BIAS | RESIDUAL | sums}, EVEN, RANDOM + 2);
    // Every part of the epilogue on every edge.
    const int parts[] = {0, BIAS, RESIDUAL, TANH, ERF, ACCUMULATE, BIAS | RESIDUAL | TANH | ACCUMULATE, OUT_F32,
        OUT_F32 | ACCUMULATE, OUT_F32 | BIAS | RESIDUAL | ERF, sums, sums | OUT_F32 | ACCUMULATE};
    int next = 0;
    for (int m : {1, 100, 129})
        for (int n : {8, 136})
            for (int k : {32, 96}) check({m, n, k, 1, parts[next++ % 12]}, RANDOM, RANDOM);
    // Ranges of k, which have no epilogue. More than eight rows of tiles.
    check({100, 136, 192, 3, BIAS | RESIDUAL | TANH | ACCUMULATE | sums}, FIRST, LAST);
    check({1100, 136, 32, 1, BIAS}, EVEN, EVEN);
    printf("conflicts %ld of %ld\n", conflicts, rows_loaded);
}
