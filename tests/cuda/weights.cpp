// Compares shaders/cuda/weights.cu with sums in double precision, on the CPU.
#include "emulator.h"
#include "../../shaders/cuda/weights.cu"
#include <memory>

static Squares squares_parameters;
static Update update_parameters;
static Groups groups_parameters;
static void run_squares() { squares(squares_parameters); }
static void run_update() { update_weights(update_parameters); }
static void run_groups() { sum_groups(groups_parameters); }

static u32 random_state = 1;
static float uniform() {
    random_state = random_state * 1664525 + 1013904223;
    return (int)(random_state >> 8) / 8388608.0f - 1.0f;
}

[[noreturn]] static void report(const char* what, u32 tensor, u32 element, double got, double want) {
    printf("wrong: %s of tensor %u at %u: %.9g, not %.9g\n", what, tensor, element, got, want);
    exit(1);
}
static void compare(const char* what, u32 tensor, u32 element, double got, double want, double bound) {
    if (!(fabs(got - want) <= bound)) report(what, tensor, element, got, want);
}

typedef std::unique_ptr<Tensor<float>> Floats;
// A tensor of `length` elements that begins at a multiple of 16 bytes, or `behind` elements after one.
struct Part {
    Floats whole;
    u32 behind, length;
    Part(u32 length, u32 behind) : whole(new Tensor<float>(behind + length)), behind(behind), length(length) {}
    float* data() { return whole->data + behind; }
    float& operator[](u32 i) { return data()[i]; }
    void fill(float scale) { for (u32 i = 0; i < length; i++) (*this)[i] = scale * uniform(); }
    void check(const char* what, u32 tensor) {
        if (!whole->is_intact()) report(what, tensor, 0, 0, 0);
        for (u32 i = 0; i < behind; i++) if (bits_of(whole->data[i]) != ~0u) report(what, tensor, i, 0, 0);
    }
};

static void test_squares() {
    const u32 lengths[] = {1, 3, 4, 70, SQUARES_SPAN, SQUARES_SPAN + 1, 8, 2 * SQUARES_SPAN - 2, 4099};
    const u32 behind[] = {0, 0, 0, 1, 0, 0, 2, 0, 3}, first_sum = 5;
    const float loss_scale = 8.0f, divisor = 3.0f;
    std::vector<Part> grads;
    Squares& p = squares_parameters;
    memset(&p, 0, sizeof p);
    u32 spans = 0;
    for (u32 k = 0; k < 9; k++) {
        grads.emplace_back(lengths[k], behind[k]);
        grads[k].fill(100.0f);
        p.grads[k] = grads[k].data();
        p.elements[k] = lengths[k];
        p.first[k] = spans;
        spans += (lengths[k] + SQUARES_SPAN - 1) / SQUARES_SPAN;
    }
    Tensor<float> sums(first_sum + spans), scale(1);
    scale[0] = loss_scale;
    p.loss_scale = scale.data;
    p.sums = sums.data;
    p.tensors = 9;
    p.first_sum = first_sum;
    p.divisor = divisor;
    std::vector<float> before;
    for (int number = 0; number < 5; number++) {
        schedule = (Schedule)std::min(number, (int)RANDOM);
        launch(run_squares, spans, 1, UNITS, WARPS * 4, number + 1);
        for (u32 i = 0; i < first_sum; i++) if (bits_of(sums[i]) != ~0u) report("the place before the sums", 0, i, sums[i], 0);
        std::vector<float> now(sums.data + first_sum, sums.data + sums.length);
        if (number && memcmp(now.data(), before.data(), spans * 4)) report("another schedule's bits", 0, 0, 0, 0);
        before = now;
    }
    for (u32 k = 0; k < 9; k++)
        for (u32 begin = 0, at = p.first[k]; begin < lengths[k]; begin += SQUARES_SPAN, at++) {
            double want = 0;
            for (u32 i = begin; i < std::min(begin + SQUARES_SPAN, lengths[k]); i++) {
                const double value = grads[k][i] / ((double)loss_scale * divisor);
                want += value * value;
            }
            compare("the squares", k, begin, before[at], want, want * 2e-6);
        }
    if (!sums.is_intact()) report("what is behind the sums", 0, 0, 0, 0);
}

