/* Operations of decoder layers over few rows on a CPU: see `native_ops.py`.
 *
 * Weights and activations are float32, or bfloat16 with -DHALF=1. Sums are float32.
 *
 * A row's result does not depend on the other rows of a call. Every sum has the same order for any
 * number of rows or threads. So a tree's logits are, bit by bit, those of the same tokens one at a
 * time.
 *
 * Vectors are those of GCC and Clang, and the compiler maps them to the machine's instructions.
 * Products in bfloat16 use tiles if the processor has them (AMX).
 */

#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX__)
#include <immintrin.h>
#endif
#if HALF && defined(__AVX512BF16__) && defined(__AMX_BF16__) && defined(__linux__)
#define HAS_TILES 1
#include <sys/syscall.h>
long syscall(long number, ...);
#endif

#if defined(__AVX512F__)
enum { WIDTH = 16, ROWS = 6, COLUMNS = 4 };
#elif defined(__AVX__)
enum { WIDTH = 8, ROWS = 3, COLUMNS = 4 };
#else
enum { WIDTH = 4, ROWS = 5, COLUMNS = 4 };
#endif
enum { BESIDE = 2 };            /* vectors of keys that are scored together */
#if defined(__AVX__) && !defined(__AVX512F__)
enum { AHEAD = 1024, FEW = 0 };
#else
enum { AHEAD = 4096, FEW = 4 }; /* bytes that weights are fetched ahead, for more than FEW rows */
#endif
typedef float Vec __attribute__((vector_size(4 * WIDTH)));
typedef float Loose __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t Words __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t Halves __attribute__((vector_size(2 * WIDTH), aligned(2), may_alias));


/* Keeps a vector that is used several times in a register, so that it is loaded only once. */
#if defined(__AVX512F__)
#define IN_REGISTER(vec) __asm__("" : "+v"(vec))
#elif defined(__AVX__)
#define IN_REGISTER(vec) __asm__("" : "+x"(vec))
#else
#define IN_REGISTER(vec)
#endif

#define INLINE static inline __attribute__((always_inline))
#define ALONE static __attribute__((noinline))

/* Run `call` for 1 to ROWS rows. In the call, their number is the constant CONSTANT. */
#define CASE(n, call) \
    case n: { \
        enum { CONSTANT = n }; \
        call; \
    } break;
#if defined(__AVX512F__)
#define MORE_ROWS(call) CASE(4, call) CASE(5, call) CASE(6, call)
#elif defined(__AVX__)
#define MORE_ROWS(call)
#else
#define MORE_ROWS(call) CASE(4, call) CASE(5, call)
#endif
#define BY_ROWS(rows, call) \
    switch (rows) { CASE(1, call) CASE(2, call) CASE(3, call) MORE_ROWS(call) }

/* ---- Numbers in memory ---------------------------------------------------------------------- */

INLINE Vec load(const float *from) { return *(const Loose *)from; }
INLINE void store(float *to, Vec value) { *(Loose *)to = value; }

#if HALF
typedef uint16_t Stored;

INLINE Vec read(const Stored *from) {
#if defined(__AVX512F__)
    return (Vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from)), 16);
#elif defined(__AVX2__)
    return (Vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)from)), 16);
#else
    return (Vec)(__builtin_convertvector(*(const Halves *)from, Words) << 16);
