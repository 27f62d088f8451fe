/* One level of a walk, forwards and backwards: the router is asked, a child chosen, its expert consulted.
 *
 * The same as `nbsr_core.kernels.reference` in torch; `nbsr_core.kernels.routing` says what routers learn, and
 * `nbsr_core.kernels.native.level` calls it. At the size of routers and experts, the calls between the products cost more than the products. Each thread takes its own rows all the
 * way, so that threads wait for each other once a level: only gradients of weights are sums over all rows.
 */
#pragma once
#include "activations.h"
#include "products.h"
#include <stdlib.h>

enum { MOST_INPUTS = 3, MOST_LAYERS = 8 };
enum { WORTH_A_TEAM = 400000 }; /* multiply-adds; fewer are done before a second thread has woken up */

/* A bank of ReLU networks: several inputs, each with its own first map, are added up before the first ReLU. */
typedef struct {
    int64_t slots, inputs, layers;
    int64_t input_size[MOST_INPUTS], shared[MOST_INPUTS]; /* a shared input has one row for all, and the bank one slot */
    int64_t size[MOST_LAYERS];
    const float *x[MOST_INPUTS], *first[MOST_INPUTS], *weight[MOST_LAYERS], *bias[MOST_LAYERS];
    float *value[MOST_LAYERS]; /* what each layer gives, after its ReLU */
    float *grad[MOST_LAYERS];  /* and its gradient, before its ReLU */
    float *of_x[MOST_INPUTS], *of_first[MOST_INPUTS], *of_weight[MOST_LAYERS], *of_bias[MOST_LAYERS];
} Network;

typedef struct {
    int64_t rows, children;
    double tau;
    Evidence activation;
    const int64_t *position, *slot_of_node, *child_position;
    const uint8_t *missing;
    const float *exponential; /* draws of an exponential variable, whose -log is Gumbel's; none for the best child */
    float *relaxed, *evidence;
    int64_t *choice, *arrived;
    Network router, expert;
    const float *of_evidence, *of_logits, *of_relaxed;
    int64_t taught, asked; /* whether the router learns from the evidence; whether it learns at all */
} Level;

static int64_t macs(const Network *n) {
    int64_t sum = 0;
    for (int64_t i = 0; i < n->inputs; i++) sum += n->input_size[i] * n->size[0];
    for (int64_t l = 1; l < n->layers; l++) sum += n->size[l - 1] * n->size[l];
    return sum;
}

/* Rows under way: `row` lists them, all `count` in order unless it does. */
typedef struct {
    const int32_t *row;
    int64_t count;
} Rows;
#define EACH_ROW(rows, r) for (int64_t each = 0, r; each < (rows).count && (r = ROW(rows, each), 1); each++)
#define ROW(rows, i) ((rows).row ? (rows).row[i] : (i))

/* Counting sort: rows by slot, in their own order within a slot. */
static Groups sort(Rows rows, const int64_t *position, const int64_t *slot_of_node, int64_t slots) {
    int32_t *order = malloc(rows.count * sizeof *order + 1), *starts = calloc(slots + 1, sizeof *starts);
#define SLOT(r) (!position ? 0 : slot_of_node ? slot_of_node[position[r]] : position[r])
    EACH_ROW(rows, r) starts[SLOT(r) + 1]++;
    for (int64_t s = 0; s < slots; s++) starts[s + 1] += starts[s];
    EACH_ROW(rows, r) order[starts[SLOT(r)]++] = (int32_t)r;
    for (int64_t s = slots; s > 0; s--) starts[s] = starts[s - 1];
    starts[0] = 0;
#undef SLOT
    return (Groups){order, starts, slots};
}

static void forget(Groups g) { free((void *)g.order), free((void *)g.starts); }

static void run(const Network *n, Groups g) {
    int64_t width = n->size[0];
    const float *bias = n->bias[0];
    float shifted[width];
    for (int64_t i = 0; i < n->inputs; i++) {
        if (!n->shared[i]) continue;
        for (int64_t j = 0; j < width; j++) {
            float sum = bias ? bias[j] : 0;
            for (int64_t t = 0; t < n->input_size[i]; t++) sum += n->first[i][j * n->input_size[i] + t] * n->x[i][t];
            shifted[j] = sum;
        }
        bias = shifted;
    }
    int64_t last = n->inputs - 1;
    while (n->shared[last]) last--;
    for (int64_t i = 0; i <= last; i++) {
        if (n->shared[i]) continue;
        int relu = i == last && n->layers > 1;
        affine(g, n->input_size[i], width, n->x[i], n->first[i], i ? 0 : bias, i > 0, relu, n->value[0]);
    }
    for (int64_t l = 1; l < n->layers; l++)
        affine(g, n->size[l - 1], n->size[l], n->value[l - 1], n->weight[l], n->bias[l], 0, l < n->layers - 1, n->value[l]);
}

