#pragma once
#include <stdint.h>
#define PRId32  "d"
#define PRIu32  "u"
#define PRIx32  "x"
#define PRId64  "lld"
#define PRIu64  "llu"
#define PRIx64  "llx"
#define PRIX64  "llX"
#define PRIo64  "llo"
#define SCNu64  "llu"
#define SCNx64  "llx"
#define PRIuPTR "lu"
#define PRIxPTR "lx"
intmax_t strtoimax(const char *, char **, int);
uintmax_t strtoumax(const char *, char **, int);
