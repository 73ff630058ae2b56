/* cli/settings_save.c - see settings_save.h. */
#include "cli/settings_save.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/config_edit.h"
#include "base/error.h"
#include "base/file.h"
#include "base/file_out.h"
#include "base/log.h"
#include "base/mem.h"

#define FILE_NAME "the configuration file" /* for clients */

bool settings_save_path(const struct settings *s, char path[LIMIT_PATH_BYTES], const char **why)
{
    const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME"), *said = getenv("RADISH_CONFIG");
    int n = -1;

    *path = 0;
    *why = NULL;
    if (*s->path)
        n = snprintf(path, LIMIT_PATH_BYTES, "%s", s->path);
    else if (said && !*said)
        *why = "this server is to have no configuration file: RADISH_CONFIG is empty";
    else if (xdg && *xdg == '/')
        n = snprintf(path, LIMIT_PATH_BYTES, "%s/radish/radish.toml", xdg);
    else if (home && *home == '/')
        n = snprintf(path, LIMIT_PATH_BYTES, "%s/.config/radish/radish.toml", home);
    else
        *why = "there is no configuration file, and no HOME for one: start the server with --config FILE";
    if (n > 0 && n < (int)LIMIT_PATH_BYTES) return true;
    *path = 0;
    if (!*why) *why = "the path of the configuration file is too long";
    return false;
}

/* The folder's path, or that of the next one above it that is there. */
static void above(const char *path, char folder[LIMIT_PATH_BYTES])
{
    struct stat st;

    snprintf(folder, LIMIT_PATH_BYTES, "%s", path);
    for (;;) {
        char *slash = strrchr(folder, '/');

        if (!slash) {
            snprintf(folder, LIMIT_PATH_BYTES, ".");
            return;
        }
        slash[slash == folder] = 0;
        if (slash == folder || stat(folder, &st) == 0) return;
    }
}

const char *settings_save_refused(const char *path)
{
    char real[LIMIT_PATH_BYTES], folder[LIMIT_PATH_BYTES];
    struct stat st;
    bool is_there = file_real_path(path, real) && stat(real, &st) == 0;

    if (is_there && !S_ISREG(st.st_mode)) return FILE_NAME " is no regular file";
    if (is_there && (!(st.st_mode & 0222) || access(real, W_OK) != 0)) return FILE_NAME " is read-only";
    above(is_there ? real : path, folder);
    return access(folder, W_OK | X_OK) == 0 ? NULL : FILE_NAME " lies in a folder that this server may not write to";
}

static bool make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0700) != 0 && errno != EEXIST) {
            *slash = '/';
            return false;
        }
        *slash = '/';
    }
    return true;
}

/* "FILE: cannot be made: No space left" -> "No space left" for the client, all of it for the log */
static rd_status failed(rd_status st, const struct rd_error *why, struct rd_error *err)
{
    const char *reason = strrchr(why->text, ':');

    log_warn("settings were not kept: %s", why->text);
    return error_set(err, st, FILE_NAME " cannot be written%s", reason ? reason : "");
}

static rd_status write_it(const char *path, const struct stat *old, const struct buf *text, struct rd_error *err)
{
    struct rd_error why = {RD_OK, ""};
    struct file_out out;
    rd_status st = file_out_open_as(path, old ? old->st_mode & 0777 : 0600, &out, &why);

    if (st != RD_OK) return failed(st, &why, err);
    if (old && fchown(out.fd, old->st_uid, old->st_gid) != 0)
        log_debug("the configuration file gets this server's owner"); /* it may write the file, but not give it away */
    st = file_out_write(&out, text->data ? text->data : "", text->n, &why);
    if (st == RD_OK)
        st = file_out_commit(&out, &why);
    else
        file_out_abandon(&out);
    return st == RD_OK ? RD_OK : failed(st, &why, err);
}

static rd_status edit(struct buf *text, const struct setting_change *list, size_t n, struct rd_error *err)
{
    rd_status st = RD_OK;

    for (size_t i = 0; i < n && st == RD_OK; i++) {
        struct buf next = {0};

        st = config_edit(text->data ? text->data : "", text->n, FILE_NAME, list[i].key, list[i].text, &next, err);
        if (st != RD_OK) break;
        buf_deinit(text);
        *text = next;
    }
    return st;
}

rd_status settings_save(const char *path, const struct setting_change *list, size_t n, struct rd_error *err)
{
    char real[LIMIT_PATH_BYTES], *bytes = NULL;
    const char *refused = settings_save_refused(path);
    struct buf text = {0};
    struct rd_error why = {RD_OK, ""};
    struct stat old;
    size_t n_bytes = 0;
    bool is_there = file_real_path(path, real) && stat(real, &old) == 0;
    rd_status st = RD_OK;

    if (refused) return error_set(err, RD_E_UNSUPPORTED, "%s", refused);
    if (n == 0) return RD_OK;
    if (!is_there) {
        snprintf(real, sizeof(real), "%s", path);
        if (!make_folders(real)) {
            error_set(&why, RD_E_IO, "%.300s: its folder cannot be made", path);
            return failed(RD_E_IO, &why, err);
        }
    } else {
        st = file_read_all(real, CONFIG_MOST_BYTES, &bytes, &n_bytes, &why);
        if (st != RD_OK) return failed(st, &why, err);
        buf_append(&text, bytes, n_bytes);
        mem_free(bytes);
    }
    st = edit(&text, list, n, err);
    if (st == RD_OK) st = write_it(real, is_there ? &old : NULL, &text, err);
    buf_deinit(&text);
    return st;
}
