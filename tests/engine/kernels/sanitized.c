/* Calls the operations of native.c over many shapes, in memory that ends where their data end. */

#include "native.c"

#include <math.h>
#include <stdio.h>

static uint32_t seed = 1;

static Stored *drawn(long count) {
    Stored *numbers = malloc(count * sizeof(Stored));
    for (long i = 0; i < count; i++) {
        seed = seed * 1664525 + 1013904223;
        numbers[i] = stored((float)(seed >> 8) / 8388608.0f - 1);
    }
    return numbers;
}

/* How often a product is further from its value in float64 than rounding explains. */
static long wrong_products(long num, long size, long columns) {
    Stored *x = drawn(num * size), *w = drawn(columns * size), *bias = drawn(columns);
    Stored *out = drawn(num * columns);
    long wrong = 0;
    product(out, x, size, num, size, w, columns, bias, PLAIN, NULL, 0, 0, 2);
    for (long i = 0; i < num; i++)
        for (long j = 0; j < columns; j++) {
            double exact = value_of(bias[j]), sum = fabs(exact);
            for (long k = 0; k < size; k++) {
                double term = (double)value_of(x[i * size + k]) * value_of(w[j * size + k]);
                exact += term;
                sum += fabs(term);
            }
            double error = fabs(value_of(out[i * columns + j]) - exact);
            double most = (double)size * 6e-8 * sum + (HALF ? 4e-3 * fabs(exact) : 0) + 1e-6;
            wrong += error > most;
        }
    free(x), free(w), free(bias), free(out);
    return wrong;
}

/* How often attention to `seen` cached rows and `num` rows masked by `bias` is further from its
   value in float64 than rounding explains. */
static long wrong_attention(long num, long seen, long num_kv, long group, long dim) {
    long width = num_kv * group * dim, row = 2 * num_kv * dim, count = seen + num, wrong = 0;
    Stored *queries = drawn(num * width), *cache = drawn(count * row);
    Stored *bias = drawn(num * num), *out = drawn(num * width);
    double *shares = malloc(count * sizeof(double));
    attend(out, queries, width, num, num_kv, group, dim, cache, cache + num_kv * dim, row, seen, bias,
           num, 0.1f, 2);
    for (long i = 0; i < num * num_kv * group; i++) { /* query head i % (num_kv * group) of a row */
        long node = i / (num_kv * group), head = i % (num_kv * group) / group;
        double total = 0;
        for (long j = 0; j < count; j++) {
            double score = j < seen ? 0 : value_of(bias[node * num + j - seen]);
            for (long d = 0; d < dim; d++)
                score += 0.1f * value_of(queries[i * dim + d]) * value_of(cache[j * row + head * dim + d]);
            total += shares[j] = exp(score);
        }
        for (long d = 0; d < dim; d++) {
            double exact = 0, sum = 0;
            for (long j = 0; j < count; j++) {
                double term = shares[j] / total * value_of(cache[j * row + (num_kv + head) * dim + d]);
                exact += term;
                sum += fabs(term);
            }
            double error = fabs(value_of(out[i * dim + d]) - exact);
            wrong += error > 2e-6 * sum + (HALF ? 4e-3 * fabs(exact) : 0) + 1e-6;
        }
    }
    free(queries), free(cache), free(bias), free(out), free(shares);
    return wrong;
}

/* How many of the best tokens have more better logits than their rank, or no log-probability. */
static long wrong_best(long num, long size, long count) {
    Stored *logits = drawn(num * size);
    int64_t *ids = malloc(num * count * sizeof(int64_t));
    float *log_probs = malloc(num * count * sizeof(float));
    long wrong = 0;
    best_tokens(logits, size, num, size, count, ids, log_probs, 2);
    for (long i = 0; i < num; i++)
        for (long k = 0; k < count; k++) {
            float logit = value_of(logits[i * size + ids[i * count + k]]);
            long num_better = 0;
            for (long j = 0; j < size; j++) num_better += value_of(logits[i * size + j]) > logit;
            wrong += num_better > k || !(log_probs[i * count + k] <= 1e-6f);
        }
    free(logits), free(ids), free(log_probs);
    return wrong;
}

