/* examples/chat.c - a conversation through libradish. Each argument after the model is one user message:
 *
 *     cc chat.c -o chat $(pkg-config --cflags --libs radish)
 *     ./chat model.gguf "My name is Ada." "What is my name?"
 *
 * Every turn asks with the whole conversation. The second line of output after each answer shows that radish computes only
 * what is new: the rest of the prompt comes from the tree.
 */
#include <radish/radish.h>
#include <stdio.h>
#include <string.h>

/* Prints the answer while it comes, and has the conversation hear it. */
static int on_event(void *user, uint32_t index, const struct rd_event *ev)
{
    fwrite(ev->text, 1, ev->text_bytes, stdout);
    fflush(stdout);
    if (ev->type == RD_EVENT_DONE)
        printf("\n[%u prompt tokens, %u from the cache; %u generated]\n", ev->usage.n_prompt, ev->usage.n_cached,
               ev->usage.n_generated);
    (void)index;
    return rd_chat_hear(user, ev, NULL) != RD_OK; /* non-zero cancels */
}

static rd_status ask(rd_engine *engine, rd_chat *chat, const char *question, struct rd_error *err)
{
    struct rd_request_options q;
    rd_status st = rd_chat_say(chat, "user", question, strlen(question), err);

    if (st != RD_OK) return st;
    rd_request_options_default(&q);
    q.chat = chat;
    q.sampling.temperature = 0;
    q.max_tokens = 64;
    printf("> %s\n", question);
    return rd_generate(engine, &q, on_event, chat, err);
}

int main(int argc, char **argv)
{
    struct rd_options o;
    struct rd_error err = {RD_OK, ""};
    rd_engine *engine = NULL;
    rd_chat *chat = NULL;
    rd_status st;

    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL.gguf MESSAGE...\n", argv[0]);
        return 2;
    }
    rd_set_log(RD_LOG_WARN, NULL, NULL);
    rd_options_default(&o);
    o.model = argv[1];
    st = rd_open(&o, &engine, &err);
    if (st == RD_OK) st = rd_chat_new(NULL, NULL, NULL, &chat, &err);
    for (int i = 2; i < argc && st == RD_OK; i++) st = ask(engine, chat, argv[i], &err);
    if (st != RD_OK) fprintf(stderr, "%s: %s\n", argv[1], err.text);
    rd_chat_free(chat);
    rd_close(engine);
    return st == RD_OK ? 0 : 1;
}
