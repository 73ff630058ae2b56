/* kv/kv_space.h - a namespace: whose keys and values they are. Requests share what is stored within one, never across.
 *
 *     salt      adapter   who finds what it stored
 *     none      none      everyone who sent no salt: the open space
 *     digest    none      who sent the same salt
 *     none      identity  everyone who sent no salt and asked for the same adapter: that adapter's open space
 *     digest    identity  who sent the same of both
 *
 * An adapter changes the weights and so every key and value, hence it separates as a salt does. It differs in one thing:
 * public prompts pass from the open space to the salted ones of the same adapter (engine/public_prefix.h), never to those
 * of another.
 *
 * The tree, host memory, the disk, the verifier, drafts and the memory of answers all know a namespace by this struct,
 * or by its name: the bytes that stand behind the name of the model in keys of the tree and of the disk.
 *
 * Thread  any thread.  Errors  none.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "base/hash.h"

/* All zeros: the open space of the model as it is. */
struct kv_space {
    struct hash128 salt;    /* keyed digest of the client's cache salt; zero: none */
    struct hash128 adapter; /* identity of the adapter's weights; zero: none */
};

#define KV_SPACE_NAME_MAX sizeof(struct kv_space)

bool kv_space_equal(const struct kv_space *a, const struct kv_space *b);
/* No salt: shared with everyone who uses the same adapter. */
bool kv_space_is_open(const struct kv_space *s);
/* The open space of the same adapter. */
struct kv_space kv_space_opened(const struct kv_space *s);
/* Writes at most KV_SPACE_NAME_MAX bytes and returns how many: 0 for the open space, the salt alone without an adapter (as
 * in folders written before there were adapters), else both. Names of different spaces behind one text differ. */
size_t kv_space_name(const struct kv_space *s, void *out);
/* "salt 0123..., adapter none" into out[cap], cut where it is short: for logs. */
void kv_space_print(const struct kv_space *s, char *out, size_t cap);
