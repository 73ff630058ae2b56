/* api/api_memory.c - the answers and spellings of one model, and the file that has them over a restart. */
#include <inttypes.h>
#include <stdio.h>
#include "api/api_state.h"
#include "base/limits.h"
#include "base/log.h"

#define CLEAR_NS 10000000000ull /* as store_link_clear */

static void load(void *arg, const void *record, size_t n)
{
    rd_engine *e = arg;

    if (!answer_memory_load(e->answers, record, n)) spelling_memory_load(e->spellings, record, n);
}

static void again(void *file, const void *record, size_t n)
{
    memory_file_again(file, record, n);
}

static void dump(void *arg, struct memory_file *f)
{
    rd_engine *e = arg;

    spelling_memory_dump(e->spellings, again, f);
    answer_memory_dump(e->answers, again, f);
}

static void put(void *file, const void *record, size_t n)
{
    memory_file_put(file, record, n);
}

rd_status api_memory_init(rd_engine *e)
{
    rd_status st = answer_memory_create(e->tokenizer, LIMIT_KEPT_ANSWER_BYTES, &e->answers);

    return st == RD_OK ? spelling_memory_create(LIMIT_KEPT_SPELLING_BYTES, &e->spellings) : st;
}

void api_memory_open(rd_engine *e, const char *dir, struct hash128 model)
{
    const struct memory_file_owner owner = {e, load, dump};
    char name[64];

    snprintf(name, sizeof(name), "answers-%016" PRIx64 "%016" PRIx64, model.high, model.low);
    if (memory_file_open(dir, name, LIMIT_ANSWER_FILE_BYTES, &owner, &e->memory) != RD_OK)
        log_warn("what was answered is not kept over a restart: out of memory");
    if (!e->memory) return;
    answer_memory_tell(e->answers, put, e->memory);
    spelling_memory_tell(e->spellings, put, e->memory);
}

void api_memory_clear(rd_engine *e)
{
    if (e->answers) answer_memory_clear(e->answers);
    if (e->spellings) spelling_memory_clear(e->spellings);
    memory_file_clear(e->memory);
    memory_file_settle(e->memory, CLEAR_NS);
}

void api_memory_close(rd_engine *e)
{
    memory_file_close(e->memory);
    answer_memory_destroy(e->answers);
    spelling_memory_destroy(e->spellings);
}
