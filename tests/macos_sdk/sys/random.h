#pragma once
#include <stddef.h>
int getentropy(void *, size_t);
