/* tests/sanitized.h - whether this is a build with a sanitizer, in which tests take many times as long. */
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1
#else
#define IS_SANITIZED 0
#endif
