/* Evidence from an expert's raw output, several numbers at once; within a few units in the last place of the exact value.
 *
 * Comparisons are written so that what is not a number stays that. */
#pragma once
#ifdef __FMA__
#include <immintrin.h>
#endif
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 8 };
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline))

#ifdef __clang__
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (ints){__VA_ARGS__})
#endif

INLINE vec load(const float *at) { return *(const loose *)at; }
INLINE void store(float *at, vec value) { *(loose *)at = value; }
INLINE vec all(float value) { return value - (vec){0}; }
INLINE vec where(ints condition, vec yes, vec no) {
    return (vec)((condition & (ints)yes) | (~condition & (ints)no));
}

/* a * b + c, rounded once where the processor can. Said explicitly, and left to no compiler (which is told so): otherwise a
 * row's last bit would depend on the copy of a loop that it went through. */
INLINE vec fused(vec a, vec b, vec c) {
#ifdef __FMA__
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* e^x = 2^n e^r with |r| <= ln 2 / 2; beyond the range of a float its smallest or largest power */
INLINE vec exponential(vec x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number, in the last bits */
    x = where(x < -87.0f, all(-87.0f), where(x > 88.0f, all(88.0f), x));
    static const float factors[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                                    1.6666665459e-1f, 5.0000001201e-1f};
    vec shifted = fused(x, all(1.44269504f), all(magic)), n = shifted - magic;
    vec r = fused(n, all(2.12194440e-4f), fused(n, all(-0.693359375f), x)), p = all(factors[0]);
    _Pragma("GCC unroll 8") for (int i = 1; i < 6; i++) p = fused(p, r, all(factors[i]));
    p = fused(p, r * r, r) + 1.0f;
    ints scale = ((ints)shifted << 23) + (127 << 23);
    return p * (vec)scale;
}

/* log x for x from the smallest normal number on; exactly 0 for 1 */
INLINE vec logarithm(vec x) {
    static const float factors[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,  -1.2420140846e-1f, 1.4249322787e-1f,
                                    -1.6668057665e-1f, 2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
    ints bits = (ints)x, power = (bits >> 23) - 126;
    vec m = (vec)((bits & 0x7fffff) | 0x3f000000); /* x = m 2^power, m in [0.5, 1) */
    ints low = m < 0.70710678f;
    power += low;
    m = m + where(low, m, all(0)) - 1.0f;
    vec n = __builtin_convertvector(power, vec), p = all(factors[0]);
    _Pragma("GCC unroll 16") for (int i = 1; i < 9; i++) p = fused(p, m, all(factors[i]));
    vec square = m * m;
    p = fused(n, all(-2.12194440e-4f), p * m * square);
    return fused(n, all(0.693359375f), fused(square, all(-0.5f), p) + m);
}

/* log(1 + t) for t in [0, 1], as t times a polynomial: right for the tiniest t too */
INLINE vec log_of_one_and(vec t) {
    static const float factors[] = {-0.00325638f, 0.01990716f, -0.0570642f,  0.10614265f,  -0.15311863f,
                                    0.19678117f,  -0.24954559f, 0.33330004f, -0.49999904f, 1.0f};
    vec p = all(factors[0]);
    _Pragma("GCC unroll 16") for (int i = 1; i < 10; i++) p = fused(p, t, all(factors[i]));
    return p * t;
}

/* e^-|x| */
INLINE vec fading(vec x) { return exponential(where(x < 0.0f, x, -x)); }

INLINE vec softplus_of(vec x) { return where(x < 0.0f, all(0), x) + log_of_one_and(fading(x)); }
INLINE vec sigmoid_of(vec x) {
    vec t = fading(x);
    return where(x < 0.0f, t, all(1)) / (1.0f + t);
}

/* Vectors of a row; the last one may be a part of one. */
#define OVER(width, EXPRESSION)                                                                                        \
    for (int64_t i = 0; i < (width); i += LANES) {                                                                     \
        int64_t count = (width)-i < LANES ? (width)-i : LANES;                                                         \
        EXPRESSION                                                                                                     \
    }
INLINE vec part(const float *from, int64_t count) {
    if (count == LANES) return load(from);
    float whole[LANES] = {0};
    memcpy(whole, from, count * sizeof *from);
    return load(whole);
}
INLINE void put(float *to, vec value, int64_t count) {
    if (count == LANES) {
        store(to, value);
        return;
    }
    float whole[LANES];
    store(whole, value);
    memcpy(to, whole, count * sizeof *to);
}

enum Activation { SOFTPLUS, SIGMOID, EXP };

/* What an activation needs to know: the largest and the smallest evidence. */
typedef struct {
    int64_t kind;
    float limit, smallest;
} Evidence;

/* Whole vectors */
static void evidence_vectors(Evidence of, const float *z, float *evidence, int64_t width) {
    vec limit = all(of.limit), smallest = all(of.smallest);
    for (int64_t i = 0; i < width && of.kind == SOFTPLUS; i += LANES) {
        vec e = softplus_of(load(z + i));
        store(evidence + i, where(e < smallest, smallest, e));
    }
    for (int64_t i = 0; i < width && of.kind == SIGMOID; i += LANES) {
        vec e = limit * sigmoid_of(load(z + i));
        store(evidence + i, where(e < smallest, smallest, e));
    }
    for (int64_t i = 0; i < width && of.kind == EXP; i += LANES) {
        vec e = 1.0f / (exponential(-load(z + i)) + 1.0f / limit);
        store(evidence + i, where(e < smallest, smallest, e));
    }
}

static void activate(Evidence of, const float *z, float *evidence, int64_t width) {
    int64_t whole = width / LANES * LANES, rest = width - whole;
    evidence_vectors(of, z, evidence, whole);
    if (!rest) return;
    float from[LANES] = {0}, to[LANES];
    for (int64_t i = 0; i < rest; i++) from[i] = z[whole + i];
    evidence_vectors(of, from, to, LANES);
    for (int64_t i = 0; i < rest; i++) evidence[whole + i] = to[i];
}

/* of_z = grad * the slope at z, where the evidence was e */
static void slope_vectors(Evidence of, const float *grad, const float *z, const float *e, float *of_z,
                          int64_t width) {
    for (int64_t i = 0; i < width; i += LANES) {
        vec x = load(z + i), y = load(e + i), limit = all(of.limit);
        vec d = of.kind == SOFTPLUS ? sigmoid_of(x) : y * (1.0f - y / limit);
        store(of_z + i, load(grad + i) * d);
    }
}

static void slope(Evidence of, const float *grad, const float *z, const float *evidence, float *of_z, int64_t width) {
    int64_t whole = width / LANES * LANES, rest = width - whole;
    slope_vectors(of, grad, z, evidence, of_z, whole);
    if (!rest) return;
    float from[3][LANES] = {{0}}, to[LANES];
    const float *given[3] = {grad, z, evidence};
    for (int which = 0; which < 3; which++)
        for (int64_t i = 0; i < rest; i++) from[which][i] = given[which][whole + i];
    slope_vectors(of, from[0], from[1], from[2], to, LANES);
    for (int64_t i = 0; i < rest; i++) of_z[whole + i] = to[i];
}
