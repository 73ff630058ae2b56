#pragma once
#include <locale.h>
#define LC_ALL_MASK 0x3f
locale_t newlocale(int, const char *, locale_t);
int freelocale(locale_t);
double strtod_l(const char *, char **, locale_t);
