/* api/api_store.c - the disk tier: where it is, whose pages are whose, what it did.
 *
 * A page's bytes follow from its tokens and from the name made here: the whole model file (its digest), the KV type, and
 * the code that computes (a digest of its sources, the compiler and its flags: other builds may round differently, and a
 * cached answer is bit for bit the answer without the cache). The engine adds the request's salt. Rows of images follow from
 * the encoder's file, too: where that is one by itself (--mmproj), its digest is part of every image's, and so of the keys of
 * its rows; text that was computed with another one is found all the same.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "api/api_state.h"
#include "base/cache_dir.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/key_file.h"
#include "base/log.h"
#include "base/sysinfo.h"
#include "engine/events/kv_events.h"
#include "engine/tiers/page_codec.h"
#include "engine/tiers/ram_link.h"
#include "engine/tiers/store_link.h"
#include "format/packed_file.h"
#include "store/page_store.h"

#define SALT_KEY_FILE        "salt.key" /* base/key_file.h */
#define DISK_BYTES           (8ull << 30)
#define DISK_KEPT_FREE_BYTES (512ull << 20) /* for whatever else writes on that disk */
#define DISK_KEPT_FREE_PART  16u
#define STORE_KV_MIN         256u
#define STAGING_BYTES        (64ull << 20)

static uint32_t store_kv_min(const struct rd_options *o)
{
    return o->store_kv_min ? o->store_kv_min : STORE_KV_MIN;
}

rd_status api_store_check(const rd_engine *e, const struct rd_options *o, struct rd_error *err)
{
    if (o->cache_store) {
        const struct shared_store_options so = {.url = o->cache_store, .prefix = o->cache_store_prefix};
        rd_status st = shared_store_check(&so, err);

        if (st != RD_OK) return st;
        if (!o->cache_dir || !*o->cache_dir || o->no_disk_cache)
            return error_set(err, RD_E_INVALID, "the shared store stands behind the disk cache, which is off");
    }
    if (!o->store_kv) return RD_OK;
    if (strcmp(o->store_kv, "q8_0") != 0)
        return error_set(err, RD_E_INVALID, "store_kv \"%.32s\": q8_0 is wanted, or nothing", o->store_kv);
    if (!page_codec_fits(&e->traits.layout))
        return error_set(
            err, RD_E_INVALID,
            "store_kv q8_0 is for keys and values in f16 with heads of a multiple of 32 values; here they are "
            "%s, with heads of %u",
            e->info.kv_type, e->traits.layout.head_dim);
    return RD_OK;
}

static struct shared_store_options shared_options(const struct rd_options *o)
{
    return (struct shared_store_options){.url = o->cache_store,
                                         .secret = o->cache_store_secret,
                                         .prefix = o->cache_store_prefix,
                                         .expiry_s = o->cache_store_expiry_s,
                                         .queue_bytes = o->cache_store_queue,
                                         .max_rate = o->cache_store_rate};
}

static rd_status open_store(const rd_engine *e, const struct rd_options *o, uint32_t page_tokens, uint64_t page_bytes,
                            struct store_link **out, struct rd_error *err)
{
    char about[320];
    struct store_options so = {.dir = o->cache_dir,
                               .about = about,
                               .cap_bytes = o->cache_disk_bytes ? o->cache_disk_bytes : DISK_BYTES,
                               .keep_free_bytes = DISK_KEPT_FREE_BYTES,
                               .keep_free_part = DISK_KEPT_FREE_PART,
                               .clock = clock_system()};
    struct store_link_options lo = {.clock = clock_system(),
                                    .page_tokens = page_tokens,
                                    .max_pages = e->info.n_ctx / page_tokens + 1,
                                    .page_bytes = page_bytes,
                                    .staging_bytes = STAGING_BYTES,
                                    .threads = true};
    rd_status st;

    snprintf(about, sizeof(about), "%s\n%s\n", e->info.model_id, e->info.kv_type);
    if (o->store_kv) {
        lo.lossy_from = store_kv_min(o);
        lo.packed_bytes = page_codec_bytes(&e->traits.layout) + (e->traits.window ? PAGE_CODEC_TAIL : 0);
        lo.codec = &e->traits.layout;
        lo.pack = e->traits.window ? page_codec_pack_tail : page_codec_pack;
        lo.unpack = e->traits.window ? page_codec_unpack_tail : page_codec_unpack;
    }
    st = page_store_open(&so, &lo.store, err);
    if (st == RD_OK && o->cache_store) {
        struct shared_store_options ho = shared_options(o);

        ho.page_tokens = page_tokens;
        ho.page_bytes = u64_max(page_bytes, lo.packed_bytes);
        st = shared_store_open(&ho, &lo.shared, err);
        if (st != RD_OK) page_store_close(lo.store);
    }
    return st == RD_OK ? store_link_create(&lo, out) : st;
}

