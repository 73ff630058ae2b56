#pragma once
#include <stddef.h>
int wcwidth(wchar_t);
typedef struct {
    char __pad[128];
} mbstate_t;
size_t mbrtowc(wchar_t *, const char *, size_t, mbstate_t *);
