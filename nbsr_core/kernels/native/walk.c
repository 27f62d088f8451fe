/* Whole walks that stop, level by level, for rows that nobody wants a derivative of; and how far oracles lie from data.
 *
 * The same as `nbsr_core.model.walk.stopping_walk`, whose text says what is computed; `nbsr_core.kernels.native.walk`
 * calls it. A row that exits is left out from then on, where it lies: nothing is gathered or put back, so that an exit saves what it skips
 * even if few go on.
 */
#include "beliefs.h"
#include "level.h"

enum { BLOCK = 512 }; /* rows that walk together: their beliefs stay in a core's own cache */
enum Sight { ALPHA, LOGARITHM, MEAN }; /* how routers see a belief */

typedef struct {
    int64_t rows, classes, oracle_size, side_size, levels, sees_belief, sees_side, sight;
    int64_t relative; /* whether evidence counts in multiples of the belief */
    double floor; /* of calibrated beliefs */
    Test test;    /* without tables nobody exits early */
    const Level *level;
    const uint8_t *const *inner;      /* of each level but the first, which nodes have children; none if all */
    const int64_t *first_node;        /* of the level below each */
    const float *temperature;         /* of each depth; none if beliefs are shown as they are */
    const float *h, *side, *scale, *prior, *described; /* `described`: how routers see the prior */
    float *alpha, *probs;             /* as they are shown where a row stopped */
    int64_t *label, *depth, *node;
    uint8_t *unclear; /* rows that came too close to eta: the test cannot tell, and they are not done */
} Walk;

/* What a block of rows needs on its way. */
typedef struct {
    float *alpha, *described, *router, *expert;
    int64_t position[BLOCK], arrived[BLOCK], choice[BLOCK];
    int32_t under_way[BLOCK];
} Room;

static int64_t widths(const Network *n) {
    int64_t sum = 0;
    for (int64_t l = 0; l < n->layers; l++) sum += n->size[l];
    return sum;
}

static void place_values(Network *n, float *room, int64_t rows) {
    for (int64_t l = 0; l < n->layers; l++) n->value[l] = room, room += rows * n->size[l];
}

static void describe(int64_t sight, const float *alpha, int64_t classes, float *described) {
    if (sight == LOGARITHM) {
        OVER(classes, put(described + i, logarithm(part(alpha + i, count)), count);)
        return;
    }
    vec sums = {0};
    OVER(classes, sums += part(alpha + i, count);)
    float total = sum_of(sums);
    OVER(classes, put(described + i, part(alpha + i, count) / total, count);)
}

/* alpha = before + factor * evidence, each step rounded */
static void add(const float *before, const float *evidence, int64_t relative, float factor, float *alpha, int64_t classes) {
    for (int64_t k = 0; k < classes; k++)
        alpha[k] = before[k] + factor * (relative ? evidence[k] * before[k] : evidence[k]);
}

/* Returns whether all beliefs were valid. */
static int walk_block(const Walk *w, int64_t first, int64_t rows, Room *room) {
    int64_t classes = w->classes, count = rows;
    for (int64_t r = 0; r < rows; r++) room->under_way[r] = (int32_t)r, room->position[r] = 0;
    for (int64_t l = 0; l < w->levels && count; l++) {
        Level s = w->level[l];
        Rows walkers = {room->under_way, count};
        s.rows = rows, s.position = l ? room->position : 0;
        s.choice = room->choice, s.arrived = room->arrived;
        s.expert.x[0] = w->h + first * w->oracle_size;
        place_values(&s.expert, room->expert, rows), s.evidence = s.expert.value[s.expert.layers - 1];
        if (s.router.layers) {
            int64_t input = 0;
            s.router.x[input++] = s.expert.x[0];
            if (w->sees_belief) {
                if (l && w->sight != ALPHA)
                    EACH_ROW(walkers, r)
                        describe(w->sight, room->alpha + r * classes, classes, room->described + r * classes);
                s.router.shared[input] = !l;
                s.router.x[input++] = !l ? w->described : w->sight == ALPHA ? room->alpha : room->described;
            }
            if (w->sees_side) s.router.x[input++] = w->side + first * w->side_size;
            place_values(&s.router, room->router, rows);
        }
        run_down(&s, walkers);
        int last = l == w->levels - 1;
        int64_t going_on = 0;
        EACH_ROW(walkers, r) {
            float *alpha = room->alpha + r * classes, *evidence = s.evidence + r * classes;
            float *shown = w->alpha + (first + r) * classes;
            add(l ? alpha : w->prior, evidence, w->relative, w->scale ? w->scale[first + r] : 1.0f, alpha, classes);
            int64_t at = room->position[r] = room->arrived[r];
            int ends = last || (w->inner[l + 1] && !w->inner[l + 1][at]);
            if (!ends && !w->test.of_class) {
                room->under_way[going_on++] = (int32_t)r;
                continue;
            }
            if (!w->temperature) memcpy(shown, alpha, classes * sizeof *shown);
            else if (!calibrate(alpha, classes, w->temperature[l], (float)w->floor, shown)) return 0;
            int told = ends ? BELOW : below(&w->test, shown, classes);
            if (told == NOT_BELOW) {
                room->under_way[going_on++] = (int32_t)r;
                continue;
            }
            w->unclear[first + r] = told == UNCLEAR;
            w->label[first + r] = expect(shown, classes, w->probs + (first + r) * classes);
            w->depth[first + r] = l + 1;
            w->node[first + r] = w->first_node[l] + at;
        }
        count = going_on;
    }
    return 1;
}

