/* cli/image_part.c - the file's bytes, in base64. */
#include "cli/image_part.h"
#include "base/base64.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/cli_model.h"

bool image_part_put(struct buf *json, const char *path)
{
    struct rd_error err = {RD_OK, ""};
    char *bytes = NULL, *text;
    size_t n = 0;

    if (file_read_all(path, IMAGE_PART_MOST_BYTES, &bytes, &n, &err) != RD_OK) {
        cli_fail("%s", err.text);
        return false;
    }
    text = mem_alloc(base64_length(n), 1);
    if (text) {
        base64_encode((const uint8_t *)bytes, n, text);
        buf_puts(json, "{\"type\":\"image\",\"data\":\"");
        buf_append(json, text, base64_length(n));
        buf_puts(json, "\"}");
    } else {
        cli_fail("%s does not fit into memory", path);
    }
    mem_free(bytes);
    mem_free(text);
    return text != NULL;
}
