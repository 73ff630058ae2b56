/* memory/memory_file.c - a queue, a thread that appends, and the file written anew when it is full of old things or cleared. */
#include "memory/memory_file.h"
#include <stdio.h>
#include <string.h>
#include "base/buf.h"
#include "base/cache_dir.h"
#include "base/data_file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/queue.h"
#include "base/thread.h"

#define FILE_MAGIC    0x79726f6d656d6472ull /* "rdmemory" */
#define FILE_VERSION  1ull
#define RECORD_MAGIC  0x63657264u /* "drec" */
#define QUEUE_RECORDS 512u
#define NAME_BYTES    96u

struct file_head {
    uint64_t magic, version;
};
struct record_head {
    uint32_t magic, n;
    uint64_t hash;
};
struct queued {
    size_t n;
    uint64_t n_clears;
    bool syncs;
    uint8_t data[];
}; /* n_clears: how often it was cleared before */

struct memory_file {
    char *dir;
    char name[NAME_BYTES];
    uint64_t max_bytes;
    struct memory_file_owner owner;
    struct queue *queue;
    struct thread thread;
    struct queued *knock; /* wakes the thread; holds no record */

    struct data_file lock, file; /* the thread's, once it runs; closed: not the writer, or failed */
    uint64_t end;                /* of the file */
    struct buf anew;             /* while it is written anew */

    struct mutex lock_done; /* guards the rest */
    struct cond done;
    uint64_t n_clears, n_cleared, n_syncs, n_synced; /* wanted since opening; done */
    rd_status sync_st;                               /* of the last one */
};

static void frame(struct buf *b, const void *record, size_t n)
{
    struct record_head head = {RECORD_MAGIC, (uint32_t)n, hash64_of(record, n)};

    buf_append(b, &head, sizeof(head));
    buf_append(b, record, n);
}

static void give_up(struct memory_file *f, const char *what)
{
    char reason[96];

    log_warn("what was answered is not kept over a restart: %s: %s", what, data_file_reason(reason, sizeof(reason)));
    data_file_close(&f->file);
}

/* ---- the file anew ---- */

void memory_file_again(struct memory_file *f, const void *record, size_t n)
{
    frame(&f->anew, record, n);
}

/* for_good: not even a power cut brings the old one back. */
static rd_status replace_file(struct memory_file *f, bool for_good)
{
    struct cache_file file = {-1, NULL};
    struct rd_error err = {RD_OK, ""};
    rd_status st = cache_file_create(f->dir, f->anew.n, &file, &err);

    if (st == RD_OK) st = cache_file_write(&file, 0, f->anew.data, f->anew.n, &err);
    if (st == RD_OK && for_good) st = cache_file_sync(&file, &err);
    if (st == RD_OK) st = cache_file_commit(&file, f->dir, f->name, &err);
    cache_file_abandon(&file);
    if (st == RD_OK && for_good) st = data_file_sync_dir(f->dir);
    data_file_close(&f->file);
    if (st == RD_OK) st = data_file_open(f->dir, f->name, DATA_FILE_WRITE, &f->file);
    return st;
}

static void write_anew(struct memory_file *f, bool empty)
{
    const struct file_head head = {FILE_MAGIC, FILE_VERSION};

    buf_append(&f->anew, &head, sizeof(head));
    if (!empty) f->owner.dump(f->owner.arg, f);
    if (f->anew.failed || replace_file(f, empty) != RD_OK) give_up(f, "cannot write it anew");
    f->end = f->anew.n;
    buf_deinit(&f->anew);
}

/* ---- the writer ---- */

static void append(struct memory_file *f, const struct queued *q)
{
    struct buf record = {0};

    frame(&record, q->data, q->n);
    if (!record.failed && data_file_write(&f->file, f->end, record.data, record.n) != RD_OK)
        give_up(f, "cannot write");
    else if (!record.failed)
        f->end += record.n;
    buf_deinit(&record);
}

