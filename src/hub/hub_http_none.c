/* hub/hub_http_none.c - hub_http.h in a program that was built without libcurl: nothing is downloaded, the cache is read. */
#include "base/error.h"
#include "hub/hub_http.h"
#include "hub/hub_image.h"
#include "hub/hub_ranges.h"

static rd_status none(struct rd_error *err)
{
    return error_set(err, RD_E_UNSUPPORTED,
                     "this radish was built without libcurl and cannot download (Debian: apt-get "
                     "install libcurl4-openssl-dev, then build again)");
}

bool hub_http_is_built(void)
{
    return false;
}

bool hub_http_start(void)
{
    return true;
}

rd_status hub_http_create(const struct hub_http_options *o, struct hub_http **out, struct rd_error *err)
{
    (void)o;
    *out = NULL;
    return none(err);
}

void hub_http_destroy(struct hub_http *h)
{
    (void)h;
}

rd_status hub_http_get(struct hub_http *h, const char *url, const char *if_range, const struct hub_sink *sink,
                       struct hub_answer *answer, struct rd_error *err)
{
    (void)h, (void)url, (void)if_range, (void)sink, (void)answer;
    return none(err);
}

rd_status hub_http_get_pieces(struct hub_http *h, const char *url, const char *if_range, uint32_t n_connections,
                              const struct hub_pieces *pieces, struct rd_error *err)
{
    (void)h, (void)url, (void)if_range, (void)n_connections, (void)pieces;
    return none(err);
}

rd_status hub_http_text(struct hub_http *h, const char *url, size_t limit, struct buf *out, struct hub_answer *answer,
                        struct rd_error *err)
{
    (void)h, (void)url, (void)limit, (void)out, (void)answer;
    return none(err);
}

rd_status hub_http_head(struct hub_http *h, const char *url, struct hub_answer *answer, struct rd_error *err)
{
    (void)h, (void)url, (void)answer;
    return none(err);
}

void hub_put_url_path(struct buf *out, const char *path)
{
    (void)out, (void)path;
}

bool hub_same_origin(const char *a, const char *b)
{
    (void)a, (void)b;
    return false;
}

rd_status hub_image_get(const struct hub_image_from *from, const char *url, const struct rd_image_sink *sink,
                        struct rd_error *err)
{
    (void)from, (void)url, (void)sink;
    return none(err);
}
