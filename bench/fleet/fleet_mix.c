/* bench/fleet/fleet_mix.c - see fleet_mix.h. */
#include "fleet_mix.h"
#include <math.h>

const char *const mix_names[N_MIXES] = {"agents", "chats", "documents"};

uint64_t mix_bits(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Of n documents, by a law of powers: the first is asked about most. */
static uint32_t popular(uint32_t n, uint64_t random)
{
    double u = ((double)(random >> 11) + 1) / 9007199254740993.0;

    return (uint32_t)(pow(n, u) - 1);
}

struct conversation mix_begin(int mix, uint64_t id, uint32_t n_servers, uint64_t random)
{
    struct conversation c = {.id = id};

    switch (mix) {
    case MIX_AGENTS:
        c.head = random % 8, c.n_head = 3000, c.n_turns = 20, c.n_turn = 230;
        break;
    case MIX_CHATS:
        c.head = 0, c.n_head = 200, c.n_turns = 5, c.n_turn = 300;
        break;
    default:
        c.head = popular(40 * n_servers, random), c.n_head = 8000, c.n_turns = 2, c.n_turn = 60;
        break;
    }
    return c;
}

uint32_t mix_keys(const struct conversation *c, kv_key *keys, uint32_t *n_prompt)
{
    uint64_t head = mix_bits(c->head), own = mix_bits(~c->id);
    uint32_t n = c->n_head + (c->turn + 1) * c->n_turn;

    for (uint32_t i = 0; i < n; i++) keys[i] = (kv_key)(mix_bits((i < c->n_head ? head : own) + i) % 100000);
    *n_prompt = n - ANSWER_TOKENS;
    return n;
}
