/* A cuBLASLt that multiplies on the CPU, for the driver of cuda-driver.c, whose memory is the machine's.
 *
 *   cc -shared -fPIC -o libcublasLt.so.12 cublas-stub.c -lm
 *
 * It knows what wgpt calls, and refuses everything that NVIDIA's documentation does not promise: unknown attributes
 * and values, types that do not go together, strides and addresses that are not aligned, an algorithm of another
 * product. Each refusal is a line on stderr.
 *
 * CUBLAS_STUB_VERSION is the version that it reports (default 120805). It refuses products with the epilogue
 * CUBLAS_STUB_REFUSES.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Status;
enum { SUCCESS = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { FLOAT32 = 0, FLOAT16 = 2, BFLOAT16 = 14 };                 /* cudaDataType_t */
enum { SUMS_IN_F32 = 68, TF32 = 77 };                             /* cublasComputeType_t */
enum { DEFAULT = 1, BIAS = 4, DGELU = 192, BIAS_GRADIENT_A = 256 }; /* cublasLtEpilogue_t */

struct Operation {
    int compute, scale;
    unsigned transposed[2], epilogue;
    uint64_t bias, auxiliary;
    int64_t auxiliary_stride;
};
struct Layout {
    int type;
    uint64_t rows, columns;
    int64_t stride;
};
struct Preference {
    uint64_t workspace;
    unsigned reductions, alignments[4];
};
struct Algorithm {
    uint64_t of[8];
};
struct Heuristic {
    struct Algorithm algorithm;
    size_t workspace;
    Status state;
    float waves;
    int reserved[4];
};

static int object; /* every handle */

