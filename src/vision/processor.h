/* vision/processor.h - a picture to what an encoder reads, as transformers' image processors do it.
 *
 *     RGB [h, w, 3] --resize--> --normalise--> values, grid, digest: struct vision_image
 *
 *     smart    (Qwen2-VL, Qwen2.5-VL, Qwen3-VL) sides are multiples of patch * merge, pixels within min and max, aspect kept
 *              as far as these allow; patches of merge x merge blocks together, each [3, temporal, patch, patch]
 *     square   (Gemma 3) side x side, aspect not kept; [3, side, side]
 *
 * Several frames of one size are a video: pairs of them (temporal) make a patch, the last one stands in where there is none.
 * Qwen2-VL and Qwen2.5-VL see a video as one image of so many pairs; Qwen3-VL each pair as an image by itself, behind its time.
 *
 * Pan and scan (Gemma 3, where it is switched on): a picture that is long is seen once whole, and once in parts side by side.
 *
 * Where there is no file of a processor, the encoder's says what it reads, by the keys that llama.cpp writes:
 *     clip.projector_type, clip.vision.patch_size, image_size, spatial_merge_size, projector.scale_factor, image_mean,
 *     image_std, image_min_pixels, image_max_pixels      what is absent is as the family's models have it, but that a picture
 *     takes PROCESSOR_MOST_ROWS rows at most
 *
 * Thread  any.
 * Errors  read, of_keys, open: RD_E_FORMAT naming the member, RD_E_UNSUPPORTED naming the processor; run: RD_E_INVALID that says what is wrong
 *         with the picture, RD_E_LIMIT for more rows than max_rows, RD_E_NOMEM.
 * Source  transformers 5.24: image_processing_qwen2_vl, image_processing_gemma3, video_processing_qwen2_vl,
 *         video_processing_qwen3_vl (their arithmetic and defaults).
 */
#pragma once
#include "base/hash.h"
#include "format/model_file.h"
#include "vision/resize.h"
#include "vision/vision.h"

enum processor_kind { PROCESSOR_SMART, PROCESSOR_SQUARE };

#define PROCESSOR_MOST_ASPECT 200u   /* one side to the other, of a smart one: as transformers */
#define PROCESSOR_MOST_SIDE   65535u /* of a picture */
#define PROCESSOR_MOST_ROWS   4096u  /* of a picture, where no file says how many pixels it may have */
#define PROCESSOR_MOST_PARTS  16u    /* of pan and scan */
#define PROCESSOR_MOST_FRAMES 768u   /* of a video */

/* Gemma 3's pan and scan: which pictures it takes apart. */
struct pan_scan {
    bool is_on;           /* where requests do not say */
    uint32_t least, most; /* pixels of a part's shorter side; parts */
    double least_ratio;   /* of the longer side to the shorter one */
};

struct picture_part {
    uint32_t x, y, w, h;
};

struct video_traits {
    uint64_t min_pixels, max_pixels; /* of a frame that is made; or, in_pairs, of all frames */
    bool in_pairs;                   /* Qwen3-VL: an image by itself for each temporal frames */
    uint32_t tokens_per_second;      /* of the time axis: Qwen2.5-VL; 0: a pair is one further, however long it is */
};

struct image_processor {
    enum processor_kind kind;
    enum resize_filter filter;
    uint32_t patch, merge, temporal; /* pixels of a patch's side; patches of a row's side; frames of a patch */
    uint32_t side;                   /* square */
    uint64_t min_pixels, max_pixels; /* smart: of the picture that is made */
    double rescale;                  /* 1 / 255 */
    float mean[3], std[3];           /* of what rescale gives */
    uint32_t max_rows;               /* 0: no bound */
    struct pan_scan pan_scan;        /* square */
    struct video_traits video;       /* smart */
    struct hash128 eyes; /* of the encoder's file, where it is one by itself: digests depend on it, so that what is
                                        kept of an image (pages, rows) is of this encoder; 0, 0: what is kept tells otherwise */
};

/* Of the text of preprocessor_config.json, or of processor_config.json, in whose image_processor it is. */
rd_status image_processor_read(const char *json, size_t n, struct image_processor *out, struct rd_error *err);
/* Of the keys of an encoder's file. */
rd_status image_processor_of_keys(const struct model_file *eyes, struct image_processor *out, struct rd_error *err);
/* Of the model at this path, whose encoder's file is eyes: preprocessor_config.json or processor_config.json of a directory,
 * else of_keys. RD_E_FORMAT, too: these and the encoder do not agree on patches and sizes. max_rows: of the encoder. */
rd_status image_processor_open(const char *model, const struct model_file *eyes, uint32_t max_rows,
                               struct image_processor *out, struct rd_error *err);
/* What a picture of w x h is made: RD_E_INVALID where it is too narrow, or has no pixels. */
rd_status image_processor_size(const struct image_processor *p, uint32_t w, uint32_t h, uint32_t *to_w, uint32_t *to_h,
                               struct rd_error *err);
/* Rows that a picture of that size, once made, is for the text model; of one pair of frames. */
static inline uint64_t image_processor_rows(const struct image_processor *p, uint32_t to_w, uint32_t to_h)
{
    const uint32_t side = p->patch * p->merge;

    return (uint64_t)(to_h / side) * (to_w / side);
}
/* frames: n of them, [h, w, 3] each, borrowed; n > 1 of smart ones only. *out has one reference. */
rd_status image_processor_run(const struct image_processor *p, const uint8_t *const *frames, uint32_t n, uint32_t w,
                              uint32_t h, struct vision_image **out, struct rd_error *err);
/* The parts that pan and scan makes of a picture beside the whole, whether it is on or not: 0, or 2 .. PROCESSOR_MOST_PARTS. */
uint32_t image_processor_parts(const struct image_processor *p, uint32_t w, uint32_t h,
                               struct picture_part parts[PROCESSOR_MOST_PARTS]);
/* How many images a video of n frames is; the number i of them is at image_processor_seconds. 0: this model takes none. */
uint32_t image_processor_video_images(const struct image_processor *p, uint32_t n);
/* frames: n <= PROCESSOR_MOST_FRAMES of them, [h, w, 3] each, borrowed, fps (above 0) of them a second. out: [video_images], a
 * reference each; on failure none. RD_E_INVALID: this model takes no video, too. */
rd_status image_processor_video(const struct image_processor *p, const uint8_t *const *frames, uint32_t n, uint32_t w,
                                uint32_t h, double fps, struct vision_image **out, struct rd_error *err);
/* When image i of a video is, in seconds: the middle of its frames. */
double image_processor_seconds(const struct image_processor *p, uint32_t i, uint32_t n, double fps);
/* Of the text of video_preprocessor_config.json, or of processor_config.json, in whose video_processor it is; nothing there: as it
 * was. */
rd_status image_processor_read_video(const char *json, size_t n, struct image_processor *p, struct rd_error *err);
