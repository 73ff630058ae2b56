/* tests/cli/test_serve_models.c - the models of a server, and those that are fetched while it runs. */
#include "cli/serve_models.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "test.h"

#define FIRST  "tests/golden/llama/tiny-llama.gguf"
#define COMMIT "0123456789abcdef0123456789abcdef0123456"

/* A cache of the hub with a model in it, under two commits, of which `main` is the first. */
struct cache {
    char root[64], path[2][LIMIT_PATH_BYTES];
};

static void make(struct cache *c)
{
    char text[4096], root[sizeof(c->root)] = "/tmp/radish-models-XXXXXX";

    CHECK(mkdtemp(root) != NULL);
    memcpy(c->root, root, sizeof(root));
    setenv("HF_HUB_CACHE", root, 1);
    snprintf(text, sizeof(text),
             "cd %s && mkdir -p models--org--tiny/refs models--org--tiny/blobs models--org--tiny/snapshots/" COMMIT
             "0 models--org--tiny/snapshots/" COMMIT "1 && printf %%s " COMMIT
             "0 > models--org--tiny/refs/main && cp %s models--org--tiny/blobs/b && for i in 0 1; do ln -s "
             "../../blobs/b models--org--tiny/snapshots/" COMMIT "$i/tiny-Q8_0.gguf; done",
             root, test_path(FIRST));
    CHECK_EQ(system(text), 0);
    for (int i = 0; i < 2; i++)
        snprintf(c->path[i], LIMIT_PATH_BYTES, "%s/models--org--tiny/snapshots/" COMMIT "%d/tiny-Q8_0.gguf", root, i);
}

/* The other commit is main now: the model was published anew. */
static void publish(const struct cache *c)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/models--org--tiny/refs/main", c->root);
    CHECK_OK(file_write_all(path, COMMIT "1", 40, NULL));
}

static void destroy(const struct cache *c)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf '%s'", c->root);
    CHECK_EQ(system(command), 0);
}

/* NULL: it failed. */
static struct serve_models *begin(void)
{
    const char *const words[] = {test_path(FIRST)};
    struct serve_models *m = NULL;
    struct rd_options o;

    rd_options_default(&o);
    if (serve_models_create(&m) == RD_OK && serve_models_find(m, &o, words, 1)) return m;
    serve_models_destroy(m);
    return NULL;
}

TEST(a_fetched_model_follows_those_that_were_named)
{
    struct serve_models *m = begin();
    struct server_models seam = serve_models_seam(m);
    char name[MODEL_NAME_BYTES], path[CLI_PATH_BYTES];
    struct cache c;

    CHECK(m != NULL);
    make(&c);
    CHECK_EQ(seam.count(seam.user), 1);
    CHECK_STR(seam.name(seam.user, 0), ""); /* it names itself */
    CHECK_STR(serve_models_name(m, 0), "tiny-llama");
    for (int again = 0; again < 2; again++) {
        CHECK_OK(serve_models_fetched(m, c.path[0], name, NULL));
        CHECK_STR(name, "org/tiny:Q8_0");
        CHECK_EQ(seam.count(seam.user), 2);
        CHECK_STR(seam.name(seam.user, 1), name);
    }
    CHECK(!serve_models_was_fetched(m, 0) && serve_models_was_fetched(m, 1));
    CHECK_OK(serve_models_check(m, 1, NULL));
    serve_models_path(m, 1, path);
    CHECK_STR(path, c.path[0]);
    publish(&c);
    CHECK_OK(serve_models_fetched(m, c.path[1], name, NULL));
    CHECK_EQ(seam.count(seam.user), 2);
    serve_models_path(m, 1, path);
    CHECK_STR(path, c.path[1]);
    destroy(&c);
    CHECK(serve_models_check(m, 1, NULL) != RD_OK);
    CHECK(serve_models_fetched(m, c.path[1], name, NULL) != RD_OK); /* it is gone */
    CHECK_EQ(seam.count(seam.user), 2);
    serve_models_destroy(m);
}

TEST(every_allocation_may_fail)
{
    struct serve_models *m = begin();
    char name[MODEL_NAME_BYTES], path[CLI_PATH_BYTES];
    rd_status st = RD_E_NOMEM;
    uint64_t before;
    struct cache c;

    CHECK(m != NULL);
    make(&c);
    before = mem_n_alive();
    for (int64_t i = 0; st != RD_OK; i++) {
        CHECK(i < 100000);
        mem_fail_after(i);
        st = serve_models_fetched(m, c.path[0], name, NULL);
        mem_fail_after(-1);
        CHECK_EQ(serve_models_count(m), st == RD_OK ? 2 : 1);
        if (st != RD_OK) CHECK_EQ(mem_n_alive(), before);
    }
    publish(&c);
    before = mem_n_alive();
    st = RD_E_NOMEM;
    for (int64_t i = 0; st != RD_OK; i++) {
        mem_fail_after(i);
        st = serve_models_fetched(m, c.path[1], name, NULL);
        mem_fail_after(-1);
        serve_models_path(m, 1, path);
        CHECK_STR(path, c.path[st == RD_OK]);
        CHECK_EQ(mem_n_alive(), before);
    }
    destroy(&c);
    serve_models_destroy(m);
}
