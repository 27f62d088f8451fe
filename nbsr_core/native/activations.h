/* Evidence from an expert's raw output, several numbers at once; within a few units in the last place of the exact value.
 *
 * Comparisons are written so that what is not a number stays that. */
#pragma once
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

/* e^x = 2^n e^r with |r| <= ln 2 / 2; beyond the range of a float its smallest or largest power */
INLINE vec exponential(vec x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number, in the last bits */
    x = where(x < -87.0f, all(-87.0f), where(x > 88.0f, all(88.0f), x));
    vec shifted = x * 1.44269504f + magic, n = shifted - magic;
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    ints scale = ((ints)shifted << 23) + (127 << 23);
    return p * (vec)scale;
}

/* log(1 + t) for t in [0, 1], as t times a polynomial: right for the tiniest t too */
INLINE vec log_of_one_and(vec t) {
    static const float factors[] = {-0.00325638f, 0.01990716f, -0.0570642f,  0.10614265f,  -0.15311863f,
                                    0.19678117f,  -0.24954559f, 0.33330004f, -0.49999904f, 1.0f};
    vec p = all(factors[0]);
    _Pragma("GCC unroll 16") for (int i = 1; i < 10; i++) p = p * t + factors[i];
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

static void softplus(const float *z, float *evidence, int64_t width, float smallest) {
    OVER(width, {
        vec e = softplus_of(part(z + i, count));
        put(evidence + i, where(e < smallest, all(smallest), e), count);
    })
}

static void bounded_sigmoid(const float *z, float *evidence, int64_t width, float bound, float smallest) {
    OVER(width, {
        vec e = bound * sigmoid_of(part(z + i, count));
        put(evidence + i, where(e < smallest, all(smallest), e), count);
    })
}

static void clamped_exp(const float *z, float *evidence, int64_t width, float limit) {
    OVER(width, {
        vec x = part(z + i, count);
        put(evidence + i, exponential(where(x < -limit, all(-limit), where(x > limit, all(limit), x))), count);
    })
}

static void slope(int64_t activation, const float *grad, const float *z, const float *evidence, float *of_z, int64_t width,
                  float limit) {
    OVER(width, {
        vec g = part(grad + i, count);
        vec x = part(z + i, count);
        vec e = part(evidence + i, count);
        vec d = activation == 0   ? sigmoid_of(x)
                : activation == 1 ? e * (1.0f - e / limit)
                                  : where((x > limit) | (x < -limit), all(0), e);
        put(of_z + i, g * d, count);
    })
}
