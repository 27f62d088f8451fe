#pragma once
/* Rows of a batch, each through the linear map of the node where it stands, without moving a row.
 *
 * A batched matrix product wants the rows of a node side by side. Sorting, gathering, padding and putting them back costs
 * more than multiplying them, since the maps of routers and experts are small. Here the rows stay: `order` lists them
 * node by node, and the innermost loop follows six of them at once through pointers.
 *
 * A stack of maps is `weight[slots][outs][inputs]`. The rows of slot s are order[starts[s]] .. order[starts[s + 1] - 1].
 * Every row's result is a sum in one fixed sequence: it depends neither on the other rows of the batch nor on the number
 * of threads.
 */
#include "activations.h"
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_num_threads(void) { return 1; }
static int omp_get_thread_num(void) { return 0; }
#endif

/* 6 x 16 sums are what 16 vector registers hold beside two vectors of a panel and one number of a row. */
enum { ROWS = 6, WIDTH = 16, DEPTH = 256 };
#define UNROLL _Pragma("GCC unroll 8")
#define LESS(a, b) ((a) < (b) ? (a) : (b))

typedef const int32_t *Index;
typedef struct {
    Index order, starts;
    int64_t slots;
} Groups;

/* out[r][c] = sum over t of a[r][t] * panel[t][c]; only the left half if the right one is empty */
INLINE void tile(const int rows, const int whole, int64_t depth, const float *const *a, const float *panel,
                 float out[ROWS][WIDTH]) {
    vec sum[ROWS][2];
    UNROLL for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = (vec){0};
    for (int64_t t = 0; t < depth; t++, panel += WIDTH) {
        vec left = load(panel), right = whole ? load(panel + LANES) : left;
        UNROLL for (int r = 0; r < rows; r++) {
            vec factor = all(a[r][t]);
            sum[r][0] = fused(factor, left, sum[r][0]);
            if (whole) sum[r][1] = fused(factor, right, sum[r][1]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) store(out[r], sum[r][0]), store(out[r] + LANES, sum[r][1]);
}

/* out[j][c] += sum over t of grad[order[t]][j] * panel[t][c] */
INLINE void outer_tile(const int outs, Index order, int64_t first, int64_t depth, const float *grad, int64_t stride,
                       const float *panel, float out[ROWS][WIDTH]) {
    vec sum[ROWS][2];
    UNROLL for (int j = 0; j < outs; j++) sum[j][0] = load(out[j]), sum[j][1] = load(out[j] + LANES);
    for (int64_t t = 0; t < depth; t++, panel += WIDTH) {
        const float *factor = grad + (int64_t)order[first + t] * stride;
        vec left = load(panel), right = load(panel + LANES);
        UNROLL for (int j = 0; j < outs; j++) {
            sum[j][0] = fused(all(factor[j]), left, sum[j][0]);
            sum[j][1] = fused(all(factor[j]), right, sum[j][1]);
        }
    }
    UNROLL for (int j = 0; j < outs; j++) store(out[j], sum[j][0]), store(out[j] + LANES, sum[j][1]);
}

/* The number of rows must be known to the compiler for the sums to live in registers. */
#define WITH_CONSTANT(n, CALL)                                                                                         \
    switch (n) {                                                                                                       \
    case 6: CALL(6); break;                                                                                            \
    case 5: CALL(5); break;                                                                                            \
    case 4: CALL(4); break;                                                                                            \
    case 3: CALL(3); break;                                                                                            \
    case 2: CALL(2); break;                                                                                            \
    default: CALL(1);                                                                                                  \
    }

static void tiles(int rows, int64_t width, int64_t depth, const float *const *a, const float *panel,
                  float out[ROWS][WIDTH]) {
#define CALL(n) tile(n, 1, depth, a, panel, out)
#define HALF(n) tile(n, 0, depth, a, panel, out)
    if (width > LANES) WITH_CONSTANT(rows, CALL)
    else WITH_CONSTANT(rows, HALF)
#undef HALF
#undef CALL
}

static void outer_tiles(int outs, Index order, int64_t first, int64_t depth, const float *grad, int64_t stride,
                        const float *panel, float out[ROWS][WIDTH]) {
#define CALL(n) outer_tile(n, order, first, depth, grad, stride, panel, out)
    WITH_CONSTANT(outs, CALL)
#undef CALL
}

/* An 8 x 8 block, turned over its diagonal: to[t][c] = from[c][t]. */
INLINE void turn_block(const float *from, int64_t stride, float *to) {
    vec a[LANES], b[LANES];
    UNROLL for (int c = 0; c < LANES; c++) a[c] = load(from + c * stride);
    UNROLL for (int i = 0; i < 4; i++) {
        b[2 * i] = PICK(a[2 * i], a[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        b[2 * i + 1] = PICK(a[2 * i], a[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        int at = i / 2 * 4 + i % 2;
        a[at] = PICK(b[at], b[at + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        a[at + 2] = PICK(b[at], b[at + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        store(to + i * WIDTH, PICK(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11));
        store(to + (i + 4) * WIDTH, PICK(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15));
    }
}

/* panel[t][c] = from[t * down + c * across], filled up with zeros to its full width; one of the two steps is 1 */
INLINE void fill_panel(float *panel, const float *from, int64_t depth, int64_t width, int64_t down, int64_t across) {
    if (width < WIDTH) memset(panel, 0, depth * WIDTH * sizeof *panel);
    if (across == 1) {
        for (int64_t t = 0; t < depth; t++) memcpy(panel + t * WIDTH, from + t * down, width * sizeof *panel);
        return;
    }
    int64_t blocks = width / LANES * LANES, whole = depth / LANES * LANES;
    for (int64_t c = 0; c < blocks; c += LANES)
        for (int64_t t = 0; t < whole; t += LANES) turn_block(from + c * across + t, across, panel + t * WIDTH + c);
    for (int64_t c = 0; c < width; c++)
        for (int64_t t = c < blocks ? whole : 0; t < depth; t++) panel[t * WIDTH + c] = from[c * across + t];
}

/* How a row leaves: with a bias, added to what is there, cut off below zero, or only where something was active. */
typedef struct {
    const float *bias, *active;
    int add, relu;
} Finish;

INLINE void leave(const Finish *finish, const float *from, float *to, const float *bias, const float *active,
                  int64_t width) {
    for (int64_t c = 0; c < width; c++) {
        float z = from[c];
        if (bias) z += bias[c];
        if (finish->add) z += to[c];
        if (finish->relu && z < 0) z = 0;
        if (active && !(active[c] > 0)) z = 0;
        to[c] = z;
    }
}

/* y[row] = x[row] M[slot], where M[slot][t][c] = maps[slot][t * down + c * across] */
static void products(Groups g, int64_t depth, int64_t outs, const float *x, const float *maps, int64_t down,
                     int64_t across, Finish finish, float *y) {
    float panel[depth * WIDTH] __attribute__((aligned(64)));
    for (int64_t s = 0; s < g.slots; s++) {
        int64_t begin = g.starts[s], end = g.starts[s + 1];
        if (begin == end) continue;
        for (int64_t j = 0; j < outs; j += WIDTH) {
            int64_t width = LESS(outs - j, WIDTH);
            const float *bias = finish.bias ? finish.bias + s * outs + j : 0;
            fill_panel(panel, maps + s * depth * outs + j * across, depth, width, down, across);
            for (int64_t i = begin; i < end; i += ROWS) {
                int rows = LESS(end - i, ROWS);
                const float *a[ROWS];
                float out[ROWS][WIDTH];
                for (int r = 0; r < rows; r++) a[r] = x + (int64_t)g.order[i + r] * depth;
                tiles(rows, width, depth, a, panel, out);
                for (int r = 0; r < rows; r++) {
                    int64_t at = (int64_t)g.order[i + r] * outs + j;
                    const float *active = finish.active ? finish.active + at : 0;
                    if (width == WIDTH) leave(&finish, out[r], y + at, bias, active, WIDTH);
                    else leave(&finish, out[r], y + at, bias, active, width);
                }
            }
        }
    }
}

/* y[row] = W[slot] x[row] + bias[slot], on top of y if `add`, through a ReLU if `relu` */
static void affine(Groups g, int64_t inputs, int64_t outs, const float *x, const float *weight, const float *bias, int add,
                   int relu, float *y) {
    products(g, inputs, outs, x, weight, 1, inputs, (Finish){bias, 0, add, relu}, y);
}

/* of_x[row] = W[slot]^T grad[row], on top of of_x if `add`; zero where a ReLU that gave `active` had cut off */
static void input_gradient(Groups g, int64_t inputs, int64_t outs, const float *grad, const float *weight,
                           const float *active, int add, float *of_x) {
    products(g, outs, inputs, grad, weight, inputs, 1, (Finish){0, active, add, 0}, of_x);
}

/* of_weight[slot] = sum over its rows of grad[row] x[row]^T, of_bias[slot] = sum of grad[row]; zero without rows.
 * The threads of a team share the work and do not wait for each other. */
static void weight_gradient(Groups g, int64_t inputs, int64_t outs, const float *grad, const float *x, float *of_weight,
                            float *of_bias) {
    Index order = g.order, starts = g.starts;
    int64_t strips = (inputs + WIDTH - 1) / WIDTH;
#pragma omp for schedule(static, 1) nowait
    for (int64_t unit = 0; unit < g.slots * strips; unit++) {
        int64_t s = unit / strips, c = unit % strips * WIDTH, width = LESS(inputs - c, WIDTH);
        float *of_slot = of_weight + s * outs * inputs + c, panel[DEPTH * WIDTH] __attribute__((aligned(64)));
        for (int64_t j = 0; j < outs; j++) memset(of_slot + j * inputs, 0, width * sizeof *of_slot);
        if (width < WIDTH) memset(panel, 0, sizeof panel);
        for (int64_t first = starts[s]; first < starts[s + 1]; first += DEPTH) {
            int64_t depth = LESS(starts[s + 1] - first, DEPTH);
            for (int64_t t = 0; t < depth; t++)
                memcpy(panel + t * WIDTH, x + (int64_t)order[first + t] * inputs + c, width * sizeof *panel);
            for (int64_t j = 0; j < outs; j += ROWS) {
                int tall = LESS(outs - j, ROWS);
                float out[ROWS][WIDTH] = {{0}};
                for (int r = 0; r < tall; r++) memcpy(out[r], of_slot + (j + r) * inputs, width * sizeof *panel);
                outer_tiles(tall, order, first, depth, grad + j, outs, panel, out);
                for (int r = 0; r < tall; r++) memcpy(of_slot + (j + r) * inputs, out[r], width * sizeof *panel);
            }
        }
        if (of_bias && c == 0) {
            memset(of_bias + s * outs, 0, outs * sizeof *of_bias);
            for (int64_t t = starts[s]; t < starts[s + 1]; t++)
                for (int64_t j = 0; j < outs; j++) of_bias[s * outs + j] += grad[(int64_t)order[t] * outs + j];
        }
    }
}
