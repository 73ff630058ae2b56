/* tests/support/msan_libraries.c - what libraries write, for the memory sanitizer (preset msan).
 *
 * It follows every write of code that is compiled with it; jansson, PCRE2, utf8proc and libevent are not. So each of their
 * functions that writes to memory which radish reads is wrapped by the linker (--wrap, tests/CMakeLists.txt), and what it
 * wrote is marked as initialised, no more than that: their blocks of the heap, as they take them (all of a block: what is
 * inside is theirs), and the variables that they were given. What radish does with memory of its own is seen as ever.
 */
#include <jansson.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <sanitizer/msan_interface.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Called by a library: what it hands over is not followed. */
#define FROM_LIBRARY __attribute__((no_sanitize("memory")))

/* ---- jansson ---- */

static json_malloc_t json_take = malloc;

FROM_LIBRARY static void *json_block(size_t n)
{
    void *p = json_take(n);

    if (p) __msan_unpoison(p, n);
    return p;
}

void __real_json_set_alloc_funcs(json_malloc_t take, json_free_t give);
void __wrap_json_set_alloc_funcs(json_malloc_t take, json_free_t give);
void __wrap_json_set_alloc_funcs(json_malloc_t take, json_free_t give)
{
    json_take = take;
    __real_json_set_alloc_funcs(json_block, give);
}

__attribute__((constructor(101))) static void wrap_malloc(void)
{
    __real_json_set_alloc_funcs(json_block, free);
}

/* What a test asked for, not what jansson was told. */
void __real_json_get_alloc_funcs(json_malloc_t *take, json_free_t *give);
void __wrap_json_get_alloc_funcs(json_malloc_t *take, json_free_t *give);
void __wrap_json_get_alloc_funcs(json_malloc_t *take, json_free_t *give)
{
    __real_json_get_alloc_funcs(take, give);
    if (take) *take = json_block;
    if (give) __msan_unpoison(give, sizeof(*give));
}

struct dump {
    json_dump_callback_t fn;
    void *arg;
};

FROM_LIBRARY static int dumped(const char *bytes, size_t n, void *arg)
{
    const struct dump *d = arg;

    __msan_unpoison(bytes, n);
    return d->fn(bytes, n, d->arg);
}

int __real_json_dump_callback(const json_t *v, json_dump_callback_t fn, void *arg, size_t flags);
int __wrap_json_dump_callback(const json_t *v, json_dump_callback_t fn, void *arg, size_t flags);
int __wrap_json_dump_callback(const json_t *v, json_dump_callback_t fn, void *arg, size_t flags)
{
    struct dump d = {fn, arg};

    return __real_json_dump_callback(v, dumped, &d, flags);
}

/* ---- PCRE2 ---- */

static void *(*pcre2_take)(PCRE2_SIZE n, void *user);

FROM_LIBRARY static void *pcre2_block(PCRE2_SIZE n, void *user)
{
    void *p = pcre2_take(n, user);

    if (p) __msan_unpoison(p, n);
    return p;
}

pcre2_general_context *__real_pcre2_general_context_create_8(void *(*take)(PCRE2_SIZE, void *),
                                                             void (*give)(void *, void *), void *user);
pcre2_general_context *__wrap_pcre2_general_context_create_8(void *(*take)(PCRE2_SIZE, void *),
                                                             void (*give)(void *, void *), void *user);
pcre2_general_context *__wrap_pcre2_general_context_create_8(void *(*take)(PCRE2_SIZE, void *),
                                                             void (*give)(void *, void *), void *user)
{
    pcre2_take = take;
    return __real_pcre2_general_context_create_8(pcre2_block, give, user);
}

pcre2_code *__real_pcre2_compile_8(PCRE2_SPTR text, PCRE2_SIZE n, uint32_t options, int *code, PCRE2_SIZE *at,
                                   pcre2_compile_context *context);
pcre2_code *__wrap_pcre2_compile_8(PCRE2_SPTR text, PCRE2_SIZE n, uint32_t options, int *code, PCRE2_SIZE *at,
                                   pcre2_compile_context *context);
pcre2_code *__wrap_pcre2_compile_8(PCRE2_SPTR text, PCRE2_SIZE n, uint32_t options, int *code, PCRE2_SIZE *at,
                                   pcre2_compile_context *context)
{
    pcre2_code *made = __real_pcre2_compile_8(text, n, options, code, at, context);

    __msan_unpoison(code, sizeof(*code));
    __msan_unpoison(at, sizeof(*at));
    return made;
}

int __real_pcre2_get_error_message_8(int code, PCRE2_UCHAR *text, PCRE2_SIZE n);
int __wrap_pcre2_get_error_message_8(int code, PCRE2_UCHAR *text, PCRE2_SIZE n);
int __wrap_pcre2_get_error_message_8(int code, PCRE2_UCHAR *text, PCRE2_SIZE n)
{
    int written = __real_pcre2_get_error_message_8(code, text, n);

    if (written >= 0) __msan_unpoison(text, (size_t)written + 1);
    return written;
}

/* ---- utf8proc ---- */

utf8proc_ssize_t __real_utf8proc_decompose_char(utf8proc_int32_t cp, utf8proc_int32_t *out, utf8proc_ssize_t n_max,
                                                utf8proc_option_t options, int *boundary);
utf8proc_ssize_t __wrap_utf8proc_decompose_char(utf8proc_int32_t cp, utf8proc_int32_t *out, utf8proc_ssize_t n_max,
                                                utf8proc_option_t options, int *boundary);
utf8proc_ssize_t __wrap_utf8proc_decompose_char(utf8proc_int32_t cp, utf8proc_int32_t *out, utf8proc_ssize_t n_max,
                                                utf8proc_option_t options, int *boundary)
{
    utf8proc_ssize_t n = __real_utf8proc_decompose_char(cp, out, n_max, options, boundary);

    if (n > 0) __msan_unpoison(out, (size_t)(n < n_max ? n : n_max) * sizeof(*out));
    if (boundary) __msan_unpoison(boundary, sizeof(*boundary));
    return n;
}

utf8proc_ssize_t __real_utf8proc_normalize_utf32(utf8proc_int32_t *cps, utf8proc_ssize_t n, utf8proc_option_t options);
utf8proc_ssize_t __wrap_utf8proc_normalize_utf32(utf8proc_int32_t *cps, utf8proc_ssize_t n, utf8proc_option_t options);
utf8proc_ssize_t __wrap_utf8proc_normalize_utf32(utf8proc_int32_t *cps, utf8proc_ssize_t n, utf8proc_option_t options)
{
    utf8proc_ssize_t n_left = __real_utf8proc_normalize_utf32(cps, n, options);

    if (n_left > 0) __msan_unpoison(cps, (size_t)n_left * sizeof(*cps));
    return n_left;
}
