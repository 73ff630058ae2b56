#pragma once
#include <sys/types.h>
typedef struct __dir DIR;
struct dirent {
    ino_t d_ino;
    uint64_t d_seekoff;
    uint16_t d_reclen, d_namlen;
    uint8_t d_type;
    char d_name[1024];
};
#define DT_UNKNOWN 0
#define DT_DIR     4
#define DT_REG     8
#define DT_LNK     10
DIR *opendir(const char *);
DIR *fdopendir(int);
struct dirent *readdir(DIR *);
int closedir(DIR *);
int dirfd(DIR *);
void rewinddir(DIR *);
