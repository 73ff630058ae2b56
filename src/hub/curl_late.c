/* hub/curl_late.c - libcurl's functions in a program that is not linked with it: the library is opened when one is called.
 *
 * Built in place of libcurl where everything else is linked as an archive (RADISH_STATIC): Debian's libcurl.a wants libraries
 * that have none. So one file runs on any machine, and downloads where there is a libcurl.so.4. What is missing fails as
 * libcurl itself would: curl_global_init_mem() with CURLE_FAILED_INIT, others with NULL.
 *
 * Thread  as libcurl's: curl_global_init_mem() first, by one thread.
 */
#include <curl/curl.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define FUNCTIONS(X)                                                                                                   \
    X(curl_global_init_mem)                                                                                            \
    X(curl_easy_init)                                                                                                  \
    X(curl_easy_cleanup)                                                                                               \
    X(curl_easy_reset)                                                                                                 \
    X(curl_easy_perform)                                                                                               \
    X(curl_easy_strerror)                                                                                              \
    X(curl_easy_setopt)                                                                                                \
    X(curl_easy_getinfo)                                                                                               \
    X(curl_multi_init)                                                                                                 \
    X(curl_multi_cleanup)                                                                                              \
    X(curl_multi_setopt)                                                                                               \
    X(curl_multi_add_handle)                                                                                           \
    X(curl_multi_remove_handle)                                                                                        \
    X(curl_multi_perform)                                                                                              \
    X(curl_multi_poll)                                                                                                 \
    X(curl_multi_info_read)                                                                                            \
    X(curl_slist_append)                                                                                               \
    X(curl_slist_free_all)                                                                                             \
    X(curl_url)                                                                                                        \
    X(curl_url_cleanup)                                                                                                \
    X(curl_url_get)                                                                                                    \
    X(curl_url_set)                                                                                                    \
    X(curl_free)

/* Checked calls of variable arguments are macros; here they are functions. */
#undef curl_easy_setopt
#undef curl_easy_getinfo
#undef curl_multi_setopt

#define POINTER(name) static __typeof__(&name) late_##name;
FUNCTIONS(POINTER)

static bool open_library(void)
{
    static bool is_open;
    void *library =
        is_open ? NULL : dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL); /* stays open, as a linked one does */
    bool ok = library != NULL;

    if (is_open) return true;
#define FIND(name)                                                                                                     \
    if (ok) {                                                                                                          \
        void *found = dlsym(library, #name);                                                                           \
        memcpy(&late_##name, &found, sizeof(found));                                                                   \
        ok = found != NULL;                                                                                            \
    }
    FUNCTIONS(FIND)
    is_open = ok;
    return ok;
}

CURLcode curl_global_init_mem(long flags, curl_malloc_callback m, curl_free_callback f, curl_realloc_callback r,
                              curl_strdup_callback s, curl_calloc_callback c)
{
    return open_library() ? late_curl_global_init_mem(flags, m, f, r, s, c) : CURLE_FAILED_INIT;
}

CURL *curl_easy_init(void)
{
    return open_library() ? late_curl_easy_init() : NULL;
}

/* From here on there is a handle or a list, so the library is open, or NULL is what it would be given. */
void curl_easy_cleanup(CURL *curl)
{
    if (curl) late_curl_easy_cleanup(curl);
}

void curl_easy_reset(CURL *curl)
{
    late_curl_easy_reset(curl);
}

CURLcode curl_easy_perform(CURL *curl)
{
    return late_curl_easy_perform(curl);
}

const char *curl_easy_strerror(CURLcode code)
{
    return open_library() ? late_curl_easy_strerror(code) : "there is no libcurl.so.4";
}

/* Each option has one argument: a long, a pointer or a curl_off_t, which are all as wide where this is built. */
_Static_assert(sizeof(long) == sizeof(void *) && sizeof(long) == sizeof(curl_off_t), "one width for all arguments");

CURLcode curl_easy_setopt(CURL *curl, CURLoption option, ...)
{
    va_list args;
    void *value;

    va_start(args, option);
    value = va_arg(args, void *);
    va_end(args);
    return late_curl_easy_setopt(curl, option, value);
}

CURLcode curl_easy_getinfo(CURL *curl, CURLINFO info, ...)
{
    va_list args;
    void *value;

    va_start(args, info);
    value = va_arg(args, void *);
    va_end(args);
    return late_curl_easy_getinfo(curl, info, value);
}

CURLM *curl_multi_init(void)
{
    return open_library() ? late_curl_multi_init() : NULL;
}

CURLMcode curl_multi_cleanup(CURLM *multi)
{
    return multi ? late_curl_multi_cleanup(multi) : CURLM_BAD_HANDLE;
}

CURLMcode curl_multi_setopt(CURLM *multi, CURLMoption option, ...)
{
    va_list args;
    void *value;

    va_start(args, option);
    value = va_arg(args, void *);
    va_end(args);
    return late_curl_multi_setopt(multi, option, value);
}

CURLMcode curl_multi_add_handle(CURLM *multi, CURL *curl)
{
    return late_curl_multi_add_handle(multi, curl);
}

CURLMcode curl_multi_remove_handle(CURLM *multi, CURL *curl)
{
    return late_curl_multi_remove_handle(multi, curl);
}

CURLMcode curl_multi_perform(CURLM *multi, int *n_running)
{
    return late_curl_multi_perform(multi, n_running);
}

CURLMcode curl_multi_poll(CURLM *multi, struct curl_waitfd extra[], unsigned int n_extra, int timeout_ms, int *n_ready)
{
    return late_curl_multi_poll(multi, extra, n_extra, timeout_ms, n_ready);
}

CURLMsg *curl_multi_info_read(CURLM *multi, int *n_left)
{
    return late_curl_multi_info_read(multi, n_left);
}

struct curl_slist *curl_slist_append(struct curl_slist *list, const char *text)
{
    return open_library() ? late_curl_slist_append(list, text) : NULL;
}

void curl_slist_free_all(struct curl_slist *list)
{
    if (list) late_curl_slist_free_all(list);
}

CURLU *curl_url(void)
{
    return open_library() ? late_curl_url() : NULL;
}

void curl_url_cleanup(CURLU *url)
{
    if (url) late_curl_url_cleanup(url);
}

CURLUcode curl_url_get(CURLU *url, CURLUPart what, char **part, unsigned int flags)
{
    return url ? late_curl_url_get(url, what, part, flags) : CURLUE_BAD_HANDLE;
}

CURLUcode curl_url_set(CURLU *url, CURLUPart what, const char *part, unsigned int flags)
{
    return url ? late_curl_url_set(url, what, part, flags) : CURLUE_BAD_HANDLE;
}

void curl_free(void *p)
{
    if (p) late_curl_free(p);
}
