/* api/image_source.c - see image_source.h. */
#include "api/image_source.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "base/base64.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "base/file_beneath.h"
#include "base/hex.h"
#include "base/mem.h"
#include "vision/picture.h"

/* ---- of an engine ---- */

static char *without_slash(const char *path)
{
    char *copy = mem_strdup(path);
    size_t n = copy ? strlen(copy) : 0;

    while (n > 0 && copy[n - 1] == '/') copy[--n] = 0;
    return copy;
}

rd_status image_sources_init(struct image_sources *s, const struct rd_options *o, struct rd_error *err)
{
    char real[LIMIT_PATH_BYTES];

    *s = (struct image_sources){
        .fetch = o->fetch_image, .user = o->fetch_user, .most_ms = o->fetch_ms ? o->fetch_ms : IMAGES_FAR_MS};
    if (!o->image_dir) return RD_OK;
    s->dir_fd = file_beneath_open_dir(o->image_dir);
    if (s->dir_fd < 0)
        return error_set(err, RD_E_NOT_FOUND, "--image-dir %s: there is no such folder, or it may not be read",
                         o->image_dir);
    s->dir = without_slash(o->image_dir);
    s->real_dir = without_slash(file_real_path(o->image_dir, real) ? real : o->image_dir);
    if (s->dir && s->real_dir) return RD_OK;
    if (!s->dir) close(s->dir_fd); /* deinit goes by dir */
    image_sources_deinit(s);
    return error_set(err, RD_E_NOMEM, "out of memory");
}

void image_sources_deinit(struct image_sources *s)
{
    if (s->dir) close(s->dir_fd);
    mem_free(s->dir);
    mem_free(s->real_dir);
    *s = (struct image_sources){.dir = NULL};
}

/* ---- a part ---- */

bool image_part_is(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));

    return type && (!strcmp(type, "image_url") || !strcmp(type, "input_image") || !strcmp(type, "image"));
}

/* Where the part has its image: a URL, or base64 without one. NULL: nowhere. */
static const json_t *place_of(const json_t *part, bool *is_url)
{
    const json_t *url = json_object_get(part, "image_url"), *source = json_object_get(part, "source");
    const json_t *image = json_object_get(part, "image");
    const char *kind = json_string_value(json_object_get(source, "type"));

    *is_url = true;
    if (json_is_object(url)) url = json_object_get(url, "url");
    if (kind && !strcmp(kind, "url")) url = json_object_get(source, "url");
    if (!url) url = json_object_get(part, "url");
    if (json_is_string(url)) return url;
    *is_url = json_is_string(image) && strstr(json_string_value(image), ":") != NULL; /* no base64 has one */
    if (json_is_string(image)) return image;
    if (kind && !strcmp(kind, "base64")) return json_object_get(source, "data");
    return json_object_get(part, "data");
}

static bool is_web(const char *url)
{
    return strncasecmp(url, "http:", 5) == 0 || strncasecmp(url, "https:", 6) == 0;
}

static bool is_file(const char *url)
{
    return url[0] == '/' || strncasecmp(url, "file:", 5) == 0;
}

static bool is_far(const struct image_sources *s, const char *place)
{
    return place && ((s->fetch && is_web(place)) || (s->dir && is_file(place)));
}

/* A part, or a frame of a video: as a part, or what stands in one's "image". */
static bool part_is_far(const struct image_sources *s, const json_t *part)
{
    bool is_url = true;
    const json_t *place = json_is_string(part) ? part : place_of(part, &is_url);

    return is_url && is_far(s, json_string_value(place));
}

static bool video_is_far(const struct image_sources *s, const json_t *part)
{
    const json_t *frames = json_object_get(part, "video"), *frame;
    size_t i;

    if (!frames) frames = json_object_get(part, "video_url");
    if (json_is_object(frames)) frames = json_object_get(frames, "url");
    json_array_foreach(frames, i, frame)
    {
        if (part_is_far(s, frame)) return true;
    }
    return false;
}

