/* tests/model/test_share.c - every head, row and token is one rank's, for every number of ranks and every shape. */
#include "base/random.h"
#include "model/model.h"
#include "model/share.h"
#include "test.h"

/* Parts that follow each other and end at n. */
static void check_ends(const uint32_t *ends, uint32_t n_ranks, uint32_t n)
{
    for (uint32_t i = 1; i < n_ranks; i++) CHECK(ends[i - 1] <= ends[i]);
    CHECK_EQ(ends[n_ranks - 1], n);
}

static void check_shape(const struct model_config *c)
{
    const uint32_t per_group = c->n_heads / c->n_kv_heads;

    for (uint32_t n = 1; n <= RANKS_MAX; n++) {
        uint32_t q = 0, ffn = 0, hidden = 0, vocab = 0;

        for (uint32_t r = 0; r < n; r++) {
            const struct model_share s = model_share_of(c, r, n);

            CHECK(s.heads.first * c->head_dim == q && s.ffn.first == ffn && s.hidden.first == hidden);
            CHECK_EQ(s.vocab.first, vocab);
            q += s.heads.n * c->head_dim;
            ffn += s.ffn.n;
            hidden += s.hidden.n;
            vocab += s.vocab.n;
            CHECK(s.q_ends[r] == q && s.ffn_ends[r] == ffn && s.hidden_ends[r] == hidden);
            if (r == 0) check_ends(s.q_ends, n, c->n_heads * c->head_dim);
            if (r == 0) check_ends(s.ffn_ends, n, c->ffn);
            if (r == 0) check_ends(s.hidden_ends, n, c->hidden);
            CHECK_EQ(s.kv_heads.n > 0, s.heads.n > 0);
            for (uint32_t i = 0; i < s.heads.n; i++) /* head i uses KV head i / (heads / KV heads), of this rank's */
                CHECK_EQ((s.heads.first + i) / per_group, s.kv_heads.first + i / (s.heads.n / s.kv_heads.n));
        }
        CHECK_EQ(vocab, c->n_vocab);
        for (uint32_t k = 0; k < c->n_kv_heads; k++) {
            const struct model_share s = model_share_of(c, model_share_owner(c, n, k), n);

            CHECK(k >= s.kv_heads.first && k < s.kv_heads.first + s.kv_heads.n);
        }
    }
}

TEST(real_shapes_are_cut_whole)
{
    check_shape(&(struct model_config){
        .n_heads = 9, .n_kv_heads = 3, .head_dim = 64, .hidden = 576, .ffn = 1536, .n_vocab = 49152});
    check_shape(&(struct model_config){
        .n_heads = 4, .n_kv_heads = 1, .head_dim = 256, .hidden = 640, .ffn = 2048, .n_vocab = 262144});
    check_shape(&(struct model_config){
        .n_heads = 14, .n_kv_heads = 2, .head_dim = 64, .hidden = 896, .ffn = 4864, .n_vocab = 151936});
    check_shape(&(struct model_config){
        .n_heads = 40, .n_kv_heads = 8, .head_dim = 128, .hidden = 5120, .ffn = 27648, .n_vocab = 152064});
    check_shape(&(struct model_config){
        .n_heads = 64, .n_kv_heads = 8, .head_dim = 128, .hidden = 8192, .ffn = 28672, .n_vocab = 128256});
    check_shape(
        &(struct model_config){.n_heads = 1, .n_kv_heads = 1, .head_dim = 2, .hidden = 3, .ffn = 5, .n_vocab = 7});
}

TEST(any_shape_is_cut_whole)
{
    struct random r;

    random_init(&r, test_seed());
    for (int i = 0; i < 3000; i++) {
        const uint32_t kv = 1 + (uint32_t)random_below(&r, 16);

        check_shape(&(struct model_config){.n_heads = kv * (1 + (uint32_t)random_below(&r, 9)),
                                           .n_kv_heads = kv,
                                           .head_dim = 2 + (uint32_t)random_below(&r, 128),
                                           .hidden = 1 + (uint32_t)random_below(&r, 9000),
                                           .ffn = 1 + (uint32_t)random_below(&r, 30000),
                                           .n_vocab = 1 + (uint32_t)random_below(&r, 300000)});
    }
}
