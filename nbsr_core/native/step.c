/* One level of a walk, forwards and backwards: the router is asked, a child chosen, its expert consulted.
 *
 * The same as `nbsr_core.step` in torch, whose text says what is computed; `nbsr_core.native.level` calls it. At the size of
 * routers and experts, the calls between the products cost more than the products.
 */
#include "activations.h"
#include "beliefs.h"
#include "products.h"
#include <stdlib.h>

enum { MOST_INPUTS = 3, MOST_LAYERS = 8 };
enum Activation { SOFTPLUS, SIGMOID, EXP };

/* A bank of ReLU networks: several inputs, each with its own first map, are added up before the first ReLU. */
typedef struct {
    int64_t slots, inputs, layers;
    int64_t input_size[MOST_INPUTS], shared[MOST_INPUTS]; /* a shared input has one row for all, and the bank one slot */
    int64_t size[MOST_LAYERS];
    const float *x[MOST_INPUTS], *first[MOST_INPUTS], *weight[MOST_LAYERS], *bias[MOST_LAYERS];
    float *value[MOST_LAYERS]; /* what each layer gives, after its ReLU */
    int32_t *order, *starts;
    float *of_x[MOST_INPUTS], *of_first[MOST_INPUTS], *of_weight[MOST_LAYERS], *of_bias[MOST_LAYERS];
} Network;

typedef struct {
    int64_t rows, children, sorted, activation;
    double tau, limit, smallest;
    const int64_t *position, *slot_of_node, *child_position;
    const uint8_t *missing;
    const float *exponential; /* draws of an exponential variable, whose -log is Gumbel's; none for the best child */
    float *relaxed, *evidence;
    int64_t *choice, *arrived;
    Network router, expert;
    const float *of_evidence, *of_logits, *of_relaxed;
    int64_t taught;
} Step;

static Groups groups(const Network *n) { return (Groups){n->order, n->starts, n->slots}; }

/* Counting sort: rows by slot, in their own order within a slot. */
static void sort(const int64_t *position, const int64_t *slot_of_node, int64_t rows, Network *n) {
    int32_t *starts = n->starts;
#define SLOT(r) (!position ? 0 : slot_of_node ? slot_of_node[position[r]] : position[r])
    memset(starts, 0, (n->slots + 1) * sizeof *starts);
    for (int64_t r = 0; r < rows; r++) starts[SLOT(r) + 1]++;
    for (int64_t s = 0; s < n->slots; s++) starts[s + 1] += starts[s];
    for (int64_t r = 0; r < rows; r++) n->order[starts[SLOT(r)]++] = (int32_t)r;
    for (int64_t s = n->slots; s > 0; s--) starts[s] = starts[s - 1];
    starts[0] = 0;
#undef SLOT
}

static void run(const Network *n) {
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
        affine(groups(n), n->input_size[i], width, n->x[i], n->first[i], i ? 0 : bias, i > 0, relu, n->value[0]);
    }
    for (int64_t l = 1; l < n->layers; l++)
        affine(groups(n), n->size[l - 1], n->size[l], n->value[l - 1], n->weight[l], n->bias[l], 0, l < n->layers - 1,
               n->value[l]);
}

/* Gradients of all that a network was given, from that of its last layer; `add`: on top of that of its first input. */
static void differentiate(const Network *n, const float *grad, int add) {
    int64_t rows = n->starts[n->slots], widest = 0, outs = n->size[0];
    for (int64_t l = 0; l + 1 < n->layers; l++) widest = MORE(widest, n->size[l]);
    float *scratch[2] = {malloc(rows * widest * sizeof(float) + 1), malloc(rows * widest * sizeof(float) + 1)};
    for (int64_t l = n->layers - 1; l > 0; l--) {
        weight_gradient(groups(n), n->size[l - 1], n->size[l], grad, n->value[l - 1], n->of_weight[l], n->of_bias[l]);
        input_gradient(groups(n), n->size[l - 1], n->size[l], grad, n->weight[l], n->value[l - 1], 0, scratch[l % 2]);
        grad = scratch[l % 2];
    }
    for (int64_t i = 0; i < n->inputs; i++) {
        int64_t size = n->input_size[i];
        if (!n->shared[i]) {
            weight_gradient(groups(n), size, outs, grad, n->x[i], n->of_first[i], i ? 0 : n->of_bias[0]);
            if (n->of_x[i]) input_gradient(groups(n), size, outs, grad, n->first[i], 0, add && !i, n->of_x[i]);
            continue;
        }
        if (n->of_x[i]) memset(n->of_x[i], 0, size * sizeof(float));
        for (int64_t j = 0; j < outs; j++) {
            float sum = 0;
            for (int64_t r = 0; r < rows; r++) sum += grad[r * outs + j];
            for (int64_t t = 0; t < size; t++) {
                n->of_first[i][j * size + t] = sum * n->x[i][t];
                if (n->of_x[i]) n->of_x[i][t] += sum * n->first[i][j * size + t];
            }
        }
    }
    free(scratch[0]), free(scratch[1]);
}

