/* model/model_batch.c - see the header. */
#include "model/model_batch.h"
#include <assert.h>
#include "base/checked.h"
#include "base/mem.h"

rd_status model_batch_init(struct model_batch *b, struct model_batch_room room)
{
    uint32_t n_logits = u32_max(room.n_logits, 1), n_hidden = u32_max(room.n_hidden, 1);

    *b = (struct model_batch){.tokens = mem_zalloc(room.n_rows, sizeof(*b->tokens)),
                              .positions = mem_zalloc(room.n_rows, sizeof(*b->positions)),
                              .row_page = mem_zalloc(room.n_rows, sizeof(*b->row_page)),
                              .row_slot = mem_zalloc(room.n_rows, sizeof(*b->row_slot)),
                              .runs = mem_zalloc(room.n_runs, sizeof(*b->runs)),
                              .adapters = mem_zalloc(room.n_runs, sizeof(*b->adapters)),
                              .run_windows = (const uint32_t **)mem_zalloc(room.n_runs, sizeof(*b->run_windows)),
                              .logit_rows = mem_zalloc(n_logits, sizeof(*b->logit_rows)),
                              .hidden_rows = mem_zalloc(n_hidden, sizeof(*b->hidden_rows)),
                              .draws = mem_zalloc(n_logits, sizeof(*b->draws)),
                              .unread = mem_zalloc(n_logits, sizeof(*b->unread))};
    if (b->tokens && b->positions && b->row_page && b->row_slot && b->runs && b->adapters && b->run_windows &&
        b->logit_rows && b->hidden_rows && b->draws && b->unread)
        return RD_OK;
    model_batch_deinit(b);
    return RD_E_NOMEM;
}

void model_batch_deinit(struct model_batch *b)
{
    mem_free(b->tokens);
    mem_free(b->positions);
    mem_free(b->row_page);
    mem_free(b->row_slot);
    mem_free(b->runs);
    mem_free(b->adapters);
    mem_free(b->run_windows);
    mem_free(b->logit_rows);
    mem_free(b->hidden_rows);
    mem_free(b->draws);
    mem_free(b->unread);
    *b = (struct model_batch){0};
}

void model_batch_clear(struct model_batch *b)
{
    b->n_rows = b->n_runs = b->n_adapted = b->n_logits = b->n_hidden = 0;
}

void model_batch_begin_run(struct model_batch *b, uint32_t pos0, const kv_page *table,
                           const struct adapter_mix *adapters)
{
    b->adapters[b->n_runs] = adapters;
    b->n_adapted += adapters != NULL;
    b->run_windows[b->n_runs] = NULL;
    b->runs[b->n_runs++] = (struct seq_run){b->n_rows, 0, pos0, table, 0, 0};
}

void model_batch_set_windows(struct model_batch *b, const uint32_t *windows)
{
    b->run_windows[b->n_runs - 1] = windows;
}

void model_batch_set_span(struct model_batch *b, uint32_t from, uint32_t to)
{
    b->runs[b->n_runs - 1].both_from = from;
    b->runs[b->n_runs - 1].both_to = to;
}

uint32_t model_batch_add_row(struct model_batch *b, int32_t token, uint32_t page_tokens)
{
    struct seq_run *run = &b->runs[b->n_runs - 1];
    uint32_t row = b->n_rows++, pos = run->pos0 + run->n_rows++;

    b->tokens[row] = token;
    b->positions[row] = pos;
    b->row_page[row] = run->block_table[pos / page_tokens];
    b->row_slot[row] = pos % page_tokens;
    return row;
}

void model_batch_want_logits(struct model_batch *b, uint32_t row, const struct row_draw *d)
{
    b->draws[b->n_logits] = d ? *d : (struct row_draw){0};
    b->draws[b->n_logits].position = b->positions[row] + 1;
    b->unread[b->n_logits] = d && b->choices;
    b->logit_rows[b->n_logits++] = row;
}

void model_batch_want_hidden(struct model_batch *b, uint32_t row)
{
    b->hidden_rows[b->n_hidden++] = row;
}

uint32_t model_batch_run_of(const struct model_batch *b, uint32_t row)
{
    uint32_t i = 0;

    while (i < b->n_runs && row - b->runs[i].row0 >= b->runs[i].n_rows) i++; /* wraps to a large number before row0 */
    assert(i < b->n_runs);
    return i;
}
