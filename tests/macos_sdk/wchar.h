#pragma once
#include <stddef.h>
int wcwidth(wchar_t);
typedef struct {
    char __pad[128];
} mbstate_t;
size_t wcslen(const wchar_t *);
int wcsncmp(const wchar_t *, const wchar_t *, size_t);
int swprintf(wchar_t *, size_t, const wchar_t *, ...);
size_t mbrtowc(wchar_t *, const char *, size_t, mbstate_t *);
