/* engine/constraint.c - thinking first, then the grammar; what it forces is queued. */
#include "engine/constraint.h"
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"

#define FORCED_BYTES  192u
#define SPECIAL_BYTE  0xffu /* begins a special token in a grammar's bytes: grammar_build.h */
#define SPECIAL_BYTES 4u

rd_status constraint_init(struct constraint *c, const struct constraint_params *p)
{
    memset(c, 0, sizeof(*c));
    if (!p->grammar) return RD_OK;
    c->p = *p;
    c->state = p->thinks ? CONSTRAINT_THINKING : p->n_open ? CONSTRAINT_BEGIN : CONSTRAINT_ACTIVE;
    if (grammar_matcher_create(p->grammar, CONSTRAINT_MAX_FORCED, &c->matcher) == RD_OK) return RD_OK;
    c->state = CONSTRAINT_NONE;
    return RD_E_NOMEM;
}

void constraint_deinit(struct constraint *c)
{
    grammar_matcher_destroy(c->matcher);
    c->matcher = NULL;
    c->state = CONSTRAINT_NONE;
}

/* Appends what stands before the first special token of bytes, or that token. */
static uint32_t queue_part(struct constraint *c, const uint8_t *bytes, uint32_t n, struct constraint_place place)
{
    const uint8_t *special = memchr(bytes, SPECIAL_BYTE, n);
    uint32_t room = CONSTRAINT_MAX_FORCED - c->n_forced, n_text = special ? (uint32_t)(special - bytes) : n;

    if (special == bytes) {
        if (room == 0) return 0;
        c->forced[c->n_forced++] = bytes[1] << 16 | bytes[2] << 8 | bytes[3];
        return SPECIAL_BYTES;
    }
    place.whole |= special != NULL;
    c->n_forced += c->p.tokenise(c->p.arg, bytes, n_text, place, c->forced + c->n_forced, room);
    return n_text;
}

/* The tokens of what must come. They are checked against the grammar, so that a tokenizer that writes bytes otherwise
 * than they are costs speed alone. */
static void look_ahead(struct constraint *c, bool first)
{
    struct constraint_place place = {first, false};
    uint8_t bytes[FORCED_BYTES];
    uint32_t n, at = 0, n_good = 0;

    c->has_begun = true;
    c->at = c->n_forced = 0;
    if (!c->p.tokenise) return;
    n = grammar_forced(c->matcher, bytes, sizeof(bytes));
    if (n == 0 || grammar_accept_bytes(c->matcher, bytes, n) != RD_OK) return;
    place.whole = grammar_must_end(c->matcher);
    grammar_rollback(c->matcher, 1);
    while (at < n) {
        uint32_t before = c->n_forced, taken = queue_part(c, bytes + at, n - at, place);

        at += taken;
        place.first = false;
        if (taken == 0 || c->n_forced == before) break;
    }
    while (n_good < c->n_forced && grammar_accept(c->matcher, c->forced[n_good]) == RD_OK) n_good++;
    grammar_rollback(c->matcher, n_good);
    c->n_forced = n_good;
}

rd_status constraint_bound(struct constraint *c, uint32_t n_left, const int32_t *ends, uint32_t n_ends,
                           struct sampler_bounds *b)
{
    rd_status st;

    if (c->state == CONSTRAINT_NONE) return RD_OK;
    if (c->state == CONSTRAINT_THINKING || c->state == CONSTRAINT_OPENING) {
        b->banned = ends; /* an answer must come behind the thinking */
        b->n_banned = n_ends;
        return RD_OK;
    }
    st = grammar_mask(c->matcher, n_left, &b->mask);
    if (st != RD_OK) return st;
    if (c->state == CONSTRAINT_BEGIN) {
        b->also = c->p.open;
        b->n_also = 1;
    } else if (grammar_can_end(c->matcher)) {
        b->also = ends;
        b->n_also = n_ends;
    }
    return RD_OK;
}

bool constraint_forced(struct constraint *c, int32_t *token)
{
    if (c->state == CONSTRAINT_ACTIVE && !c->has_begun) look_ahead(c, true);
    if (c->state == CONSTRAINT_OPENING)
        *token = c->p.open[c->n_matched];
    else if (c->at < c->n_forced)
        *token = c->forced[c->at];
    else
        return false;
    return true;
}

uint32_t constraint_ahead(const struct constraint *c, const int32_t **tokens)
{
    *tokens = c->forced + c->at;
    return c->n_forced - c->at;
}

uint32_t constraint_agree(struct constraint *c, const uint32_t *keys, uint32_t n)
{
    uint32_t i = 0;

    if (c->state == CONSTRAINT_BEGIN) return 0;
    if (c->state != CONSTRAINT_ACTIVE) return n;
    while (i < n && grammar_accept(c->matcher, (int32_t)keys[i]) == RD_OK) i++;
    grammar_rollback(c->matcher, i);
    return i;
}

static bool follow(struct constraint *c, const int32_t *tag, uint32_t n, int32_t token)
{
    if (n > 0 && token == tag[c->n_matched])
        c->n_matched++;
    else
        c->n_matched = n > 0 && token == tag[0];
    if (n == 0 || c->n_matched < n) return false;
    c->n_matched = 0;
    return true;
}

static rd_status accept_active(struct constraint *c, int32_t token)
{
    rd_status st = grammar_accept(c->matcher, token);

    if (st != RD_OK) return st;
    if (c->at < c->n_forced && c->forced[c->at] == token && ++c->at < c->n_forced) return RD_OK;
    look_ahead(c, false);
    return RD_OK;
}

rd_status constraint_accept(struct constraint *c, int32_t token)
{
    switch (c->state) {
    case CONSTRAINT_NONE:
        return RD_OK;
    case CONSTRAINT_BEGIN:
        if (token != c->p.open[0]) {
            c->state = CONSTRAINT_ACTIVE;
            return accept_active(c, token);
        }
        c->state = CONSTRAINT_OPENING;
        /* fall through */
    case CONSTRAINT_OPENING:
        if (++c->n_matched < c->p.n_open) return RD_OK;
        c->n_matched = 0;
        c->state = CONSTRAINT_THINKING;
        return RD_OK;
    case CONSTRAINT_THINKING:
        if (follow(c, c->p.close, c->p.n_close, token)) c->state = CONSTRAINT_ACTIVE;
        return RD_OK;
    case CONSTRAINT_ACTIVE:
        return accept_active(c, token);
    }
    return RD_OK;
}

bool constraint_has_ended(const struct constraint *c)
{
    return c->state == CONSTRAINT_ACTIVE && grammar_must_end(c->matcher);
}
