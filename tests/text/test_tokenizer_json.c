/* tests/text/test_tokenizer_json.c - tokenizer.json: what is refused and why, no memory, and texts that grow.
 *
 * Equality with the hub's tokenizers is tests/golden/test_hub_tokenizer.py.
 */
#include <jansson.h>
#include "test.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"
#include "text/tokenizer/token_history.h"
#include "tiny_vocab.h"

/* A byte-level BPE with the pre-tokenizer of Qwen 2, or one over characters; %s: normalizer. */
static void write_json(struct buf *out, bool bytes, const char *normalizer)
{
    static const char *const merges[][2] = {{"a", "a"}, {"aa", "aa"}, {"t", "h"}, {"th", "e"},
                                            {"i", "n"}, {"in", "g"},  {"l", "l"}};
    uint32_t id = 0;

    buf_printf(out, "{\"normalizer\": %s, \"pre_tokenizer\": ", normalizer);
    buf_puts(
        out,
        bytes
            ? "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
              "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| "
              "?[^\\\\s\\\\p{L}\\\\p{N}]+"
              "[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false},"
              "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false}]}"
            : "null");
    buf_puts(out, ", \"decoder\": ");
    buf_puts(out, bytes ? "{\"type\":\"ByteLevel\"}"
                        : "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}");
    buf_printf(out, ", \"model\": {\"type\":\"BPE\",\"byte_fallback\":%s,\"vocab\":{", bytes ? "false" : "true");
    for (unsigned b = 0, other = 0x100; b < 256; b++) {
        bool prints = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad);
        char text[8] = "";

        utf8_encode(prints ? b : other++, text);
        if (!bytes) snprintf(text, sizeof(text), "<0x%02X>", b);
        buf_puts(out, id ? ",\"" : "\"");
        buf_put_json(out, text, strlen(text));
        buf_printf(out, "\":%u", id++);
    }
    for (char c = 'a'; !bytes && c <= 'z'; c++) buf_printf(out, ",\"%c\":%u", c, id++);
    for (size_t i = 0; i < sizeof(merges) / sizeof(merges[0]); i++)
        buf_printf(out, ",\"%s%s\":%u", merges[i][0], merges[i][1], id++);
    buf_puts(out, "},\"merges\":[");
    for (size_t i = 0; i < sizeof(merges) / sizeof(merges[0]); i++)
        buf_printf(out, "%s[\"%s\",\"%s\"]", i ? "," : "", merges[i][0], merges[i][1]);
    buf_printf(
        out,
        "]},\"added_tokens\":[{\"id\":%u,\"content\":\"<s>\",\"special\":true},{\"id\":%u,\"content\":\"<|im_end|>\","
        "\"special\":true},{\"id\":%u,\"content\":\"<u>\",\"normalized\":false}],\"post_processor\":"
        "{\"type\":\"BertProcessing\",\"cls\":[\"<s>\",%u],\"sep\":[\"<|im_end|>\",%u]}}",
        id, id + 1, id + 2, id, id + 1);
}

static struct tokenizer *load(const char *json, size_t n, struct rd_error *err)
{
    struct tokenizer_files files = {
        .json = json, .n_json = n, .config = "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"<|im_end|>\"}"};
    struct tokenizer *t = NULL;

    files.n_config = strlen(files.config);
    return tokenizer_from_json(&files, &t, err) == RD_OK ? t : NULL;
}

static struct tokenizer *make(bool bytes, const char *normalizer)
{
    struct buf json = {0};
    struct tokenizer *t;

    write_json(&json, bytes, normalizer);
    t = load(json.data, json.n, NULL);
    buf_deinit(&json);
    return t;
}

TEST(tokens_around_the_text_and_in_it)
{
    struct tokenizer *t = make(true, "null");
    int32_t *ids = NULL;
    uint32_t n = 0;
    char *back = NULL;
    size_t n_back = 0;

    CHECK(t);
    CHECK_OK(tokenizer_encode(t, "the aaaa<u>", 11, true, true, &ids, &n, NULL));
    CHECK_EQ(n, 6); /* <s> the _ aaaa <u> <|im_end|> */
    CHECK_EQ(ids[0], tokenizer_bos(t));
    CHECK_EQ(ids[n - 1], tokenizer_eos(t));
    CHECK(tokenizer_adds_bos(t) && tokenizer_is_end(t, ids[n - 1]));
    CHECK_OK(tokenizer_decode(t, ids, n, false, &back, &n_back));
    CHECK_STR(back, "the aaaa<u>");
    mem_free(ids);
    mem_free(back);
    CHECK_OK(tokenizer_encode(t, "<s>", 3, false, false, &ids, &n, NULL));
    CHECK_EQ(n, 3); /* a user's text makes no special token */
    mem_free(ids);
    tokenizer_destroy(t);
}

/* How many ids "~!" gets when tokenizer_config.json has these members too and the tokenizer.json adds <s> and <|im_end|>, or
 * (plain) nothing. */
