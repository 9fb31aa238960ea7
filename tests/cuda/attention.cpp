// Compares shaders/cuda/attention.cu with sums in double precision.
//
// Small heads run under every schedule, others under two. Prints the worst error as a share of its bound. The bounds
// follow from one rounding of each factor and of each result to 16 bits.
#include "emulator.h"
#include "../../shaders/cuda/attention.cu"

struct Case { int batch, time, heads, kv_heads; };
static const Case CASES[] = {
    {2, 1, 2, 1}, {1, 63, 2, 2}, {1, 64, 2, 1}, {1, 65, 3, 1}, {2, 129, 2, 1}, {1, 200, 4, 2},
};
// The relative error of a rounding, and the absolute one of small numbers.
static const double UNIT = F16 ? 0x1p-11 : 0x1p-8, SMALL = F16 ? 0x1p-25 : 0x1p-133;
// The errors of arithmetic in f32.
static const double F32 = 5e-7;

static Attend attend_parameters;
static BackwardQueries queries_parameters;
static BackwardKeys keys_parameters;
static void run_attend() { attend(attend_parameters); }
static void run_queries() { backward_queries(queries_parameters); }
static void run_keys() { backward_keys(keys_parameters); }

static u32 random_state = 1;
static double uniform() {
    random_state = random_state * 1664525 + 1013904223;
    return (random_state >> 8) / 8388608.0 - 1.0;
}

// src/ops/dropout/mod.rs, in its own words.
static u32 mixed(u32 x) {
    x ^= x >> 16;
    x *= 0x7feb352d;
    x ^= x >> 15;
    x *= 0x846ca68b;
    return x ^ x >> 16;
}
static const u32 KEY[2] = {0x12345678, 0x9abcdef1}, FIRST_SEQUENCE = 5;
static const double RATE = 0.25;
static double kept(const Case& c, int sequence, int head, int query, int key) {
    if (!DROPOUT) return 1.0;
    const u32 of_sequence = mixed(mixed((FIRST_SEQUENCE + sequence) ^ KEY[0]) ^ KEY[1]);
    const u32 index = (head * c.time + query) * c.time + key;
    return mixed(mixed(index ^ of_sequence) ^ KEY[1]) >> 8 >= (u32)(RATE * (1 << 24)) ? 1.0 / (1.0 - RATE) : 0.0;
}

// A value, and a bound of its error before it is rounded.
struct Value { double value = 0.0, bound = 0.0; };

static bool failed = false;
// The worst error as a share of its bound, and of any value of its kind.
struct Worst {
    const char* name;
    double share = 0.0, error = 0.0;
    void see(double got, Value want) {
        const double error = fabs(got - want.value), share = error / (want.bound + 1e-30);
        if (!(share <= 1.0)) failed = true;
        this->share = max(this->share, std::isnan(share) ? INFINITY : share);
        this->error = max(this->error, std::isnan(error) ? INFINITY : error);
    }
    // The same for a result of 16 bits.
    void see_rounded(u16 got, Value want) {
        want.bound += UNIT * (fabs(want.value) + want.bound) + SMALL;
        see(widen(got), want);
    }
};
static Worst worst_out = {"out"}, worst_log = {"log_sum_exp"}, worst_delta = {"delta"};
static Worst worst_d[3] = {{"dq"}, {"dk"}, {"dv"}};
static const Worst* WORST[] = {&worst_out, &worst_log, &worst_delta, &worst_d[0], &worst_d[1], &worst_d[2]};

static void expect(bool holds, const char* otherwise) {
    if (holds) return;
    if (!failed) printf("%s\n", otherwise);
    failed = true;
}

// Two launches, the first with one pair.
static void launches(void (*kernel)(), int& first_pair, int time, int pairs, size_t bytes) {
    const int blocks = (time + 63) / 64;
    first_pair = 0;
    launch(kernel, blocks, 1, THREADS, bytes);
    first_pair = 1;
    if (pairs > 1) launch(kernel, blocks, pairs - 1, THREADS, bytes);
}

struct Run { Schedule schedule; bool late; };