/* Gradients of all layers and inputs, from that of the last layer; `add`: on top of that of the first input. */
static void trace_back(const Network *n, Groups g, int add) {
    for (int64_t l = n->layers - 1; l > 0; l--)
        input_gradient(g, n->size[l - 1], n->size[l], n->grad[l], n->weight[l], n->value[l - 1], 0, n->grad[l - 1]);
    for (int64_t i = 0; i < n->inputs; i++)
        if (n->of_x[i] && !n->shared[i])
            input_gradient(g, n->input_size[i], n->size[0], n->grad[0], n->first[i], 0, add && !i, n->of_x[i]);
}

/* Gradients of all that is learned, by a whole team; and of inputs that are shared, which are sums over rows too. */
static void learn(const Network *n, Groups g) {
    int64_t rows = g.starts[g.slots], outs = n->size[0];
    for (int64_t l = n->layers - 1; l > 0; l--)
        weight_gradient(g, n->size[l - 1], n->size[l], n->grad[l], n->value[l - 1], n->of_weight[l], n->of_bias[l]);
    for (int64_t i = 0; i < n->inputs; i++) {
        int64_t size = n->input_size[i];
        if (!n->shared[i]) {
            weight_gradient(g, size, outs, n->grad[0], n->x[i], n->of_first[i], i ? 0 : n->of_bias[0]);
            continue;
        }
#pragma omp single nowait
        {
            if (n->of_x[i]) memset(n->of_x[i], 0, size * sizeof(float));
            for (int64_t j = 0; j < outs; j++) {
                float sum = 0;
                for (int64_t r = 0; r < rows; r++) sum += n->grad[0][r * outs + j];
                for (int64_t t = 0; t < size; t++) {
                    n->of_first[i][j * size + t] = sum * n->x[i][t];
                    if (n->of_x[i]) n->of_x[i][t] += sum * n->first[i][j * size + t];
                }
            }
        }
    }
}

/* The same network and the same level for the rows from `first` on. */
static void skip_rows(Network *n, int64_t first) {
    for (int64_t i = 0; i < n->inputs; i++) {
        if (n->shared[i]) continue;
        n->x[i] += first * n->input_size[i];
        if (n->of_x[i]) n->of_x[i] += first * n->input_size[i];
    }
    for (int64_t l = 0; l < n->layers; l++) {
        n->value[l] += first * n->size[l];
        if (n->grad[l]) n->grad[l] += first * n->size[l];
    }
}

static Level part_of(const Level *s, int64_t first, int64_t last) {
    Level part = *s;
    int64_t classes = s->expert.size[s->expert.layers - 1];
#define SKIP(field, width)                                                                                             \
    if (part.field) part.field += first * (width)
    SKIP(position, 1);
    SKIP(exponential, s->children);
    SKIP(relaxed, s->children);
    SKIP(evidence, classes);
    SKIP(choice, 1);
    SKIP(arrived, 1);
    SKIP(of_evidence, classes);
    SKIP(of_logits, s->children);
    SKIP(of_relaxed, s->children);
#undef SKIP
    skip_rows(&part.router, first), skip_rows(&part.expert, first);
    part.rows = last - first;
    return part;
}

static void choose(const Level *s, Rows rows) {
    int64_t width = s->children;
    float *logits = s->router.layers ? s->router.value[s->router.layers - 1] : 0;
    EACH_ROW(rows, r) {
        int64_t at = s->position ? s->position[r] : 0, best = 0;
        if (logits) {
            float *z = logits + r * width, scores[width];
            if (s->missing) {
                const uint8_t *missing = s->missing + (s->slot_of_node ? s->slot_of_node[at] : at) * width;
                for (int64_t c = 0; c < width; c++)
                    if (missing[c]) z[c] = -INFINITY;
            }
            if (!s->relaxed) {
                for (int64_t c = 1; c < width; c++) best = z[c] > z[best] ? c : best;
            } else {
                for (int64_t c = 0; c < width; c++) {
                    scores[c] = z[c];
                    if (s->exponential) scores[c] -= logf(s->exponential[r * width + c]);
                    scores[c] /= (float)s->tau;
                    if (scores[c] > scores[best]) best = c;
                }
                float total = 0, *pi = s->relaxed + r * width;
                for (int64_t c = 0; c < width; c++) total += pi[c] = expf(scores[c] - scores[best]);
                for (int64_t c = 0; c < width; c++) pi[c] /= total;
            }
        }
        s->choice[r] = best;
        s->arrived[r] = s->child_position[at * width + best];
    }
}