static Status refuse(Status status, const char *reason)
{
    fprintf(stderr, "cublas-stub: %s\n", reason);
    return status;
}
#define REQUIRE(condition)                                                                         \
    if (!(condition))                                                                              \
    return refuse(INVALID_VALUE, #condition)

size_t cublasLtGetVersion(void)
{
    const char *text = getenv("CUBLAS_STUB_VERSION");
    return text ? (size_t)atol(text) : 120805;
}

Status cublasLtCreate(void **handle)
{
    *handle = &object;
    return SUCCESS;
}

Status cublasLtMatmulDescCreate(struct Operation **out, int compute, int scale)
{
    REQUIRE(scale == FLOAT32 && (compute == SUMS_IN_F32 || compute == TF32));
    *out = calloc(1, sizeof **out);
    (*out)->compute = compute, (*out)->scale = scale, (*out)->epilogue = DEFAULT;
    return SUCCESS;
}

Status cublasLtMatmulDescSetAttribute(struct Operation *to, int attribute, const void *value, size_t size)
{
    uint32_t small = 0;
    uint64_t large = 0;
    REQUIRE(to && value && (size == 4 || size == 8));
    memcpy(size == 4 ? (void *)&small : (void *)&large, value, size);
    switch (attribute) {
    case 3: /* TRANSA */
    case 4: /* TRANSB */
        REQUIRE(size == 4 && small <= 1);
        to->transposed[attribute - 3] = small;
        return SUCCESS;
    case 7: /* EPILOGUE */
        REQUIRE(size == 4);
        to->epilogue = small;
        return SUCCESS;
    case 8: /* BIAS_POINTER */
        REQUIRE(size == 8);
        to->bias = large;
        return SUCCESS;
    case 11: /* EPILOGUE_AUX_POINTER */
        REQUIRE(size == 8);
        to->auxiliary = large;
        return SUCCESS;
    case 12: /* EPILOGUE_AUX_LD */
        REQUIRE(size == 8 && large % 8 == 0);
        to->auxiliary_stride = (int64_t)large;
        return SUCCESS;
    }
    return refuse(INVALID_VALUE, "unknown attribute of an operation");
}

Status cublasLtMatrixLayoutCreate(struct Layout **out, int type, uint64_t rows, uint64_t columns, int64_t stride)
{
    REQUIRE(type == FLOAT32 || type == FLOAT16 || type == BFLOAT16);
    REQUIRE(rows > 0 && columns > 0 && stride >= (int64_t)rows);
    *out = malloc(sizeof **out);
    **out = (struct Layout){type, rows, columns, stride};
    return SUCCESS;
}

Status cublasLtMatmulPreferenceCreate(struct Preference **out)
{
    *out = calloc(1, sizeof **out);
    **out = (struct Preference){0, 7, {256, 256, 256, 256}};
    return SUCCESS;
}

Status cublasLtMatmulPreferenceSetAttribute(struct Preference *to, int attribute, const void *value, size_t size)
{
    REQUIRE(to && value && size == (attribute == 1 ? 8 : 4));
    switch (attribute) {
    case 1: /* MAX_WORKSPACE_BYTES */ memcpy(&to->workspace, value, size); return SUCCESS;
    case 3: /* REDUCTION_SCHEME_MASK */ memcpy(&to->reductions, value, size); return SUCCESS;
    case 5: /* MIN_ALIGNMENT_A_BYTES to D */
    case 6:
    case 7:
    case 8: memcpy(&to->alignments[attribute - 5], value, size); return SUCCESS;
    }
    return refuse(INVALID_VALUE, "unknown attribute of a preference");
}

Status cublasLtMatmulPreferenceDestroy(struct Preference *preference)
{
    free(preference);
    return SUCCESS;
}

static size_t size_of(int type)
{
    return type == FLOAT32 ? 4 : 2;
}

static uint64_t inner(const struct Operation *op, const struct Layout *a)
{
    return op->transposed[0] ? a->rows : a->columns;
}

/* Checks that the matrices go together, and with the operation. */
static Status check(const struct Operation *op, const struct Layout *a, const struct Layout *b,
                    const struct Layout *c, const struct Layout *d)
{
    const struct Layout *all[] = {a, b, c, d};
    const char *refused = getenv("CUBLAS_STUB_REFUSES");
    REQUIRE(op && a && b && c && d);
    if (refused && (unsigned)atoi(refused) == op->epilogue)
        return NOT_SUPPORTED;
    for (int i = 0; i < 4; i++)
        REQUIRE(all[i]->stride * size_of(all[i]->type) % 16 == 0);
    REQUIRE((op->transposed[0] ? a->columns : a->rows) == d->rows);
    REQUIRE((op->transposed[1] ? b->rows : b->columns) == d->columns);
    REQUIRE((op->transposed[1] ? b->columns : b->rows) == inner(op, a));
    REQUIRE(c->rows == d->rows && c->columns == d->columns && c->type == d->type);
    REQUIRE(a->type == b->type && (d->type == a->type || d->type == FLOAT32));
    REQUIRE((op->compute == TF32) == (a->type == FLOAT32));
    switch (op->epilogue) {
    case DEFAULT: return SUCCESS;
    case BIAS:
    case BIAS_GRADIENT_A: REQUIRE(op->bias && op->bias % 16 == 0); return SUCCESS;
    case DGELU:
        REQUIRE(op->auxiliary && op->auxiliary % 16 == 0);
        REQUIRE(op->auxiliary_stride >= (int64_t)d->rows);
        return SUCCESS;
    }
    return refuse(NOT_SUPPORTED, "unknown epilogue");
}

static struct Algorithm algorithm(const struct Operation *op, const struct Layout *a, const struct Layout *d,
                                  uint64_t workspace)
{
    uint64_t types = (uint64_t)a->type << 8 | (uint64_t)d->type;
    return (struct Algorithm){{d->rows, d->columns, inner(op, a), types, op->epilogue, workspace,
                               op->transposed[0], op->transposed[1]}};
}

Status cublasLtMatmulAlgoGetHeuristic(void *handle, const struct Operation *op, const struct Layout *a,
                                      const struct Layout *b, const struct Layout *c, const struct Layout *d,
                                      const struct Preference *preference, int most, struct Heuristic *out,
                                      int *count)
{
    Status status = check(op, a, b, c, d);
    *count = 0;
    REQUIRE(handle == &object && preference && most == 1);
    REQUIRE(preference->reductions == 2); /* in a fixed order */
    for (int i = 0; i < 4; i++)
        REQUIRE(preference->alignments[i] == 16);
    if (status != SUCCESS)
        return status;
    *out = (struct Heuristic){algorithm(op, a, d, preference->workspace), preference->workspace, SUCCESS, 1, {0}};
    *count = 1;
    return SUCCESS;
}

static float load(const void *at, int type, size_t i)
{
    float value;
    if (type == FLOAT32)
        return ((const float *)at)[i];
    if (type == FLOAT16)
        return (float)((const _Float16 *)at)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)at)[i] << 16;
    memcpy(&value, &bits, 4);
    return value;
}