static void sync_now(struct memory_file *f)
{
    rd_status st = f->file.fd < 0 ? RD_E_IO : data_file_sync(&f->file);

    if (st == RD_OK) st = data_file_sync_dir(f->dir);
    mutex_lock(&f->lock_done);
    f->n_synced++;
    f->sync_st = st;
    cond_broadcast(&f->done);
    mutex_unlock(&f->lock_done);
}

static uint64_t n_clears(struct memory_file *f)
{
    uint64_t n;

    mutex_lock(&f->lock_done);
    n = f->n_clears;
    mutex_unlock(&f->lock_done);
    return n;
}

/* Also of a file that is given up: what it holds would be read at the next start. */
static void empty_file(struct memory_file *f)
{
    char reason[96];

    if (f->file.fd >= 0) write_anew(f, true);
    if (f->file.fd >= 0) return;
    if (data_file_remove(f->dir, f->name) != RD_OK || data_file_sync_dir(f->dir) != RD_OK)
        log_warn("what was answered cannot be removed from the disk: %s", data_file_reason(reason, sizeof(reason)));
}

/* If it was asked for since it was last done. */
static void clear_now(struct memory_file *f)
{
    uint64_t n = n_clears(f);

    if (n == f->n_cleared) return; /* this thread alone writes it */
    empty_file(f);
    mutex_lock(&f->lock_done);
    f->n_cleared = n;
    cond_broadcast(&f->done);
    mutex_unlock(&f->lock_done);
}

static void writer_main(void *arg)
{
    struct memory_file *f = arg;
    struct queued *q;

    /* of ordinary priority, for the little it does: who dumps holds locks that every request takes, and others wait for syncs */
    while ((q = queue_pop(f->queue))) {
        clear_now(f);
        if (q == f->knock) continue;
        if (q->syncs) {
            sync_now(f);
        } else if (f->file.fd >= 0 && q->n_clears == f->n_cleared) {
            if (f->end + q->n > f->max_bytes)
                write_anew(f, false); /* the record is in memory */
            else
                append(f, q);
        }
        mem_free(q);
    }
    clear_now(f);
}

void memory_file_put(struct memory_file *f, const void *record, size_t n)
{
    struct queued *q = f ? mem_alloc(1, sizeof(*q) + n) : NULL;

    if (!q) return;
    q->n = n;
    q->n_clears = n_clears(f);
    q->syncs = false;
    if (n) memcpy(q->data, record, n);
    if (queue_push(f->queue, q) != RD_OK) mem_free(q);
}

/* The thread looks at the count after whatever it takes from the queue: a full one wakes it as well as our knock. */
void memory_file_clear(struct memory_file *f)
{
    if (!f) return;
    mutex_lock(&f->lock_done);
    f->n_clears++;
    mutex_unlock(&f->lock_done);
    (void)queue_push(f->queue, f->knock);
}

rd_status memory_file_sync(struct memory_file *f)
{
    struct queued *q = f ? mem_zalloc(1, sizeof(*q)) : NULL;
    rd_status st;
    uint64_t n;

    if (!q) return f ? RD_E_NOMEM : RD_E_IO;
    q->syncs = true;
    mutex_lock(&f->lock_done);
    st = queue_push(f->queue, q);
    if (st == RD_OK) n = ++f->n_syncs;
    while (st == RD_OK && f->n_synced < n) cond_wait(&f->done, &f->lock_done);
    if (st == RD_OK)
        st = f->sync_st;
    else
        mem_free(q);
    mutex_unlock(&f->lock_done);
    return st;
}

void memory_file_settle(struct memory_file *f, uint64_t timeout_ns)
{
    const uint64_t tick = 100000000;

    if (!f) return;
    mutex_lock(&f->lock_done);
    for (uint64_t i = 0; f->n_cleared != f->n_clears && i <= timeout_ns / tick; i++)
        cond_wait_ns(&f->done, &f->lock_done, tick);
    mutex_unlock(&f->lock_done);
}

