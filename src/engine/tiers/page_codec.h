/* engine/tiers/page_codec.h - f16 pages as 8-bit integers and back, for tiers that are allowed to lose (--store-kv q8_0).
 *
 *     keys, one head   [head_dim] f16 factors, [page_tokens, head_dim] int8       a factor per channel of the page
 *     values           as Q8_0: per row, blocks of 32: f16 factor, 32 int8
 *
 * q = round(x / d), d = the half nearest to max |x| / 127. Keys have channels that are large in every token (biases):
 * with a factor of their own they cost the others nothing. Source: KIVI, arXiv:2402.02750. Infinities and NaN come back
 * as NaN. The order of layers, heads, keys and values is kv_storage.h's.
 *
 * Thread  any; no state.
 */
#pragma once
#include <stdbool.h>
#include "backend/kv_storage.h"

/* Both are f16, and heads are whole blocks. */
bool page_codec_fits(const struct kv_layout *l);
uint64_t page_codec_bytes(const struct kv_layout *l);
/* page: kv_page_bytes(l), aligned for uint16_t. out: page_codec_bytes(l). layout: a struct kv_layout. */
void page_codec_pack(const void *layout, const void *page, void *out);
void page_codec_unpack(const void *layout, const void *in, void *page);
/* The same with PAGE_CODEC_TAIL bytes behind either, which are copied: executor_has_window's. */
#define PAGE_CODEC_TAIL 8u
void page_codec_pack_tail(const void *layout, const void *page, void *out);
void page_codec_unpack_tail(const void *layout, const void *in, void *page);
