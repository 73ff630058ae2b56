/* api/api_cache.c - what the cache holds, and what it would do for a request. */
#include <string.h>
#include "api/api_sizes.h"
#include "api/api_state.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "engine/public_prefix.h"
#include "engine/tiers/ram_link.h"
#include "engine/tiers/store_link.h"
#include "text/chat/volatile_lines.h"

#define LEAST_OTHER_TOKENS 16u /* this many more tokens under another salt are worth telling */
#define SHOWN_TOKENS       12u /* of either side of a difference, and of a node */

const char *rd_miss_cause_name(enum rd_miss_cause cause)
{
    static const char *const names[] = {"none",    "new",  "different", "evicted", "expired",
                                        "cleared", "salt", "kv_type",   "new_end", "window"};

    return (unsigned)cause < RD_N_MISS_CAUSES ? names[cause] : "";
}

/* Tokens as text into out[size]: whole characters, what is none as U+FFFD. */
static void show(const struct tokenizer *t, const kv_key *keys, uint32_t n, char *out, size_t size)
{
    char raw[512];
    size_t n_raw = 0, at = 0;

    for (uint32_t i = 0; i < n; i++) {
        const bool begins = i == 0 || key_is_token(keys[i - 1]);
        struct text_span piece = key_is_token(keys[i]) ? tokenizer_piece(t, key_token(keys[i]), true)
                                                       : (struct text_span){"[image]", begins ? 7 : 0};
        size_t n_copy = piece.n < sizeof(raw) - n_raw ? piece.n : sizeof(raw) - n_raw;

        memcpy(raw + n_raw, piece.s, n_copy);
        n_raw += n_copy;
    }
    for (size_t i = 0; i < n_raw;) {
        uint32_t cp;
        int len = utf8_decode(raw + i, n_raw - i, &cp);
        const char *from = len > 0 ? raw + i : "\xEF\xBF\xBD";
        size_t n_from = len > 0 ? (size_t)len : 3;

        if (at + n_from >= size) break;
        memcpy(out + at, from, n_from);
        at += n_from;
        i += (size_t)(len > 0 ? len : -len);
    }
    out[at] = 0;
}

/* ---- explain ---- */

struct explain_call {
    const rd_engine *engine;
    struct kv_space owner;
    const kv_key *keys;
    uint32_t n;
    const struct kv_whole *wholes; /* [n_wholes] its images */
    uint32_t n_wholes;
    struct radix_match m;
    enum miss_cause cause;
    uint32_t n_disk, n_ram, n_lossy; /* n_disk: behind the match */
    char other_kv_type[48];
    kv_key stored[SHOWN_TOKENS];
    uint32_t n_stored;
    struct kv_space others[SALT_RING_SIZE];
    uint32_t n_others;
};

/* Does another namespace of the same client have a page more of it? */
static bool others_have_more(struct engine *e, const struct explain_call *c)
{
    for (uint32_t i = 0; i < c->n_others; i++) {
        struct radix_node *root = engine_root_of(e, &c->others[i]);

        if (root && radix_match(engine_cache(e)->tree, root, c->keys, c->n, clock_now_ns(clock_system())).n_match >
                        c->m.n_match + LEAST_OTHER_TOKENS)
            return true;
    }
    return false;
}

/* Is a page more of it on disk with another KV type? */
static bool has_other_kv_type(struct engine *e, struct explain_call *c)
{
    const struct kv_layout *own = &c->engine->traits.layout;
    char name[LIMIT_STORE_NAME_BYTES];
    struct kv_layout other;

    for (uint32_t i = 0; i < api_kv_type_n_others(); i++) {
        if (!api_kv_type_other(own, i, &other)) continue;
        api_kv_type_name(&other, c->other_kv_type, sizeof(c->other_kv_type));
        api_store_name(c->engine, c->other_kv_type, name, sizeof(name));
        if (*name && store_link_n_stored(e, name, api_page_bytes(c->engine, &other), &c->owner, c->keys, c->n, 0) >=
                         c->m.n_match + c->n_disk + own->page_tokens)
            return true;
    }
    c->other_kv_type[0] = 0;
    return false;
}

/* A request would take less than was found: no part of an image that is another one, and up to where the windows are. */
static void look_at_reach(struct engine *e, struct explain_call *c)
{
    kv_page *pages = mem_alloc(c->m.n_ready / c->engine->traits.layout.page_tokens + 1, sizeof(*pages));
    uint32_t n = pages ? kv_match_reach(engine_cache(e), &c->m, c->wholes, c->n_wholes, pages) : 0;

    mem_free(pages);
    if (n == c->m.n_ready) return;
    if (n < kv_whole_reach(c->wholes, c->n_wholes, c->m.n_ready)) c->cause = MISS_WINDOW;
    c->m.n_ready = n;
}

