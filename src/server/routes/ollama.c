/* server/routes/ollama.c - POST /api/chat and /api/generate: Ollama's native API. */
#include "base/mem.h"
#include "server/dialects/fim.h"
#include "server/dialects/foreign.h"
#include "server/dialects/ollama.h"
#include "server/dialects/request_body.h"
#include "server/dialects/shapes.h"
#include "server/routes/routes.h"

/* Nothing to generate: "load" tells that the model is there. */
static void reply_loaded(struct http_conn *c, const struct ollama_task *task, bool generate)
{
    struct buf out = {0};

    ollama_begin_line(served_of(c)->info.model_id, &out);
    buf_puts(&out, generate ? ",\"response\":\"\"" : ",\"message\":{\"role\":\"assistant\",\"content\":\"\"}");
    buf_printf(&out, ",\"done\":true,\"done_reason\":\"load\"}\n");
    http_reply_json(c, &out);
    buf_deinit(&out);
}

static int read_params(struct http_conn *c, const json_t *body, const struct ollama_task *task, struct gen_params *p,
                       struct api_error *e)
{
    const json_t *prompt = json_object_get(body, "prompt");
    struct fim_parts parts = {.before = {json_string_value(prompt), json_string_length(prompt)},
                              .after = {task->suffix, task->n_suffix}};

    if (gen_params_parse(task->body, served_of(c), task->chat, p, e)) {
        ollama_error(e);
        return -1;
    }
    return task->suffix ? fim_prompt(served_of(c)->engine, &parts, "suffix", &p->prompts[0], e) : 0;
}

static void run(struct http_conn *c, bool generate)
{
    const struct rd_info *info = &served_of(c)->info;
    struct ollama_task task = {0};
    struct ollama_state *s = NULL;
    struct gen_params p = {0};
    json_t *body = NULL;
    struct api_error e;
    int rc = request_body(c, route_of(c)->params, NULL, &body, &e);

    if (rc == 0) rc = generate ? ollama_generate_task(body, info, &task, &e) : ollama_chat_task(body, info, &task, &e);
    if (rc == 0 && !task.body) {
        reply_loaded(c, &task, generate);
        json_decref(body);
        return;
    }
    if (rc == 0) rc = read_params(c, body, &task, &p, &e);
    if (rc == 0) {
        s = mem_zalloc(1, sizeof(*s));
        if (!s) rc = foreign_no_memory(&e);
    }
    json_decref(task.body);
    json_decref(body);
    if (rc == 0) {
        s->generate = generate;
        generation_start(c, &ollama_shape, &p, s);
        return;
    }
    gen_params_deinit(&p);
    http_reply_error(c, &e);
}

void route_ollama_chat(struct http_conn *c)
{
    run(c, false);
}

void route_ollama_generate(struct http_conn *c)
{
    run(c, true);
}