static void check(const Case& c, const std::vector<Run>& runs) {
    const int rows = c.batch * c.time, width = (c.heads + 2 * c.kv_heads) * SIZE, merged_width = c.heads * SIZE;
    const int sharing = c.heads / c.kv_heads, statistics = c.batch * c.heads * c.time;
    const float scale = 1.0f / sqrtf(SIZE);
    Tensor<u16> qkv(rows * width), out(rows * merged_width), dout(rows * merged_width);
    Tensor<float> log_sum_exp(statistics);
    // Scores grow with the position in the last sequence, so that sums are rescaled.
    for (int t = 0; t < rows; t++)
        for (int i = 0; i < width; i++) {
            const double slope = t / c.time == c.batch - 1 && i < (c.heads + c.kv_heads) * SIZE ? 1.0 + t % c.time / 50.0 : 1.0;
            qkv[(size_t)t * width + i] = half_of(uniform() * 1.5 * slope);
        }
    for (int i = 0; i < rows * merged_width; i++) dout[i] = half_of(uniform());

    auto element = [&](int row, int head, int d) { return (double)widen(qkv[(size_t)row * width + head * SIZE + d]); };
    std::vector<Value> want_out(rows * merged_width), want_log(statistics), want_delta(statistics), want_d(rows * width);
    for (int b = 0; b < c.batch; b++)
        for (int h = 0; h < c.heads; h++) {
            const int key_head = c.heads + h / sharing, value_head = key_head + c.kv_heads;
            for (int i = 0; i < c.time; i++) {
                const int row = b * c.time + i, statistic = (b * c.heads + h) * c.time + i;
                std::vector<double> p(i + 1), error(i + 1);
                double most = -1e300, sum = 0.0;
                for (int j = 0; j <= i; j++) {
                    double absolute = 0.0;
                    for (int d = 0; d < SIZE; d++) {
                        const double product = element(row, h, d) * element(b * c.time + j, key_head, d);
                        p[j] += product;
                        absolute += fabs(product);
                    }
                    p[j] *= scale;
                    error[j] = F32 * (1.0 + absolute * scale);
                    most = max(most, p[j]);
                }
                for (double x : p) sum += exp(x - most);
                double largest_error = 0.0;
                for (double x : error) largest_error = max(largest_error, x);
                want_log[statistic] = {most + log(sum), largest_error};
                for (double& x : p) x = exp(x - most) / sum;

                Value* o = &want_out[(size_t)row * merged_width + h * SIZE];
                for (int j = 0; j <= i; j++) {
                    const double factor = kept(c, b, h, i, j);
                    for (int d = 0; d < SIZE; d++) {
                        const double v = element(b * c.time + j, value_head, d);
                        o[d].value += p[j] * factor * v;
                        o[d].bound += (p[j] * (UNIT + 2.0 * (error[j] + largest_error)) + SMALL) * factor * fabs(v);
                    }
                }
                Value& delta = want_delta[statistic];
                for (int d = 0; d < SIZE; d++) {
                    // The output as it is stored.
                    const size_t at = (size_t)row * merged_width + h * SIZE + d;
                    out[at] = half_of(o[d].value);
                    delta.value += widen(out[at]) * (double)widen(dout[at]);
                    delta.bound += F32 * fabs(widen(out[at]) * (double)widen(dout[at]));
                }
                log_sum_exp[statistic] = want_log[statistic].value;
                for (int j = 0; j <= i; j++) {
                    const int key = b * c.time + j;
                    const double factor = kept(c, b, h, i, j);
                    double dp = 0.0, dp_absolute = 0.0;
                    for (int d = 0; d < SIZE; d++) {
                        const double product = widen(dout[(size_t)row * merged_width + h * SIZE + d]) * element(key, value_head, d);
                        dp += product * factor;
                        dp_absolute += fabs(product * factor);
                    }
                    const double ds = p[j] * (dp - delta.value), relative = UNIT + 2.0 * (error[j] + F32 * fabs(want_log[statistic].value));
                    const double ds_bound = relative * fabs(ds) + p[j] * (F32 * dp_absolute + delta.bound) + SMALL;
                    for (int d = 0; d < SIZE; d++) {
                        auto add = [&](int row, int head, double factor, double x, double bound) {
                            Value& value = want_d[(size_t)row * width + head * SIZE + d];
                            value.value += factor * x;
                            value.bound += bound * fabs(x);
                        };
                        add(row, h, ds * scale, element(key, key_head, d), ds_bound * scale);
                        add(key, key_head, ds * scale, element(row, h, d), ds_bound * scale);
                        add(key, value_head, p[j] * factor, widen(dout[(size_t)row * merged_width + h * SIZE + d]), (p[j] * relative + SMALL) * factor);
                    }
                }
            }
        }

    const Shape shape = {c.time, c.heads, c.kv_heads, 0, scale, KEY[0], KEY[1], FIRST_SEQUENCE, (u32)(RATE * (1 << 24)), (float)(1.0 / (1.0 - RATE))};
    std::vector<u16> first_out, first_dqkv;
    for (const Run& run : runs) {
        schedule = run.schedule;
        copies_land_late = run.late;
        Tensor<u16> got_out(out.length), dqkv(qkv.length);
        Tensor<float> got_log(statistics), delta(statistics);
        const int pairs = c.batch * c.heads;
        attend_parameters = {qkv.data, got_out.data, got_log.data, shape};
        launches(run_attend, attend_parameters.shape.first_pair, c.time, pairs, ATTEND_BYTES);
        for (int i = 0; i < rows * merged_width; i++) worst_out.see_rounded(got_out[i], want_out[i]);
        for (int i = 0; i < statistics; i++) worst_log.see(got_log[i], want_log[i]);

        queries_parameters = {qkv.data, out.data, dout.data, log_sum_exp.data, delta.data, dqkv.data, shape};
        launches(run_queries, queries_parameters.shape.first_pair, c.time, pairs, QUERIES_BYTES);
        for (int i = 0; i < statistics; i++) worst_delta.see(delta[i], want_delta[i]);
        for (int t = 0; t < rows; t++)
            for (int i = merged_width; i < width; i++)
                if (dqkv[(size_t)t * width + i] != 0xffff) expect(false, "backward_queries writes more than the queries");
        const std::vector<u16> dq(dqkv.data, dqkv.data + dqkv.length);
        keys_parameters = {qkv.data, dout.data, log_sum_exp.data, delta.data, dqkv.data, shape};
        launches(run_keys, keys_parameters.shape.first_pair, c.time, c.batch * c.kv_heads, KEYS_BYTES);
        for (int t = 0; t < rows; t++)
            for (int i = 0; i < width; i++) {
                const size_t at = (size_t)t * width + i;
                const int head = i / SIZE;
                worst_d[(head >= c.heads) + (head >= c.heads + c.kv_heads)].see_rounded(dqkv[at], want_d[at]);
                if (head < c.heads && dqkv[at] != dq[at]) expect(false, "backward_keys writes to the queries");
            }
        expect(got_out.is_intact() && dqkv.is_intact() && got_log.is_intact() && delta.is_intact(), "something is written outside of a tensor");
        std::vector<u16> all_out(got_out.data, got_out.data + got_out.length), all_d(dqkv.data, dqkv.data + dqkv.length);
        if (first_out.empty()) first_out = all_out, first_dqkv = all_d;
        expect(all_out == first_out && all_d == first_dqkv, "the schedule changes bits");
        if (failed) {
            for (const Worst* w : WORST) if (!(w->share <= 1.0)) printf("%s is wrong by %.2g, ", w->name, w->error);
            printf("batch %d, time %d, heads %d, kv_heads %d, schedule %d, late %d\n", c.batch, c.time, c.heads, c.kv_heads, schedule, copies_land_late);
            return;
        }
    }
}

int main() {
    std::vector<Run> runs;
    for (Schedule schedule : {RANDOM, FIRST, LAST, EVEN})
        for (bool late : {true, false})
            if (SIZE == 32 || (schedule == RANDOM && late) || (schedule == FIRST && !late)) runs.push_back({schedule, late});
    for (const Case& c : CASES) if (!failed) check(c, runs);
    expect(conflicts == 0, "ldmatrix meets a bank twice");
    for (const Worst* w : WORST) printf("%s %.2g (%.2f of its bound)  ", w->name, w->error, w->share);
    printf("\nconflicts %ld of %ld\n", conflicts, rows_loaded);
    printf("%s: heads of %d in %s%s\n", failed ? "FAILED" : "passed", SIZE, F16 ? "float16" : "bfloat16", DROPOUT ? " with dropout" : "");
    return failed;
}
