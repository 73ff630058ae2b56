/* sample/vocab_scan_avx512.c - the passes over a row for AVX-512; written in vocab_scan_body.h. */
#include "sample/vocab_scan_body.h"

const struct vocab_kernels vocab_kernels_avx512 = {scan_best, scan_sums, scan_weights, scan_words};
