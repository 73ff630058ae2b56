/* api/api_images.c - reading parts, one after the other, and cutting the prompt at their marks. */
#include "api/api_images_inside.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "api/api_state.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "engine/images.h"
#include "engine/tiers/image_store.h"

/* What a family writes around an image's rows. */
static const struct around {
    const char *first, *last; /* tokens of the vocabulary */
    const char *before, *behind;
    const char *row;  /* that stands for a row, in lists of tokens */
    const char *text; /* templates write, for all of it */
} arounds[] = {
    /* Qwen2-VL and later */
    {"<|vision_start|>", "<|vision_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
     "<|vision_start|><|image_pad|><|vision_end|>"},
    /* Gemma 3 */
    {"<start_of_image>", "<end_of_image>", "\n\n<start_of_image>", "<end_of_image>\n\n", "<image_soft_token>",
     "<start_of_image>"},
};

static const struct around *around_of(const rd_engine *e)
{
    for (size_t i = 0; i < sizeof(arounds) / sizeof(arounds[0]); i++)
        if (tokenizer_find(e->tokenizer, arounds[i].first, strlen(arounds[i].first)) >= 0 &&
            tokenizer_find(e->tokenizer, arounds[i].last, strlen(arounds[i].last)) >= 0)
            return &arounds[i];
    return NULL;
}

const char *api_images_missing(const rd_engine *engine)
{
    return around_of(engine) ? NULL : "its vocabulary has neither <|vision_start|> nor <start_of_image>";
}

/* ---- a part ---- */

rd_status api_part_bad(const struct part *p, rd_status st, const char *format, ...)
{
    char why[400], frame[32] = "";
    va_list args;

    va_start(args, format);
    vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    if (p->frame) snprintf(frame, sizeof(frame), "frame %u: ", p->frame);
    return error_set(p->err, st, "messages: messages[%zu].content[%zu]: %s%s", p->message, p->i, frame, why);
}

rd_status api_part_failed(const struct part *p, rd_status st, const struct rd_error *why)
{
    if (st == RD_E_CANCELLED) return error_set(p->err, st, "%s", rd_status_text(st));
    return api_part_bad(p, st == RD_E_FORMAT || st == RD_E_UNSUPPORTED ? RD_E_INVALID : st, "%s",
                        why->text[0] ? why->text : rd_status_text(st));
}

const char *api_part_type(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));

    return type ? type : "";
}

/* detail, "low" or not; of the part, or beside its URL. */
static bool is_low(const json_t *part)
{
    const json_t *detail = json_object_get(part, "detail");

    if (!detail) detail = json_object_get(json_object_get(part, "image_url"), "detail");
    return json_is_string(detail) && !strcmp(json_string_value(detail), "low");
}

static void give_bytes(void *pot, uint64_t owner, uint64_t n_bytes)
{
    image_pot_give(pot, owner, n_bytes);
}

static rd_status take_bytes(struct api_images *im, uint64_t n)
{
    rd_status st;

    /* of the request itself: trying again would not help */
    if (im->n_held + im->n_taken > IMAGE_POT_MOST || n > IMAGE_POT_MOST - im->n_held - im->n_taken) return RD_E_LIMIT;
    st = image_pot_take(&im->engine->pot, im->tenant, n);
    if (st == RD_OK) im->n_taken += n;
    return st;
}

static void part_done(const struct part *p)
{
    if (p->im->n_taken) image_pot_give(&p->im->engine->pot, p->im->tenant, p->im->n_taken);
    p->im->n_taken = 0;
}

/* A picture's pixels, turned upright or not, and what the processor makes of them. Of a video the frames alone: what becomes of
 * them depends on all. */