/* What the disk has behind the match. Less than a page behind that is no miss: it may be there too, as an end. */
static void look_on_disk(struct engine *e, struct explain_call *c)
{
    c->n_disk = store_link_n_stored(e, NULL, 0, &c->owner, c->keys, c->n, c->m.n_match) - c->m.n_match;
    if (c->n_disk == 0) return;
    if (c->n - c->m.n_match - c->n_disk < c->engine->traits.layout.page_tokens)
        c->cause = MISS_NONE;
    else if (c->cause == MISS_NEW)
        c->cause = MISS_DIFFERENT;
}

static void explain_on_engine(struct engine *e, void *arg)
{
    struct explain_call *c = arg;
    struct radix_node *root = engine_root_of(e, &c->owner);

    c->cause = MISS_NEW;
    if (!root) return;
    public_prefix_link(e, &c->owner, root, c->keys, c->n, clock_now_ns(clock_system()));
    c->m = radix_match(engine_cache(e)->tree, root, c->keys, c->n, clock_now_ns(clock_system()));
    c->cause = engine_miss_cause(e, root, c->keys, c->n, c->m.n_match, c->m.kind);
    c->n_lossy = engine_n_lossy(e, &c->m);
    look_at_reach(e, c);
    c->n_ram = ram_link_n_more(e, &c->owner, c->keys, c->n, c->m.n_match);
    c->n_stored = radix_following(&c->m, c->stored, SHOWN_TOKENS);
    if (c->m.n_match == c->n || c->cause == MISS_WINDOW) return;
    look_on_disk(e, c);
    if (c->cause == MISS_NONE) return;
    if (others_have_more(e, c))
        c->cause = MISS_SALT;
    else if (has_other_kv_type(e, c))
        c->cause = MISS_KV_TYPE;
}

static size_t common(const char *a, size_t n_a, const char *b, size_t n_b)
{
    size_t n = 0;

    while (n < n_a && n < n_b && a[n] == b[n]) n++;
    return n;
}

static struct api_rendering rendering_of(const rd_engine *engine, const struct rd_request_options *o,
                                         const struct kv_space *owner)
{
    return (struct api_rendering){.messages = o->messages_json,
                                  .tools = o->tools_json,
                                  .kwargs = o->kwargs_json,
                                  .end = o->prompt_end,
                                  .owner = o->cache_prompt && o->replay && !engine->no_replay ? owner : NULL,
                                  .trusts = o->parse_special};
}

/* Is byte `at` of the text among those that the tools put there? Judged without answers that are put back, which need
 * the tools before them; the tools stand before every answer. */
static bool in_tools(const rd_engine *engine, const struct rd_request_options *o, size_t at)
{
    struct kv_space owner = api_space(engine, o);
    struct api_rendering r = rendering_of(engine, o, &owner);
    char *with = NULL, *without = NULL;
    size_t n = 0, n_without = 0, head, tail = 0;
    bool inside = false;

    if (!o->tools_json) return false;
    r.as_sent = true;
    if (api_render(engine, &r, &with, &n, NULL) == RD_OK) {
        r.tools = NULL;
        if (api_render(engine, &r, &without, &n_without, NULL) == RD_OK) {
            head = common(with, n, without, n_without);
            while (tail < n_without - head && tail < n - head && with[n - 1 - tail] == without[n_without - 1 - tail])
                tail++;
            inside = at >= head && at < n - tail;
        }
    }
    mem_free(with);
    mem_free(without);
    return inside;
}

/* Does the conversation of the first n_first messages reach byte `at` of the text? */
static bool reaches(const rd_engine *engine, const struct rd_request_options *o, const json_t *messages, size_t n_first,
                    const char *text, size_t n, size_t at)
{
    struct kv_space owner = api_space(engine, o);
    struct api_rendering r = rendering_of(engine, o, &owner);
    json_t *first = json_array();
    char *json = NULL, *part = NULL;
    size_t n_part = 0;
    bool reached = false;

    for (size_t i = 0; first && i < n_first; i++) json_array_append(first, json_array_get(messages, i));
    if (first) json = json_dumps(first, JSON_COMPACT);
    r.messages = json;
    r.end = RD_PROMPT_CLOSED;
    if (json && api_render(engine, &r, &part, &n_part, NULL) == RD_OK) reached = common(text, n, part, n_part) > at;
    mem_free(json);
    mem_free(part);
    json_decref(first);
    return reached;
}

