#pragma once
#define LC_ALL     0
#define LC_CTYPE   2
#define LC_NUMERIC 4
char *setlocale(int, const char *);
typedef struct _xlocale *locale_t;