/* ---- opening ---- */

/* Gives the whole records to the owner; the end of the last one. */
static uint64_t read_records(struct memory_file *f, const char *data, size_t n)
{
    struct file_head head = {0, 0};
    size_t at = sizeof(head);

    if (n >= sizeof(head)) memcpy(&head, data, sizeof(head));
    if (head.magic != FILE_MAGIC || head.version != FILE_VERSION) return 0;
    for (;;) {
        struct record_head record;

        if (n - at < sizeof(record)) return at;
        memcpy(&record, data + at, sizeof(record));
        if (record.magic != RECORD_MAGIC || record.n > n - at - sizeof(record)) return at;
        if (record.hash != hash64_of(data + at + sizeof(record), record.n)) return at;
        f->owner.load(f->owner.arg, data + at + sizeof(record), record.n);
        at += sizeof(record) + record.n;
    }
}

static void read_file(struct memory_file *f)
{
    struct data_file file = DATA_FILE_CLOSED;
    uint64_t n = 0;
    char *data = NULL;

    if (data_file_open(f->dir, f->name, DATA_FILE_READ, &file) != RD_OK) return;
    if (data_file_size(&file, &n) == RD_OK && n > 0 && n <= 2 * f->max_bytes) data = mem_alloc(1, n);
    if (data && data_file_read(&file, 0, data, n) == RD_OK) f->end = read_records(f, data, n);
    mem_free(data);
    data_file_close(&file);
}

static void open_for_writing(struct memory_file *f)
{
    char lock[NAME_BYTES + 8];
    uint64_t n = 0;

    snprintf(lock, sizeof(lock), "%s.lock", f->name);
    if (data_file_lock(f->dir, lock, &f->lock) != RD_OK) return; /* another process writes */
    if (f->end == 0 || data_file_open(f->dir, f->name, DATA_FILE_WRITE, &f->file) != RD_OK)
        write_anew(f, false);
    else if (data_file_size(&f->file, &n) != RD_OK || (n > f->end && data_file_truncate(&f->file, f->end) != RD_OK))
        give_up(f, "cannot cut a damaged end");
}

rd_status memory_file_open(const char *dir, const char *name, uint64_t max_bytes, const struct memory_file_owner *owner,
                           struct memory_file **out)
{
    struct memory_file *f = mem_zalloc(1, sizeof(*f));
    rd_status st;

    *out = NULL;
    if (!f) return RD_E_NOMEM;
    f->max_bytes = max_bytes;
    f->owner = *owner;
    f->lock = f->file = DATA_FILE_CLOSED;
    snprintf(f->name, sizeof(f->name), "%s", name);
    mutex_init(&f->lock_done);
    cond_init(&f->done);
    f->dir = mem_strdup(dir);
    f->knock = mem_zalloc(1, sizeof(*f->knock));
    st = f->dir && f->knock ? queue_create(QUEUE_RECORDS, &f->queue) : RD_E_NOMEM;
    if (st == RD_OK) {
        read_file(f);
        open_for_writing(f);
        if (f->file.fd >= 0) st = thread_start(&f->thread, "answers", writer_main, f);
    }
    if (st == RD_OK && f->file.fd >= 0)
        *out = f;
    else
        memory_file_close(f);
    return st;
}

void memory_file_close(struct memory_file *f)
{
    struct queued *q;

    if (!f) return;
    if (f->queue) queue_close(f->queue);
    thread_join(&f->thread);
    while (f->queue && (q = queue_try_pop(f->queue)))
        if (q != f->knock) mem_free(q);
    queue_destroy(f->queue);
    mem_free(f->knock);
    data_file_close(&f->file);
    data_file_close(&f->lock);
    cond_deinit(&f->done);
    mutex_deinit(&f->lock_done);
    mem_free(f->dir);
    mem_free(f);
}
