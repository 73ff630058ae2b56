/* grad/matrix_unit.h - c (+)= a W on a matrix unit: a frozen product's way back where there is AMX-BF16.
 *
 * Floats are sums of bf16, two parts each, as linear_dense.h has it: of a product 2^-16 is left out. Sums are in blocks of 32 rows of
 * W, in pieces of UNIT_K of them: the same bits for any number of threads, rows beside and cuts, but others than kernels of floats have.
 *
 *     a [m, k] -> groups of 16 rows, split;  W [k, n], opened -> panels of 32 columns, split;  tiles of rows by panels
 *
 * Thread  one caller at a time.  Errors  RD_E_NOMEM from create.
 */
#pragma once
#include "grad/compute.h"

struct cpu_dense_kernels;
struct matrix_unit;
rd_status matrix_unit_create(const struct cpu_dense_kernels *kernels, uint32_t n_threads, struct matrix_unit **out);
void matrix_unit_destroy(struct matrix_unit *u); /* NULL is fine */
/* As grad_gemm_matrix, of c's threads; g->a_k is 1. */
void matrix_unit_multiply(struct matrix_unit *u, struct grad_compute *c, const struct gemm *g,
                          const struct grad_matrix *b);
