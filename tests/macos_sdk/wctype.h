#pragma once
typedef int wint_t;
int iswalnum(wint_t);
