#!/usr/bin/env python3
"""Writes a source with one text in place of another: a fault that tests/sched must find.

    tests/sched/mutants.py NAME SOURCE OUT

Where the text is not there any more, the source has changed and the mutant with it: that is an error.
"""

import sys
from pathlib import Path

MUTANTS = {
    "signal_before_push": (
        """        q->items[(q->head + q->n++) % q->capacity] = item;
        cond_signal(&q->filled);
    }
    mutex_unlock(&q->lock);""",
        """        cond_signal(&q->filled);
        mutex_unlock(&q->lock);
        mutex_lock(&q->lock);
        q->items[(q->head + q->n++) % q->capacity] = item;
    }
    mutex_unlock(&q->lock);""",
    ),
    "close_wakes_one": ("cond_broadcast(&q->filled);", "cond_signal(&q->filled);"),
    "bell_forgets": ("    while (!w->rung && waited", "    w->rung = false;\n    while (!w->rung && waited"),
    "full_is_asked_too_early": (
        "    *was_full = atomic_load_explicit(&r->n_pushed, memory_order_seq_cst) - popped >= r->ring_cap;",
        "    *was_full = pushed - popped >= r->ring_cap;",
    ),
    "pushed_before_written": (
        "    r->ring[at] = (struct token_out){t->token, t->logprob, n_top};",
        """    atomic_store_explicit(&r->n_pushed, pushed + 1, memory_order_seq_cst);
    (void)atomic_load_explicit(&r->n_popped, memory_order_seq_cst);
    r->ring[at] = (struct token_out){t->token, t->logprob, n_top};""",
    ),
    "two_senders": ("    if (ring->is_sending) return;", "    if (ring->n_put == 0) return;"),
    "submit_rings_first": (
        """    st = queue_push(e->inbox, r);
    if (st != RD_OK) {""",
        """    wake_ring(e->bell);
    st = queue_push(e->inbox, r);
    if (st == RD_OK) return RD_OK;
    if (st != RD_OK) {""",
    ),
}


def main():
    name, source, out = sys.argv[1:]
    before, after = MUTANTS[name]
    text = Path(source).read_text()
    if text.count(before) != 1:
        sys.exit(
            "%s: %s has changed: the text of this mutant is there %d times, wanted once"
            % (name, source, text.count(before))
        )
    Path(out).write_text(text.replace(before, after))


main()
