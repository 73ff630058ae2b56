/* base/os_machine.h - the processor, random bytes, and functions of the C library that systems call differently.
 * linux/os_machine_linux.c, darwin/os_machine_darwin.c. Any thread.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* false: the system has none to give now. */
bool os_random(void *out, size_t n);
/* errno's text, in buf or a constant. */
const char *os_error_text(int code, char *buf, size_t cap);
/* sine and cosine at once, as the C library has them. */
void os_sincosf(float x, float *sine, float *cosine);

enum { OS_ARM_ASIMD = 1, OS_ARM_DOTPROD = 2, OS_ARM_I8MM = 4 };
uint32_t os_arm_features(void); /* 0 on another processor */
bool os_allow_amx(void);        /* x86: this process may use tiles from now on */
