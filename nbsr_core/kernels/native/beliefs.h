/* What is read off beliefs: whether they are surely sharp, how they are shown, their expected marginals and best class. */
#pragma once
#include "activations.h"
#include <float.h>

enum { WORTH_A_PASS = 16384 }; /* numbers; fewer are passed over before a second thread has woken up */

INLINE float sum_of(vec v) {
    float total = 0;
    for (int lane = 0; lane < LANES; lane++) total += v[lane];
    return total;
}
INLINE float largest_of(vec v) {
    float largest = v[0];
    for (int lane = 1; lane < LANES; lane++) largest = v[lane] > largest ? v[lane] : largest;
    return largest;
}

/* A function of one float32 by its leading bits (see `nbsr_core.kernels.entropy_bounds`): value and slope at the edge of each cell. */
typedef struct {
    float value, slope;
} Cell;

enum { DROPPED = 13, CELLS = 1 << 18 }; /* as in `entropy_bounds` */

INLINE float look_up(const Cell *table, float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    Cell cell = table[(bits >> DROPPED) & (CELLS - 1)]; /* a sign, which only what is no number can have, is not looked at */
    return cell.value + cell.slope * (float)(bits & ((1 << DROPPED) - 1));
}

/* An exit test: entropy below eta. Entropy is the sum over k of of_class(alpha[k]), less of_total(sum of alpha). */
typedef struct {
    double eta, doubt;
    const Cell *of_class, *of_total;
} Test;

enum { NOT_BELOW, BELOW, UNCLEAR };
enum { CHUNK = 8 * LANES };

static int below(const Test *test, const float *alpha, int64_t classes) {
    double total = 0, sum = 0;
    for (int64_t first = 0; first < classes; first += CHUNK) { /* few numbers are added before they become doubles */
        int64_t end = first + CHUNK < classes ? first + CHUNK : classes;
        float totals[LANES] = {0}, sums[LANES] = {0};
        for (int64_t k = first; k < end; k += LANES)
            for (int64_t lane = 0; lane < LANES && k + lane < end; lane++) {
                totals[lane] += alpha[k + lane];
                sums[lane] += look_up(test->of_class, alpha[k + lane]);
            }
        for (int lane = 0; lane < LANES; lane++) total += totals[lane], sum += sums[lane];
    }
    if (!(total > 0 && total < INFINITY)) return UNCLEAR;
    double distance = sum - look_up(test->of_total, (float)total) - test->eta;
    return distance > test->doubt ? NOT_BELOW : distance < -test->doubt ? BELOW : UNCLEAR; /* so is what is no number */
}

/* For each row one of the above; returns how many are unclear. */
int64_t nbsr_below(const float *alpha, int64_t rows, int64_t classes, const Test *test, uint8_t *answer) {
    int64_t unclear = 0;
#pragma omp parallel for schedule(static) reduction(+ : unclear) if (rows * classes > WORTH_A_PASS)
    for (int64_t r = 0; r < rows; r++) unclear += (answer[r] = below(test, alpha + r * classes, classes)) == UNCLEAR;
    return unclear;
}

/* The belief of the same precision whose mean is p^(1/T), see `nbsr_core.belief.calibration`; 0 if alpha is not a belief. */
static int calibrate(const float *alpha, int64_t classes, float temperature, float floor, float *shown) {
    int64_t padded = (classes + LANES - 1) / LANES * LANES;
    float row[padded] __attribute__((aligned(32)));
    ints lanes = {0, 1, 2, 3, 4, 5, 6, 7}, held = lanes < (int32_t)(classes - padded + LANES), sound = ~(ints){0};
    memset(row + padded - LANES, 0, LANES * sizeof *row);
    memcpy(row, alpha, classes * sizeof *row);
    vec sums = {0}, most = {0}, weights = {0};
    for (int64_t i = 0; i < padded; i += LANES) {
        vec values = load(row + i);
        sums += values;
        most = where(values > most, values, most);
        sound &= (values > 0.0f) | (i + LANES == padded ? ~held : (ints){0}); /* not so for what is no number */
    }
    float largest = largest_of(most), total = sum_of(sums);
    for (int lane = 0; lane < LANES; lane++)
        if (!sound[lane]) return 0;
    if (!(largest < INFINITY)) return 0;
    float power = 1.0f / temperature;
    for (int64_t i = 0; i < padded; i += LANES) {
        vec relative = load(row + i) / largest; /* of the largest exactly 1, so that none passes it */
        vec weight = exponential(logarithm(where(relative < FLT_MIN, all(FLT_MIN), relative)) * power);
        if (i + LANES == padded) weight = where(held, weight, all(0));
        weights += weight;
        store(row + i, weight);
    }
    float factor = total / sum_of(weights);
    for (int64_t i = 0; i < padded; i += LANES) {
        vec values = load(row + i) * factor;
        store(row + i, where(values < floor, all(floor), values));
    }
    memcpy(shown, row, classes * sizeof *row);
    return 1;
}

/* Row r with the temperature at r * stride; returns how many rows are not beliefs. */
int64_t nbsr_calibrate(const float *alpha, int64_t rows, int64_t classes, const float *temperature, int64_t stride,
                       double floor, float *shown) {
    int64_t bad = 0;
#pragma omp parallel for schedule(static) reduction(+ : bad) if (rows * classes > WORTH_A_PASS)
    for (int64_t r = 0; r < rows; r++)
        bad += !calibrate(alpha + r * classes, classes, temperature[r * stride], (float)floor, shown + r * classes);
    return bad;
}

/* probs = alpha / sum of alpha; returns the first of the largest */
static int64_t expect(const float *alpha, int64_t classes, float *probs) {
    vec sums = {0}, most = all(-INFINITY);
    OVER(classes, {
        vec values = part(alpha + i, count); /* filled up with zeros, which are below every alpha */
        sums += values;
        most = where(values > most, values, most);
    })
    float total = sum_of(sums), largest = largest_of(most);
    OVER(classes, put(probs + i, part(alpha + i, count) / total, count);)
    int64_t best = 0;
    while (best < classes - 1 && alpha[best] != largest) best++;
    return best;
}

void nbsr_marginals(const float *alpha, int64_t rows, int64_t classes, float *probs, int64_t *label) {
#pragma omp parallel for schedule(static) if (rows * classes > WORTH_A_PASS)
    for (int64_t r = 0; r < rows; r++) label[r] = expect(alpha + r * classes, classes, probs + r * classes);
}