static rd_status admit(void *arg, uint32_t w, uint32_t h)
{
    struct part *p = arg;
    const struct image_processor *processor = &p->im->engine->processor;
    uint64_t n = (uint64_t)w * h * 3, made = 0;
    uint32_t to_w, to_h;

    if (!p->frame && image_processor_size(processor, w, h, &to_w, &to_h, NULL) == RD_OK)
        made =
            (uint64_t)to_w * to_h * 3 * sizeof(float) * (processor->kind == PROCESSOR_SMART ? processor->temporal : 1);
    return p->refused = take_bytes(p->im, n + made);
}

/* The image's values have room until they go: that which was reserved, or more. */
static rd_status keep_bytes(struct api_images *im, struct vision_image *v)
{
    const uint64_t n = (uint64_t)v->n_values * sizeof(*v->values);
    const rd_status st = im->n_taken < n ? take_bytes(im, n - im->n_taken) : RD_OK;

    if (st != RD_OK) return st;
    im->n_taken -= n;
    im->n_held += n;
    v->freed = give_bytes;
    v->freed_arg = &im->engine->pot;
    v->owner = im->tenant;
    return st;
}

static rd_status say_full(const struct part *p, rd_status st)
{
    if (st == RD_E_LIMIT)
        return api_part_bad(p, st,
                            "the request's images up to here take more than the 768 MiB there are for a tenant's");
    return api_part_bad(p, st, "too many images of requests wait: try again later");
}

/* The mark that only this process can make of this image. */
static void write_mark(const rd_engine *e, struct api_image *a)
{
    const struct hash128 h = sip_hash128(e->salt_key, a->image->digest, sizeof(a->image->digest));

    snprintf(a->mark, sizeof(a->mark), "image%016" PRIx64 "%016" PRIx64, h.high, h.low);
}

rd_status api_part_add(const struct part *p, struct vision_image *image)
{
    struct api_images *im = p->im;
    size_t cap = im->cap;
    rd_status st;

    if (im->n == IMAGES_MOST_ALL) {
        vision_image_unref(image);
        return api_part_bad(p, RD_E_LIMIT, "more than %u images, those of videos among them", IMAGES_MOST_ALL);
    }
    if (!mem_grow((void **)&im->list, &cap, im->n + 1, sizeof(*im->list))) {
        vision_image_unref(image);
        return api_part_bad(p, RD_E_NOMEM, "out of memory for the image");
    }
    im->cap = (uint32_t)cap;
    if ((st = keep_bytes(im, image)) != RD_OK) {
        vision_image_unref(image);
        return say_full(p, st);
    }
    image->is_spent = true;
    im->list[im->n] = (struct api_image){.image = image, .message = p->message, .part = p->i};
    write_mark(im->engine, &im->list[im->n++]);
    return RD_OK;
}

rd_status api_part_decode(const struct part *p, struct picture *out)
{
    struct part own = *p;
    const struct picture_limits limits = {.admit = admit, .admit_arg = &own, .cancelled = p->cancelled};
    struct rd_error why = {RD_OK, ""};
    uint8_t *bytes = NULL;
    size_t n = 0;
    rd_status st = image_source_read(&p->im->engine->sources, p->json, p->may_wait ? p->im->far_ns : 0, p->cancelled,
                                     &bytes, &n, &why);

    if (st == RD_OK) st = picture_decode(bytes, n, &limits, out, &why);
    mem_free(bytes);
    if (own.refused != RD_OK) return say_full(p, own.refused);
    return st == RD_OK ? st : api_part_failed(p, st, &why);
}

/* rgb: of the picture, or of a part of it that was copied. */
static rd_status add_picture(const struct part *p, const uint8_t *rgb, uint32_t w, uint32_t h)
{
    struct image_processor processor = p->im->engine->processor;
    struct rd_error why = {RD_OK, ""};
    struct vision_image *image = NULL;
    rd_status st;

    if (p->im->n_pictures == IMAGES_MOST) return api_part_bad(p, RD_E_LIMIT, "more than 64 images");
    p->im->n_pictures++;
    if (is_low(p->json) && processor.max_pixels > IMAGES_LOW_PIXELS) {
        processor.max_pixels = u64_max(IMAGES_LOW_PIXELS, processor.min_pixels);
    }
    st = image_processor_run(&processor, (const uint8_t *const[]){rgb}, 1, w, h, &image, &why);
    return st == RD_OK ? api_part_add(p, image) : api_part_failed(p, st, &why);
}

