/* tests/api/test_api_missing.c - what a program forgets to give, or gives as no number, is told by the public library; nothing is
 * read there, and what it was asked of is as it was. */
#include <math.h>
#include <string.h>
#include "radish/radish.h"
#include "radish/train.h"
#include "test.h"

#define MODEL "tests/golden/llama/tiny-llama.gguf"

/* The message says which. */
static void is_told(rd_status st, const struct rd_error *err, const char *what)
{
    CHECK_EQ(st, RD_E_INVALID);
    if (!strstr(err->text, what)) fprintf(stderr, "\"%s\" does not say \"%s\"\n", err->text, what);
    CHECK(strstr(err->text, what));
}

TEST(a_path_that_is_not_given_is_told)
{
    struct rd_convert_options c;
    struct rd_trainer_options t;
    struct rd_error err = {RD_OK, ""};
    rd_trainer *trainer = NULL;
    rd_engine *engine = NULL;
    char *text;

    rd_convert_options_default(&c);
    is_told(rd_convert(NULL, "x.gguf", &c, &err), &err, "a model");
    is_told(rd_convert(test_path(MODEL), NULL, &c, &err), &err, "a path");
    is_told(rd_inspect(NULL, false, &text, &err), &err, "no model");
    is_told(rd_cache_dir(NULL, RD_CACHE_DIR_LIST, NULL, &text, &err), &err, "no folder");
    is_told(rd_open_tokenizer(NULL, NULL, &engine, &err), &err, "no model");
    rd_trainer_options_default(&t);
    is_told(rd_trainer_open(&t, &trainer, &err), &err, "no model");
    CHECK(!trainer);
}

TEST(a_name_that_is_not_given_is_told)
{
    const char *const stop[] = {"a", NULL};
    struct rd_options o;
    struct rd_request_options q;
    struct rd_cache_name name;
    struct rd_error err = {RD_OK, ""};
    rd_engine *engine = NULL;
    rd_chat *chat = NULL;
    uint64_t n_pages;

    rd_set_log(RD_LOG_ERROR, NULL, NULL);
    rd_options_default(&o);
    o.model = test_path(MODEL);
    o.n_threads = 1;
    o.kv_tokens = 512;
    CHECK_OK(rd_open(&o, &engine, &err));
    is_told(rd_adapter_load(engine, NULL, "x", 1, &err), &err, "name");
    is_told(rd_adapter_load(engine, "a", NULL, 1, &err), &err, "no path");
    is_told(rd_adapter_unload(engine, NULL, &err), &err, "name");
    is_told(rd_adapter_apply(engine, NULL, 1, &err), &err, "name");
    is_told(rd_cache_save_name(engine, NULL, NULL, &name, &err), &err, "cache_name");
    is_told(rd_cache_drop_name(engine, NULL, NULL, &name, &n_pages, &err), &err, "cache_name");
    CHECK_OK(rd_chat_new(NULL, NULL, NULL, &chat, &err));
    is_told(rd_chat_result(chat, NULL, "x", 1, &err), &err, "id");
    CHECK_EQ(rd_chat_length(chat), 0);
    rd_chat_free(chat);

    rd_request_options_default(&q);
    q.prompt = "a";
    q.prompt_bytes = 1;
    q.max_tokens = 1;
    q.n_stop = 2;
    is_told(rd_generate(engine, &q, NULL, NULL, &err), &err, "stop");
    q.stop = stop;
    is_told(rd_generate(engine, &q, NULL, NULL, &err), &err, "stop");
    q.n_stop = 0;
    q.adapters = &(struct rd_adapter_use){NULL, 1};
    q.n_adapters = 1;
    is_told(rd_generate(engine, &q, NULL, NULL, &err), &err, "adapters[0]");
    rd_close(engine);
}

TEST(a_step_of_no_number_changes_nothing)
{
    const double rates[] = {NAN, INFINITY, -INFINITY, -1e-3};
    const int32_t tokens[] = {3, 4, 5, 6, 7, 8};
    const bool targets[] = {true, true, true, true, true, true};
    const struct rd_train_sample sample = {tokens, targets, 6};
    struct rd_trainer_options o;
    struct rd_train_result before, after;
    struct rd_error err = {RD_OK, ""};
    rd_trainer *t = NULL;

    rd_set_log(RD_LOG_ERROR, NULL, NULL);
    rd_trainer_options_default(&o);
    o.model = test_path(MODEL);
    o.n_threads = 1;
    o.pass_tokens = 16;
    CHECK_OK(rd_trainer_open(&o, &t, &err));
    is_told(rd_trainer_save(t, NULL, false, &err), &err, "no path");
    is_told(rd_trainer_checkpoint(t, NULL, &err), &err, "no path");
    is_told(rd_trainer_resume(t, NULL, &err), &err, "no path");
    CHECK_OK(rd_trainer_step(t, &sample, 1, 1e-3, NULL, &err));
    CHECK_OK(rd_trainer_loss(t, &sample, 1, NULL, &before, &err));
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++)
        is_told(rd_trainer_step(t, &sample, 1, rates[i], NULL, &err), &err, "learning rate");
    CHECK_OK(rd_trainer_loss(t, &sample, 1, NULL, &after, &err));
    CHECK(before.loss == after.loss);
    CHECK_EQ(rd_trainer_n_steps(t), 1);
    rd_trainer_close(t);
}
