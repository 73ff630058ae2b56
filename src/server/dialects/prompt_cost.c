/* server/dialects/prompt_cost.c - one pass over the JSON's bytes; it is not parsed for this. */
#include "server/dialects/prompt_cost.h"
#include <stdbool.h>
#include <string.h>
#include "server/params/params.h"

#define TEXT_COST    10u /* for each byte, */
#define STRETCH_COST 38u /* and for each of the longest stretch */

/* Longest stretch so far, and the one that is open. */
struct stretch {
    size_t longest, open;
};

static void add_text(struct stretch *x, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool blank = s[i] == ' ' || s[i] == '\n' || (s[i] == '\\' && i + 1 < n && s[i + 1] == 'n');

        x->open = blank ? 0 : x->open + 1;
        if (x->open > x->longest) x->longest = x->open;
    }
}

static uint64_t cost(size_t n, const struct stretch *x)
{
    return TEXT_COST * (uint64_t)n + STRETCH_COST * (uint64_t)x->longest;
}

uint64_t prompt_text_cost(const char *s, size_t n)
{
    struct stretch x = {0, 0};

    add_text(&x, s, n);
    return cost(n, &x);
}

/* Where a part can be: {"messages": [{"content": [PART, ..], ..}, ..], ..}. What is deeper is no matter. */
enum place { BODY, LIST, MESSAGE, PARTS, PART, ELSEWHERE };

struct level {
    enum place place;
    const char *name; /* of the member that comes; not ended by 0 */
    size_t n_name, begin;
    struct stretch before;  /* the part's texts */
    bool is_image, is_told; /* is_told: no name in it has an escape, which might spell "type" in another way */
};

struct scan {
    const char *s;
    size_t n, n_left_out;
    struct stretch x;
    enum place root;
    struct level levels[5]; /* down to PART */
    size_t depth;           /* of all that are open */
};

static bool is_word(const char *s, size_t n, const char *word)
{
    return n == strlen(word) && memcmp(s, word, n) == 0;
}

static enum place place_in(const struct scan *c, bool is_list)
{
    const struct level *up = c->depth > 0 ? &c->levels[c->depth - 1] : NULL;

    if (!up) return (c->root == LIST) == is_list ? c->root : ELSEWHERE;
    if (up->place == BODY && is_list &&
        (is_word(up->name, up->n_name, "messages") || is_word(up->name, up->n_name, "input")))
        return LIST;
    if (up->place == LIST && !is_list) return MESSAGE;
    if (up->place == MESSAGE && is_list && is_word(up->name, up->n_name, "content")) return PARTS;
    return up->place == PARTS && !is_list ? PART : ELSEWHERE;
}

static bool has_level(const struct scan *c, size_t depth)
{
    return depth < sizeof(c->levels) / sizeof(c->levels[0]);
}

static void open_level(struct scan *c, size_t at)
{
    if (has_level(c, c->depth))
        c->levels[c->depth] = (struct level){
            .place = place_in(c, c->s[at] == '['), .name = "", .begin = at, .before = c->x, .is_told = true};
    c->depth++;
}

static void close_level(struct scan *c, size_t at)
{
    const struct level *l;

    if (c->depth == 0 || !has_level(c, --c->depth)) return;
    l = &c->levels[c->depth];
    if (l->place != PART || !l->is_image || !l->is_told) return;
    c->x = l->before;
    c->n_left_out += at + 1 - l->begin;
}

/* A string between its quotes, [begin, end). */
static void string(struct scan *c, size_t begin, size_t end)
{
    struct level *l = c->depth > 0 && has_level(c, c->depth - 1) ? &c->levels[c->depth - 1] : NULL;
    const char *s = c->s + begin;
    const size_t n = end - begin;
    size_t next = end + 1;

    while (next < c->n && strchr(" \t\r\n", c->s[next])) next++;
    if (next < c->n && c->s[next] == ':') { /* a name */
        if (!l) return;
        l->name = s;
        l->n_name = n;
        if (n > 0 && memchr(s, '\\', n)) l->is_told = false;
        return;
    }
    if (l && l->place == PART && is_word(l->name, l->n_name, "type"))
        l->is_image = param_part_is_image(s, n); /* the last counts */
    add_text(&c->x, s, n);
}

static uint64_t json_cost(const char *s, size_t n, enum place root)
{
    struct scan c = {.s = s, .n = n, .root = root};

    for (size_t i = 0; i < n; i++) {
        size_t begin = i + 1;

        if (s[i] == '{' || s[i] == '[') open_level(&c, i);
        if (s[i] == '}' || s[i] == ']') close_level(&c, i);
        if (s[i] != '"') continue;
        for (i++; i < n && s[i] != '"'; i++) i += s[i] == '\\';
        if (i > n) i = n;
        string(&c, begin, i);
    }
    return cost(n - c.n_left_out, &c.x);
}

uint64_t prompt_json_cost(const char *s, size_t n)
{
    return json_cost(s, n, BODY);
}

uint64_t prompt_messages_cost(const char *s, size_t n)
{
    return json_cost(s, n, LIST);
}