/* The message that byte `at` of the text belongs to: the first one up to which the conversation reaches it. Found by
 * halves: a rendering takes as long as the conversation. */
static void find_message(const rd_engine *engine, const struct rd_request_options *o, const char *text, size_t n,
                         size_t at, struct rd_cache_explanation *out)
{
    json_t *messages = json_loads(o->messages_json, JSON_ALLOW_NUL, NULL);
    size_t low = 0, high = json_array_size(messages);

    out->part = "template";
    if (high > 0 && reaches(engine, o, messages, high, text, n, at)) {
        const char *role;

        for (high--; low < high;) {
            size_t mid = low + (high - low) / 2;

            if (reaches(engine, o, messages, mid + 1, text, n, at))
                high = mid;
            else
                low = mid + 1;
        }
        role = json_string_value(json_object_get(json_array_get(messages, low), "role"));
        out->message = (int32_t)low;
        out->part = role && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0) ? "system" : "message";
    }
    if (in_tools(engine, o, at)) out->part = "tools";
    json_decref(messages);
}

/* Tools and messages as the request would spell them, so that parts of it are spelled so, too. JSON texts, or NULL. */
static void spell(const rd_engine *engine, const struct rd_request_options *o, char **messages, char **tools)
{
    json_t *m = o->messages_json ? json_loads(o->messages_json, JSON_ALLOW_NUL, NULL) : NULL;
    json_t *t = o->tools_json ? json_loads(o->tools_json, JSON_ALLOW_NUL, NULL) : NULL;
    struct buf unseen = {0};

    if (m && !engine->keep_volatile) (void)volatile_lines_leave_out(m, &unseen);
    if (m && !engine->keep_volatile) spelling_memory_recall(engine->spellings, api_space(engine, o), t, m, NULL);
    *messages = m ? json_dumps(m, JSON_COMPACT) : NULL;
    *tools = t ? json_dumps(t, JSON_COMPACT) : NULL;
    json_decref(m);
    json_decref(t);
    buf_deinit(&unseen);
}

static void find_place(const rd_engine *engine, const struct rd_request_options *request, const int32_t *tokens,
                       uint32_t n_match, const struct api_images *images, struct rd_cache_explanation *out)
{
    struct rd_request_options o = *request;
    struct kv_space owner = api_space(engine, &o);
    char *text = NULL, *messages = NULL, *tools = NULL;
    struct api_rendering r;
    size_t n = 0, at = 0;

    if (images->n > 0) o.messages_json = images->messages;
    if (o.cache_prompt && o.replay && !engine->no_replay) spell(engine, &o, &messages, &tools);
    if (messages) o.messages_json = messages;
    if (tools) o.tools_json = tools;
    r = rendering_of(engine, &o, &owner);
    if (images->n > 0) at = api_images_text_at(images, tokens, n_match);
    for (uint32_t i = 0; i < n_match && images->n == 0; i++)
        at += tokenizer_piece(engine->tokenizer, tokens[i], true).n;
    if (api_render(engine, &r, &text, &n, NULL) == RD_OK) find_message(engine, &o, text, n, at, out);
    mem_free(messages);
    mem_free(tools);
    mem_free(text);
}

static rd_status explain(rd_engine *engine, const struct rd_request_options *options, struct rd_cache_explanation *out,
                         struct rd_error *err)
{
    struct rd_request_options own, *o = &own;
    struct explain_call call = {.engine = engine};
    struct api_prompt_notes notes = {.looks = true};
    struct kv_whole wholes[IMAGES_MOST_ALL];
    int32_t *tokens = NULL;
    rd_status st;