bool image_sources_are_far(const struct image_sources *s, const json_t *messages)
{
    const json_t *message, *part;
    size_t i, k;

    if (!s->fetch && !s->dir) return false;
    json_array_foreach(messages, i, message)
    {
        json_array_foreach(json_object_get(message, "content"), k, part)
        {
            if (image_part_is(part) ? part_is_far(s, part) : video_is_far(s, part)) return true;
        }
    }
    return false;
}

/* ---- sent along ---- */

/* The base64 of a URL; NULL: the error is set. */
static const char *data_of_url(const char *url, size_t *n, struct rd_error *err)
{
    const char *comma = memchr(url, ',', u64_min(*n, 256));
    char scheme[16] = "";

    if (strncasecmp(url, "data:", 5) == 0) {
        if (comma && comma - url >= 7 && strncasecmp(comma - 7, ";base64", 7) == 0) {
            *n -= (size_t)(comma + 1 - url);
            return comma + 1;
        }
        error_set(err, RD_E_INVALID, "a data: URL of an image is wanted as data:image/TYPE;base64,..");
        return NULL;
    }
    snprintf(scheme, sizeof(scheme), "%.*s", (int)strcspn(url, ":"), url);
    if (is_web(url) || strncasecmp(url, "file:", 5) == 0)
        error_set(err, RD_E_INVALID, "this server fetches no images: send what is behind the %s URL as a data: URL",
                  scheme);
    else
        error_set(err, RD_E_INVALID, "the URL of an image is wanted as data:image/TYPE;base64,..");
    return NULL;
}

static rd_status read_sent(const char *s, size_t n, uint8_t **out, size_t *n_out, struct rd_error *err)
{
    if (n == 0) return error_set(err, RD_E_INVALID, "the image is empty");
    if (n > PICTURE_MOST_BYTES / 3 * 4) return error_set(err, RD_E_LIMIT, "the image has more than 64 MiB");
    *out = mem_alloc(base64_most(n), 1);
    if (!*out) return error_set(err, RD_E_NOMEM, "out of memory for the image");
    if (base64_decode(s, n, *out, n_out)) return RD_OK;
    mem_free(*out);
    *out = NULL;
    return error_set(err, RD_E_INVALID, "no base64 from character %zu of %zu on", *n_out, n);
}

/* ---- behind a URL ---- */

struct fetched {
    const struct image_sources *s;
    struct buf bytes;
    bool is_full;
    uint64_t until_ns;
    const atomic_bool *cancelled;
};

static bool is_late(const struct fetched *f)
{
    return clock_now_ns(clock_system()) >= f->until_ns;
}

static bool put(void *arg, const void *data, size_t n)
{
    struct fetched *f = arg;

    f->is_full = n > PICTURE_MOST_BYTES - f->bytes.n;
    if (!f->is_full) buf_append(&f->bytes, data, n);
    return !f->is_full && !f->bytes.failed;
}

static bool is_cancelled(void *arg)
{
    const struct fetched *f = arg;

    return (f->cancelled && atomic_load(f->cancelled)) || atomic_load(&f->s->closing);
}

static bool gives_up(void *arg)
{
    return is_cancelled(arg) || is_late(arg);
}

static rd_status read_web(const struct image_sources *s, const char *url, uint64_t until_ns,
                          const atomic_bool *cancelled, uint8_t **out, size_t *n, struct rd_error *err)
{
    struct fetched f = {.s = s, .until_ns = until_ns, .cancelled = cancelled};
    const struct rd_image_sink sink = {&f, put, gives_up};
    rd_status st = is_late(&f) ? RD_E_INVALID : s->fetch(s->user, url, &sink, err);

    if (st != RD_OK && is_late(&f))
        st = error_set(err, RD_E_INVALID, "the images that the request names were not here after %llu s together",
                       (unsigned long long)s->most_ms / 1000);
    if (is_cancelled(&f)) st = error_set(err, RD_E_CANCELLED, "cancelled");
    if (st != RD_E_CANCELLED && f.is_full) st = error_set(err, RD_E_LIMIT, "the image has more than 64 MiB");
    if (st != RD_E_CANCELLED && f.bytes.failed) st = error_set(err, RD_E_NOMEM, "out of memory for the image");
    if (st == RD_OK && f.bytes.n == 0) st = error_set(err, RD_E_INVALID, "the image is empty");
    if (st == RD_OK) *out = (uint8_t *)buf_take(&f.bytes, n);
    buf_deinit(&f.bytes);
    return st;
}

