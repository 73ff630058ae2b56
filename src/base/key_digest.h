/* base/key_digest.h - an API key as a file may hold it: what a line of the key file says of it (server/http/keys.h).
 *
 * Keys are drawn, 256 bits each: nobody tries them all, so one round of SHA-256 is enough, and every request can afford it.
 * The salt keeps equal keys of two files from being seen as equal.
 * Thread  any thread.
 */
#pragma once
#include <stdbool.h>
#include "base/sha.h"

#define KEY_SALT_MOST   64u  /* characters: letters, digits, - and _ */
#define KEY_NAME_MOST   64u  /* likewise, and . and @ */
#define KEY_MOST        512u /* bytes of a key: what is longer is none, and is not hashed */
#define KEY_DRAWN_BYTES 48u  /* of key_draw, the end included */

/* SHA-256 of salt and key, in lower case. */
void key_digest(const char *salt, const char *key, char hex[SHA_HEX_BYTES]);
/* "rk-" and 43 letters and digits, from the operating system. */
void key_draw(char key[KEY_DRAWN_BYTES]);
/* 22 letters and digits. */
void key_draw_salt(char salt[KEY_SALT_MOST + 1]);
bool key_is_name(const char *name);
bool key_is_salt(const char *salt);
