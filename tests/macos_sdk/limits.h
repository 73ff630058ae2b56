/* What clang's own limits.h, which comes first, looks for behind it. */
#pragma once
#define PATH_MAX 1024
#define NAME_MAX 255