/* ---- a file ---- */

/* The path of "file:///a%20b", "file://localhost/a", "file:/a" or "/a". false: it has none. */
static bool path_of(const char *url, char out[LIMIT_PATH_BYTES])
{
    bool is_url = url[0] != '/';
    size_t n = 0;

    if (is_url) url += 5;
    if (is_url && strncmp(url, "//", 2) == 0) {
        url += 2;
        if (strncasecmp(url, "localhost/", 10) == 0) url += 9;
    }
    if (url[0] != '/') return false;
    for (; *url && n + 1 < LIMIT_PATH_BYTES; url++) {
        int c = (unsigned char)*url;

        if (is_url && (c == '?' || c == '#')) return false;
        if (is_url && c == '%') {
            int high = hex_digit(url[1]), low = high < 0 ? -1 : hex_digit(url[2]);

            if (low < 0 || (c = high * 16 + low) == 0) return false;
            url += 2;
        }
        out[n++] = (char)c;
    }
    out[n] = 0;
    return *url == 0;
}

/* What follows dir in path; NULL: it does not lie below. */
static const char *below(const char *path, const char *dir)
{
    size_t n = strlen(dir);

    if (strncmp(path, dir, n) != 0 || path[n] != '/') return NULL;
    path += n;
    return path + strspn(path, "/");
}

static rd_status read_file(const struct image_sources *s, const char *url, uint8_t **out, size_t *n,
                           struct rd_error *err)
{
    char path[LIMIT_PATH_BYTES];
    const char *rest = NULL;
    void *data = NULL;
    rd_status st;

    if (!path_of(url, path)) return error_set(err, RD_E_INVALID, "a file is wanted as file:///PATH");
    rest = below(path, s->dir);
    if (!rest) rest = below(path, s->real_dir);
    if (!rest || !*rest) return error_set(err, RD_E_INVALID, "the file is not below --image-dir");
    st = file_beneath_read(s->dir_fd, rest, PICTURE_MOST_BYTES, false, &data, n, err);
    *out = data;
    if (st == RD_OK && *n == 0) {
        mem_free(data);
        *out = NULL;
        return error_set(err, RD_E_INVALID, "the image is empty");
    }
    if (st == RD_E_NOT_FOUND || st == RD_E_IO) return err ? err->status = RD_E_INVALID : RD_E_INVALID;
    return st;
}

/* ---- either ---- */

rd_status image_source_read(const struct image_sources *s, const json_t *part, uint64_t until_ns,
                            const atomic_bool *cancelled, uint8_t **out, size_t *n_out, struct rd_error *err)
{
    struct rd_error own = {RD_OK, ""};
    bool is_url, far;
    const json_t *place = place_of(part, &is_url);
    const char *text = json_string_value(place);
    size_t n = json_string_length(place);

    *out = NULL;
    if (!err) err = &own;
    if (!text && json_object_get(part, "file_id"))
        return error_set(err, RD_E_INVALID, "images by file_id are not known here: send a data: URL");
    if (!text) return error_set(err, RD_E_INVALID, "the part has no image: an image_url or a source is wanted");
    if (!is_url) return read_sent(text, n, out, n_out, err);
    far = is_far(s, text);
    if (far && strlen(text) != n) return error_set(err, RD_E_INVALID, "the URL has a zero byte");
    if (far && until_ns == 0) return error_set(err, RD_E_INVALID, "images are not fetched for this: send a data: URL");
    if (far)
        return is_web(text) ? read_web(s, text, until_ns, cancelled, out, n_out, err)
                            : read_file(s, text, out, n_out, err);
    if (!(text = data_of_url(text, &n, err))) return err->status;
    return read_sent(text, n, out, n_out, err);
}
