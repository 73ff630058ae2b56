/* sample/vocab_scan_avx2.c - the passes over a row for AVX2; written in vocab_scan_body.h. */
#include "sample/vocab_scan_body.h"

const struct vocab_kernels vocab_kernels_avx2 = {scan_best, scan_sums, scan_weights, scan_words};