static uint32_t n_ids_with(const char *members, bool plain)
{
    char config[256], *at;
    struct buf json = {0};
    struct tokenizer_files files = {.config = config};
    struct tokenizer *t = NULL;
    int32_t *ids = NULL;
    uint32_t n = 0;

    write_json(&json, true, "null");
    at = strstr(json.data, "\"post_processor\"");
    if (plain) memcpy(at, "\"p\"             ", 16);
    snprintf(config, sizeof(config), "{\"bos_token\": \"<s>\", \"eos_token\": \"<|im_end|>\"%s}", members);
    files.json = json.data;
    files.n_json = json.n;
    files.n_config = strlen(config);
    if (tokenizer_from_json(&files, &t, NULL) != RD_OK)
        n = 99;
    else if (tokenizer_encode(t, "~!", 2, true, true, &ids, &n, NULL) != RD_OK)
        n = 98;
    else if (tokenizer_adds_bos(t) != (n > 2 && ids[0] == tokenizer_bos(t)))
        n = 97;
    mem_free(ids);
    tokenizer_destroy(t);
    buf_deinit(&json);
    return n;
}

TEST(llamas_class_adds_what_the_config_says)
{
    CHECK_EQ(n_ids_with("", false), 4);
    CHECK_EQ(n_ids_with("", true), 2);
    CHECK_EQ(n_ids_with(", \"tokenizer_class\": \"LlamaTokenizerFast\", \"add_bos_token\": true", true), 3);
    CHECK_EQ(
        n_ids_with(", \"tokenizer_class\": \"LlamaTokenizer\", \"add_bos_token\": true, \"add_eos_token\": true", true),
        4);
    CHECK_EQ(n_ids_with(", \"tokenizer_class\": \"LlamaTokenizer\", \"add_eos_token\": false", false), 3);
    CHECK_EQ(n_ids_with(", \"tokenizer_class\": \"GemmaTokenizer\", \"add_bos_token\": false", false), 3);
    CHECK_EQ(n_ids_with(", \"tokenizer_class\": \"Qwen2Tokenizer\", \"add_bos_token\": true", true), 2);
}

TEST(what_is_not_known_is_named)
{
    static const struct {
        const char *json, *says;
    } rows[] = {
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"normalizer\":{\"type\":\"Novel\"}}",
         "normalizer \"Novel\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":{\"type\":"
         "\"UnicodeScripts\"}}",
         "UnicodeScripts"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"decoder\":{\"type\":\"CTC\"}}",
         "decoder \"CTC\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"post_processor\":{\"type\":\"X\"}}",
         "post_processor \"X\""},
        {"{\"model\":{\"type\":\"Markov\",\"vocab\":{\"a\":0}}}", "model \"Markov\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "id 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}", "tokens 0 and 1"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999},\"merges\":[]}}", "99999999"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", "merge 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"ab\"]}}", "merges"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}", "dropout"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"?\"}}", "unknown token \"?\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Split\","
         "\"pattern\":{\"Regex\":"
         "\"(a\"},\"behavior\":\"Isolated\",\"invert\":false}}",
         "(a"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", "empty"},
        {"{\"added_tokens\":[]}", "no \"model\""},
        {"{\"model\":", "tokenizer.json"},
        {"", "tokenizer.json"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rd_error err = {RD_OK, ""};

        CHECK(!load(rows[i].json, strlen(rows[i].json), &err));
        if (!strstr(err.text, rows[i].says)) test_note("%s: \"%s\"", rows[i].json, err.text);
        CHECK(strstr(err.text, rows[i].says));
    }
}

TEST(mutated_files_load_or_say_why_not)
{
    struct buf json = {0};
    struct random r;
    uint64_t alive;
    unsigned loaded = 0;

    random_init(&r, test_seed());
    write_json(&json, true, "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}");
    alive = mem_n_alive();
    for (unsigned round = 0; round < 200; round++) {
        struct rd_error err = {RD_OK, ""};
        char *copy = mem_memdup(json.data, json.n);
        size_t n = json.n;
        struct tokenizer *t;

        CHECK(copy);
        for (size_t i = 0, k = 1 + random_below(&r, 4); i < k; i++) {
            size_t at = random_below(&r, n), len = 1 + random_below(&r, 40);

            if (len > n - at) len = n - at;
            switch (random_below(&r, 4)) {
            case 0:
                copy[at] = (char)random_u64(&r);
                break;
            case 1:
                copy[at] = "\"{}[],:0"[random_below(&r, 8)];
                break;
            case 2:
                memmove(copy + at, copy + at + len, n - at - len);
                n -= len;
                break;
            default:
                memmove(copy + at, copy + random_below(&r, n - len + 1), len);
            }
        }
        t = load(copy, n, &err);
        CHECK(t || err.text[0]);
        loaded += t != NULL;
        tokenizer_destroy(t);
        mem_free(copy);
        CHECK_EQ(mem_n_alive(), alive);
    }
    test_note("%u of 200 mutated files load", loaded);
    buf_deinit(&json);
}

