/* model/packed_weights.h - a model's matrices from a packed file, or into one. Internal to src/model/.
 *
 *     create   looks for the model's packed file
 *     take     per matrix, in the loader's order: from the file
 *     note     per matrix, however it came: remembered for saving
 *     save     when the model stands: if a matrix was not in the file, a thread of the lowest priority writes a new one
 *     destroy  waits for it, MODEL_SAVE_WAIT_NS at most; before the weights are unloaded
 *
 * Which packing: a digest of what the backend makes of a sample of every weight type, computed at each start (well
 * under a millisecond). A change of the packing code is therefore noticed without anybody counting up a version. What
 * fails here is logged and costs only the packed file; RD_E_NOMEM from create alone.
 *
 * Thread  the loading thread. Every function but create takes NULL for "no packed file is wanted".
 */
#pragma once
#include "format/packed_file.h"
#include "model/model.h"

struct packed_weights;

/* *out is NULL when the backend cannot adopt weights. */
rd_status packed_weights_create(const struct packed_options *o, const struct model_file *g,
                                const struct backend_ops *ops, struct backend *be, struct packed_weights **out,
                                struct rd_error *err);
/* The matrix's bytes in the file, *w referring to them; 0: load it. */
uint64_t packed_weights_take(struct packed_weights *p, const struct host_tensor *t, struct weight *w);
void packed_weights_note(struct packed_weights *p, const struct host_tensor *t, const struct weight *w);
void packed_weights_save(struct packed_weights *p);
void packed_weights_destroy(struct packed_weights *p);
/* Any thread. */
bool packed_weights_broken(const struct packed_weights *p);