static const char *last_mark(const struct part *p)
{
    return p->im->list[p->im->n - 1].mark;
}

static rd_status add_part(const struct part *p, const struct picture *whole, const struct picture_part *at)
{
    uint8_t *rgb = mem_alloc((size_t)at->w * at->h, 3);
    rd_status st;

    if (!rgb) return api_part_bad(p, RD_E_NOMEM, "out of memory for the image");
    for (uint32_t y = 0; y < at->h; y++)
        memcpy(rgb + (size_t)y * at->w * 3, whole->rgb + ((size_t)(at->y + y) * whole->width + at->x) * 3,
               (size_t)at->w * 3);
    st = add_picture(p, rgb, at->w, at->h);
    mem_free(rgb);
    return st;
}

/* The picture, and where it is taken apart its parts: with the words that Gemma 3 knows around them. */
static rd_status read_image(const struct part *p, struct buf *text)
{
    struct picture_part parts[PROCESSOR_MOST_PARTS];
    struct picture picture = {0};
    uint32_t n_parts = 0;
    rd_status st;

    if (p->im->n_pictures == IMAGES_MOST) return api_part_bad(p, RD_E_LIMIT, "more than 64 images");
    if ((st = api_part_decode(p, &picture)) != RD_OK) return st;
    st = add_picture(p, picture.rgb, picture.width, picture.height);
    if (st == RD_OK && p->im->pans)
        n_parts = image_processor_parts(&p->im->engine->processor, picture.width, picture.height, parts);
    if (st == RD_OK)
        buf_printf(text,
                   n_parts ? "Here is the original image %s and here are some crops to help you see better" : "%s",
                   last_mark(p));
    for (uint32_t i = 0; st == RD_OK && i < n_parts; i++) {
        st = add_part(p, &picture, &parts[i]);
        if (st == RD_OK) buf_printf(text, " %s", last_mark(p));
    }
    picture_deinit(&picture);
    return st;
}

/* ---- messages ---- */

static rd_status check_sight(const struct part *p)
{
    const rd_engine *e = p->im->engine;

    if (e->sees) return RD_OK;
    return api_part_bad(p, RD_E_INVALID, "this model takes no images%s%s", *e->blind ? ": " : "", e->blind);
}

static rd_status read_part(const struct part *p, json_t *content)
{
    struct buf text = {0};
    rd_status st = check_sight(p);

    if (st == RD_OK) st = api_part_is_video(p->json) ? api_part_video(p, &text) : read_image(p, &text);
    part_done(p);
    if (st == RD_OK &&
        (text.failed ||
         json_array_set_new(content, p->i, json_pack("{s:s, s:s#}", "type", "text", "text", text.data, (int)text.n))))
        st = api_part_bad(p, RD_E_NOMEM, "out of memory for the image");
    buf_deinit(&text);
    return st;
}

static rd_status read_parts(struct api_images *im, json_t *content, size_t message, bool may_wait,
                            const atomic_bool *cancelled, struct rd_error *err)
{
    json_t *part;
    size_t i;

    json_array_foreach(content, i, part)
    {
        const struct part p = {im, part, message, i, 0, may_wait, cancelled, err, RD_OK};
        rd_status st;

        if (!image_part_is(part) && !api_part_is_video(part)) continue;
        if (cancelled && atomic_load(cancelled)) return error_set(err, RD_E_CANCELLED, "cancelled");
        if ((st = read_part(&p, content)) != RD_OK) return st;
    }
    return RD_OK;
}

static bool names_any(const char *messages)
{
    return messages &&
           (strstr(messages, "\"image") || strstr(messages, "\"input_image") || strstr(messages, "\"video"));
}