    memset(out, 0, sizeof(*out));
    out->part = "";
    st = api_options(options, &own, err);
    if (st != RD_OK) return st;
    call.owner = api_space(engine, o);
    out->message = -1;
    if (!engine->engine) return error_set(err, RD_E_UNSUPPORTED, "this handle has a tokenizer only, no model");
    st = api_prompt_tokens(engine, o, &notes, &tokens, &call.n, err);
    if (st != RD_OK) {
        api_notes_deinit(engine, &notes);
        return st;
    }
    for (uint32_t i = 0; i < notes.images.n; i++)
        wholes[i] = request_images_whole(&notes.images.places[i], engine->executor->vision);
    call.wholes = wholes;
    call.n_wholes = notes.images.n;
    call.n_others = salt_ring_others(&engine->salts, o->fairness_key, call.owner, call.others);
    call.keys = token_keys(tokens);
    st = engine_call(engine->engine, explain_on_engine, &call);
    if (st != RD_OK) {
        mem_free(tokens);
        api_notes_deinit(engine, &notes);
        return error_set(err, st, "%s", rd_status_text(st));
    }
    out->n_prompt = call.n;
    out->n_stored = call.m.n_match;
    out->n_ready = call.m.n_ready;
    out->n_disk = call.n_disk;
    out->n_ram = call.n_ram;
    out->n_lossy = call.n_lossy;
    memcpy(out->other_kv_type, call.other_kv_type, sizeof(out->other_kv_type));
    out->cause = (enum rd_miss_cause)call.cause;
    if (call.m.n_match < call.n) {
        uint32_t n_left = call.n - call.m.n_match;

        show(engine->tokenizer, call.keys + call.m.n_match, n_left < SHOWN_TOKENS ? n_left : SHOWN_TOKENS, out->sent,
             sizeof(out->sent));
        show(engine->tokenizer, call.stored, call.n_stored, out->stored, sizeof(out->stored));
        if (o->messages_json) find_place(engine, o, tokens, call.m.n_match, &notes.images, out);
    }
    mem_free(tokens);
    api_notes_deinit(engine, &notes);
    return RD_OK;
}

rd_status rd_cache_explain(rd_engine *engine, const struct rd_request_options *options,
                           struct rd_cache_explanation *out, struct rd_error *err)
{
    struct rd_cache_explanation all = {.size = sizeof(all)};
    const rd_status st = explain(engine, options, &all, err);

    api_give(out, &all, sizeof(all), API_FIRST_EXPLANATION);
    return st;
}

/* ---- clearing a part ---- */

struct clear_call {
    struct kv_space owner;
    const kv_key *keys;
    uint32_t n;
    uint64_t n_pages;
};

static void clear_on_engine(struct engine *e, void *arg)
{
    struct clear_call *c = arg;
    struct radix_node *root = engine_root_of(e, &c->owner);

    ram_link_clear(e); /* all of it: what is there has no order of texts */
    if (root) c->n_pages = radix_clear_path(engine_cache(e)->tree, root, c->keys, c->n);
}

rd_status rd_cache_clear_behind(rd_engine *engine, const struct rd_request_options *options, uint64_t *n_pages,
                                uint64_t *n_disk, struct rd_error *err)
{
    struct rd_request_options own, *o = &own;
    struct clear_call call = {0};
    int32_t *tokens = NULL;
    rd_status st;

    *n_pages = *n_disk = 0;
    st = api_options(options, &own, err);
    if (st != RD_OK) return st;
    call.owner = api_space(engine, o);
    if (!engine->engine) return error_set(err, RD_E_UNSUPPORTED, "this handle has a tokenizer only, no model");
    st = api_prompt_tokens(engine, o, NULL, &tokens, &call.n, err);
    if (st != RD_OK) return st;
    call.keys = token_keys(tokens);
    st = engine_call(engine->engine, clear_on_engine, &call);
    if (st == RD_OK) *n_disk = store_link_prune(engine->engine, &call.owner, call.keys, call.n);
    mem_free(tokens);
    *n_pages = call.n_pages;
    return st == RD_OK ? st : error_set(err, st, "%s", rd_status_text(st));
}

/* ---- public prompts ---- */

struct share_call {
    const kv_key *keys;
    uint32_t n;
    rd_status st;
};

static void share_on_engine(struct engine *e, void *arg)
{
    struct share_call *c = arg;

    c->st = public_prefix_add(e, c->keys, c->n);
}

rd_status rd_share_prefix(rd_engine *engine, const struct rd_request_options *options, struct rd_error *err)
{
    struct rd_request_options own, warm, *o = &own;
    struct share_call call = {.st = RD_OK};
    int32_t *tokens = NULL;
    rd_status st = api_options(options, &own, err);

    if (st != RD_OK) return st;
    warm = own;
    if (!engine->engine) return error_set(err, RD_E_UNSUPPORTED, "this handle has a tokenizer only, no model");
    if (o->cache_salt) return error_set(err, RD_E_INVALID, "a public prompt has no cache_salt");
    st = api_prompt_tokens(engine, o, NULL, &tokens, &call.n, err);
    if (st != RD_OK) return st;
    call.keys = token_keys(tokens);
    if (call.n == 0) st = error_set(err, RD_E_INVALID, "the prompt is empty: at least 1 token is needed");
    if (st == RD_OK) st = engine_call(engine->engine, share_on_engine, &call);
    if (st == RD_OK) st = call.st;
    mem_free(tokens);
    if (st == RD_E_LIMIT) return error_set(err, st, "at most %u public prompts", LIMIT_PUBLIC_PREFIXES);
    if (st != RD_OK) return err && err->text[0] ? st : error_set(err, st, "%s", rd_status_text(st));
    warm.keep_prompt_s = 86400;
    return rd_warm(engine, &warm, err);
}

