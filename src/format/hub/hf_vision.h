/* format/hub/hf_vision.h - the part of a directory that sees, as llama.cpp's converter writes it to a file of its own (mmproj):
 * vision_config as its keys, tensors under its names. Beside them, what such files say otherwise or not at all:
 *     clip.vision.fullatt_block_indexes   u32 array: layers of Qwen2.5-VL without windows
 *     clip.vision.window_size             u32, pixels
 *     clip.vision.tokens_per_second       u32: of Qwen2.5-VL's time axis
 *     v.patch_embd.weight                 one matrix of both frames, [hidden, channels * frames * patch * patch]
 *
 * Thread  any.
 */
#pragma once
#include "format/hub/hf_inside.h"

/* dir->vision; stays NULL where the family sees nothing, or no tensor does (a text model cut out of it); and where that part is
 * not understood: the text model is one by itself, and the log says why. RD_E_NOMEM. */
rd_status hf_open_vision(struct model_file *g, struct rd_error *err);
/* The GGUF name of a vision tensor; false: it is none. Unknown ones keep their own. plus_one: 1 is added. */
bool hf_vision_name(const struct hf_dir *dir, const char *name, char *out, size_t cap, bool *plus_one);
