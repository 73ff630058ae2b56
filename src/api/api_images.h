/* api/api_images.h - the images of a conversation, from its messages to their rows in the prompt.
 *
 *     {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO.."}}         a part of a message
 *       --decode--> picture --processor--> vision_image, and in the part's place a text:  {"type": "text", "text": MARK}
 *     template: "<|im_start|>user\nMARK What is this?<|im_end|>.."
 *       --> tokens of "<|im_start|>user\n<|vision_start|>", keys of the rows, tokens of "<|vision_end|> What is this?.."
 *
 * A mark is a word that follows from the image and a key of this process, so that the same conversation is the same text
 * again and nobody can write one. What users write stays text: "<|image_pad|>" in a message moves no image.
 *
 * Parts that are images: image_url (a string, or an object with url and detail), input_image (image_url, detail), image (source
 * of type base64 or url; or data, or image): image_source.h says what they may name. detail low: at most IMAGES_LOW_PIXELS.
 *
 * Parts that are videos: video (a list of frames, each as an image is: a URL, base64, an object; or one URL of them) and video_url (an
 * object with url, or a string: "data:video/jpeg;base64,FRAME,FRAME,.."), with fps, frames a second. A video is one image of several
 * frames, or (Qwen3-VL) an image for each two of them: "<0.3 seconds>MARK<1.3 seconds>MARK".
 *
 * Thread  the thread that prepares the request; the engine has references of its own.
 * Errors  "messages[2].content[1]: .." and what is wrong: RD_E_INVALID; RD_E_UNSUPPORTED the model takes no images (and why);
 *         RD_E_LIMIT too many, too big; RD_E_FULL those of other requests take the memory there is for it (image_pot.h); RD_E_CANCELLED;
 *         RD_E_NOMEM.
 */
#pragma once
#include <stdatomic.h>
#include "base/hash.h"
#include "radish/radish.h"
#include "vision/vision.h"

#define IMAGES_MOST       64u   /* pictures of a request, and parts of them; videos */
#define IMAGES_MOST_ALL   1024u /* with those that videos are made to */
#define IMAGES_LOW_PIXELS (512u * 512u)
#define IMAGES_MARK_BYTES 48u

struct api_image {
    struct vision_image *image; /* a reference */
    struct vision_rows *rows;   /* likewise; NULL: not recalled */
    size_t message, part;
    char mark[IMAGES_MARK_BYTES];
};

/* Zeroed: none. */
struct api_images {
    rd_engine *engine;
    char *messages; /* JSON, with marks; mem_free'd by deinit */
    uint32_t n, cap, n_pictures;
    struct api_image *list;
    struct vision_place *places; /* [n], of api_images_encode; their images are list's */
    uint64_t n_taken;            /* of engine->pot, for what is decoded now */
    uint64_t n_held;             /* that were taken for values of the list's images */
    uint64_t tenant;             /* in it */
    uint64_t far_ns;             /* by then all that is far must be here; 0: nothing may be */
    bool pans;                   /* long pictures are taken apart, where the model knows that */
};

/* Images that have to be got from somewhere: are refused; make it RD_E_AGAIN, before anything is done; are waited for. */
enum api_images_far { API_IMAGES_NEVER, API_IMAGES_LATER, API_IMAGES_NOW };
/* out->n 0, and messages NULL: there are none. cancelled: NULL: it is not. */
rd_status api_images_read(rd_engine *engine, const struct rd_request_options *o, enum api_images_far far,
                          const atomic_bool *cancelled, struct api_images *out, struct rd_error *err);
/* What is on the disk of the images for that tenant comes from there, in place of pixels; not where the engine has it. Waits for
 * the disk. */
void api_images_recall(struct api_images *im, struct hash128 salt, const atomic_bool *cancelled);
/* Tokens of a rendered prompt with marks in it, with the keys of the rows where they are; fills places. *tokens is mem_free'd by the
 * caller. RD_E_INVALID: the template leaves an image out. */
rd_status api_images_encode(struct api_images *im, const char *text, size_t n, int32_t **tokens, uint32_t *n_tokens,
                            struct rd_error *err);
/* The rendered text as the template has it, without marks: what a family writes for an image is in their place. *text is
 * replaced, mem_free'd by the caller. */
rd_status api_images_write(const struct api_images *im, char **text, size_t *n, struct rd_error *err);
/* Tokens have moved: places are where their keys are now. */
void api_images_find(struct api_images *im, const int32_t *tokens, uint32_t n_tokens);
/* Where the first n tokens end in the rendered text with marks. */
size_t api_images_text_at(const struct api_images *im, const int32_t *tokens, uint32_t n);
void api_images_deinit(struct api_images *im); /* any number of times */
/* Whether the model's vocabulary has what stands around an image; NULL: it has, else what is missing. */
const char *api_images_missing(const rd_engine *engine);