static void run_down(const Level *s, Rows rows) {
    if (s->router.layers) {
        Groups here = sort(rows, s->position, s->slot_of_node, s->router.slots);
        run(&s->router, here);
        forget(here);
    }
    choose(s, rows);
    Groups below = sort(rows, s->arrived, 0, s->expert.slots);
    run(&s->expert, below);
    forget(below);
    int64_t width = s->expert.size[s->expert.layers - 1];
    const float *z = s->expert.value[s->expert.layers - 1];
    if (!rows.row) activate(s->activation, z, s->evidence, rows.count * width);
    else EACH_ROW(rows, r) activate(s->activation, z + r * width, s->evidence + r * width, width);
}

int64_t nbsr_size_of_level(void) { return sizeof(Level); }

void nbsr_level(const Level *s) {
#pragma omp parallel if (s->rows * (macs(&s->router) + macs(&s->expert)) > WORTH_A_TEAM)
    {
        int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
        Level mine = part_of(s, s->rows * me / team, s->rows * (me + 1) / team);
        if (mine.rows) run_down(&mine, (Rows){0, mine.rows});
    }
}

/* What the logits get: their own gradient, and that of the relaxed choice through its softmax. */
static void logits_gradient(const Level *s, float *of_logits) {
    int64_t width = s->children, classes = s->expert.size[s->expert.layers - 1];
    for (int64_t r = 0; r < s->rows; r++) {
        float *to = of_logits + r * width, of_pi[width], mean = 0;
        for (int64_t c = 0; c < width; c++) to[c] = s->of_logits ? s->of_logits[r * width + c] : 0;
        if (s->relaxed && (s->of_relaxed || s->taught)) {
            const float *pi = s->relaxed + r * width;
            for (int64_t c = 0; c < width; c++) of_pi[c] = s->of_relaxed ? s->of_relaxed[r * width + c] : 0;
            if (s->taught) {
                float credit = 0;
                for (int64_t k = r * classes; k < (r + 1) * classes; k++) credit += s->of_evidence[k] * s->evidence[k];
                of_pi[s->choice[r]] += credit;
            }
            for (int64_t c = 0; c < width; c++) mean += pi[c] * of_pi[c];
            for (int64_t c = 0; c < width; c++) to[c] += pi[c] * (of_pi[c] - mean) / (float)s->tau;
        }
        if (s->missing) {
            int64_t at = s->position ? s->position[r] : 0;
            const uint8_t *missing = s->missing + (s->slot_of_node ? s->slot_of_node[at] : at) * width;
            for (int64_t c = 0; c < width; c++)
                if (missing[c]) to[c] = 0;
        }
    }
}

static void run_back(const Level *s) {
    if (s->of_evidence) {
        Groups below = sort((Rows){0, s->rows}, s->arrived, 0, s->expert.slots);
        int64_t last = s->expert.layers - 1, count = s->rows * s->expert.size[last];
        slope(s->activation, s->of_evidence, s->expert.value[last], s->evidence, s->expert.grad[last], count);
        trace_back(&s->expert, below, 0);
        forget(below);
    }
    if (s->asked) {
        Groups here = sort((Rows){0, s->rows}, s->position, s->slot_of_node, s->router.slots);
        logits_gradient(s, s->router.grad[s->router.layers - 1]);
        trace_back(&s->router, here, s->of_evidence != 0);
        forget(here);
    }
}

static void make_room(Network *n, int64_t rows) {
    for (int64_t l = 0; l < n->layers; l++) n->grad[l] = malloc(rows * n->size[l] * sizeof(float) + 1);
}

void nbsr_level_gradient(Level *s) {
    Groups here = {0}, below = sort((Rows){0, s->rows}, s->arrived, 0, s->expert.slots);
    if (s->asked) here = sort((Rows){0, s->rows}, s->position, s->slot_of_node, s->router.slots);
    make_room(&s->router, s->rows), make_room(&s->expert, s->rows);
#pragma omp parallel if (s->rows * (macs(&s->router) + macs(&s->expert)) > WORTH_A_TEAM)
    {
        int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
        Level mine = part_of(s, s->rows * me / team, s->rows * (me + 1) / team);
        if (mine.rows) run_back(&mine);
#pragma omp barrier
        if (s->of_evidence) learn(&s->expert, below);
        if (s->asked) learn(&s->router, here);
    }
    for (int64_t l = 0; l < MOST_LAYERS; l++) free(s->router.grad[l]), free(s->expert.grad[l]);
    forget(here), forget(below);
}