/* How many children in a draft do not score below their parents, or have no token's id. */
static long wrong_drafts(long levels, long k, long hidden, long num_kv, long dim, long vocab) {
    long inner = hidden + 5, width = num_kv * dim * 3, seen = 3, row = 2 * num_kv * dim;
    long size = k + levels * k * k, wrong = 0, is_plain = hidden % 2;
    Stored *qkv = drawn(width * (is_plain ? 1 : 2) * hidden), *o = drawn(hidden * num_kv * dim);
    Stored *up = drawn(2 * inner * hidden), *down = drawn(hidden * inner), *norm = drawn(hidden);
    Stored *embedding = drawn(vocab * hidden), *fc = drawn(hidden * 2 * hidden), *root = drawn(hidden);
    Stored *lm_head = drawn(vocab * hidden), *cache = drawn((seen + levels * k) * row);
    Stored *turns = drawn((seen + levels) * 2 * dim);
    NormOf rms = {norm, 0, 1e-5}, none = {NULL, 0, 0};
    Layer layer = {qkv, NULL, o, NULL, up, NULL, down, NULL, none, none, rms, num_kv, 1, dim, inner,
                   SILU, 0.1};
    Head head = {&layer, 1, embedding, is_plain ? fc : NULL, NULL, lm_head, NULL, NULL, rms, none,
                 rms, rms, hidden, vocab, 0};
    double *scores = malloc(size * sizeof(double));
    int64_t *tokens = malloc(size * sizeof(int64_t)), *nodes = malloc(levels * k * sizeof(int64_t));
    for (long i = 0; i < k; i++) scores[i] = -(double)i, tokens[i] = i;
    draft_levels(&head, &cache, levels, k, seen, root, turns, scores, tokens, nodes, 2);
    for (long i = k, from = 0; i < size; i++) {
        long level = (i - k) / (k * k), place = (i - k) % (k * k);
        from = level ? k + (level - 1) * k * k : 0;
        wrong += !(scores[i] < scores[from + nodes[level * k + place / k]]);
        wrong += tokens[i] < 0 || tokens[i] >= vocab;
    }
    free(qkv), free(o), free(up), free(down), free(norm), free(embedding), free(fc), free(root);
    free(lm_head), free(cache), free(turns), free(scores), free(tokens), free(nodes);
    return wrong;
}

int main(void) {
    const long sizes[] = {1, 15, 16, 31, 32, 33, 64, 100}, columns[] = {1, 3, 4, 5, 23, 64};
    long wrong = 0;
    for (long num = 1; num <= 14; num++)
        for (int i = 0; i < 8; i++)
            for (int j = 0; j < 6; j++) wrong += wrong_products(num, sizes[i], columns[j]);
    wrong += wrong_products(2, 640, 2048);
    wrong += wrong_products(17, 300, 35) + wrong_products(50, 600, 90);
    for (long size = 1; size < 200; size += 7)
        for (long count = 1; count <= size && count <= MOST; count += 9)
            wrong += wrong_best(5, size, count);
    for (long num = 1; num <= 14; num++)
        for (long seen = 0; seen < 40; seen += 13) {
            wrong += wrong_attention(num, seen, 3, 3, 64);
            wrong += wrong_attention(num, seen, 2, 1, 48);
        }
    for (long k = 1; k < 12; k += 5)
        for (long levels = 1; levels < 4; levels++)
            for (long hidden = 37; hidden < 50; hidden += 11)
                wrong += wrong_drafts(levels, k, hidden, 2, 16, 67);
    printf("%ld wrong\n", wrong);
    return wrong > 0;
}
