/* tests/fuzz/fuzz_memory_file.c - any bytes as the file of what was answered (memory_file.h), its checksums right: records of
 * answers, sequences and spellings; what is taken is told again as records that are taken, too.
 *
 * Input: records, each 2 bytes of length and its bytes; or, where the first byte is 255, the file as it is behind it.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "memory/answer_memory.h"
#include "api/api_state.h"
#include "memory/memory_file.h"
#include "memory/spelling_memory.h"
#include "base/buf.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define VOCABULARY RADISH_SOURCE_DIR "/tests/golden/qwen3/tiny-qwen3.gguf"
#define FILE_BYTES (1u << 20)
#define NAME       "answers"

static char dir[64];
static rd_engine *engine;

static void expect(bool fact)
{
    if (!fact) abort();
}

static void ignore(void *arg, enum log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

static void begin(void)
{
    if (engine) return;
    log_set_sink(ignore, NULL);
    snprintf(dir, sizeof(dir), "%s/radish-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    expect(mkdtemp(dir) != NULL && rd_open_tokenizer(VOCABULARY, NULL, &engine, NULL) == RD_OK);
}

struct memories {
    struct answer_memory *answers;
    struct spelling_memory *spellings;
    uint32_t n_taken;
};

static void load(void *arg, const void *record, size_t n)
{
    struct memories *m = arg;

    m->n_taken += answer_memory_load(m->answers, record, n) || spelling_memory_load(m->spellings, record, n);
}

static void again(void *arg, const void *record, size_t n)
{
    memory_file_again(arg, record, n);
}

static void dump(void *arg, struct memory_file *f)
{
    struct memories *m = arg;

    spelling_memory_dump(m->spellings, again, f);
    answer_memory_dump(m->answers, again, f);
}

static void check_record(void *arg, const void *record, size_t n)
{
    load(arg, record, n);
}

static struct memories create(void)
{
    struct memories m = {NULL, NULL, 0};

    expect(answer_memory_create(engine->tokenizer, 1 << 16, &m.answers) == RD_OK);
    expect(spelling_memory_create(1 << 16, &m.spellings) == RD_OK);
    return m;
}

static void destroy(struct memories *m)
{
    answer_memory_destroy(m->answers);
    spelling_memory_destroy(m->spellings);
}

/* The file's bytes: a head, then each record with its length and hash. */
static void build(const uint8_t *data, size_t n, struct buf *out)
{
    const struct {
        uint64_t magic, version;
    } head = {0x79726f6d656d6472ull, 1};

    buf_append(out, &head, sizeof(head));
    for (size_t at = 0; at + 2 <= n;) {
        uint32_t size = data[at] | (uint32_t)data[at + 1] << 8;
        struct {
            uint32_t magic, n;
            uint64_t hash;
        } record;

        at += 2;
        if (size > n - at) size = (uint32_t)(n - at);
        record.magic = 0x63657264u;
        record.n = size;
        record.hash = hash64_of(data + at, size);
        buf_append(out, &record, sizeof(record));
        buf_append(out, data + at, size);
        at += size;
    }
}

static void put_file(const uint8_t *data, size_t n)
{
    struct buf bytes = {0};
    char path[128];
    int fd;

    if (n > 0 && data[0] == 255)
        buf_append(&bytes, data + 1, n - 1);
    else
        build(data, n, &bytes);
    snprintf(path, sizeof(path), "%s/" NAME, dir);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    expect(fd >= 0 && write(fd, bytes.data, bytes.n) == (ssize_t)bytes.n);
    close(fd);
    buf_deinit(&bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct memories first, second;
    struct memory_file_owner owner;
    struct memory_file *f = NULL;

    if (n > 1 << 16) return 0;
    begin();
    first = create();
    second = create();
    owner = (struct memory_file_owner){&first, load, dump};
    put_file(data, n);
    expect(memory_file_open(dir, NAME, FILE_BYTES, &owner, &f) == RD_OK);
    memory_file_close(f);
    spelling_memory_dump(first.spellings, check_record, &second);
    answer_memory_dump(first.answers, check_record, &second);
    destroy(&first);
    destroy(&second);
    return 0;
}