#endif
}
INLINE float value_of(Stored stored) {
    uint32_t bits = (uint32_t)stored << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
INLINE Stored stored(float value) { /* to the nearest, ties to even */
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0; /* not a number */
    return (Stored)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
INLINE float rounded(float value) { return value_of(stored(value)); }
INLINE Words rounded_bits(Vec values) { /* `stored`, as the upper half of each lane */
    Words bits = (Words)values, even = bits + 0x7fff + ((bits >> 16) & 1);
    Words is_nan = (Words)((bits & 0x7fffffff) > 0x7f800000);
    return (is_nan & 0x7fc00000) | (~is_nan & even);
}
INLINE Vec rounded_lanes(Vec values) { return (Vec)(rounded_bits(values) & 0xffff0000); }
INLINE void put(Stored *to, Vec values) {
    *(Halves *)to = __builtin_convertvector(rounded_bits(values) >> 16, Halves);
}
#else
typedef float Stored;

INLINE Vec read(const Stored *from) { return load(from); }
INLINE float value_of(Stored stored) { return stored; }
INLINE Stored stored(float value) { return value; }
INLINE float rounded(float value) { return value; }
INLINE Vec rounded_lanes(Vec values) { return values; }
INLINE void put(Stored *to, Vec values) { store(to, values); }
#endif

/* Factors of a product: pairs of bfloat16 where the machine multiplies them, else float32. */
#if HALF && defined(__AVX512BF16__)
enum { STEP = 2 * WIDTH, PAIR = 2 };
typedef Stored Factor;
typedef __m512bh Factors;

INLINE Factors factors(const Factor *from) { return (Factors)_mm512_loadu_si512(from); }
INLINE Factors weights_at(const Stored *from) { return (Factors)_mm512_loadu_si512(from); }
INLINE Vec plus(Vec sum, Factors a, Factors b) { return (Vec)_mm512_dpbf16_ps((__m512)sum, a, b); }
INLINE void put_factors(Factor *to, Vec values) { put(to, values); }
INLINE Vec pairs_at(const Stored *from) { return load((const void *)from); }
INLINE Factors everywhere(const Factor *from) {
    int32_t pair;
    memcpy(&pair, from, 4);
    return (Factors)_mm512_set1_epi32(pair);
}
#else
enum { STEP = WIDTH, PAIR = 1 };
typedef float Factor;
typedef Vec Factors;

INLINE Factors factors(const Factor *from) { return load(from); }
INLINE Factors weights_at(const Stored *from) { return read(from); }
INLINE Vec plus(Vec sum, Factors a, Factors b) { return sum + a * b; }
INLINE void put_factors(Factor *to, Vec values) { store(to, values); }
INLINE Vec pairs_at(const Stored *from) { return read(from); }
INLINE Factors everywhere(const Factor *from) { return *from - (Vec){0}; }
#endif

/* ---- Threads -------------------------------------------------------------------------------- */

/* A thread among those that share an operation. */
typedef struct {
    int member, size;
} Team;

/* Numbers of multiplications that are worth a second thread: for a single row, which waits for
 * memory, and for more rows. */
enum { LEAST_OF_ONE = 600000, LEAST = 130000 };

/* Run `call` in `threads` threads, or in this thread if it is little work. It reads `team`. */
#define TOGETHER(rows, work, threads, call) \
    if ((threads) < 2 || (work) < ((rows) == 1 ? LEAST_OF_ONE : LEAST)) { \
        Team team = {0, 1}; \
        call; \
    } else { \
        _Pragma("omp parallel num_threads(threads)") { \
            Team team = {omp_get_thread_num(), omp_get_num_threads()}; \
            call; \
        } \
    }

/* Memory of the calling thread, kept between calls. */
static float *scratch(long count) {
    static _Thread_local float *memory;
    static _Thread_local long size;
    if (count > size) {
        free(memory);
        size = (count + count / 2 + 15) / 16 * 16;
        memory = aligned_alloc(64, 4 * (size_t)size);
        if (!memory) abort();
    }
    return memory;
}

/* ---- Arithmetic of vectors ------------------------------------------------------------------ */

INLINE Vec same(float value) { return value - (Vec){0}; }

#if defined(__clang__) || __GNUC__ >= 12
#define LANES(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define LANES(a, b, ...) __builtin_shuffle(a, b, (Ints){__VA_ARGS__})
#endif

#if defined(__AVX512F__)
#define FIRST_HALVES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define LAST_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(__AVX__)
#define FIRST_HALVES 0, 8, 1, 9, 2, 10, 3, 11
#define LAST_HALVES 4, 12, 5, 13, 6, 14, 7, 15
#else
#define FIRST_HALVES 0, 4, 1, 5
#define LAST_HALVES 2, 6, 3, 7
#endif

/* out = the sums of four vectors' lanes. Halves are added to halves until a lane is left. */
INLINE void sums_of(float *out, Vec a, Vec b, Vec c, Vec d) {
#if defined(__AVX512F__)
#define LOW 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define HIGH 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
    Vec ab = LANES(a, b, LOW) + LANES(a, b, HIGH), cd = LANES(c, d, LOW) + LANES(c, d, HIGH);
    Vec all = LANES(ab, cd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
              LANES(ab, cd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    all += LANES(all, all, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    all += LANES(all, all, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    all = LANES(all, all, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
#elif defined(__AVX__)
    Vec ab = LANES(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + LANES(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
    Vec cd = LANES(c, d, 0, 1, 2, 3, 8, 9, 10, 11) + LANES(c, d, 4, 5, 6, 7, 12, 13, 14, 15);
    Vec all = LANES(ab, cd, 0, 1, 4, 5, 8, 9, 12, 13) + LANES(ab, cd, 2, 3, 6, 7, 10, 11, 14, 15);
    all += LANES(all, all, 1, 0, 3, 2, 5, 4, 7, 6);
    all = LANES(all, all, 0, 2, 4, 6, 0, 2, 4, 6);
#else
    Vec ab = LANES(a, b, 0, 1, 4, 5) + LANES(a, b, 2, 3, 6, 7);
    Vec cd = LANES(c, d, 0, 1, 4, 5) + LANES(c, d, 2, 3, 6, 7);
    Vec all = LANES(ab, cd, 0, 2, 4, 6) + LANES(ab, cd, 1, 3, 5, 7);
#endif
    memcpy(out, &all, 4 * sizeof(float));
}

INLINE float sum(Vec v) {
    float sums[4];
    sums_of(sums, v, v, v, v);
    return sums[0];
}

INLINE Vec either(Ints chosen, Vec yes, Vec no) {
    return (Vec)((chosen & (Ints)yes) | (~chosen & (Ints)no));
}

/* e^x, with a polynomial of degree 6 for the part within +-ln 2 / 2. 0 below -87.3. */
INLINE Vec exponential(Vec x) {
    const Vec low = same(-87.3f), high = same(88.3f);
    Ints is_zero = x < low;
    x = either(x > high, high, x);
    Vec rounder = same(12582912.0f); /* 1.5 * 2^23: a sum with it ends in the bits of a whole number */
    Vec whole = x * 1.44269504f + rounder;
    Vec power = (Vec)(((Words)whole << 23) + (127u << 23));
    whole -= rounder;
    Vec r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    Vec p = same(1.98756915e-4f);
    p = p * r + 1.39819995e-3f;
    p = p * r + 8.33345195e-3f;
    p = p * r + 4.16657960e-2f;
    p = p * r + 1.66666655e-1f;
    p = p * r + 5.00000012e-1f;
    p = p * r * r + r + 1.0f;
    return (Vec)(~is_zero & (Ints)(p * power));
}

/* ---- Norms ---------------------------------------------------------------------------------- */

INLINE void widen(float *to, const Stored *from, long size) {
    long i = 0;
    for (; i + WIDTH <= size; i += WIDTH) store(to + i, read(from + i));
    for (; i < size; i++) to[i] = value_of(from[i]);
}

typedef struct {
    const void *weight; /* [size], or NULL for no norm */
    int is_wide;        /* the weight is float32, whatever the rest is */
    float eps;
} Norm;

/* x / sqrt(mean(x^2) + eps) * weight, in place. The weight is read from element `offset` on. */
static void normalise(float *x, long size, Norm norm, long offset) {
    Vec squares = {0};
    long i = 0;
    for (; i + WIDTH <= size; i += WIDTH) squares += load(x + i) * load(x + i);
    float total = sum(squares);
    for (; i < size; i++) total += x[i] * x[i];
    float factor = 1.0f / __builtin_sqrtf(total / (float)size + norm.eps);
    const float *wide = (const float *)norm.weight + offset;
    const Stored *weight = (const Stored *)norm.weight + offset;
    for (i = 0; i + WIDTH <= size; i += WIDTH) {
        Vec scaled = load(x + i) * factor * (norm.is_wide ? load(wide + i) : read(weight + i));
        store(x + i, rounded_lanes(scaled));
    }
    for (; i < size; i++)
        x[i] = rounded(x[i] * factor * (norm.is_wide ? wide[i] : value_of(weight[i])));
}

/* out = norm(x), added to what `out` holds if `is_added`. */
void norm_rows(
    Stored *out, const Stored *x, long x_stride, long num, long size, const void *weight,
    int is_wide, float eps, int is_added
) {
    Norm norm = {weight, is_wide, eps};
    float *row = scratch(size);
    for (long i = 0; i < num; i++, out += size, x += x_stride) {
        for (long k = 0; k < size; k++) row[k] = value_of(x[k]);
        normalise(row, size, norm, 0);
        for (long k = 0; k < size; k++)
            out[k] = stored(is_added ? row[k] + value_of(out[k]) : row[k]);
    }
}

/* ---- Products ------------------------------------------------------------------------------- */

INLINE long padded(long size, long unit) { return (size + unit - 1) / unit * unit; }

#if HAS_TILES
static int has_tiles;
#else
enum { has_tiles = 0 };
#endif

/* Rows are multiplied in blocks of about the same size, at most ROWS, or WIDTH with tiles. */
INLINE long blocks_of(long num) {
    long most = has_tiles ? WIDTH : ROWS;
    return (num + most - 1) / most;
}
INLINE long rows_of(long block, long num) {
    long blocks = blocks_of(num), most = (num + blocks - 1) / blocks, left = num - block * most;
    if (has_tiles) return most < left ? most : left;
    return num / blocks + (block < num % blocks);
}

/* Put row `i` of a block of `rows` in its place among the factors of the block, [size / STEP, rows,
 * STEP], which a product reads one after the other. `row` has room for whole STEPs. */
static void arrange(Factor *block, float *row, long size, long rows, long i) {
    Factor *to = block + i * STEP;
    for (long k = size; k < padded(size, STEP); k++) row[k] = 0;
    for (long k = 0; k < size; k += STEP, to += rows * STEP)
        for (int part = 0; part < STEP; part += WIDTH) put_factors(to + part, load(row + k + part));
}

/* out[(i * COLUMNS + j) * WIDTH] = x[i] . w[j] over whole STEPs. The rest of `size` is left out.
 * `rows` is a constant after inlining. */
INLINE void multiply(
    float *out, int rows, const Factor *x, const Stored *const *w, long size, long ahead
) {
    Vec sums[ROWS][COLUMNS];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < COLUMNS; j++) sums[i][j] = (Vec){0};
    long whole = size / STEP * STEP;
#pragma GCC unroll 2
    for (long k = 0; k < whole; k += STEP, x += rows * STEP) {
        if (ROWS < COLUMNS) { /* few registers: the rows stay in them, and one has weights */
            Factors values[ROWS];
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) {
                values[i] = factors(x + i * STEP);
                IN_REGISTER(values[i]);
            }
#pragma GCC unroll 4
            for (int j = 0; j < COLUMNS; j++) {
                Factors weight = weights_at(w[j] + k);
                IN_REGISTER(weight);
                __builtin_prefetch((const char *)(w[j] + k) + ahead, 0, 2);
#pragma GCC unroll 8
                for (int i = 0; i < rows; i++) sums[i][j] = plus(sums[i][j], values[i], weight);
            }
        } else {
            Factors weights[COLUMNS];
#pragma GCC unroll 4
            for (int j = 0; j < COLUMNS; j++) {
                weights[j] = weights_at(w[j] + k);
                __builtin_prefetch((const char *)(w[j] + k) + ahead, 0, 2);
            }
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) {
                Factors value = factors(x + i * STEP);
                IN_REGISTER(value);
#pragma GCC unroll 4
                for (int j = 0; j < COLUMNS; j++) sums[i][j] = plus(sums[i][j], value, weights[j]);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        float four[COLUMNS];
        sums_of(four, sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
        for (int j = 0; j < COLUMNS; j++) out[(i * COLUMNS + j) * WIDTH] = four[j];
    }
}

/* out[(i * COLUMNS + j) * WIDTH] = x[i] . w[j] for COLUMNS columns. Weights are fetched `ahead` bytes
 * before their use. */
ALONE void tile(
    float *out, long rows, const Factor *x, const Stored *const *w, long size, long ahead
) {
    BY_ROWS(rows, multiply(out, CONSTANT, x, w, size, ahead))
    long left = size % STEP;
    if (left) { /* one more STEP, filled with zeros */
        float more[ROWS * COLUMNS * WIDTH];
        Stored rest[COLUMNS][STEP] = {0};
        const Stored *rests[COLUMNS];
        for (int j = 0; j < COLUMNS; j++)
            rests[j] = memcpy(rest[j], w[j] + size - left, left * sizeof(Stored));
        tile(more, rows, x + rows * (size - left), rests, STEP, 0);
        for (long i = 0; i < rows * COLUMNS; i++) out[i * WIDTH] += more[i * WIDTH];
    }
}

enum { PLAIN, ADDED, SILU, GELU };

typedef struct {
    const Factor *x; /* [num, size], as `arrange` leaves them */
    long num, size;
    const Stored *weight, *bias; /* [columns, size], [columns] or NULL; twice as many if gated */
    Stored *out;                 /* [num, columns] */
    long columns;
    int kind;
} Product;

INLINE Vec activated(Vec x, int kind) {
    Vec inner = x;
    if (kind == GELU) inner = 1.5957691216f * (x + 0.044715f * x * x * x); /* 2 sqrt(2 / pi) */
    return x / (1.0f + exponential(-inner));
}

/* The first `count` of WIDTH numbers. The memory after them is not touched. */
INLINE Vec read_some(const Stored *from, long count) {
    Stored some[WIDTH] = {0};
    if (count == WIDTH) return read(from);
    memcpy(some, from, count * sizeof(Stored));
    return read(some);
}
INLINE void put_some(Stored *to, Vec values, long count) {
    Stored some[WIDTH];
    if (count == WIDTH) return put(to, values);
    put(some, values);
    memcpy(to, some, count * sizeof(Stored));
}

/* sums[(i * COLUMNS + j) * WIDTH + c] = x[i] . w[j][c] for `count` columns c, at most WIDTH. */
static void multiply_each(const Product *p, float *sums, const Stored **w, long count) {
    long ahead = p->num > FEW ? AHEAD : 0;
    for (long column = 0; column < count; column++) {
        const Factor *x = p->x;
        for (long block = 0, row = 0, rows; row < p->num; block++, row += rows) {
            rows = rows_of(block, p->num);
            tile(sums + row * COLUMNS * WIDTH + column, rows, x, w, p->size, ahead);
            x += rows * padded(p->size, STEP);
        }
        for (int j = 0; j < COLUMNS; j++) w[j] += p->size;
    }
}

/* The WIDTH sums of one row, which lie `width` numbers apart in tiles. */
INLINE Vec sums_at(const float *from, long width) {
#if HAS_TILES
    const Ints places = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    if (has_tiles) return (Vec)_mm512_i32gather_ps((__m512i)(places * (int)width), from, 4);
#endif
    (void)width;
    return load(from);
}

#if HAS_TILES
/* Tiles are registers of 16 rows of 64 bytes (AMX). The first COLUMNS tiles have sums [WIDTH, rows].
 * The others have STEP numbers of WIDTH columns of weights, and of a block's rows. */
#define WEIGHTS 4 /* the assembler's numbers of tiles, for which C has no names */
#define FACTORS 5

/* Linux keeps tiles only for processes that ask. */
__attribute__((constructor)) static void ask_for_tiles(void) {
    enum { REQUEST = 0x1023, TILE_DATA = 18 };
    has_tiles = !syscall(SYS_arch_prctl, REQUEST, TILE_DATA);
}

static void begin_tiles(long rows) {
    struct {
        uint8_t palette, unused[15];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shapes = {.palette = 1};
    for (int i = 0; i <= FACTORS; i++) {
        shapes.rows[i] = WIDTH;
        shapes.bytes[i] = (uint16_t)(i == WEIGHTS ? 64 : 4 * rows);
    }
    _tile_loadconfig(&shapes);
}

/* Put row `i` in its place in a block of `rows`, [size / STEP, STEP / 2, rows, 2]. */
static void arrange_pairs(Factor *block, float *row, long size, long rows, long i) {
    Factor pairs[STEP];
    for (long k = size; k < padded(size, STEP); k++) row[k] = 0;
    for (long k = 0; k < size; k += STEP, block += rows * STEP) {
        for (int part = 0; part < STEP; part += WIDTH) put_factors(pairs + part, load(row + k + part));
        for (int pair = 0; pair < STEP; pair += 2) memcpy(block + pair * rows + 2 * i, pairs + pair, 4);
    }
}

/* Add a STEP's products of stream `j`, which is a constant. The weights after these are fetched
 * ahead, because they are read next. */
#define ADD_TILE(j) \
    if (j < streams) { \
        long some = size - k < STEP ? size - k : STEP; \
        if (count == WIDTH && some == STEP) { \
            _tile_loadd(WEIGHTS, w[j] + k, size * sizeof(Stored)); \
        } else { \
            memset(few, 0, sizeof few); \
            for (long c = 0; c < count; c++) \
                memcpy(few[c], w[j] + c * size + k, some * sizeof(Stored)); \
            _tile_loadd(WEIGHTS, few, sizeof *few); \
        } \
        _tile_dpbf16ps(j, WEIGHTS, FACTORS); \
        if (!block) \
            for (int line = 0; line < WIDTH; line++) \
                __builtin_prefetch(w[j] + (size + k) * WIDTH + line * STEP, 0, 2); \
    }
#define BEGIN_TILE(j) \
    if (k) \
        _tile_loadd(j, to + j * width * WIDTH, 4 * width); \
    else \
        _tile_zero(j);
#define KEEP_TILE(j) _tile_stored(j, to + j * width * WIDTH, 4 * width);

/* sums[(block * COLUMNS + j) * WIDTH + c, i] = x[i] . w[j][c] for `count` columns c, at most WIDTH,
 * of the first `streams` and a block's rows i, as `arrange_pairs` leaves them. Weights of CHUNK
 * numbers are multiplied by all blocks while they are in the nearest cache. */
static void multiply_tiles(
    const Product *p, float *sums, const Stored *const *w, long count, int streams
) {
    enum { CHUNK = 8 * STEP };
    long size = p->size, width = rows_of(0, p->num), blocks = blocks_of(p->num);
    long chunk = blocks > 1 ? CHUNK : padded(size, STEP);
    Stored few[WIDTH][STEP] __attribute__((aligned(64)));
    for (long first = 0; first < size; first += chunk) {
        const Factor *x = p->x + first * width;
        float *to = sums;
        for (long block = 0; block < blocks; block++) {
            long k = first, end = first + chunk < size ? first + chunk : size;
            BEGIN_TILE(0) BEGIN_TILE(1) BEGIN_TILE(2) BEGIN_TILE(3)
            for (; k < end; k += STEP, x += width * STEP) {
                _tile_loadd(FACTORS, x, 4 * width);
                ADD_TILE(0) ADD_TILE(1) ADD_TILE(2) ADD_TILE(3)
            }
            KEEP_TILE(0) KEEP_TILE(1) KEEP_TILE(2) KEEP_TILE(3)
            x += (padded(size, STEP) - padded(end - first, STEP)) * width;
            to += COLUMNS * WIDTH * width;
        }
    }
}
#endif

/* Compute `count` columns of the output (at most WIDTH) from column `from` on, in each of `streams`
 * that begin `apart` columns from each other. `sums` has room for COLUMNS * WIDTH numbers per row. */
static void strips(const Product *p, float *sums, long from, long count, int streams, long apart) {
    int is_gated = p->kind >= SILU;
    const Stored *w[COLUMNS];
    for (int j = 0; j < COLUMNS; j++) {
        long up = is_gated && j % (2 * streams) >= streams ? p->columns : 0;
        w[j] = p->weight + (from + j % streams * apart + up) * p->size;
    }
#if HAS_TILES
    if (has_tiles)
        multiply_tiles(p, sums, w, count, is_gated ? 2 * streams : streams);
    else
#endif
        multiply_each(p, sums, w, count);
    long width = rows_of(0, p->num), unit = has_tiles ? width * WIDTH : WIDTH;
    for (int j = 0; j < streams; j++, from += apart) {
        Vec bias = {0}, up_bias = {0};
        if (p->bias) bias = read_some(p->bias + from, count);
        if (p->bias && is_gated) up_bias = read_some(p->bias + p->columns + from, count);
        const float *at = sums + j * unit;
        for (long i = 0, place = 0; i < p->num; i++) {
            Stored *out = p->out + i * p->columns + from;
            Vec found = sums_at(at, width) + bias;
            if (is_gated)
                found = rounded_lanes(activated(rounded_lanes(found), p->kind)) *
                        rounded_lanes(sums_at(at + streams * unit, width) + up_bias);
            if (p->kind == ADDED) found = rounded_lanes(found) + read_some(out, count);
            put_some(out, found, count);
            at += has_tiles ? 1 : COLUMNS * WIDTH;
            if (has_tiles && ++place == width) at += COLUMNS * unit - width, place = 0;
        }
    }
}

/* Compute the output's columns from `from` to `to` for all rows of x. COLUMNS streams of weights are
 * read side by side. Each is long and without gaps, so the processor can fetch it ahead. */
static void columns_of(const Product *p, float *sums, long from, long to) {
    int streams = p->kind >= SILU ? COLUMNS / 2 : COLUMNS;
    long unit = has_tiles ? WIDTH : 1, apart = (to - from) / streams / unit * unit;
    for (long done = 0, count; done < apart; done += count) {
        count = done + WIDTH < apart ? WIDTH : apart - done;
        strips(p, sums, from + done, count, streams, apart);
    }
    for (from += apart * streams; from < to; from += unit)
        strips(p, sums, from, to - from < unit ? to - from : unit, 1, 0);
}

/* out = norm(x) W^T + bias. It is added to `out` (ADDED), or becomes act(gate) * up (SILU, GELU). */
typedef struct {
    Product product; /* its `x` is not set */
    const Stored *x;
    long x_stride;
    Norm norm;
} Linear;

/* Compute the columns of thread `team`. Each thread computes all norms, so that no thread waits. */
static void linear(const Linear *l, Team team) {
    Product p = l->product;
    long share = (p.columns + team.size - 1) / team.size;
    share = padded(share, WIDTH);
    long from = team.member * share, to = from + share < p.columns ? from + share : p.columns;
    if (from >= to) return;
    long length = padded(p.size, STEP);
    long room = blocks_of(p.num) * rows_of(0, p.num) * COLUMNS * WIDTH;
    float *sums = scratch((p.num + 1) * length + room), *row = sums + room;
    Factor *x = (Factor *)(row + length);
    p.x = x;
#if HAS_TILES
    long width = rows_of(0, p.num); /* the last block may have fewer rows */
    if (has_tiles) begin_tiles(width);
#endif
    for (long block = 0, done = 0, rows; done < p.num; block++, done += rows) {
        rows = rows_of(block, p.num);
        for (long i = 0; i < rows; i++) {
            widen(row, l->x + (done + i) * l->x_stride, p.size);
            if (l->norm.weight) normalise(row, p.size, l->norm, 0);
#if HAS_TILES
            if (has_tiles)
                arrange_pairs(x + block * width * length, row, p.size, width, i);
            else
#endif
                arrange(x + done * length, row, p.size, rows, i);
        }
    }
    columns_of(&p, sums, from, to);
#if HAS_TILES
    if (has_tiles) _tile_release();
#endif
}

void product(
    Stored *out, const Stored *x, long x_stride, long num, long size, const Stored *weight,
    long columns, const Stored *bias, int kind, const void *norm_weight, int is_norm_wide,
    float eps, int threads
) {
    Linear l = {
        {NULL, num, size, weight, bias, out, columns, kind}, x, x_stride,
        {norm_weight, is_norm_wide, eps},
    };
    TOGETHER(num, num * columns * size, threads, linear(&l, team))
}

/* out[i] = x[i] W[i]^T + bias[i] for weights [num, columns, size]. */
void product_each(
    Stored *out, const Stored *x, long x_stride, long num, long size, const Stored *weights,
    long columns, const Stored *biases, int threads
) {
    for (long i = 0; i < num; i++)
        product(
            out + i * columns, x + i * x_stride, size, 1, size, weights + i * columns * size,
            columns, biases ? biases + i * columns : NULL, PLAIN, NULL, 0, 0, threads
        );
}

/* ---- Best tokens ---------------------------------------------------------------------------- */

enum { MOST = 64 }; /* largest number of tokens that are sought */

typedef struct {
    const Stored *logits; /* [num, size], rows `stride` apart */
    long stride, num, size, count;
    int64_t *ids;     /* [num, count], best first and the first of equals; NaN is the best */
    float *log_probs; /* [num, count], or NULL */
} Best;

INLINE int is_any(Ints chosen) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)chosen, (__m512i)chosen) != 0;
#elif defined(__AVX__)
    return !_mm256_testz_si256((__m256i)chosen, (__m256i)chosen);
#else
    int64_t parts[2];
    memcpy(parts, &chosen, sizeof parts);
    return (parts[0] | parts[1]) != 0;
#endif
}

/* The values and ids of the `count` best of a row, in order. */
static void best_of(const Stored *row, long size, long count, float *values, int64_t *ids) {
    long found = 0, step = 4 * WIDTH;
    for (long i = 0; i < size; i += step) {
        long to = i + step < size ? i + step : size;
        if (found == count && i + step <= size) {
            Ints hits = {0};
            for (long k = i; k < to; k += WIDTH) {
                Vec x = read(row + k);
                hits |= (x > values[count - 1]) | (x != x);
            }
            if (!is_any(hits)) continue;
        }
        for (long k = i; k < to; k++) {
            float x = value_of(row[k]);
            long at = found;
            for (; at && (x > values[at - 1] || (x != x && values[at - 1] == values[at - 1])); at--)
                if (at < count) values[at] = values[at - 1], ids[at] = ids[at - 1];
            if (at == count) continue;
            values[at] = x, ids[at] = k;
            found += found < count;
        }
    }
}

/* ln x for x >= 1, by Halley's method. */
INLINE float logarithm(float x) {
    int32_t bits;
    memcpy(&bits, &x, 4);
    float y = (float)(bits - 0x3f800000) * 8.2629582e-8f; /* ln 2 / 2^23 */
    for (int i = 0; i < 2; i++) {
        float power = exponential(same(y))[0];
        y += 2 * (x - power) / (x + power);
    }
    return y;
}

static void best(const Best *b, Team team) {
    float values[MOST];
    for (long i = team.member; i < b->num; i += team.size) {
        const Stored *row = b->logits + i * b->stride;
        best_of(row, b->size, b->count, values, b->ids + i * b->count);
        if (!b->log_probs) continue;
        Vec powers = {0};
        long k = 0;
        for (; k + WIDTH <= b->size; k += WIDTH) powers += exponential(read(row + k) - values[0]);
        float total = sum(powers);
        for (; k < b->size; k++) total += exponential(same(value_of(row[k]) - values[0]))[0];
        float log = logarithm(total);
        for (k = 0; k < b->count; k++) b->log_probs[i * b->count + k] = values[k] - values[0] - log;
    }
}

void best_tokens(
    const Stored *logits, long stride, long num, long size, long count, int64_t *ids,
    float *log_probs, int threads
) {
    Best b = {logits, stride, num, size, count, ids, log_probs};
    TOGETHER(num, num * size * (log_probs ? 16 : 4), threads, best(&b, team))
}

/* ---- Attention ------------------------------------------------------------------------------ */

/* Queries, keys and values qkv [num, width], and the `rows` of a cache that keep them. `turns` has
 * the cosines and sines [2, dim] of each row, or of all rows if `turn_stride` is 0. Sines of the
 * first half are negated. `norm` has a weight [heads, dim], or none. */
typedef struct {
    Stored *qkv;
    long stride, num, num_queries, num_keys, dim;
    const Stored *turns;
    long turn_stride;
    const int64_t *rows;
    Stored *cache;
    long cache_stride;
    Norm norm;
} Written;

/* Rotate queries and keys in place, after their norms; copy keys and values to the cache. */
static void write(const Written *w, Team team) {
    long half = w->dim / 2;
    float *head = scratch(w->dim);
    for (long row = team.member; row < w->num; row += team.size) {
        Stored *qkv = w->qkv + row * w->stride;
        const Stored *turns = w->turns + row * w->turn_stride;
        for (long h = 0; h < w->num_queries + w->num_keys; h++) {
            Stored *own = qkv + h * w->dim;
            for (long i = 0; i < w->dim; i++) head[i] = value_of(own[i]);
            if (w->norm.weight) normalise(head, w->dim, w->norm, h * w->dim);
            for (long i = 0; i < w->dim; i++) {
                float turned = rounded(head[i] * value_of(turns[i]));
                float other = head[i < half ? i + half : i - half];
                own[i] = stored(turned + other * value_of(turns[w->dim + i]));
            }
        }
        memcpy(
            w->cache + w->rows[row] * w->cache_stride, qkv + w->num_queries * w->dim,
            2 * w->num_keys * w->dim * sizeof(Stored)
        );
    }
}

void write_kv(
    Stored *qkv, long stride, long num, long num_queries, long num_keys, long dim,
    const Stored *turns, long turn_stride, const int64_t *rows, Stored *cache, long cache_stride,
    const void *norm_weight, int is_norm_wide, float eps
) {
    Written w = {
        qkv, stride, num, num_queries, num_keys, dim, turns, turn_stride, rows, cache,
        cache_stride, {norm_weight, is_norm_wide, eps},
    };
    write(&w, (Team){0, 1});
}

typedef struct {
    const Stored *queries; /* [num, num_kv * group * dim], rows `q_stride` apart */
    long q_stride, num, num_kv, group, dim;
    const Stored *keys, *values; /* of the first head and row; heads lie `dim` apart */
    long row_stride, seen, own;  /* all see `seen` cached rows; `bias` [num, own] masks the rest */
    const Stored *bias;
    float scale;
    Stored *out; /* [num, num_kv * group * dim] */
} Attention;

/* `length` keys with WIDTH of them as lanes, [length / WIDTH, dim / PAIR, WIDTH, PAIR]; zeros from
 * `count` on, and after `dim` up to a STEP. */
static void turn(Factor *to, const Stored *keys, long step, long count, long length, long dim) {
    for (long j = 0; j < length; j += WIDTH)
        for (long k = 0; k < dim; k += STEP, to += WIDTH * STEP) {
            const Stored *from = keys + j * step + k;
            long apart = step, size = k + STEP < dim ? STEP : dim - k;
            Stored some[WIDTH * STEP];
            if (j + WIDTH > count || size < STEP) {
                memset(some, 0, sizeof some);
                for (long i = 0; i < WIDTH && j + i < count; i++)
                    memcpy(some + i * STEP, from + i * step, size * sizeof(Stored));
                from = some, apart = STEP;
            }
            Vec lanes[WIDTH], turned[WIDTH];
#pragma GCC unroll 16
            for (int i = 0; i < WIDTH; i++) lanes[i] = pairs_at(from + i * apart);
#pragma GCC unroll 4
            for (int round = 1; round < WIDTH; round *= 2) {
#pragma GCC unroll 8
                for (int i = 0; i < WIDTH / 2; i++) {
                    turned[2 * i] = LANES(lanes[i], lanes[i + WIDTH / 2], FIRST_HALVES);
                    turned[2 * i + 1] = LANES(lanes[i], lanes[i + WIDTH / 2], LAST_HALVES);
                }
#pragma GCC unroll 16
                for (int i = 0; i < WIDTH; i++) lanes[i] = turned[i];
            }
#pragma GCC unroll 16
            for (int i = 0; i < WIDTH; i++) store((float *)(to + i * STEP), lanes[i]);
        }
}

/* scores[i * length + j] = scale * queries[i] . key j; `rows` is a constant after inlining. */
INLINE void score(
    int rows, const Factor *queries, const Factor *keys, long dim, long length, float scale,
    float *scores
) {
    long size = padded(dim, STEP);
    for (long j = 0; j < length; j += BESIDE * WIDTH, keys += BESIDE * WIDTH * size) {
        Vec sums[ROWS][BESIDE];
        for (int i = 0; i < rows; i++)
            for (int b = 0; b < BESIDE; b++) sums[i][b] = (Vec){0};
        const Factor *query = queries, *key = keys;
        for (long k = 0; k < size; k += STEP, query += rows * STEP)
            for (long d = 0; d < STEP; d += PAIR, key += STEP) {
                Factors beside[BESIDE];
                for (int b = 0; b < BESIDE; b++) beside[b] = factors(key + b * WIDTH * size);
#pragma GCC unroll 8
                for (int i = 0; i < rows; i++) {
                    Factors value = everywhere(query + i * STEP + d);
                    IN_REGISTER(value);
                    for (int b = 0; b < BESIDE; b++) sums[i][b] = plus(sums[i][b], value, beside[b]);
                }
            }
        for (int i = 0; i < rows; i++)
            for (int b = 0; b < BESIDE; b++)
                store(scores + i * length + j + b * WIDTH, sums[i][b] * scale);
    }
}

/* Turn the scores of one query into shares of the keys, which are not yet divided by their sum. */
static void weigh(const Attention *a, float *scores, long node, long padded) {
    long count = a->seen + a->own;
    for (long j = 0; j < a->own; j++) scores[a->seen + j] += value_of(a->bias[node * a->own + j]);
    for (long j = count; j < padded; j++) scores[j] = scores[0];
    Vec most = load(scores);
    for (long j = WIDTH; j < padded; j += WIDTH) {
        Vec more = load(scores + j);
        most = either(more > most, more, most);
    }
    float largest = most[0];
    for (int lane = 1; lane < WIDTH; lane++) largest = most[lane] > largest ? most[lane] : largest;
    for (long j = 0; j < padded; j += WIDTH)
        store(scores + j, exponential(load(scores + j) - largest));
}

/* Sums of `rows` queries' shares, and of `parts` vectors of the values times them. */
INLINE void mix(
    const Attention *a, int rows, int parts, const float *shares, long padded,
    const Stored *values, float *mixed, float *totals
) {
    long count = a->seen + a->own;
    Vec sums[ROWS][4];
    float total[ROWS];
    for (int i = 0; i < rows; i++) {
        total[i] = 0;
        for (int d = 0; d < parts; d++) sums[i][d] = (Vec){0};
    }
    for (long j = 0; j < count; j++, values += a->row_stride) {
        Vec value[4];
#pragma GCC unroll 4
        for (int d = 0; d < parts; d++) {
            value[d] = read(values + d * WIDTH);
            IN_REGISTER(value[d]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            float share = shares[i * padded + j];
            total[i] += share;
#pragma GCC unroll 4
            for (int d = 0; d < parts; d++) sums[i][d] += share * value[d];
        }
    }
    for (int i = 0; i < rows; i++) {
        totals[i] = total[i];
        for (int d = 0; d < parts; d++) store(mixed + i * a->dim + d * WIDTH, sums[i][d]);
    }
}

INLINE void mix_rows(
    const Attention *a, long rows, int parts, const float *shares, long padded,
    const Stored *values, float *mixed, float *totals
) {
    BY_ROWS(rows, mix(a, CONSTANT, parts, shares, padded, values, mixed, totals))
}

/* Attention of `rows` queries from `first` on, among the group * num queries of key head `head`.
 * `keys` are as `turn` leaves them. */
static void attend_block(
    const Attention *a, long head, long first, long rows, const Factor *keys, long length,
    float *memory
) {
    long dim = a->dim;
    float *mixed = memory + ROWS * padded(dim, STEP), *scores = mixed + ROWS * padded(dim, STEP);
    Factor *queries = (Factor *)memory;
    const Stored *values = a->values + head * dim;
    float totals[ROWS];
    for (long i = 0; i < rows; i++) { /* query heads that share keys follow each other */
        long node = (first + i) % a->num, member = (first + i) / a->num;
        const Stored *query = a->queries + node * a->q_stride + (head * a->group + member) * dim;
        widen(mixed, query, dim);
        arrange(queries, mixed, dim, rows, i);
    }
    BY_ROWS(rows, score(CONSTANT, queries, keys, dim, length, a->scale, scores))
    for (long i = 0; i < rows; i++) weigh(a, scores + i * length, (first + i) % a->num, length);
    long d = 0;
    for (; d + 4 * WIDTH <= dim; d += 4 * WIDTH)
        mix_rows(a, rows, 4, scores, length, values + d, mixed + d, totals);
    for (; d + 2 * WIDTH <= dim; d += 2 * WIDTH)
        mix_rows(a, rows, 2, scores, length, values + d, mixed + d, totals);
    for (; d < dim; d += WIDTH)
        mix_rows(a, rows, 1, scores, length, values + d, mixed + d, totals);
    for (long i = 0; i < rows; i++) {
        long node = (first + i) % a->num, member = (first + i) / a->num;
        Stored *out = a->out + ((node * a->num_kv + head) * a->group + member) * dim;
        for (d = 0; d < dim; d += WIDTH) put(out + d, load(mixed + i * dim + d) / totals[i]);
    }
}

/* Attention of a tree's rows over a cache. All threads have the same number of queries. `dim` is a
 * multiple of WIDTH. */
static void attention(const Attention *a, Team team) {
    long count = a->seen + a->own, length = padded(count, BESIDE * WIDTH);
    long size = padded(a->dim, STEP), turned = -1;
    Factor *keys = (Factor *)scratch(ROWS * (2 * size + length) + length * size);
    float *memory = (float *)(keys + length * size);
    long of_head = a->group * a->num, all = a->num_kv * of_head;
    long query = all * team.member / team.size, to = all * (team.member + 1) / team.size;
    for (long rows; query < to; query += rows) {
        long head = query / of_head, first = query % of_head;
        rows = of_head - first < to - query ? of_head - first : to - query;
        if (rows > ROWS) rows = ROWS;
        if (head != turned)
            turn(keys, a->keys + head * a->dim, a->row_stride, count, length, a->dim);
        turned = head;
        attend_block(a, head, first, rows, keys, length, memory);
    }
}

/* Read the cached rows of the heads that `attention` needs in this thread. The processor can fetch
 * them ahead in this order, but not in the order of attention. */
static void fetch(const Attention *a, Team team) {
    enum { LINE = 64 / sizeof(Stored) };
    long of_head = a->group * a->num, all = a->num_kv * of_head;
    long first = all * team.member / team.size / of_head * a->dim;
    long end = (all * (team.member + 1) / team.size + of_head - 1) / of_head * a->dim;
    for (long row = 0; row < a->seen * a->row_stride; row += a->row_stride)
        for (long i = first; i < end; i += LINE) {
            (void)*(const volatile Stored *)(a->keys + row + i);
            (void)*(const volatile Stored *)(a->values + row + i);
        }
}

void attend(
    Stored *out, const Stored *queries, long q_stride, long num, long num_kv, long group, long dim,
    const Stored *keys, const Stored *values, long row_stride, long seen, const Stored *bias,
    long own, float scale, int threads
) {
    Attention a = {queries, q_stride, num, num_kv, group, dim, keys, values, row_stride, seen, own,
                   bias, scale, out};
    TOGETHER(num, 2 * num * num_kv * group * dim * (seen + own), threads, attention(&a, team))
}

/* ---- Layers --------------------------------------------------------------------------------- */

typedef struct {
    const void *weight;
    int64_t is_wide;
    double eps;
} NormOf;

/* `_Layer` of native_layers.py: pointers to weights, or NULL for weights that a layer lacks. */
typedef struct {
    const Stored *qkv, *qkv_bias, *o, *o_bias, *gate_up, *gate_up_bias, *down, *down_bias;
    NormOf norm, head_norm, mlp_norm;
    int64_t num_kv, group, dim, inner, act;
    double scale;
} Layer;

/* Run layers over x [num, hidden], in place. `caches` have their keys and values. `work` has room
 * for num * max(queries + keys + values + queries, inner) numbers. */
typedef struct {
    const Layer *layers;
    Stored *const *caches;
    long count;
    Stored *x;
    const Stored *attended; /* [num, size], which the first layer's attention reads; NULL: norm(x) */
    long size;
    long num, hidden;
    Stored *work;
    const Stored *turns;
    long turn_stride;
    const int64_t *rows;
    long seen;
    const Stored *bias;
    long own;
} Stack;

#define NORM(of) {(of).weight, (int)(of).is_wide, (float)(of).eps}
#define WAIT if (team.size > 1) { _Pragma("omp barrier") }

static void stack(const Stack *s, Team team) {
    Stored *x = s->x, *work = s->work;
    long num = s->num, hidden = s->hidden;
    for (long i = 0; i < s->count; i++) {
        const Layer *l = s->layers + i;
        long keys = l->num_kv * l->dim, queries = keys * l->group, width = queries + 2 * keys;
        Stored *attended = work + num * width, *cache = s->caches[i];
        Linear qkv = {
            {NULL, num, hidden, l->qkv, l->qkv_bias, work, width, PLAIN}, x, hidden,
            NORM(l->norm),
        };
        if (i == 0 && s->attended) {
            qkv.x = s->attended;
            qkv.product.size = qkv.x_stride = s->size;
        }
        Written written = {
            work, width, num, l->num_kv * l->group, l->num_kv, l->dim, s->turns, s->turn_stride,
            s->rows, cache, 2 * keys, NORM(l->head_norm),
        };
        Attention a = {
            work, width, num, l->num_kv, l->group, l->dim, cache, cache + keys, 2 * keys, s->seen,
            s->own, s->bias, (float)l->scale, attended,
        };
        Linear o = {
            {NULL, num, queries, l->o, l->o_bias, x, hidden, ADDED}, attended, queries,
            {NULL, 0, 0},
        };
        Linear gate = {
            {NULL, num, hidden, l->gate_up, l->gate_up_bias, work, l->inner, (int)l->act}, x,
            hidden, NORM(l->mlp_norm),
        };
        Linear down = {
            {NULL, num, l->inner, l->down, l->down_bias, x, hidden, ADDED}, work, l->inner,
            {NULL, 0, 0},
        };
        linear(&qkv, team);
        fetch(&a, team);
        WAIT write(&written, team);
        WAIT attention(&a, team);
        WAIT linear(&o, team);
        WAIT linear(&gate, team);
        WAIT linear(&down, team);
        WAIT
    }
}

void run_layers(
    const Layer *layers, Stored *const *caches, long count, Stored *x, long num, long hidden,
    const Stored *attended, long size, Stored *work, const Stored *turns, long turn_stride,
    const int64_t *rows, long seen, const Stored *bias, long own, int threads
) {
    Stack s = {layers, caches, count, x, attended, size, num, hidden, work, turns, turn_stride, rows,
               seen, bias, own};
    TOGETHER(num, count * num * hidden * layers->inner, threads, stack(&s, team))
}

/* ---- Drafts --------------------------------------------------------------------------------- */

/* `_Head` of native_layers.py: layers over a token and its parent's output. The first layer reads
 * [token_norm(embedding) ; feature_norm(output)], and adds its result to the output. With `fc`, it
 * reads fc(both), and adds its result to fc(both). Parts that a head lacks are NULL. */
typedef struct {
    const Layer *layers;
    int64_t count;
    const Stored *embedding, *fc, *fc_bias, *head, *head_bias;
    const int64_t *token_ids; /* [vocab_size], the target's */
    NormOf token_norm, output_norm, feature_norm, norm;
    int64_t hidden, vocab_size, is_residual_normed;
} Head;

/* A draft of several levels. The nodes of a level are the `top_k` best candidates of the level
 * before. Each node has `top_k` children, which are the candidates of the next level. */
typedef struct {
    const Head *head;
    Stored *const *caches;
    long levels, top_k, seen;
    const Stored *root;  /* [hidden], the output whose children are the first candidates */
    const Stored *turns; /* [positions, 2, dim] */
    double *scores;      /* [top_k + levels * top_k * top_k]; the first top_k are given */
    int64_t *tokens;     /* the candidates' tokens, as `scores` */
    int64_t *nodes;      /* [levels, top_k], places among the candidates of the level before */
    int64_t *rows, *ids; /* memory: [top_k], [top_k, top_k] */
    float *log_probs;    /* [top_k, top_k] */
    Stored *outputs, *attended, *logits, *bias, *work; /* two levels of `outputs` and `bias` */
} Draft;

static const double TIE = 1e-9; /* a child is below its parent: see `_dynamic_tree.py` */

/* The places of the `count` largest of `size` values, in order. Of equal values the first wins, and
 * NaN comes before all others. */
static void largest(const double *values, long size, long count, int64_t *places) {
    long found = 0;
    for (long i = 0; i < size; i++) {
        long at = found;
        for (; at; at--) {
            double other = values[places[at - 1]];
            if (!(values[i] > other || (values[i] != values[i] && other == other))) break;
            if (at < count) places[at] = places[at - 1];
        }
        if (at == count) continue;
        places[at] = i;
        found += found < count;
    }
}

INLINE void narrow(Stored *to, const float *from, long size) {
    long i = 0;
    for (; i + WIDTH <= size; i += WIDTH) put(to + i, load(from + i));
    for (; i < size; i++) to[i] = stored(from[i]);
}

INLINE void normed(float *row, const Head *h, NormOf of) {
    Norm norm = NORM(of);
    if (norm.weight) normalise(row, h->hidden, norm, 0);
}

/* Choose the nodes of a level, and make the layers' inputs. `above` are the outputs of parents. */
static void choose(const Draft *d, long level, const Stored *above, Stored *x) {
    const Head *h = d->head;
    long k = d->top_k, size = h->hidden, first = level ? k + (level - 1) * k * k : 0;
    int64_t *nodes = d->nodes + level * k;
    Stored *biases[2] = {d->bias, d->bias + d->levels * k * k};
    float *row = scratch(size);
    largest(d->scores + first, level ? k * k : k, k, nodes);
    for (long i = 0; i < k; i++, x += size) {
        long parent = nodes[i] / k;
        Stored *attended = d->attended + 2 * size * i, *bias = biases[level % 2] + i * (level + 1) * k;
        widen(row, h->embedding + d->tokens[first + nodes[i]] * size, size);
        normed(row, h, h->token_norm);
        narrow(attended, row, size);
        widen(row, above + parent * size, size);
        normed(row, h, h->output_norm);
        narrow(x, row, size);
        normed(row, h, h->feature_norm);
        narrow(attended + size, row, size);
        if (h->is_residual_normed) narrow(x, row, size);
        memcpy(bias, biases[(level + 1) % 2] + parent * level * k, level * k * sizeof(Stored));
        for (long j = 0; j < k; j++) bias[level * k + j] = stored(i == j ? 0 : -1e38f);
        d->rows[i] = d->seen + level * k + i;
    }
}

static void draft(const Draft *d, Team team) {
    const Head *h = d->head;
    long k = d->top_k, size = h->hidden, num = h->vocab_size;
    const Stored *above = d->root;
    for (long level = 0; level < d->levels; level++) {
        Stored *x = d->outputs + level % 2 * k * size;
        if (!team.member) choose(d, level, above, x);
        WAIT
        if (h->fc) {
            Linear fc = {
                {NULL, k, 2 * size, h->fc, h->fc_bias, x, size, PLAIN}, d->attended, 2 * size,
                {NULL, 0, 0},
            };
            linear(&fc, team);
            WAIT
        }
        Stack s = {
            h->layers, d->caches, h->count, x, h->fc ? NULL : d->attended, 2 * size, k, size,
            d->work, d->turns + (d->seen + level) * 2 * h->layers->dim, 0, d->rows, d->seen,
            d->bias + level % 2 * d->levels * k * k, (level + 1) * k,
        };
        stack(&s, team);
        Linear head = {
            {NULL, k, size, h->head, h->head_bias, d->logits, num, PLAIN}, x, size, NORM(h->norm),
        };
        linear(&head, team);
        WAIT
        Best b = {d->logits, num, k, num, k, d->ids, d->log_probs};
        best(&b, team);
        for (long i = team.member; i < k; i += team.size) {
            long first = level ? k + (level - 1) * k * k : 0;
            double score = d->scores[first + d->nodes[level * k + i]] - TIE;
            for (long j = i * k; j < (i + 1) * k; j++) {
                d->scores[k + level * k * k + j] = d->log_probs[j] + score;
                d->tokens[k + level * k * k + j] = h->token_ids ? h->token_ids[d->ids[j]] : d->ids[j];
            }
        }
        WAIT
        above = x;
    }
}

void draft_levels(
    const Head *head, Stored *const *caches, long levels, long top_k, long seen, const Stored *root,
    const Stored *turns, double *scores, int64_t *tokens, int64_t *nodes, int threads
) {
    long k = top_k, widest = 0;
    for (const Layer *l = head->layers; l < head->layers + head->count; l++) {
        long width = 2 * l->num_kv * l->dim * (l->group + 1);
        if (width < l->inner) width = l->inner;
        if (width > widest) widest = width;
    }
    long numbers = k * (4 * head->hidden + head->vocab_size + 2 * levels * k + widest);
    int64_t *rows = malloc(k * (k + 1) * sizeof(int64_t) + k * k * 4 + numbers * sizeof(Stored));
    if (!rows) abort();
    float *log_probs = (float *)(rows + k * (k + 1));
    Stored *outputs = (Stored *)(log_probs + k * k), *attended = outputs + 2 * k * head->hidden;
    Stored *logits = attended + 2 * k * head->hidden, *bias = logits + k * head->vocab_size;
    Draft d = {
        head, caches, levels, k, seen, root, turns, scores, tokens, nodes, rows, rows + k, log_probs,
        outputs, attended, logits, bias, bias + 2 * levels * k * k,
    };
    TOGETHER(k, levels * k * head->hidden * head->layers->inner, threads, draft(&d, team))
    free(rows);
}

int vector_width(void) { return WIDTH; }

int uses_amx(void) { return has_tiles; }
