/* base/key_digest.c - one hash, and letters from random bytes. */
#include "base/key_digest.h"
#include <stdint.h>
#include <string.h>
#include "base/random.h"

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

void key_digest(const char *salt, const char *key, char hex[SHA_HEX_BYTES])
{
    struct sha s;

    sha256_begin(&s);
    sha_add(&s, salt, strlen(salt));
    sha_add(&s, key, strlen(key));
    sha_end(&s, hex);
}

static void draw(char *out, size_t n)
{
    uint8_t bytes[64];

    random_os(bytes, n);
    for (size_t i = 0; i < n; i++) out[i] = letters[bytes[i] & 63];
    out[n] = 0;
}

void key_draw(char key[KEY_DRAWN_BYTES])
{
    memcpy(key, "rk-", 3);
    draw(key + 3, 43);
}

void key_draw_salt(char salt[KEY_SALT_MOST + 1])
{
    draw(salt, 22);
}

static bool is_of(const char *s, const char *more, size_t most)
{
    size_t n = strlen(s);

    for (const char *at = s; *at; at++)
        if (!strchr(letters, *at) && !strchr(more, *at)) return false;
    return n > 0 && n <= most;
}

bool key_is_name(const char *name)
{
    return is_of(name, ".@", KEY_NAME_MOST);
}

bool key_is_salt(const char *salt)
{
    return is_of(salt, "", KEY_SALT_MOST);
}