/* lossy: what store_kv adds to a KV type. */
static void put_name(const rd_engine *e, const char *kv_type, const char *lossy, char *name, size_t cap)
{
    snprintf(name, cap, "%016" PRIx64 "%016" PRIx64 "|%s%s|%s|" RADISH_COMPUTE, e->content.high, e->content.low,
             kv_type, lossy, e->traits.computes);
}

void api_store_name(const rd_engine *e, const char *kv_type, char *name, size_t cap)
{
    name[0] = 0;
    if (e->store) put_name(e, kv_type, "", name, cap);
}

uint64_t api_kv_used_bytes(const rd_engine *e, const struct engine_stats *s)
{
    return (s->pages_total - s->pages_free) * e->traits.page_bytes +
           (s->windows_total - s->windows_free) * e->traits.window_bytes;
}

uint64_t api_page_bytes(const rd_engine *e, const struct kv_layout *layout)
{
    return kv_page_bytes(layout) + e->executor->page_bytes - kv_page_bytes(&e->traits.layout);
}

static rd_status name_pages(rd_engine *e, const struct rd_options *o, const char *kv_type, char *name, size_t cap,
                            struct rd_error *err)
{
    struct packed_options po = {.dir = o->cache_dir,
                                .settle_ns = PACKED_SETTLE_NS,
                                .n_threads = o->n_threads ? o->n_threads : thread_n_physical_cores()};
    rd_status st = cache_dir_make(o->cache_dir, err);
    char lossy[32] = "";

    if (st == RD_OK) st = packed_content(&po, e->gguf, &e->content, err);
    if (st == RD_OK && e->eyes) st = packed_content(&po, e->eyes, &e->processor.eyes, err);
    if (st != RD_OK) return st;
    if (o->store_kv) snprintf(lossy, sizeof(lossy), ">%s@%u", o->store_kv, store_kv_min(o));
    put_name(e, kv_type, lossy, name, cap);
    return RD_OK;
}

/* The key of cache salts stays in the folder, so that a tenant's pages are found again after a restart; it is made by the
 * first process. Without the file a new key serves: what was stored under salts is not found then. */
static void keep_salt_key(rd_engine *e, const char *dir)
{
    struct rd_error err = {RD_OK, ""};
    struct sip_key key;

    if (key_file_read(dir, SALT_KEY_FILE, &key)) {
        e->salt_key = key;
        return;
    }
    if (key_file_write(dir, SALT_KEY_FILE, e->salt_key, &err) != RD_OK)
        log_warn("what is cached under API keys and salts will not be found after a restart: %s", err.text);
    else if (key_file_read(dir, SALT_KEY_FILE, &key))
        e->salt_key = key; /* what another process made meanwhile counts */
}

void api_store_open(rd_engine *e, const struct rd_options *o, const char *kv_type, uint32_t page_tokens,
                    uint64_t page_bytes, char *name, size_t cap)
{
    struct rd_error err = {RD_OK, ""};
    rd_status st;

    if (!o->cache_dir || !*o->cache_dir || o->no_disk_cache) return;
    st = name_pages(e, o, kv_type, name, cap, &err);
    if (st == RD_OK) keep_salt_key(e, o->cache_dir); /* before what is kept under salts */
    if (st == RD_OK && o->cache_store && o->cache_store_secret && *o->cache_store_secret) {
        struct shared_keys keys; /* every machine has to call a tenant the same */

        shared_keys_make(o->cache_store_secret, &keys);
        e->salt_key = keys.salts;
    }
    if (st == RD_OK) api_memory_open(e, o->cache_dir, e->content);
    if (st == RD_OK) st = open_store(e, o, page_tokens, page_bytes, &e->store, &err);
    if (st != RD_OK) log_warn("no disk cache: %s", *err.text ? err.text : rd_status_text(st));
}

void api_ram_open(rd_engine *e, const struct rd_options *o, uint32_t page_tokens, uint64_t page_bytes)
{
    uint64_t n = o->cache_ram_bytes;
    rd_status st;

    if (e->traits.device.shares_memory) {
        if (n > 0 && n != RD_CACHE_RAM_AUTO)
            log_warn("cache_ram is for GPUs: on a CPU pages are in memory already; it is not used");
        return;
    }
    if (n == RD_CACHE_RAM_AUTO)
        n = e->traits.in_host_memory ? 0 : sysinfo_memory() / 4; /* it would be the same memory */
    if (n < page_bytes) return;
    st = ram_link_create(n, page_bytes, page_tokens, e->info.n_ctx / page_tokens + 1, true, &e->ram);
    if (st != RD_OK)
        log_warn("no host memory for pages that leave the GPU: %llu MiB: %s", (unsigned long long)(n >> 20),
                 rd_status_text(st));
    else
        log_info("%llu MiB of host memory for pages that leave the GPU", (unsigned long long)(n >> 20));
}

