/* grad/compute.h - threads for gradients, and products over them.
 *
 * Work is cut by outputs, never inside a sum: the result has the same bits for any number of threads and any instruction set, but
 * for grad_gemm_frozen with a matrix unit.
 *
 * Thread  one caller at a time.  Errors  RD_E_NOMEM from create.
 */
#pragma once
#include "grad/grad_kernels.h"

struct grad_compute;
/* n_threads 0: all cores. isa as struct backend_options. */
rd_status grad_compute_create(uint32_t n_threads, const char *isa, struct grad_compute **out, struct rd_error *err);
/* The same with the threads of a pool, which outlives it: those of two pools, one at work and one that spins, share cores. */
struct cpu_pool;
rd_status grad_compute_create_in(struct cpu_pool *pool, const char *isa, struct grad_compute **out,
                                 struct rd_error *err);
void grad_compute_destroy(struct grad_compute *c); /* NULL is fine */
const struct grad_kernels *grad_kernels_of(const struct grad_compute *c);
uint32_t grad_n_threads(const struct grad_compute *c);
void grad_run(struct grad_compute *c, void (*fn)(void *arg, uint32_t tile, uint32_t thread), void *arg,
              uint32_t n_tiles);

/* A matrix as a model's file has it: rows of n_cols, of any type. */
struct grad_matrix {
    enum dtype dtype;
    uint32_t n_rows, n_cols;
    const void *data;
};
/* c [m, n] (+)= sum over i, one after the other, of a b, a [m, k] and b [k, n]. a and c are read as gemm's are. */
#define GRAD_FACTORS 8u
struct grad_factor {
    uint32_t k;
    const float *a;
    uint64_t a_m, a_k;
    const float *b; /* or NULL: */
    uint64_t b_k;
    struct grad_matrix matrix; /* of k rows and n columns, opened to floats piece by piece */
};
struct grad_product {
    uint32_t m, n, n_of;
    struct grad_factor of[GRAD_FACTORS];
    float *c;
    uint64_t c_m;
    bool add;
    float scale; /* of c in the end; 0: none */
};
/* Several products in one run of the threads; none reads what another writes. n <= GRAD_PRODUCTS. */
#define GRAD_PRODUCTS 8u
void grad_products(struct grad_compute *c, const struct grad_product *p, uint32_t n);
/* One, whose matrices are no step's own: where the instruction set is one with a matrix unit for floats (AMX), that computes them,
 * in other bits (matrix_unit.h). Those have a_k 1 and follow what is no matrix. */
void grad_product_frozen(struct grad_compute *c, const struct grad_product *p);

/* Each a product of one factor. */
void grad_gemm(struct grad_compute *c, const struct gemm *g);
void grad_gemm_matrix(struct grad_compute *c, const struct gemm *g, const struct grad_matrix *b);
void grad_gemm_frozen(struct grad_compute *c, const struct gemm *g, const struct grad_matrix *b);
/* Whether it does. */
bool grad_has_matrix_unit(const struct grad_compute *c);
/* For tests: it does, with these kernels. RD_E_NOMEM. */
struct cpu_dense_kernels;
rd_status grad_use_matrix_unit(struct grad_compute *c, const struct cpu_dense_kernels *kernels);
/* to [n_cols, n_rows] = from [n_rows, n_cols]. Of the caller's thread. */
void grad_transpose(const float *from, uint32_t n_rows, uint32_t n_cols, float *to);