/* ---- list ---- */

struct list_call {
    rd_engine *engine;
    const struct kv_space *space; /* NULL: all */
    struct buf out;
    uint32_t n, n_max;
    uint64_t now;
    int64_t wall_s;
    bool more;
};

/* Runs of rows of images that begin in it. */
static uint32_t n_images(const struct radix_node *node)
{
    const struct radix_node *parent = radix_node_parent(node);
    const kv_key *keys = radix_node_keys(node);
    uint32_t n_before = radix_node_n_keys(parent), n = 0;
    bool in_image = n_before > 0 && !key_is_token(radix_node_keys(parent)[n_before - 1]);

    for (uint32_t i = 0; i < radix_node_n_keys(node); i++) {
        bool is_row = !key_is_token(keys[i]) && keys[i] != KV_NO_KEY;

        n += is_row && !in_image;
        in_image = is_row;
    }
    return n;
}

static long long wall_time(const struct list_call *c, uint64_t ns)
{
    return (long long)(c->wall_s - (int64_t)((c->now - u64_min(c->now, ns)) / 1000000000u));
}

static bool list_node(void *arg, const struct radix_node *node, uint32_t depth)
{
    static const char *const classes[RADIX_N_CLASSES] = {"plain", "short", "shared", "held", "long", "day"};
    struct list_call *c = arg;
    uint32_t n = radix_node_n_keys(node);
    char text[256];

    if (depth == 0) return true; /* a root has no keys */
    if (c->n == c->n_max) {
        c->more = true;
        return false;
    }
    show(c->engine->tokenizer, radix_node_keys(node), n < SHOWN_TOKENS ? n : SHOWN_TOKENS, text, sizeof(text));
    buf_printf(&c->out, "%s{\"depth\":%u,\"start\":%u,\"tokens\":%u,\"computed\":%u,\"locks\":%u", c->n ? "," : "",
               depth, radix_node_start(node), n, radix_node_n_computed(node), radix_node_locks(node));
    buf_printf(&c->out, ",\"bytes\":%llu,\"hits\":%u,\"images\":%u,\"created\":%lld,\"last_use\":%lld,\"age_s\":%.1f",
               (unsigned long long)radix_node_own_pages(node) * c->engine->executor->page_bytes, radix_node_hits(node),
               n_images(node), wall_time(c, radix_node_created(node)), wall_time(c, radix_node_last_use(node)),
               (double)(c->now - u64_min(c->now, radix_node_last_use(node))) / 1e9);
    buf_printf(&c->out, ",\"kept\":\"%s\",\"text\":\"", classes[radix_node_class(node)]);
    buf_put_json(&c->out, text, strlen(text));
    buf_puts(&c->out, "\"}");
    c->n++;
    return true;
}

static void list_on_engine(struct engine *e, void *arg)
{
    struct list_call *c = arg;
    const struct radix_node *root = c->space ? engine_root_of(e, c->space) : NULL;

    if (!c->space)
        radix_walk(engine_cache(e)->tree, list_node, c);
    else if (root)
        radix_walk_below(root, list_node, c);
}

static char *list(rd_engine *engine, const struct kv_space *space, uint32_t n_max)
{
    struct list_call c = {.engine = engine,
                          .space = space,
                          .n_max = n_max,
                          .now = clock_now_ns(clock_system()),
                          .wall_s = clock_wall_s(clock_system())};

    buf_puts(&c.out, "{\"nodes\":[");
    if (engine->engine) engine_call(engine->engine, list_on_engine, &c);
    buf_printf(&c.out, "],\"more\":%s}", c.more ? "true" : "false");
    return buf_take(&c.out, NULL);
}

char *rd_cache_list(rd_engine *engine, uint32_t n_max)
{
    return list(engine, NULL, n_max);
}

char *rd_cache_list_of(rd_engine *engine, const char *cache_salt, uint32_t n_max)
{
    struct rd_request_options o;
    struct kv_space space;

    rd_request_options_default(&o);
    o.cache_salt = cache_salt;
    space = api_space(engine, &o);
    return list(engine, &space, n_max);
}
