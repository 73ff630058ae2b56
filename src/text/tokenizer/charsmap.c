/* text/tokenizer/charsmap.c - the double-array trie of a precompiled character map. */
#include "text/tokenizer/charsmap.h"
#include <string.h>
#include <utf8proc.h>
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/utf8.h"

struct charsmap {
    uint32_t *units;
    size_t n_units;
    char *texts;
    size_t n_texts;
};

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* false: not base64. out has room for n. */
static bool base64_decode(const char *s, size_t n, uint8_t *out, size_t *n_out)
{
    uint32_t bits = 0;
    unsigned n_bits = 0;

    *n_out = 0;
    while (n && s[n - 1] == '=') n--;
    for (size_t i = 0; i < n; i++) {
        int digit = base64_digit(s[i]);

        if (digit < 0) return false;
        bits = bits << 6 | (uint32_t)digit;
        n_bits += 6;
        if (n_bits >= 8) out[(*n_out)++] = (uint8_t)(bits >> (n_bits -= 8));
    }
    return true;
}

rd_status charsmap_create(const char *base64, size_t n, struct charsmap **out, struct rd_error *err)
{
    struct charsmap *m = mem_zalloc(1, sizeof(*m));
    uint8_t *bytes = mem_alloc(n + 1, 1);
    uint32_t n_trie = 0;
    size_t n_bytes = 0;
    rd_status st = RD_E_NOMEM;

    if (!m || !bytes) goto fail;
    st = RD_E_FORMAT;
    if (!base64_decode(base64, n, bytes, &n_bytes)) goto fail;
    if (n_bytes >= 4) memcpy(&n_trie, bytes, 4);
    if (n_trie < 4 || n_trie % 4 || n_trie > n_bytes - 4) goto fail;
    if (!utf8_valid((const char *)bytes + 4 + n_trie, n_bytes - 4 - n_trie)) goto fail;
    st = RD_E_NOMEM;
    m->n_units = n_trie / 4;
    m->n_texts = n_bytes - 4 - n_trie;
    m->units = mem_alloc(m->n_units, sizeof(*m->units));
    m->texts = mem_memdup(bytes + 4 + n_trie, m->n_texts);
    if (!m->units || !m->texts) goto fail;
    memcpy(m->units, bytes + 4, n_trie);
    mem_free(bytes);
    *out = m;
    return RD_OK;

fail:
    mem_free(bytes);
    charsmap_destroy(m);
    return error_set(err, st, "normalizer Precompiled: the map of %zu characters: %s", n, rd_status_text(st));
}

void charsmap_destroy(struct charsmap *m)
{
    if (!m) return;
    mem_free(m->units);
    mem_free(m->texts);
    mem_free(m);
}

static size_t unit_offset(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
}

/* The text of the shortest entry that s begins with. false: none. */
static bool look_up(const struct charsmap *m, const char *s, size_t n, const char **text, size_t *n_text)
{
    size_t at = unit_offset(m->units[0]);

    for (size_t i = 0; i < n && s[i]; i++) {
        uint32_t unit, value;

        at ^= (unsigned char)s[i];
        if (at >= m->n_units) return false;
        unit = m->units[at];
        if ((unit & (1u << 31 | 0xff)) != (unsigned char)s[i]) return false;
        at ^= unit_offset(unit);
        if (!(unit >> 8 & 1)) continue;
        if (at >= m->n_units) return false;
        value = m->units[at] & ~(1u << 31);
        if (value > m->n_texts) return false;
        *text = m->texts + value;
        *n_text = strnlen(*text, m->n_texts - value);
        return true;
    }
    return false;
}

static size_t grapheme_bytes(const char *s, size_t n)
{
    utf8proc_int32_t state = 0;
    uint32_t cp, next;
    size_t at = (size_t)utf8_decode(s, n, &cp);

    while (at < n) {
        size_t len = (size_t)utf8_decode(s + at, n - at, &next);

        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)cp, (utf8proc_int32_t)next, &state)) break;
        cp = next;
        at += len;
    }
    return at;
}

rd_status charsmap_run(const struct charsmap *m, const char *s, size_t n, struct buf *out)
{
    const char *text = "";
    size_t n_text = 0;

    while (n) {
        size_t n_grapheme = grapheme_bytes(s, n), at = 0;
        uint32_t cp;

        if (n_grapheme < 6 && look_up(m, s, n_grapheme, &text, &n_text)) {
            buf_append(out, text, n_text);
            at = n_grapheme;
        }
        while (at < n_grapheme) {
            size_t len = (size_t)utf8_decode(s + at, n_grapheme - at, &cp);

            if (look_up(m, s + at, len, &text, &n_text))
                buf_append(out, text, n_text);
            else
                buf_append(out, s + at, len);
            at += len;
        }
        s += n_grapheme;
        n -= n_grapheme;
    }
    return out->failed ? RD_E_NOMEM : RD_OK;
}
