/* base/config_text.h - a configuration: `key = value`, a line each.
 *
 *     # a comment
 *     port = 8000                           a number stays as it is written: 0x, _ and exponents are the reader's to take
 *     kv-bytes = "4G"                       or 'as it stands'
 *     no-speculation = true
 *     models = ["smollm2", "org/name"]      may go over several lines
 *
 * It is a part of TOML 1.0: every configuration is a TOML file that means the same. Not taken, and said so: [tables],
 * dotted and quoted keys, dates, """long texts""", {inline tables}, lists within lists, and a key that comes twice.
 *
 * Thread  any thread.
 * Errors  RD_E_FORMAT: "NAME:LINE: what is wrong"; RD_E_LIMIT, RD_E_NOMEM. Nothing is given then.
 * Source  TOML 1.0.0, toml.io.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"

#define CONFIG_MOST_BYTES  (1u << 20)
#define CONFIG_MOST_KEYS   512u
#define CONFIG_MOST_VALUES 4096u /* of all lists together */

enum config_kind { CONFIG_TEXT, CONFIG_NUMBER, CONFIG_BOOL };

struct config_value {
    enum config_kind kind;
    const char *text; /* unescaped; of a number or bool as it is written, without _ */
};

struct config_key {
    const char *name;
    uint32_t line; /* from 1 */
    bool is_list;
    uint32_t at, n; /* values[at .. at + n) */
};

struct config {
    char *bytes;             /* what names and texts point into */
    struct config_key *keys; /* [n_keys] */
    struct config_value *values;
    size_t n_keys, cap_keys, n_values, cap_values;
};

/* Copies text[0..n). name: for messages. */
rd_status config_read(const char *text, size_t n, const char *name, struct config *out, struct rd_error *err);
/* Zeroed ones are fine. */
void config_free(struct config *c);
