/* What is read off beliefs: which are surely sharp (see `nbsr_core._screening`), their expected marginals and best class. */
#pragma once
#include "activations.h"

enum { WORTH_A_PASS = 16384 }; /* numbers; fewer are passed over before a second thread has woken up */

static int64_t cell(float value, int64_t dropped) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits >> dropped;
}

/* For each row, whether its entropy is below eta (1), not below (0), or too close to tell (2); returns how many are 2.
 * The estimate is the sum over k of of_class[cell of alpha[r][k]], less of_total[cell of the sum of alpha[r]]. */
int64_t nbsr_below(const float *alpha, int64_t rows, int64_t classes, const float *of_class, const float *of_total,
                   int64_t dropped, double eta, double doubt, uint8_t *answer) {
    int64_t unclear = 0;
#pragma omp parallel for schedule(static) reduction(+ : unclear) if (rows * classes > WORTH_A_PASS)
    for (int64_t r = 0; r < rows; r++) {
        double total = 0, sum = 0;
        for (int64_t k = 0; k < classes; k++) {
            float value = alpha[r * classes + k];
            total += value;
            sum += of_class[cell(value, dropped)];
        }
        double distance = sum - of_total[cell((float)total, dropped)] - eta;
        int clear = distance > doubt || distance < -doubt; /* neither for what is not a number */
        answer[r] = clear ? distance < 0 : 2;
        unclear += !clear;
    }
    return unclear;
}

/* probs[r] = alpha[r] / sum of alpha[r], label[r] = the first of its largest */
void nbsr_marginals(const float *alpha, int64_t rows, int64_t classes, float *probs, int64_t *label) {
#pragma omp parallel for schedule(static) if (rows * classes > WORTH_A_PASS)
    for (int64_t r = 0; r < rows; r++) {
        const float *a = alpha + r * classes;
        vec sums = {0}, most = all(-INFINITY);
        OVER(classes, {
            vec values = part(a + i, count); /* filled up with zeros, which are below every alpha */
            sums += values;
            most = where(values > most, values, most);
        })
        float total = 0, largest = most[0];
        for (int lane = 0; lane < LANES; lane++) total += sums[lane], largest = most[lane] > largest ? most[lane] : largest;
        OVER(classes, put(probs + r * classes + i, part(a + i, count) / total, count);)
        int64_t best = 0;
        while (best < classes - 1 && a[best] != largest) best++;
        label[r] = best;
    }
}
