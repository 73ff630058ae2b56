/* api/api_trainer.h - inside of radish/train.h. */
#pragma once
#include "api/api_state.h"
#include "base/hash.h"
#include "radish/train.h"
#include "train/trainer.h"

struct rd_trainer {
    struct trainer_options o;
    struct trainer *trainer;
    char *base; /* the model, as it was named */
};

/* Of what else a checkpoint belongs to: what decides, and the same for people, lines of "NAME VALUE". */
struct checkpoint_more {
    struct hash128 digest;
    const char *lines;
};
rd_status api_checkpoint_write(rd_trainer *t, const char *path, const struct checkpoint_more *more,
                               struct rd_error *err);
/* RD_E_INVALID: it belongs to something else, and err names what is other. */
rd_status api_checkpoint_read(rd_trainer *t, const char *path, const struct checkpoint_more *more,
                              struct rd_error *err);

/* ---- train_data.c ---- */
struct train_data {
    struct rd_train_sample *samples; /* their arrays are the arena's */
    size_t n, cap;
    uint64_t n_cut, n_dropped;
    struct arena arena;
    struct hash128 digest; /* of all tokens and targets */
};
/* Adds the samples of a file. RD_E_INVALID names the line. */
rd_status train_data_read(struct train_data *d, const rd_engine *texts, const char *path, uint32_t max_tokens,
                          bool all_tokens, struct rd_error *err);
void train_data_deinit(struct train_data *d);

/* ---- train_plot.c ---- */
struct train_point {
    uint64_t step;
    double loss, lr, norm, eval; /* eval: NaN where there is none */
    uint64_t n_tokens;
};
/* An SVG picture of the losses. */
void train_plot(const struct train_point *points, size_t n, struct buf *out);
