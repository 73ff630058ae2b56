/* base/key_file.h - a secret key in a file of its own: magic, key, and a check of both.
 *
 * It is synced before it has its name, so a power cut leaves the old key, the new one or none, never zeros that look
 * like a key. A file that is not whole is no key.
 *
 * Thread  any thread. Two that write one name are fine: the later one stays.
 * Errors  read: false. write: as cache_file_create, or RD_E_IO.
 */
#pragma once
#include <stdbool.h>
#include "base/sip_hash.h"
#include "radish/status.h"

bool key_file_read(const char *dir, const char *name, struct sip_key *out);
rd_status key_file_write(const char *dir, const char *name, struct sip_key key, struct rd_error *err);
