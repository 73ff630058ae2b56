/* base/darwin/os_machine_darwin.c - see os_machine.h. */
#include "base/os_machine.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/sysctl.h>

#define MOST_AT_ONCE 256u /* getentropy(2) gives no more */

bool os_random(void *out, size_t n)
{
    unsigned char *p = out;

    for (size_t part; n > 0; p += part, n -= part) {
        part = n < MOST_AT_ONCE ? n : MOST_AT_ONCE;
        if (getentropy(p, part) != 0) return false;
    }
    return true;
}

const char *os_error_text(int code, char *buf, size_t cap)
{
    if (strerror_r(code, buf, cap) != 0) snprintf(buf, cap, "error %d", code);
    return buf;
}

void os_sincosf(float x, float *sine, float *cosine)
{
    *sine = sinf(x);
    *cosine = cosf(x);
}

#if defined(__aarch64__)
static bool has(const char *name)
{
    int32_t n = 0;
    size_t size = sizeof(n);

    return sysctlbyname(name, &n, &size, NULL, 0) == 0 && n != 0;
}

/* Every arm64 Mac has NEON. */
uint32_t os_arm_features(void)
{
    return OS_ARM_ASIMD | (has("hw.optional.arm.FEAT_DotProd") ? OS_ARM_DOTPROD : 0) |
           (has("hw.optional.arm.FEAT_I8MM") ? OS_ARM_I8MM : 0);
}
#else
uint32_t os_arm_features(void)
{
    return 0;
}
#endif

bool os_allow_amx(void)
{
    return false;
}
