/* tests/kv/test_kv_seq.c - sequences over tree and pool: each rule of ENGINE.md. */
#include "kv/kv_seq.h"
#include "test.h"
TEST(first_sequence_computes_everything_and_a_repeat_hits)
{
    struct page_pool *pool; struct kv_cache cache = {0}; struct radix_node *root; struct kv_seq a, b;
    kv_key keys[10] = {1,2,3,4,5,6,7,8,9,10}; struct rd_error err = {0};
    CHECK_OK(page_pool_create(16, 4, &pool));
    CHECK_OK(radix_create(pool, &cache.tree)); cache.pool = pool;
    CHECK_OK(radix_namespace(cache.tree, "x", 1, &root));
    CHECK_OK(kv_seq_init(&a, &cache, keys, 10, 20));
    CHECK_OK(kv_seq_admit(&a, root, 1));
    CHECK_OK(kv_seq_init(&b, &cache, keys, 10, 20));
    CHECK_OK(kv_seq_admit(&b, root, 1));
    CHECK_EQ(b.state, KV_SEQ_WAITING);
    CHECK_OK(kv_check(&cache, &err));
    CHECK_OK(kv_seq_reserve(&a, 10));
    kv_seq_commit(&a);
    CHECK_EQ(b.state, KV_SEQ_RUNNABLE);
    CHECK_EQ(b.n_computed, 9);
    if (kv_check(&cache, &err)) printf("%s\n", err.text);
    CHECK_OK(kv_check(&cache, &err));
    kv_seq_finish(&a, true, 2); CHECK_OK(kv_check(&cache, &err));
    kv_seq_finish(&b, true, 2); CHECK_OK(kv_check(&cache, &err));
    kv_seq_deinit(&a); kv_seq_deinit(&b);
    radix_destroy(cache.tree); page_pool_destroy(pool);
}
