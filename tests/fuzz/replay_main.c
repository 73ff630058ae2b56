/* tests/fuzz/replay_main.c - main() for a fuzz target without libFuzzer: feeds it every file of the folder argv[1].
 *
 * Each input is an allocation of exactly its size, so that a sanitizer sees a read beyond it. Prints the count. Exit
 * code 1 when the folder or a file cannot be read, or when the folder holds no file: a test that ran nothing has not
 * passed.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"

#define INPUT_MAX (64u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static bool replay(const char *path)
{
    struct rd_error err;
    char *data = NULL;
    uint8_t *exact;
    size_t n = 0;

    if (file_read_all(path, INPUT_MAX, &data, &n, &err) != RD_OK) {
        fprintf(stderr, "%s\n", err.text);
        return false;
    }
    exact = mem_alloc(n, 1);
    if (!exact) {
        mem_free(data);
        return false;
    }
    memcpy(exact, data, n);
    mem_free(data);
    LLVMFuzzerTestOneInput(exact, n);
    mem_free(exact);
    return true;
}

int main(int argc, char **argv)
{
    struct dirent *entry;
    char path[4096];
    unsigned n = 0;
    bool ok = true;
    DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;

    if (!folder) {
        fprintf(stderr, "usage: %s FOLDER (that can be read)\n", argv[0]);
        return 1;
    }
    while ((entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof(path), "%s/%s", argv[1], entry->d_name);
        if (replay(path))
            n++;
        else
            ok = false;
    }
    closedir(folder);
    printf("%u inputs replayed\n", n);
    return ok && n > 0 ? 0 : 1;
}
