/* cli/cmd_key.c - `radish key`: draws a key, and says what a server needs to know of it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/key_digest.h"
#include "base/mem.h"
#include "cli/cli_model.h"
#include "cli/commands.h"

#define FILE_BYTES (4u << 20)
#define LINE_BYTES 256u

struct key_flags {
    const char *file;
    bool admin;
};

static const struct arg key_args[] = {
    {.flag = "--file",
     .kind = ARG_TEXT,
     .value = "FILE",
     .at = offsetof(struct key_flags, file),
     .fallback_text = "none: the line is printed",
     .help =
         "key file that the line is added to (serve --api-key-file); made, for its owner alone, if it is not there"},
    {.flag = "--admin",
     .kind = ARG_SWITCH,
     .at = offsetof(struct key_flags, admin),
     .help = "an admin's key: may list and clear the whole cache, see the monitor and cancel requests of others"},
    {0}};

/* The salt of the file's lines, so that a server hashes what it is sent once for all of them; false: it has none. */
static bool salt_of(const char *text, char salt[KEY_SALT_MOST + 1])
{
    const char *at = strstr(text, " sha256:");
    size_t n = at ? strcspn(at + 8, ":\n") : 0;

    if (n == 0 || n > KEY_SALT_MOST || at[8 + n] != ':') return false;
    memcpy(salt, at + 8, n);
    salt[n] = 0;
    return key_is_salt(salt);
}

/* In one write: whoever reads the file meanwhile sees the line whole, or not. Of a line that does not fit nothing stays. */
static int add_line(const char *path, const char *line)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    off_t end = fd >= 0 ? lseek(fd, 0, SEEK_END) : -1;
    ssize_t n = end >= 0 ? write(fd, line, strlen(line)) : -1;
    bool ok = n == (ssize_t)strlen(line);

    if (!ok) cli_fail("%s: %s", path, strerror(n < 0 ? errno : ENOSPC));
    if (n > 0 && !ok && ftruncate(fd, end)) cli_fail("%s: half a line is left in it: %s", path, strerror(errno));
    if (fd >= 0 && close(fd) && ok) ok = (cli_fail("%s: %s", path, strerror(errno)), false);
    return ok ? EXIT_DONE : EXIT_FAILED;
}

static int run_key(const struct command *self, int argc, char **argv)
{
    struct key_flags f = {0};
    const char *words[ARGS_MAX_WORDS];
    char key[KEY_DRAWN_BYTES], salt[KEY_SALT_MOST + 1], hex[SHA_HEX_BYTES], line[LINE_BYTES];
    struct rd_error err = {RD_OK, ""};
    char *text = NULL;
    size_t n = 0;
    uint32_t n_words;
    bool is_cut;
    int rc = args_parse(self, argc, argv, &f, words, &n_words);

    if (rc != ARGS_GO) return rc;
    if (!key_is_name(words[0])) {
        cli_fail("%s: a name has letters, digits and - _ . @, %u at most", words[0], KEY_NAME_MOST);
        return EXIT_USAGE;
    }
    if (f.file && file_exists(f.file) && file_read_all(f.file, FILE_BYTES, &text, &n, &err) != RD_OK)
        return cli_fail("%s", err.text);
    if (!text || !salt_of(text, salt)) key_draw_salt(salt);
    is_cut = n > 0 && text[n - 1] != '\n';
    mem_free(text);
    if (is_cut)
        return cli_fail("%s: the last line has no newline at its end: it may have been cut; end it, or take it out",
                        f.file);
    key_draw(key);
    key_digest(salt, key, hex);
    snprintf(line, sizeof(line), "%s sha256:%s:%s%s\n", words[0], salt, hex, f.admin ? " admin" : "");
    if (f.file && (rc = add_line(f.file, line)) != EXIT_DONE) return rc;
    printf("%s\n%s", key, f.file ? "" : line);
    if (f.file && fflush(stdout)) return cli_fail("the key is lost: take the last line of %s out of it", f.file);
    return EXIT_DONE;
}

static const struct arg_group key_groups[] = {{"Key", key_args, 0}, {NULL, NULL, 0}};

const struct command cmd_key = {
    .name = "key",
    .section = "Talk to a model",
    .summary = "draws an API key, and the line of a key file that lets it in",
    .words = "NAME",
    .about =
        "Prints the key, which stands nowhere else and cannot be found again, and the line for serve --api-key-file: "
        "NAME "
        "and a salted digest. Keys of one NAME are of one tenant: add the new one, then take the old one's line out. A "
        "running server reads its file again on SIGHUP.",
    .examples = "  radish key alice --file keys\n"
                "  radish key ops --admin --file keys\n"
                "  radish serve smollm2 --api-key-file keys\n",
    .groups = key_groups,
    .min_words = 1,
    .max_words = 1,
    .run = run_key,
};