/* Which of two words it is; NULL is the first. */
static rd_status one_of(const char *what, const char *given, const char *first, const char *second, bool *is_second,
                        struct rd_error *err)
{
    *is_second = given && strcmp(given, second) == 0;
    if (!given || *is_second || strcmp(given, first) == 0) return RD_OK;
    return error_set(err, RD_E_INVALID, "%s \"%.32s\": %s or %s is wanted", what, given, first, second);
}

static rd_status hash_of(const char *given, struct kv_events_options *out, struct rd_error *err)
{
    static const struct {
        const char *word;
        enum block_hash_kind hash;
        bool numbers;
    } known[] = {{"bytes", BLOCK_HASH_CBOR, false},
                 {"numbers", BLOCK_HASH_CBOR, true},
                 {"sha256", BLOCK_HASH_PICKLE, false},
                 {"sha256-numbers", BLOCK_HASH_PICKLE, true}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (given && strcmp(given, known[i].word) != 0) continue;
        out->hash = known[i].hash;
        out->numbers = known[i].numbers;
        return RD_OK;
    }
    return error_set(err, RD_E_INVALID, "kv_events_hash \"%.32s\": bytes, numbers, sha256 or sha256-numbers is wanted",
                     given);
}

rd_status api_events_open(rd_engine *e, const struct rd_options *o, uint32_t page_tokens, struct rd_error *err)
{
    struct kv_events_options ko = {.socket = {o->kv_events, o->kv_events_replay, o->kv_events_topic},
                                   .page_tokens = page_tokens,
                                   .n_pages = e->traits.n_pages};
    rd_status st = one_of("kv_events_form", o->kv_events_form, "lists", "maps", &ko.maps, err);

    if (st == RD_OK) st = hash_of(o->kv_events_hash, &ko, err);
    return st == RD_OK && o->kv_events ? kv_events_create(&ko, &e->events, err) : st;
}

void api_store_close(rd_engine *e)
{
    kv_events_destroy(e->events);
    e->events = NULL;
    store_link_destroy(e->store);
    e->store = NULL;
    ram_link_destroy(e->ram);
    e->ram = NULL;
}

void api_store_stats(const struct engine_stats *s, struct rd_stats *out)
{
    out->prompt_tokens_disk = s->prompt_disk;
    out->pages_loading = s->pages_loading;
    out->disk_loads = s->disk_loads, out->disk_loads_late = s->disk_loads_late, out->disk_declined = s->disk_declined;
    out->disk_pages = s->disk.n_pages, out->disk_bytes = s->disk.n_bytes, out->disk_cap_bytes = s->disk.cap_bytes;
    out->disk_segments = s->disk.n_segments;
    out->disk_pages_written = s->disk.n_written, out->disk_bytes_written = s->disk.n_bytes_written;
    out->disk_pages_known = s->disk.n_known;
    out->disk_pages_read = s->disk.n_read, out->disk_bytes_read = s->disk.n_bytes_read;
    out->disk_pages_evicted = s->disk.n_evicted;
    out->disk_pages_dropped = s->disk.n_dropped + s->disk_unsaved;
    out->disk_damaged = s->disk.n_damaged;
    out->disk_read_errors = s->disk.n_read_errors, out->disk_write_errors = s->disk.n_write_errors;
    out->disk_remove_errors = s->disk.n_remove_errors;
    out->disk_is_writer = s->disk.is_writer, out->disk_is_failing = s->disk.is_failing;
    out->events_stored = s->events.n_stored, out->events_removed = s->events.n_removed;
    out->events_dropped = s->events.n_dropped, out->events_cleared = s->events.n_cleared;
    out->events_batches = s->events.n_batches, out->events_replays = s->events.n_replays;
    out->prompt_tokens_shared = s->prompt_shared;
    out->shared_lookups = s->shared.n_lookups, out->shared_lookups_late = s->shared_late;
    out->shared_pages_found = s->shared.n_found, out->shared_lookup_us = s->shared.lookup_us;
    out->shared_loads = s->shared_loads, out->shared_declined = s->shared_declined;
    out->shared_page_us = s->shared_page_us;
    out->shared_pages_read = s->shared.n_read, out->shared_bytes_read = s->shared.n_bytes_read;
    out->shared_refused = s->shared.n_refused;
    out->shared_pages_written = s->shared.n_written, out->shared_bytes_written = s->shared.n_bytes_written;
    out->shared_pages_known = s->shared.n_known, out->shared_pages_dropped = s->shared.n_dropped;
    out->shared_pages_removed = s->shared.n_removed, out->shared_queue_bytes = s->shared.queue_bytes;
    out->shared_read_errors = s->shared.n_read_errors, out->shared_write_errors = s->shared.n_write_errors;
    out->shared_is_on = s->shared.is_on, out->shared_reads = s->shared.reads, out->shared_writes = s->shared.writes;
    out->shared_read_trouble = s->shared.read_trouble, out->shared_write_trouble = s->shared.write_trouble;
}
