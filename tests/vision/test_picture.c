/* tests/vision/test_picture.c - files of pictures become what transformers has of them, or are refused for what is wrong. */
#include "vision/picture.h"
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "test.h"

#define MOST_OFF 3 /* of 255: libjpeg-turbo and libwebp of another age round otherwise */

struct bytes {
    char *data;
    size_t n;
};

static struct bytes read_file(const char *name)
{
    struct bytes b = {.data = NULL};
    char path[256];
    struct rd_error err = {RD_OK, ""};

    snprintf(path, sizeof(path), "tests/golden/pictures/%s", name);
    if (file_read_all(test_path(path), 1 << 20, &b.data, &b.n, &err) != RD_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return b;
}

static rd_status decode(struct bytes b, const struct picture_limits *l, struct picture *p, struct rd_error *err)
{
    uint8_t *exact = malloc(b.n ? b.n : 1); /* a sanitizer sees a read beyond it */
    rd_status st;

    if (!exact) abort();
    memcpy(exact, b.data, b.n);
    err->text[0] = 0;
    st = picture_decode(exact, b.n, l, p, err);
    free(exact);
    return st;
}

static uint32_t hex_at(const char *s)
{
    char two[3] = {s[0], s[1], 0};

    return (uint32_t)strtoul(two, NULL, 16);
}

TEST(every_format_and_turn_is_what_transformers_has)
{
    struct bytes list = read_file("pictures.txt");
    uint32_t n = 0;

    for (char *line = list.data, *next; line && *line; line = next, n++) {
        char name[64];
        unsigned w, h;
        int used = 0;
        struct picture p;
        struct bytes file;
        struct rd_error err = {RD_OK, ""};

        next = strchr(line, '\n');
        if (next) *next++ = 0;
        CHECK_EQ(sscanf(line, "%63s %u %u %n", name, &w, &h, &used), 3);
        file = read_file(name);
        if (decode(file, NULL, &p, &err) != RD_OK) test_note("%s: %s", name, err.text);
        CHECK(p.rgb);
        CHECK(p.width == w && p.height == h && strlen(line + used) == 6ul * w * h);
        for (uint32_t i = 0; i < 3 * w * h; i++) {
            uint32_t want = hex_at(line + used + 2 * i);
            const bool is_close = abs((int)want - (int)p.rgb[i]) <= MOST_OFF;

            if (!is_close) test_note("%s: value %u is %u, not %u", name, i, p.rgb[i], want);
            CHECK(is_close);
        }
        picture_deinit(&p);
        mem_free(file.data);
    }
    mem_free(list.data);
    CHECK_EQ(n, 27);
}

static const char *const of_format[] = {"rgb.jpg",  "progressive.jpg", "cmyk.jpg",   "rgb.png",   "palette.png",
                                        "rgba.png", "lossless.webp",   "alpha.webp", "lossy.webp"};
#define N_OF_FORMAT (sizeof(of_format) / sizeof(of_format[0]))

TEST(a_file_that_ends_early_says_so)
{
    for (size_t i = 0; i < N_OF_FORMAT; i++) {
        struct bytes file = read_file(of_format[i]);
        const uint64_t alive = mem_n_alive();

        for (size_t n = 0; n + 16 < file.n; n++) { /* WebP's and PNG's last bytes are padding and checksums */
            struct picture p;
            struct rd_error err = {RD_OK, ""};
            rd_status st = decode((struct bytes){file.data, n}, NULL, &p, &err);

            CHECK(st == RD_E_FORMAT && err.text[0] && !p.rgb);
            CHECK_EQ(mem_n_alive(), alive);
        }
        mem_free(file.data);
    }
}

TEST(three_hundred_damaged_files_of_each_format_are_read_or_refused)
{
    uint64_t draw = test_seed() | 1;

    for (size_t i = 0; i < N_OF_FORMAT; i++) {
        struct bytes file = read_file(of_format[i]);
        char *damaged = mem_memdup(file.data, file.n);
        const uint64_t alive = mem_n_alive();

        CHECK(damaged);
        for (uint32_t k = 0; k < 300; k++) {
            const struct picture_limits l = {.max_pixels = 1 << 20};
            struct picture p;
            struct rd_error err = {RD_OK, ""};
            rd_status st;

            memcpy(damaged, file.data, file.n);
            for (uint32_t j = 0; j <= k % 4; j++) {
                draw = draw * 6364136223846793005ull + 1442695040888963407ull;
                damaged[(draw >> 33) % file.n] = (char)(draw >> 24);
            }
            st = decode((struct bytes){damaged, file.n}, &l, &p, &err);
            CHECK(st == RD_OK ? p.rgb != NULL : err.text[0] && !p.rgb);
            CHECK(st == RD_OK || st == RD_E_FORMAT || st == RD_E_LIMIT || st == RD_E_UNSUPPORTED);
            if (st == RD_OK) CHECK((uint64_t)p.width * p.height <= l.max_pixels);
            picture_deinit(&p);
            CHECK_EQ(mem_n_alive(), alive);
        }
        mem_free(damaged);
        mem_free(file.data);
    }
}

/* PNG: length, IHDR, width, height, in big endian; libpng goes on to the checksum, so it is made anew. */
static void set_png_size(struct bytes b, uint32_t w, uint32_t h)
{
    uint32_t crc = 0xffffffff;

    for (uint32_t i = 0; i < 4; i++) {
        b.data[16 + i] = (char)(w >> (24 - 8 * i));
        b.data[20 + i] = (char)(h >> (24 - 8 * i));
    }
    for (uint32_t i = 12; i < 29; i++) {
        crc ^= (uint8_t)b.data[i];
        for (uint32_t bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xedb88320 : crc >> 1;
    }
    for (uint32_t i = 0; i < 4; i++) b.data[29 + i] = (char)(~crc >> (24 - 8 * i));
}

TEST(a_bomb_is_refused_by_its_size_before_memory_is_taken)
{
    static const uint32_t sizes[][2] = {{100000, 100000}, {1, 70000}, {8193, 8193}, {0x7fffffff, 1}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct bytes file = read_file("rgb.png");
        struct picture p;
        struct rd_error err = {RD_OK, ""};
        char said[64];

        set_png_size(file, sizes[i][0], sizes[i][1]);
        snprintf(said, sizeof(said), "%u x %u pixels", sizes[i][0], sizes[i][1]);
        mem_reset_peak();
        CHECK_EQ(decode(file, NULL, &p, &err), RD_E_LIMIT);
        CHECK(strstr(err.text, said));
        CHECK(mem_usage().peak_bytes < mem_usage().n_bytes + (1u << 20));
        mem_free(file.data);
    }
}

TEST(what_is_no_picture_is_refused_by_its_name)
{
    static const struct {
        const char *data;
        size_t n;
        rd_status st;
        const char *said;
    } cases[] = {
        {"", 0, RD_E_FORMAT, "empty"},
        {"hello", 5, RD_E_FORMAT, "no picture"},
        {"GIF89a", 6, RD_E_UNSUPPORTED, "a GIF is not taken"},
        {"BM\0\0\0\0", 6, RD_E_UNSUPPORTED, "a BMP is not taken"},
        {"\0\0\0\x1c"
         "ftypavif",
         12, RD_E_UNSUPPORTED, "a AVIF is not taken"},
        {"\xff\xd8\xff", 3, RD_E_FORMAT, "the JPEG ends early"},
        {"\x89PNG\r\n\x1a\n", 8, RD_E_FORMAT, "the PNG ends early"},
        {"RIFF\x10\0\0\0WEBPVP8L", 16, RD_E_FORMAT, "the WebP"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct picture p;
        struct rd_error err = {RD_OK, ""};

        CHECK_EQ(picture_decode((const uint8_t *)cases[i].data, cases[i].n, NULL, &p, &err), cases[i].st);
        if (!strstr(err.text, cases[i].said)) test_note("%s", err.text);
        CHECK(strstr(err.text, cases[i].said) && !p.rgb);
    }
}

TEST(limits_and_a_cancel_are_kept)
{
    for (size_t i = 0; i < N_OF_FORMAT; i++) {
        struct bytes file = read_file(of_format[i]);
        const atomic_bool cancelled = true;
        struct picture p;
        struct rd_error err = {RD_OK, ""};

        CHECK_EQ(decode(file, &(struct picture_limits){.max_bytes = file.n - 1}, &p, &err), RD_E_LIMIT);
        CHECK_EQ(decode(file, &(struct picture_limits){.max_pixels = 19 * 13 - 1}, &p, &err), RD_E_LIMIT);
        CHECK_EQ(decode(file, &(struct picture_limits){.cancelled = &cancelled}, &p, &err), RD_E_CANCELLED);
        CHECK_EQ(decode(file, &(struct picture_limits){.max_bytes = file.n, .max_pixels = 19 * 13}, &p, &err), RD_OK);
        picture_deinit(&p);
        mem_free(file.data);
    }
}

TEST(without_memory_nothing_is_left)
{
    for (size_t i = 0; i < N_OF_FORMAT; i++) {
        struct bytes file = read_file(of_format[i]);
        const uint64_t alive = mem_n_alive();
        rd_status st = RD_E_NOMEM;

        for (int64_t k = 0; st != RD_OK; k++) {
            struct picture p;
            struct rd_error err = {RD_OK, ""};

            mem_fail_after(k);
            st = decode(file, NULL, &p, &err);
            mem_fail_after(-1);
            CHECK(st == RD_OK || st == RD_E_NOMEM || st == RD_E_FORMAT); /* zlib calls it a damaged stream */
            picture_deinit(&p);
            CHECK_EQ(mem_n_alive(), alive);
            CHECK(k < 1000);
        }
        mem_free(file.data);
    }
}