rd_status api_images_read(rd_engine *engine, const struct rd_request_options *o, enum api_images_far far,
                          const atomic_bool *cancelled, struct api_images *out, struct rd_error *err)
{
    json_t *m = NULL, *message;
    rd_status st;
    size_t i;

    memset(out, 0, sizeof(*out));
    out->engine = engine;
    out->tenant = api_fair_hash(o->fairness_key);
    if (far == API_IMAGES_NOW) out->far_ns = clock_now_ns(clock_system()) + engine->sources.most_ms * 1000000ull;
    out->pans = o->pan_and_scan > 0 || (o->pan_and_scan == 0 && engine->processor.pan_scan.is_on);
    if (!names_any(o->messages_json)) return RD_OK; /* text alone costs nothing */
    st = api_parse_json(o->messages_json, "messages", true, &m, err);
    if (st == RD_OK && far == API_IMAGES_LATER && engine->sees && image_sources_are_far(&engine->sources, m))
        st = RD_E_AGAIN;
    json_array_foreach(m, i, message)
    {
        if (st == RD_OK)
            st = read_parts(out, json_object_get(message, "content"), i, far == API_IMAGES_NOW, cancelled, err);
    }
    if (st == RD_OK && out->n > 0 && !(out->messages = json_dumps(m, JSON_COMPACT)))
        st = error_set(err, RD_E_NOMEM, "out of memory for messages");
    json_decref(m);
    if (st != RD_OK) api_images_deinit(out);
    return st;
}

void api_images_recall(struct api_images *im, struct hash128 salt, const atomic_bool *cancelled)
{
    struct engine *e = im->engine->engine;

    for (uint32_t i = 0; e && i < im->n; i++) {
        struct vision_image *v = im->list[i].image;

        if (!images_are_ready(e, v, salt)) im->list[i].rows = image_store_read(e, salt, v, cancelled);
        if (im->list[i].rows) vision_image_spend(v);
    }
}

/* ---- the prompt ---- */

struct prompt {
    int32_t *ids;
    size_t cap;
    uint32_t n;
};

static bool add_ids(struct prompt *p, const int32_t *ids, uint32_t n)
{
    if (n > UINT32_MAX - p->n || !mem_grow((void **)&p->ids, &p->cap, p->n + (size_t)n, sizeof(*ids))) return false;
    if (n > 0) memcpy(p->ids + p->n, ids, n * sizeof(*ids));
    p->n += n;
    return true;
}

static rd_status add_text(const rd_engine *e, struct prompt *p, const struct buf *text, bool is_first,
                          struct rd_error *err)
{
    int32_t *ids = NULL;
    uint32_t n = 0;
    rd_status st;

    if (text->failed) return error_set(err, RD_E_NOMEM, "out of memory for a prompt");
    st = is_first ? api_encode_chat(e, text->data, text->n, &ids, &n, err)
                  : token_memory_encode(e->texts, text->data, text->n, false, NAMES_MARKED, &ids, &n, NULL, err);
    if (st == RD_OK && !add_ids(p, ids, n)) st = error_set(err, RD_E_NOMEM, "out of memory for a prompt");
    mem_free(ids);
    return st;
}

static rd_status add_rows(struct prompt *p, struct api_images *im, uint32_t i, struct rd_error *err)
{
    struct vision_image *image = im->list[i].image;
    kv_key *keys = mem_alloc(image->n_rows, sizeof(*keys));
    rd_status st = keys ? vision_image_keys(image, keys) : RD_E_NOMEM;

    im->places[i] = (struct vision_place){p->n, image, im->list[i].rows};
    if (st == RD_OK && !add_ids(p, (const int32_t *)(const void *)keys, image->n_rows)) st = RD_E_NOMEM;
    mem_free(keys);
    return st == RD_OK ? st : error_set(err, st, "out of memory for a prompt with %u images", im->n);
}

rd_status api_images_encode(struct api_images *im, const char *text, size_t n, int32_t **tokens, uint32_t *n_tokens,
                            struct rd_error *err)
{
    const struct around *around = around_of(im->engine);
    const char *end = text + n;
    struct prompt p = {0};
    struct buf piece = {0};
    rd_status st = RD_OK;