int64_t nbsr_size_of_walk(void) { return sizeof(Walk); }

/* Returns how many rows are unclear, or -1 where a belief is invalid. */
int64_t nbsr_walk(const Walk *w) {
    int64_t of_router = 0, of_expert = 0, work = 0;
    for (int64_t l = 0; l < w->levels; l++) {
        int64_t asks = widths(&w->level[l].router), says = widths(&w->level[l].expert);
        of_router = asks > of_router ? asks : of_router, of_expert = says > of_expert ? says : of_expert;
        work += macs(&w->level[l].router) + macs(&w->level[l].expert);
    }
    int sound = 1;
#pragma omp parallel reduction(& : sound) if (w->rows * work > WORTH_A_TEAM)
    {
        int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
        int64_t from = w->rows * me / team, to = w->rows * (me + 1) / team, most = LESS(to - from, BLOCK);
        int64_t described = w->sight == ALPHA ? 0 : w->classes;
        Room *room = malloc(sizeof *room);
        float *floats = malloc(most * (w->classes + described + of_router + of_expert) * sizeof *floats + 1);
        room->alpha = floats, room->described = room->alpha + most * w->classes;
        room->router = room->described + most * described, room->expert = room->router + most * of_router;
        int64_t blocks = (to - from + BLOCK - 1) / BLOCK;
        for (int64_t b = 0; b < blocks && sound; b++) {
            int64_t start = from + (to - from) * b / blocks, stop = from + (to - from) * (b + 1) / blocks;
            sound &= walk_block(w, start, stop - start, room);
        }
        free(floats), free(room);
    }
    if (!sound) return -1;
    int64_t unclear = 0;
    for (int64_t r = 0; r < w->rows; r++) unclear += w->unclear[r];
    return unclear;
}

/* How far evidence counts, see `nbsr_core.belief.density`. */
typedef struct {
    const float *centre, *whitening, *means;
    int64_t size, kinds;             /* kinds: how many means to search for the nearest one */
    const float *threshold, *spread; /* none: distances are asked for, not factors */
    double floor;
} Density;

/* Every row's distance from its mean, or from the nearest if `mean` is missing, and at most `length` rows back the largest in its
 * sequence; or the factor that follows from it. */
void nbsr_density(const Density *density, const float *h, int64_t rows, const int64_t *mean, int64_t length, float *found) {
    int64_t size = density->size, kinds = mean ? 0 : density->kinds, sequences = rows / length;
    const float *means = density->means;
#pragma omp parallel if (rows * size * (size + kinds) > WORTH_A_TEAM)
    {
        int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
        int64_t from = sequences * me / team * length, to = sequences * (me + 1) / team * length;
        int64_t most = LESS(to - from, BLOCK);
        float *moved = malloc((most * (2 * size + kinds) + kinds) * sizeof *moved + 1), *white = moved + most * size;
        float *dots = white + most * size, *squares = dots + most * kinds;
        for (int64_t m = 0; m < kinds; m++) {
            squares[m] = 0;
            for (int64_t t = 0; t < size; t++) squares[m] += means[m * size + t] * means[m * size + t];
        }
        for (int64_t first = from; first < to; first += BLOCK) {
            int64_t here = LESS(to - first, BLOCK);
            Groups everybody = sort((Rows){0, here}, 0, 0, 1);
            for (int64_t r = 0; r < here; r++)
                for (int64_t t = 0; t < size; t++) moved[r * size + t] = h[(first + r) * size + t] - density->centre[t];
            products(everybody, size, size, moved, density->whitening, size, 1, (Finish){0}, white);
            if (kinds) products(everybody, size, kinds, white, means, 1, size, (Finish){0}, dots);
            forget(everybody);
            for (int64_t r = 0; r < here; r++) {
                int64_t nearest = mean ? mean[first + r] : 0;
                for (int64_t m = 1; m < kinds; m++)
                    if (squares[m] - 2 * dots[r * kinds + m] < squares[nearest] - 2 * dots[r * kinds + nearest]) nearest = m;
                vec sums = {0};
                OVER(size, {
                    vec away = part(white + r * size + i, count) - part(means + nearest * size + i, count);
                    sums += away * away;
                })
                found[first + r] = sqrtf(sum_of(sums) / (float)size);
            }
        }
        free(moved);
        for (int64_t r = from; r < to; r++) /* what is no number stays */
            if (r % length && !(found[r] >= found[r - 1]) && found[r] == found[r]) found[r] = found[r - 1];
        for (int64_t r = from; r < to && density->threshold; r++) {
            float beyond = (found[r] - *density->threshold) / *density->spread;
            beyond = beyond < 0 ? 0 : beyond;
            float factor = expf(-0.5f * beyond * beyond), floor = (float)density->floor;
            found[r] = factor < floor ? floor : factor;
        }
    }
}