static void choose(const Step *s) {
    int64_t width = s->children;
    float *logits = s->router.layers ? s->router.value[s->router.layers - 1] : 0;
    for (int64_t r = 0; r < s->rows; r++) {
        int64_t at = s->position ? s->position[r] : 0, best = 0;
        if (logits) {
            float *z = logits + r * width, scores[width];
            if (s->missing) {
                const uint8_t *missing = s->missing + (s->slot_of_node ? s->slot_of_node[at] : at) * width;
                for (int64_t c = 0; c < width; c++)
                    if (missing[c]) z[c] = -INFINITY;
            }
            for (int64_t c = 0; c < width; c++) {
                scores[c] = z[c];
                if (s->exponential) scores[c] -= logf(s->exponential[r * width + c]);
                scores[c] /= (float)s->tau;
                if (scores[c] > scores[best]) best = c;
            }
            if (s->relaxed) {
                float total = 0, *pi = s->relaxed + r * width;
                for (int64_t c = 0; c < width; c++) total += pi[c] = expf(scores[c] - scores[best]);
                for (int64_t c = 0; c < width; c++) pi[c] /= total;
            }
        }
        s->choice[r] = best;
        s->arrived[r] = s->child_position[at * width + best];
    }
}

int64_t nbsr_size_of_step(void) { return sizeof(Step); }

void nbsr_step(Step *s) {
    if (s->router.layers) {
        if (!s->sorted) sort(s->position, s->slot_of_node, s->rows, &s->router);
        run(&s->router);
    }
    choose(s);
    sort(s->arrived, 0, s->rows, &s->expert);
    run(&s->expert);
    const float *z = s->expert.value[s->expert.layers - 1];
    int64_t width = s->expert.size[s->expert.layers - 1];
#pragma omp parallel for schedule(static) if (s->rows * width > WORTH_A_PASS)
    for (int64_t r = 0; r < s->rows; r++) {
        const float *from = z + r * width;
        float *to = s->evidence + r * width;
        switch (s->activation) {
        case SOFTPLUS: softplus(from, to, width, s->smallest); break;
        case SIGMOID: bounded_sigmoid(from, to, width, s->limit, s->smallest); break;
        default: clamped_exp(from, to, width, s->limit);
        }
    }
}

/* What the logits get: their own gradient, and that of the relaxed choice through its softmax. */
static void logits_gradient(const Step *s, float *of_logits) {
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

void nbsr_step_gradient(Step *s) {
    if (s->of_evidence) {
        int64_t width = s->expert.size[s->expert.layers - 1];
        const float *z = s->expert.value[s->expert.layers - 1];
        float *of_z = malloc(s->rows * width * sizeof(float) + 1);
#pragma omp parallel for schedule(static) if (s->rows * width > WORTH_A_PASS)
        for (int64_t r = 0; r < s->rows; r++) {
            int64_t at = r * width;
            slope(s->activation, s->of_evidence + at, z + at, s->evidence + at, of_z + at, width, s->limit);
        }
        differentiate(&s->expert, of_z, 0);
        free(of_z);
    }
    if (s->router.layers && (s->of_logits || s->of_relaxed || s->taught)) {
        float *of_logits = malloc(s->rows * s->children * sizeof(float) + 1);
        logits_gradient(s, of_logits);
        differentiate(&s->router, of_logits, s->of_evidence != 0);
        free(of_logits);
    }
}
