/* hub/hub_ref.c - see hub_ref.h. */
#include "hub/hub_ref.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/utf8.h"

enum { PART_BYTES = 96 }; /* as the hub's own limit on names */

static bool is_name_byte(char c)
{
    return isalnum((unsigned char)c) || c == '-' || c == '_' || c == '.';
}

/* How many bytes of s are one of a repository's two names; 0: none. Names hold no "--", which parts them on the disk,
 * and no "..", and neither begin nor end with a dot or dash. */
static size_t name_length(const char *s)
{
    size_t n = 0;

    while (is_name_byte(s[n])) n++;
    if (n == 0 || n > PART_BYTES || strchr(".-", s[0]) || strchr(".-", s[n - 1])) return 0;
    for (size_t i = 0; i + 1 < n; i++)
        if ((s[i] == '-' && s[i + 1] == '-') || (s[i] == '.' && s[i + 1] == '.')) return 0;
    return n;
}

static const char *without_host(const char *word)
{
    static const char *const hosts[] = {"hf.co/", "huggingface.co/", "hf://", "hf:"};

    for (size_t i = 0; i < sizeof(hosts) / sizeof(*hosts); i++)
        if (!strncmp(word, hosts[i], strlen(hosts[i]))) return word + strlen(hosts[i]);
    return word;
}

/* Bytes of "ORG/NAME" at word; 0: there is none. */
static size_t repo_length(const char *word)
{
    size_t org = name_length(word), name;

    if (!org || word[org] != '/') return 0;
    name = name_length(word + org + 1);
    return name ? org + 1 + name : 0;
}

bool hub_ref_is(const char *word)
{
    size_t n;

    word = without_host(word);
    n = repo_length(word);
    return n && (!word[n] || strchr("@:/", word[n]));
}

bool hub_path_is_safe(const char *path)
{
    size_t n = strlen(path), n_part = 0, depth = 1;

    if (!n || n >= HUB_FILE_BYTES || utf8_valid_prefix(path, n) != n) return false;
    for (size_t i = 0; i <= n; i++) {
        unsigned char c = (unsigned char)path[i];

        if (c && c != '/') {
            if (c < 0x20 || c == 0x7f || c == '\\' || ++n_part > 255) return false;
            continue;
        }
        if (!n_part || ++depth > HUB_DEPTH) return false;
        if (path[i - 1] == '.' && (n_part == 1 || (n_part == 2 && path[i - 2] == '.'))) return false;
        n_part = 0;
    }
    return true;
}

static bool is_hex(const char *s, size_t n)
{
    return strlen(s) == n && strspn(s, "0123456789abcdef") == n;
}

bool hub_commit_is_safe(const char *commit)
{
    return is_hex(commit, 40);
}

bool hub_digest_is_safe(const char *digest)
{
    return is_hex(digest, 40) || is_hex(digest, 64);
}

bool hub_revision_is_safe(const char *revision)
{
    if (!hub_path_is_safe(revision) || strlen(revision) >= HUB_REVISION_BYTES || revision[0] == '-') return false;
    return !strpbrk(revision, " ~^:?*[@") && !strstr(revision, "..");
}

/* Behind the repository: "[@REVISION][:LABEL | /FILE]". */
static rd_status parse_rest(const char *rest, struct hub_ref *out, struct rd_error *err)
{
    char quoted[128];

    if (*rest == '@') {
        size_t n = strcspn(++rest, ":/");

        if (!n || n >= sizeof(out->revision)) return error_set(err, RD_E_INVALID, "no revision stands behind the @");
        snprintf(out->revision, sizeof(out->revision), "%.*s", (int)n, rest);
        rest += n;
        if (!hub_revision_is_safe(out->revision))
            return error_set(err, RD_E_INVALID, "\"%s\" is no revision",
                             error_quote(quoted, sizeof(quoted), out->revision, n));
    }
    if (*rest == ':') {
        size_t n = strlen(++rest);

        if (!n || n >= sizeof(out->label) ||
            strspn(rest, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                         "0123456789_-.") != n)
            return error_set(err, RD_E_INVALID, "\"%s\" is no quantisation, which looks like Q4_K_M",
                             error_quote(quoted, sizeof(quoted), rest, n));
        for (size_t i = 0; i < n; i++) out->label[i] = (char)toupper((unsigned char)rest[i]);
        rest += n;
    } else if (*rest == '/') {
        if (!hub_path_is_safe(++rest))
            return error_set(err, RD_E_INVALID, "\"%s\" is no file's path inside a model",
                             error_quote(quoted, sizeof(quoted), rest, strlen(rest)));
        snprintf(out->file, sizeof(out->file), "%s", rest);
        rest += strlen(rest);
    }
    return *rest ? error_set(err, RD_E_INVALID, "\"%s\" is neither :QUANT nor /FILE",
                             error_quote(quoted, sizeof(quoted), rest, strlen(rest)))
                 : RD_OK;
}

rd_status hub_ref_parse(const char *word, struct hub_ref *out, struct rd_error *err)
{
    char quoted[128];
    size_t n;

    *out = (struct hub_ref){.revision = "main"};
    word = without_host(word);
    n = repo_length(word);
    if (!n || n >= sizeof(out->repo))
        return error_set(err, RD_E_INVALID, "\"%s\" names no model of a hub, which looks like org/name",
                         error_quote(quoted, sizeof(quoted), word, strlen(word)));
    snprintf(out->repo, sizeof(out->repo), "%.*s", (int)n, word);
    return parse_rest(word + n, out, err);
}
