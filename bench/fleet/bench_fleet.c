/* bench/fleet/bench_fleet.c - a fleet of servers, simulated: what its caches find, by number of servers, policy of the router in front of
 * them, and mix of conversations; and what a shared store would have to carry.
 *
 *     bench_fleet [--servers 1,4,16] [--tokens N] [--store-tokens N] [--kv-bytes N] [--requests N]
 *
 *     --tokens        that a server's memory holds; 131072
 *     --store-tokens  that the store holds, for each server; 1048576
 *     --kv-bytes      of a token; 131072: 8 billion parameters, grouped heads, 16 bits
 *     --requests      to each server, on average, the first half of which only fills the caches; 200
 *
 * Trees, pools, eviction and digests are radish's own; pages hold nothing. Each server has 16 conversations, of which one after
 * the other, at random, takes its next turn, at a request a second for each server. Policies:
 *
 *     round robin   one after the other
 *     least load    where the fewest requests run
 *     hash          by conversation, whatever runs there
 *     cache         where most of the prompt is, unless more than 6 run there, where 2 would be fair: then as least load
 *
 * found: share of prompt tokens in the server's own memory; with store: there or in the store. read, written: MB/s between each
 * server and the store, at a request a second. most: requests of the busiest server over the average.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "fleet_mix.h"
#include "fleet_server.h"

#define CONVERSATIONS 16u    /* of each server */
#define PREFILL_TOK_S 8000.0 /* that a server computes; an answer takes */
#define ANSWER_S      2.0
#define NO_SERVER     UINT32_MAX

enum { ROUND_ROBIN, LEAST_LOAD, BY_HASH, BY_CACHE, N_POLICIES };
static const char *const policies[N_POLICIES] = {"round robin", "least load", "hash", "cache"};

struct options {
    uint32_t servers[16], n_servers, n_requests;
    uint64_t tokens, store_tokens, kv_bytes;
};

struct fleet {
    struct fleet_server *servers;
    uint32_t n, turn; /* turn: of round robin */
    struct conversation *talks;
    uint32_t n_talks;
    struct digest_map where, store; /* pages -> the server that had them last; what the store has */
    uint64_t random, n_begun;
    int mix;
};

struct sums {
    double prompt, found, from_store, read_pages, written_pages;
};

static uint64_t draw(struct fleet *f)
{
    return mix_bits(f->random++);
}

static uint32_t least_loaded(struct fleet *f, double time)
{
    uint32_t first = (uint32_t)(draw(f) % f->n), best = first, n_look = f->n < 64 ? f->n : 64; /* of many, some */
    uint32_t least = UINT32_MAX;

    for (uint32_t i = 0; i < n_look; i++) {
        uint32_t at = (first + i) % f->n, load = fleet_server_load(&f->servers[at], time);

        if (load < least) least = load, best = at;
    }
    return best;
}

/* The server that has most of it, by the latest that each page was seen at. */
static uint32_t holder(struct fleet *f, const uint64_t *digests, uint32_t n)
{
    for (uint32_t i = n; i-- > 0;) {
        const uint32_t *at = digest_map_find(&f->where, digests[i]);

        if (at) return *at;
    }
    return NO_SERVER;
}

static uint32_t choose(struct fleet *f, int policy, const struct conversation *c, const uint64_t *digests, uint32_t n,
                       double time)
{
    uint32_t at;

    switch (policy) {
    case ROUND_ROBIN:
        return f->turn++ % f->n;
    case LEAST_LOAD:
        return least_loaded(f, time);
    case BY_HASH:
        return (uint32_t)(mix_bits(c->id) % f->n);
    default:
        at = holder(f, digests, n);
        if (at == NO_SERVER || fleet_server_load(&f->servers[at], time) > 2 * ANSWER_S + 2)
            return least_loaded(f, time);
        return at;
    }
}

/* One turn of a conversation. */
static bool ask(struct fleet *f, int policy, double time, kv_key *keys, uint64_t *digests, struct sums *out)
{
    struct conversation *c = &f->talks[draw(f) % f->n_talks];
    uint32_t n_prompt, n = mix_keys(c, keys, &n_prompt), n_pages = fleet_digests(keys, n, digests);
    uint32_t n_asked = n_prompt / PAGE_TOKENS, at = choose(f, policy, c, digests, n_asked, time), n_hit, n_read = 0;
    struct fleet_server *s = &f->servers[at];

    n_hit = fleet_server_serve(s, keys, n_prompt, n);
    for (uint32_t i = n_hit / PAGE_TOKENS; i < n_asked && digest_map_find(&f->store, digests[i]); i++) n_read++;
    out->prompt += n_prompt;
    out->found += n_hit;
    if (n_read) out->from_store += (double)(n_hit / PAGE_TOKENS + n_read) * PAGE_TOKENS - n_hit;
    out->read_pages += n_read;
    for (uint32_t i = 0; i < n_pages; i++) {
        out->written_pages += digest_map_put(&f->store, digests[i], 0);
        digest_map_put(&f->where, digests[i], at);
    }
    if (++c->turn == c->n_turns) *c = mix_begin(f->mix, f->n_begun++, f->n, draw(f));
    return fleet_server_run_until(s, time + ANSWER_S + (n_prompt - n_hit) / PREFILL_TOK_S);
}