    im->places = mem_zalloc(im->n, sizeof(*im->places));
    if (!im->places) return error_set(err, RD_E_NOMEM, "out of memory for a prompt");
    for (uint32_t i = 0; st == RD_OK && i <= im->n; i++) {
        const size_t n_mark = i < im->n ? strlen(im->list[i].mark) : 0;
        const char *at = i < im->n ? memmem(text, (size_t)(end - text), im->list[i].mark, n_mark) : end;

        if (!at) {
            st = error_set(err, RD_E_INVALID,
                           "messages: messages[%zu].content[%zu]: the chat template leaves this image out, or moves it",
                           im->list[i].message, im->list[i].part);
            break;
        }
        buf_clear(&piece);
        if (i > 0) buf_puts(&piece, around->behind);
        buf_append(&piece, text, (size_t)(at - text));
        if (i < im->n) buf_puts(&piece, around->before);
        st = add_text(im->engine, &p, &piece, i == 0, err);
        if (st == RD_OK && i < im->n) st = add_rows(&p, im, i, err);
        text = at + n_mark;
    }
    buf_deinit(&piece);
    *tokens = p.ids;
    *n_tokens = p.n;
    if (st == RD_OK) return st;
    mem_free(p.ids);
    *tokens = NULL;
    return st;
}

rd_status api_images_write(const struct api_images *im, char **text, size_t *n, struct rd_error *err)
{
    const struct around *around = around_of(im->engine);
    const char *from = *text, *end = *text + *n;
    struct buf out = {0};
    char *made;

    for (uint32_t i = 0; i < im->n; i++) {
        const size_t n_mark = strlen(im->list[i].mark);
        const char *at = memmem(from, (size_t)(end - from), im->list[i].mark, n_mark);

        if (!at) continue; /* a template that leaves an image out has a text, too */
        buf_append(&out, from, (size_t)(at - from));
        buf_puts(&out, around->text);
        from = at + n_mark;
    }
    buf_append(&out, from, (size_t)(end - from));
    made = out.failed ? NULL : buf_take(&out, n);
    buf_deinit(&out);
    if (!made) return error_set(err, RD_E_NOMEM, "out of memory for a prompt");
    mem_free(*text);
    *text = made;
    return RD_OK;
}

int32_t rd_image_token(const rd_engine *engine)
{
    const struct around *around = engine->sees ? around_of(engine) : NULL;

    return around ? tokenizer_find(engine->tokenizer, around->row, strlen(around->row)) : -1;
}

void api_images_find(struct api_images *im, const int32_t *tokens, uint32_t n_tokens)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < im->n; i++) {
        while (at < n_tokens && key_is_token(token_keys(tokens)[at])) at++;
        im->places[i].begin = at;
        at += im->list[i].image->n_rows;
    }
}

size_t api_images_text_at(const struct api_images *im, const int32_t *tokens, uint32_t n)
{
    const struct around *around = around_of(im->engine);
    size_t at = 0;

    for (uint32_t i = 0; i < n; i++)
        if (key_is_token(token_keys(tokens)[i])) at += tokenizer_piece(im->engine->tokenizer, tokens[i], true).n;
    for (uint32_t i = 0; i < im->n && im->places[i].begin < n; i++) { /* what stands around it is not in the text */
        at += strlen(im->list[i].mark) - strlen(around->before);
        if (im->places[i].begin + im->list[i].image->n_rows < n) at -= strlen(around->behind);
    }
    return at;
}

void api_images_deinit(struct api_images *im)
{
    for (uint32_t i = 0; i < im->n; i++) {
        vision_image_unref(im->list[i].image);
        vision_rows_unref(im->list[i].rows);
    }
    mem_free(im->messages);
    mem_free(im->list);
    mem_free(im->places);
    memset(im, 0, sizeof(*im));
}
