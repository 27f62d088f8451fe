/* The entropy of beliefs by table, see `nbsr_core._screening`. */
#pragma once
#include <stdint.h>
#include <string.h>

static int64_t cell(float value, int64_t dropped) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits >> dropped;
}

/* entropy[r] = sum over k of of_class[cell of alpha[r][k]], less of_total[cell of the sum of alpha[r]] */
void nbsr_entropy_estimate(const float *alpha, int64_t rows, int64_t classes, const float *of_class, const float *of_total,
                           int64_t dropped, float *entropy) {
#pragma omp parallel for schedule(static) if (rows * classes > 16384)
    for (int64_t r = 0; r < rows; r++) {
        double total = 0, sum = 0;
        for (int64_t k = 0; k < classes; k++) {
            float value = alpha[r * classes + k];
            total += value;
            sum += of_class[cell(value, dropped)];
        }
        entropy[r] = (float)(sum - of_total[cell((float)total, dropped)]);
    }
}