static void fleet_deinit(struct fleet *f)
{
    for (uint32_t i = 0; f->servers && i < f->n; i++) fleet_server_deinit(&f->servers[i]);
    mem_free(f->servers);
    mem_free(f->talks);
    digest_map_deinit(&f->where);
    digest_map_deinit(&f->store);
}

static bool fleet_init(struct fleet *f, const struct options *o, uint32_t n, int mix)
{
    *f = (struct fleet){.n = n, .n_talks = n * CONVERSATIONS, .random = 1, .mix = mix};
    f->servers = mem_zalloc(n, sizeof(*f->servers));
    f->talks = mem_zalloc(f->n_talks, sizeof(*f->talks));
    if (!f->servers || !f->talks || !digest_map_init(&f->where, 2 * n * o->tokens / PAGE_TOKENS) ||
        !digest_map_init(&f->store, n * o->store_tokens / PAGE_TOKENS))
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (!fleet_server_init(&f->servers[i], (uint32_t)(o->tokens / PAGE_TOKENS))) return false;
    for (uint32_t i = 0; i < f->n_talks; i++) {
        f->talks[i] = mix_begin(mix, f->n_begun++, n, draw(f));
        f->talks[i].turn = (uint32_t)(draw(f) % f->talks[i].n_turns); /* they did not all begin at once */
    }
    return true;
}

static void report(const struct options *o, const struct fleet *f, int policy, const struct sums *s, double seconds)
{
    double page_mb = (double)o->kv_bytes * PAGE_TOKENS / 1e6, most = 0, all = 0;

    for (uint32_t i = 0; i < f->n; i++) {
        double n = (double)f->servers[i].n_requests;

        all += n;
        most = n > most ? n : most;
    }
    printf("| %s | %u | %s | %.1f | %.1f | %.1f | %.1f | %.2f |\n", mix_names[f->mix], f->n, policies[policy],
           100 * s->found / s->prompt, 100 * (s->found + s->from_store) / s->prompt,
           s->read_pages * page_mb / seconds / f->n, s->written_pages * page_mb / seconds / f->n, most * f->n / all);
    fflush(stdout);
}

static bool simulate(const struct options *o, uint32_t n, int mix, int policy)
{
    struct fleet f;
    struct sums sums = {0};
    kv_key *keys = mem_zalloc(MOST_TOKENS, sizeof(*keys));
    uint64_t *digests = mem_zalloc(MOST_TOKENS / PAGE_TOKENS, sizeof(*digests));
    uint64_t n_all = (uint64_t)n * o->n_requests;
    bool ok = fleet_init(&f, o, n, mix) && keys && digests;

    for (uint64_t i = 0; i < n_all && ok; i++) {
        if (i == n_all / 2) {
            memset(&sums, 0, sizeof(sums));
            for (uint32_t k = 0; k < n; k++) f.servers[k].n_requests = 0;
        }
        ok = ask(&f, policy, (double)i / n, keys, digests, &sums);
    }
    if (ok) report(o, &f, policy, &sums, (double)(n_all - n_all / 2) / n);
    fleet_deinit(&f);
    mem_free(keys);
    mem_free(digests);
    return ok;
}

static bool parse(int argc, char **argv, struct options *o)
{
    for (int i = 1; i < argc; i += 2) {
        char *at = i + 1 < argc ? argv[i + 1] : NULL;

        if (!at) return false;
        if (strcmp(argv[i], "--servers") == 0) {
            o->n_servers = 0;
            while (*at && o->n_servers < 16) {
                o->servers[o->n_servers] = (uint32_t)strtoul(at, &at, 10);
                if (o->servers[o->n_servers++] == 0) return false;
                at += *at == ',';
            }
        } else if (strcmp(argv[i], "--tokens") == 0) {
            o->tokens = strtoull(at, NULL, 10);
        } else if (strcmp(argv[i], "--store-tokens") == 0) {
            o->store_tokens = strtoull(at, NULL, 10);
        } else if (strcmp(argv[i], "--kv-bytes") == 0) {
            o->kv_bytes = strtoull(at, NULL, 10);
        } else if (strcmp(argv[i], "--requests") == 0) {
            o->n_requests = (uint32_t)strtoul(at, NULL, 10);
        } else {
            return false;
        }
    }
    return o->n_servers > 0 && o->tokens >= 2 * MOST_TOKENS && o->n_requests >= 2;
}

int main(int argc, char **argv)
{
    struct options o = {.servers = {1, 4, 16, 64},
                        .n_servers = 4,
                        .n_requests = 200,
                        .tokens = 131072,
                        .store_tokens = 1048576,
                        .kv_bytes = 131072};

    if (!parse(argc, argv, &o)) {
        fprintf(stderr,
                "bench_fleet [--servers 1,4,16] [--tokens N] [--store-tokens N] [--kv-bytes N] [--requests N]\n");
        return 2;
    }
    puts("| mix | servers | policy | found, % | with the store, % | read, MB/s | written, MB/s | most |");
    puts("|---|---|---|---|---|---|---|---|");
    for (int mix = 0; mix < N_MIXES; mix++)
        for (uint32_t i = 0; i < o.n_servers; i++)
            for (int policy = o.servers[i] == 1 ? N_POLICIES - 1 : 0; policy < N_POLICIES; policy++)
                if (!simulate(&o, o.servers[i], mix, policy)) {
                    fputs("bench_fleet: out of memory\n", stderr);
                    return 1;
                }
    return 0;
}