TEST(no_memory_leaves_nothing_behind)
{
    struct buf json = {0};
    uint64_t alive;

    json_set_alloc_funcs(malloc, free); /* jansson's own blocks do not count here */
    write_json(&json, true, "{\"type\":\"NFC\"}");
    alive = mem_n_alive();
    for (unsigned kind = 0; kind < 2; kind++) {
        static const char text[] = "the e\xcc\x81 aaaa <u> \xff <s>";
        struct tokenizer *t = NULL;
        struct token_history *h = NULL;
        int32_t *ids = NULL;
        uint32_t n;

        for (int64_t i = 0; !t; i++) {
            struct rd_error err = {RD_OK, ""};

            mem_fail_after(i);
            t = load(json.data, json.n, &err);
            mem_fail_after(-1);
            CHECK(t || err.status == RD_E_NOMEM);
            if (!t) CHECK_EQ(mem_n_alive(), alive);
        }
        CHECK_OK(token_history_create(t, &h));
        for (int64_t i = 0; !ids; i++) {
            rd_status st;

            mem_fail_after(i);
            st = kind ? token_history_encode(h, text, sizeof(text) - 1, true, true, NULL, &ids, &n, NULL, NULL)
                      : tokenizer_encode(t, text, sizeof(text) - 1, true, true, &ids, &n, NULL);
            mem_fail_after(-1);
            CHECK(st == (ids ? RD_OK : RD_E_NOMEM));
        }
        mem_free(ids);
        token_history_destroy(h);
        tokenizer_destroy(t);
        CHECK_EQ(mem_n_alive(), alive);
    }
    buf_deinit(&json);
}

static void put_random(struct random *r, struct buf *text, unsigned n)
{
    static const char *const parts[] = {
        "the ",       "aaaa",  "ing",  " ",      "  ", "\n",       "\n\n",      "12",           "<s>",
        "<|im_end|>", "<|im_", "<u>",  "!?",     "'s", "\xc3\xa9", "e\xcc\x81", "\xe4\xb8\xad", "\xf0\x9f\x98\x80",
        "\xff",       "\t",    "hall", " thing", ".",  "<",        "<|"};

    for (unsigned i = 0; i < n; i++) buf_puts(text, parts[random_below(r, sizeof(parts) / sizeof(parts[0]))]);
}

static bool grows_alike(const struct tokenizer *t, struct random *r, size_t *n_kept_all, size_t *n_all)
{
    struct token_history *h = NULL;
    struct buf text = {0};
    bool good = token_history_create(t, &h) == RD_OK;

    buf_puts(&text, "");
    for (unsigned round = 0; good && round < 30; round++) {
        int32_t *a = NULL, *b = NULL;
        uint32_t n_a = 0, n_b = 0;
        size_t n_kept = 0;
        bool parse = random_below(r, 20) != 0;

        if (random_below(r, 8) == 0) text.n = random_below(r, (uint32_t)text.n + 1); /* an edit: back, then on */
        put_random(r, &text, (unsigned)random_below(r, round % 5 ? 12 : 400));
        good = token_history_encode(h, text.data, text.n, true, parse, NULL, &a, &n_a, &n_kept, NULL) == RD_OK &&
               tokenizer_encode(t, text.data, text.n, true, parse, &b, &n_b, NULL) == RD_OK && n_a == n_b &&
               memcmp(a, b, n_a * sizeof(*a)) == 0;
        *n_kept_all += n_kept;
        *n_all += text.n;
        mem_free(a);
        mem_free(b);
    }
    buf_deinit(&text);
    token_history_destroy(h);
    return good;
}

TEST(a_text_that_grew_has_the_ids_of_the_whole)
{
    static struct tiny_vocab vocab;
    struct random r;

    random_init(&r, test_seed());
    for (unsigned kind = 0; kind < 6; kind++) {
        struct tokenizer *t = NULL;
        size_t n_kept = 0, n_all = 0;

        if (kind < 2) {
            tiny_vocab_init(&vocab, kind ? TOKENIZER_SPM : TOKENIZER_BPE);
            tiny_vocab_add(&vocab, "<|im_end|>", TOKEN_CONTROL, 0);
            tiny_vocab_add(&vocab, "<u>", TOKEN_USER_DEFINED, 0);
            CHECK_OK(tokenizer_create(&vocab.spec, &t, NULL));
        } else {
            t = make(kind % 2 == 0, kind < 4 ? "null" : "{\"type\":\"NFC\"}");
        }
        CHECK(t);
        for (unsigned i = 0; i < (test_is_long() ? 400 : 40); i++) CHECK(grows_alike(t, &r, &n_kept, &n_all));
        test_note("kind %u: %.0f %% of the bytes kept their ids", kind, 100.0 * (double)n_kept / (double)n_all);
        tokenizer_destroy(t);
    }
}
