/* api/api_restore.c - a conversation's answers are put back as the model wrote them, each only behind the tokens that it
 * was generated behind.
 *
 * Which tokens stand before an answer depends on how the answers before it were put back. So every message gets the
 * likeliest candidate, the conversation is rendered and tokenised as a request would be, and the messages are judged in
 * order: up to the first whose prefix is another, all tokens are right. That one gets another candidate whose prefix is
 * right, or none, and the rest is judged again. Mostly the first round is the last.
 */
#include "api/api_state.h"
#include "base/error.h"
#include "base/mem.h"
#include "text/tool_prompt.h"

#define MAX_ROUNDS   32u                 /* then nothing more is put back: it is rendered as it was sent */
#define MAX_MESSAGES 4096u               /* of a conversation that is looked at */

/* True: all picks stand behind their tokens, and *n_restored is how many there are. */
static bool judge(const rd_engine *engine, struct answer_owner owner, const json_t *messages, struct answer_pick *picks,
                  const char *text, size_t n_text, uint32_t *n_restored)
{
    int32_t *ids = NULL;
    uint32_t n = 0;
    bool stands = api_encode_chat(engine, text, n_text, &ids, &n, NULL) == RD_OK;

    *n_restored = 0;
    if (stands) answer_memory_replay(engine->answers, owner, &ids, &n);
    for (size_t i = 0; i < json_array_size(messages); i++) {
        if (!picks[i].serial) continue;
        if (!ids) picks[i].serial = 0;                      /* no memory for them */
        if (!picks[i].serial) continue;
        stands = answer_pick_fits(&picks[i], ids, n);
        if (!stands) {
            picks[i] = answer_memory_pick(engine->answers, owner, messages, i, picks[i].serial, ids, n);
            break;
        }
        ++*n_restored;
    }
    mem_free(ids);
    return stands;
}

rd_status api_render_messages(const rd_engine *engine, struct chat_input *in, const json_t *messages, char **text,
                              size_t *n, struct rd_error *err)
{
    json_t *explained = NULL;
    rd_status st = RD_OK;

    if (!chat_template_has_tools(engine->chat)) {
        char *copy = json_dumps(messages, JSON_COMPACT);    /* jansson's own deep copy lacks what it had no memory for */

        explained = copy ? json_loads(copy, JSON_ALLOW_NUL, NULL) : NULL;
        mem_free(copy);
        st = explained ? tool_prompt_explain(in->tools, explained) : RD_E_NOMEM;
    }
    in->messages = explained ? explained : messages;
    if (st == RD_OK) st = chat_template_prompt(engine->chat, in, text, n, err);
    else error_set(err, st, "out of memory");
    in->messages = messages;
    json_decref(explained);
    return st;
}

rd_status api_render_restored(const rd_engine *engine, struct answer_owner owner, struct chat_input *in, char **text,
                              size_t *n, uint32_t *n_restored, struct rd_error *err)
{
    const json_t *messages = in->messages;
    size_t n_messages = json_array_size(messages);
    struct answer_pick *picks = n_messages <= MAX_MESSAGES ? mem_zalloc(n_messages + 1, sizeof(*picks)) : NULL;
    bool any = false, done = false;

    *n_restored = 0;
    for (size_t i = 0; picks && i < n_messages; i++) {
        picks[i] = answer_memory_pick(engine->answers, owner, messages, i, 0, NULL, 0);
        any |= picks[i].serial != 0;
    }
    for (uint32_t round = 0; any && round < MAX_ROUNDS && !done; round++) {
        json_t *restored = answer_memory_restore(engine->answers, messages, picks);
        rd_status st = RD_E_NOT_FOUND;

        if (restored) st = api_render_messages(engine, in, restored, text, n, err);
        in->messages = messages;
        json_decref(restored);
        if (st != RD_OK) break;                             /* none is left, or a template wants calls as calls */
        done = judge(engine, owner, messages, picks, *text, *n, n_restored);
        if (!done) mem_free(*text);
        if (!done) *text = NULL;
    }
    mem_free(picks);
    if (done) return RD_OK;
    *n_restored = 0;
    return api_render_messages(engine, in, messages, text, n, err);
}
