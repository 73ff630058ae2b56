/* tests/model/gguf_edit.h - a GGUF file rewritten with a few changes, so that a test spoils one thing in a model that
 * is right. */
#pragma once
#include "base/buf.h"
#include "format/model_file.h"

enum edit_kind {
    EDIT_DROP_KEY,       /* name */
    EDIT_SET_U32,        /* name, number; added when absent */
    EDIT_SET_F32,        /* name, real */
    EDIT_SET_STRING,     /* name, text */
    EDIT_SET_BOOL,       /* name, number */
    EDIT_DROP_TENSOR,    /* name */
    EDIT_RENAME_TENSOR,  /* name -> text */
    EDIT_RESHAPE_TENSOR, /* name, dims[2] (dims[1] 0: a vector); data is cut or filled with zeros */
    EDIT_RETYPE_TENSOR,  /* name, number = enum dtype; data as before */
};
struct gguf_edit {
    enum edit_kind kind;
    const char *name;
    uint32_t number;
    float real;
    const char *text;
    uint64_t dims[2];
};

/* On success *out holds the new file's bytes: buf_deinit() it after model_file_close(). */
rd_status gguf_rewrite(const struct model_file *g, const struct gguf_edit *edits, uint32_t n_edits, struct buf *out);
