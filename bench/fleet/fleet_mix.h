/* bench/fleet/fleet_mix.h - conversations as they are spread over a fleet: their tokens, made anew from a few numbers whenever they
 * are asked for.
 *
 *     agents      20 turns of 230 tokens behind one of 8 prompts of 3,000 tokens
 *     chats       5 turns of 300 tokens behind one prompt of 200
 *     documents   2 questions of 60 tokens about one of many documents of 8,000; a few are asked about often
 */
#pragma once
#include <stdint.h>
#include "kv/kv_key.h"

enum { MIX_AGENTS, MIX_CHATS, MIX_DOCUMENTS, N_MIXES };
extern const char *const mix_names[N_MIXES];

struct conversation {
    uint64_t id;
    uint32_t head, n_head;  /* which beginning it shares with others, its tokens */
    uint32_t turn, n_turns; /* the next one */
    uint32_t n_turn;        /* tokens that each adds, an answer among them */
};

#define ANSWER_TOKENS 40u    /* of a turn */
#define MOST_TOKENS   10000u /* of a prompt */

/* A new conversation of a fleet of n_servers. random: 64 bits of it. */
struct conversation mix_begin(int mix, uint64_t id, uint32_t n_servers, uint64_t random);
/* Prompt and answer of the next turn into keys[MOST_TOKENS]; returns how many, *n_prompt of them asked. */
uint32_t mix_keys(const struct conversation *c, kv_key *keys, uint32_t *n_prompt);
/* 64 bits of x. */
uint64_t mix_bits(uint64_t x);