static void store(void *at, int type, size_t i, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (type == FLOAT32)
        ((float *)at)[i] = value;
    else if (type == FLOAT16)
        ((_Float16 *)at)[i] = (_Float16)value;
    else /* to the nearest, ties to even */
        ((uint16_t *)at)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Returns a matrix with `inner` contiguous elements for each of `outer`. */
static float *gather(const void *at, const struct Layout *layout, size_t outer, size_t terms, int is_contiguous)
{
    float *out = malloc(outer * terms * sizeof *out);
    for (size_t i = 0; i < outer; i++)
        for (size_t k = 0; k < terms; k++) {
            size_t place = is_contiguous ? i * layout->stride + k : k * layout->stride + i;
            out[i * terms + k] = load(at, layout->type, place);
        }
    return out;
}

/* The derivative of GELU in its tanh form. */
static float gelu_derivative(double x)
{
    double scale = sqrt(2 / 3.14159265358979323846);
    double t = tanh(scale * (x + 0.044715 * x * x * x));
    return (float)(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * scale * (1 + 3 * 0.044715 * x * x));
}

Status cublasLtMatmul(void *handle, const struct Operation *op, const float *alpha, const void *a,
                      const struct Layout *la, const void *b, const struct Layout *lb, const float *beta,
                      const void *c, const struct Layout *lc, void *d, const struct Layout *ld,
                      const struct Algorithm *chosen, void *workspace, size_t workspace_bytes, void *stream)
{
    Status status = check(op, la, lb, lc, ld);
    if (status != SUCCESS)
        return status;
    struct Algorithm expected = algorithm(op, la, ld, workspace_bytes);
    size_t m = ld->rows, n = ld->columns, terms = inner(op, la);
    REQUIRE(handle == &object && stream && *alpha == 1 && (*beta == 0 || *beta == 1));
    REQUIRE(memcmp(chosen, &expected, sizeof expected) == 0);
    REQUIRE(a && b && c && d && (uintptr_t)a % 16 == 0 && (uintptr_t)b % 16 == 0);
    REQUIRE((uintptr_t)c % 16 == 0 && (uintptr_t)d % 16 == 0);
    REQUIRE(a != d && b != d && (workspace_bytes == 0 || workspace));
    float *left = gather(a, la, m, terms, op->transposed[0]);
    float *right = gather(b, lb, n, terms, !op->transposed[1]);
    /* Whoever keeps something there finds it out. */
    if (workspace_bytes)
        memset(workspace, 0x7f, workspace_bytes);
    for (size_t row = 0; op->epilogue == BIAS_GRADIENT_A && row < m; row++) {
        double sum = 0;
        for (size_t k = 0; k < terms; k++)
            sum += left[row * terms + k];
        store((void *)(uintptr_t)op->bias, ld->type, row, (float)sum);
    }
    for (size_t column = 0; column < n; column++)
        for (size_t row = 0; row < m; row++) {
            float value = 0;
            for (size_t k = 0; k < terms; k++)
                value += left[row * terms + k] * right[column * terms + k];
            size_t place = column * ld->stride + row;
            if (*beta != 0)
                value += load(c, lc->type, column * lc->stride + row);
            if (op->epilogue == BIAS)
                value += load((const void *)(uintptr_t)op->bias, ld->type, row);
            if (op->epilogue == DGELU) {
                const void *at = (const void *)(uintptr_t)op->auxiliary;
                value *= gelu_derivative(load(at, ld->type, column * op->auxiliary_stride + row));
            }
            store(d, ld->type, place, value);
        }
    free(left);
    free(right);
    return SUCCESS;
}
