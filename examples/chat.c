/* examples/chat.c - a conversation through libradish. Each argument after the model is one user message:
 *
 *     cc chat.c -o chat $(pkg-config --cflags --libs radish)
 *     ./chat model.gguf "My name is Ada." "What is my name?"
 *
 * Every turn sends the whole conversation. The second line of output after each answer shows that radish computes only
 * what is new: the rest of the prompt comes from the tree.
 */
#include <radish/radish.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The conversation as a JSON array of messages; the closing bracket comes last. */
struct conversation { char *json; size_t n, cap; };

static void put(struct conversation *c, const char *s, size_t n)
{
    if (c->n + n + 1 > c->cap) {
        c->cap = 2 * (c->n + n + 1);
        c->json = realloc(c->json, c->cap);
        if (!c->json) exit(1);
    }
    memcpy(c->json + c->n, s, n);
    c->n += n;
    c->json[c->n] = 0;
}

static void put_escaped(struct conversation *c, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char code[8];
        if ((unsigned char)s[i] < 0x20 || s[i] == '"' || s[i] == '\\')
            put(c, code, (size_t)sprintf(code, "\\u%04x", (unsigned char)s[i]));
        else put(c, &s[i], 1);
    }
}

static void begin_message(struct conversation *c, const char *role)
{
    char head[64];

    put(c, head, (size_t)snprintf(head, sizeof(head), "%s{\"role\":\"%s\",\"content\":\"", c->n > 1 ? "," : "", role));
}

/* Prints the answer while it comes and keeps it as the assistant's message. */
static int on_event(void *user, uint32_t index, const struct rd_event *ev)
{
    fwrite(ev->text, 1, ev->text_bytes, stdout);
    fflush(stdout);
    put_escaped(user, ev->text, ev->text_bytes);
    if (ev->type == RD_EVENT_DONE)
        printf("\n[%u prompt tokens, %u from the cache; %u generated]\n", ev->usage.n_prompt, ev->usage.n_cached,
               ev->usage.n_generated);
    (void)index;
    return 0;                               /* non-zero would cancel */
}

static rd_status ask(rd_engine *engine, struct conversation *c, const char *question, struct rd_error *err)
{
    struct rd_request_options q;
    struct conversation answer = {NULL, 0, 0};
    rd_status st;

    begin_message(c, "user");
    put_escaped(c, question, strlen(question));
    put(c, "\"}]", 3);

    rd_request_options_default(&q);
    q.messages_json = c->json;
    q.sampling.temperature = 0;
    q.max_tokens = 64;
    printf("> %s\n", question);
    st = rd_generate(engine, &q, on_event, &answer, err);

    c->n--;                                 /* the bracket */
    begin_message(c, "assistant");
    if (answer.n) put(c, answer.json, answer.n);
    put(c, "\"}", 2);
    free(answer.json);
    return st;
}

int main(int argc, char **argv)
{
    struct rd_options o;
    struct rd_error err = {RD_OK, ""};
    struct conversation c = {NULL, 0, 0};
    rd_engine *engine = NULL;
    rd_status st;

    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL.gguf MESSAGE...\n", argv[0]);
        return 2;
    }
    rd_set_log(RD_LOG_WARN, NULL, NULL);
    rd_options_default(&o);
    o.model = argv[1];
    st = rd_open(&o, &engine, &err);
    put(&c, "[", 1);
    for (int i = 2; i < argc && st == RD_OK; i++) st = ask(engine, &c, argv[i], &err);
    if (st != RD_OK) fprintf(stderr, "%s: %s\n", argv[1], err.text);
    free(c.json);
    rd_close(engine);
    return st == RD_OK ? 0 : 1;
}