// Updates weights, whose copies have the dtype `copies`. If `rate` is 0, weights keep their bits.
static void test_update(bool updates, u32 copies, float rate) {
    const u32 lengths[] = {1, 3, 259, UPDATE_SPAN, UPDATE_SPAN + 6, 2 * UPDATE_SPAN, UPDATE_SPAN, UPDATE_SPAN};
    // Which tensor begins behind a multiple of 16 bytes.
    const int shifted[] = {-1, -1, 0, -1, -1, -1, 1, 2};
    const bool has_half[] = {true, false, true, true, true, false, true, false};
    const u32 tensors = 8;
    std::vector<Part> w, grad, m, v, old_w, old_m, old_v;
    std::vector<std::unique_ptr<Tensor<u16>>> half;
    Update& p = update_parameters;
    memset(&p, 0, sizeof p);
    u32 spans = 0;
    for (u32 k = 0; k < tensors; k++) {
        const u32 n = lengths[k];
        w.emplace_back(n, shifted[k] == 0);
        grad.emplace_back(n, 0);
        m.emplace_back(n, shifted[k] == 1);
        v.emplace_back(n, shifted[k] == 2);
        half.emplace_back(new Tensor<u16>(n));
        w[k].fill(1.0f), grad[k].fill(100.0f), m[k].fill(0.1f);
        for (u32 i = 0; i < n; i++) v[k][i] = i % 7 ? 0.01f * fabsf(uniform()) : 0.0f;
        for (u32 i = 0; i < n; i += 5) grad[k][i] = m[k][i] = 0.0f;
        // Between two numbers of bfloat16, and of float16; and what is no number.
        if (rate == 0.0f) {
            for (u32 i = 0; i < n; i += 2) w[k][i] = as_float((bits_of(w[k][i]) & 0xffff0000) | 0x8000);
            for (u32 i = 1; i < n; i += 64) w[k][i] = as_float(0x7fffffff);
        }
        for (auto [from, to] : {std::pair{&w, &old_w}, {&m, &old_m}, {&v, &old_v}}) {
            to->emplace_back(n, 0);
            memcpy((*to)[k].data(), (*from)[k].data(), n * 4);
        }
        p.w[k] = w[k].data(), p.grad[k] = grad[k].data(), p.m[k] = m[k].data(), p.v[k] = v[k].data();
        p.half[k] = has_half[k] ? half[k]->data : nullptr;
        p.elements[k] = n;
        p.first[k] = spans;
        p.decay[k] = k % 2 && rate > 0.0f ? 0.9f : 1.0f;
        spans += (n + UPDATE_SPAN - 1) / UPDATE_SPAN;
    }
    Tensor<float> control(4);
    control[0] = 0.01f, control[1] = updates, control[2] = rate, control[3] = 1.5f;
    p.control = control.data;
    p.tensors = tensors;
    p.beta1 = 0.9f, p.beta2 = 0.95f, p.eps = 1e-3f;
    p.copies = copies;
    launch(run_update, spans, 1, UNITS, 0);
    for (u32 k = 0; k < tensors; k++) {
        for (u32 i = 0; i < lengths[k]; i++) {
            const double g = grad[k][i] * 0.01;
            const double want_m = updates ? 0.9 * old_m[k][i] + 0.1 * g : old_m[k][i];
            const double want_v = updates ? 0.95 * old_v[k][i] + 0.05 * g * g : old_v[k][i];
            const double step = rate * want_m / (sqrt(want_v) * 1.5 + 1e-3);
            const double want_w = updates ? p.decay[k] * (double)old_w[k][i] - step : old_w[k][i];
            compare("m", k, i, m[k][i], want_m, updates ? 1e-6 * (0.1 + fabs(g)) : 0.0);
            compare("v", k, i, v[k][i], want_v, updates ? 2e-6 * want_v : 0.0);
            if (!std::isnan(want_w)) compare("w", k, i, w[k][i], want_w, updates && rate > 0.0f ? 1e-6 * (1.0 + fabs(step)) : 0.0);
            const u16 copy = (*half[k])[i];
            const u32 want_copy = copies == FLOAT16 ? f16_of(w[k][i]) : half_of(w[k][i]);
            if (has_half[k] && updates ? copy != want_copy : copy != 0xffff) report("the copy", k, i, copy, want_copy);
        }
        w[k].check("w", k), m[k].check("m", k), v[k].check("v", k);
        if (!half[k]->is_intact()) report("what is around the copy", k, 0, 0, 0);
    }
}

static void test_groups(u32 groups, u32 width) {
    Groups& p = groups_parameters;
    memset(&p, 0, sizeof p);
    std::vector<Part> partial, gamma, beta;
    for (u32 k = 0; k < 3; k++) {
        partial.emplace_back(groups * 2 * width, 0);
        partial[k].fill(1.0f);
        gamma.emplace_back(width, 0), beta.emplace_back(width, 0);
        p.partial[k] = partial[k].data(), p.gamma[k] = gamma[k].data(), p.beta[k] = beta[k].data();
    }
    p.groups = groups;
    p.width = width;
    launch(run_groups, (2 * width + UNITS - 1) / UNITS, 3, UNITS, 0);
    for (u32 k = 0; k < 3; k++) {
        for (u32 column = 0; column < 2 * width; column++) {
            float want = 0.0f;
            for (u32 group = 0; group < groups; group++) want += partial[k][group * 2 * width + column];
            compare("a sum", k, column, column < width ? gamma[k][column] : beta[k][column - width], want, 0.0);
        }
        gamma[k].check("gamma", k), beta[k].check("beta", k);
    }
}

int main() {
    test_squares();
    for (u32 copies : {BFLOAT16, FLOAT16})
        for (float rate : {0.1f, 0.0f}) test_update(true, copies, rate);
    test_update(false, BFLOAT16, 0.1f);
    test_groups(1, 1);
    test_groups(5, 200);
    test_groups(40, 384);
    printf("conflicts %ld of %ld\n", conflicts, rows_loaded);
}
