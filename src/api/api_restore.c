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
#include "text/output/tool_prompt.h"

#define MAX_ROUNDS   32u   /* then nothing more is put back: it is rendered as it was sent */
#define MAX_MESSAGES 4096u /* of a conversation that is looked at */

/* True: all picks stand behind their tokens, and *n_restored is how many there are. */
static bool judge(const rd_engine *engine, struct kv_space owner, const json_t *messages, struct answer_pick *picks,
                  const char *text, size_t n_text, uint32_t *n_restored)
{
    int32_t *ids = NULL;
    uint32_t n = 0;
    bool stands = api_encode_chat(engine, text, n_text, &ids, &n, NULL) == RD_OK;

    *n_restored = 0;
    if (stands) answer_memory_replay(engine->answers, owner, &ids, &n);
    for (size_t i = 0; i < json_array_size(messages); i++) {
        if (!picks[i].serial) continue;
        if (!ids) picks[i].serial = 0; /* no memory for them */
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

rd_status api_render_messages(const rd_engine *engine, struct chat_input *in, json_t *messages,
                              const struct answer_pick *picks, bool trusts, char **text, size_t *n,
                              struct rd_error *err)
{
    json_t *own = json_incref(messages);
    rd_status st = trusts ? RD_OK : api_mark_messages(engine, &own, picks, err);

    in->messages = own;
    if (st == RD_OK && !chat_template_has_tools(engine->chat) && (st = tool_prompt_explain(in->tools, own)) != RD_OK)
        error_set(err, st, "out of memory");
    if (st == RD_OK) st = chat_template_prompt(engine->chat, in, text, n, err);
    json_decref(own);
    in->messages = NULL;
    return st;
}

/* Messages of its own: jansson's deep copy lacks what it had no memory for. NULL: no memory. */
static json_t *copied(const json_t *messages)
{
    char *text = json_dumps(messages, JSON_COMPACT);
    json_t *copy = text ? json_loads(text, JSON_ALLOW_NUL, NULL) : NULL;

    mem_free(text);
    return copy;
}

rd_status api_render_restored(const rd_engine *engine, struct kv_space owner, struct chat_input *in, json_t *messages,
                              bool trusts, char **text, size_t *n, uint32_t *n_restored, struct rd_error *err)
{
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

        if (restored && !chat_template_has_tools(engine->chat)) { /* explaining changes what another round wants */
            json_t *own = copied(restored);

            json_decref(restored);
            restored = own;
        }
        if (restored) st = api_render_messages(engine, in, restored, picks, trusts, text, n, err);
        json_decref(restored);
        if (st != RD_OK) break; /* none is left, or a template wants calls as calls */
        done = judge(engine, owner, messages, picks, *text, *n, n_restored);
        if (!done) mem_free(*text);
        if (!done) *text = NULL;
    }
    mem_free(picks);
    if (done) return RD_OK;
    *n_restored = 0;
    return api_render_messages(engine, in, messages, NULL, trusts, text, n, err);
}
