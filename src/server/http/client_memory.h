/* server/http/client_memory.h - one budget for all memory that clients can make the server hold.
 *
 *     bodies     bytes of request bodies, as they come
 *     trees      JSON that is being read, and answers that are being written, by whoever does it
 *     requests   prompts that were handed to the engine, with what their preparation takes
 *     answers    answers that are kept until they are complete
 *     unread     what clients have not read yet
 *     stored     answers kept for later (responses_store.h)
 *
 * A charge is taken before the memory is, and given back after it. What is refused is told as a 429 with Retry-After,
 * or as a 413 where it would not fit into an empty server either. What has come into being anyway (an answer that its
 * client does not read) is counted without asking: then others are refused.
 *
 * No client gets everything. Let `free` be what would be left of the budget, a sixteenth of it reserved:
 *     a charge may hold as much as would still be free              (alone half of the budget, two a third each, ...)
 *     all charges of one key three times that                       (alone three quarters)
 * so that whoever comes next finds some. Charges within CLIENT_SMALL_BYTES may also take the reserve, and are not held
 * to shares: small requests go on while big ones are refused. Source of the rule: dynamic thresholds for buffers that
 * are shared, Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998.
 *
 * The sum of the parts is what is used, whenever no charge is being changed.
 *
 * Units   bytes.
 * Thread  struct client_memory: any thread (atomics, relaxed: they are counts, nothing is published through them).
 *         struct client_charge: its owner.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "server/http/errors.h"

#define CLIENT_SMALL_BYTES (256u << 10) /* a prompt of about 16 KiB */
#define CLIENT_KEYS        64u          /* tenants' keys are told apart by this many values of a hash */

enum client_part {
    CLIENT_BODIES,
    CLIENT_TREES,
    CLIENT_REQUESTS,
    CLIENT_ANSWERS,
    CLIENT_UNREAD,
    CLIENT_STORED,
    CLIENT_PARTS
};

struct client_memory {
    uint64_t limit;
    atomic_ullong used, peak, n_refused;
    atomic_ullong parts[CLIENT_PARTS], keys[CLIENT_KEYS];
};

/* What one request, connection or store holds. Zeroed: of no budget, and everything is granted. */
struct client_charge {
    struct client_memory *memory;
    uint32_t key;
    bool is_store; /* held to no share, because it gives back what others ask for */
    uint64_t sum, parts[CLIENT_PARTS];
};

/* limit 0: 256 MiB, or a sixteenth of this machine's memory where that is less; at least 32 MiB. */
void client_memory_init(struct client_memory *m, uint64_t limit);
/* {"limit":..,"used":..,"peak":..,"refused":..,"bodies":..,...} */
void client_memory_put(const struct client_memory *m, struct buf *out);
/* Less than an eighth is free: what may wait should not be made. */
bool client_memory_tight(const struct client_memory *m);

/* tenant: the key that was sent, or NULL. m zeroed: nothing is counted, everything is granted. */
void client_charge_init(struct client_charge *c, struct client_memory *m, const char *tenant);
/* What it holds counts for another key from now on. */
void client_charge_owner(struct client_charge *c, const char *tenant);
/* The part becomes n. -1: it may not grow so much, nothing has changed; *e (may be NULL) is the answer. */
int client_charge_set(struct client_charge *c, enum client_part part, uint64_t n, struct api_error *e);
/* The same for what is there already. */
void client_charge_force(struct client_charge *c, enum client_part part, uint64_t n);
/* What `from` holds of the part is `to`'s, of the same budget. */
void client_charge_move(struct client_charge *to, struct client_charge *from, enum client_part part);
/* Gives everything back. */
void client_charge_clear(struct client_charge *c);
