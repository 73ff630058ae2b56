/* base/linux/os_machine_linux.c - see os_machine.h. */
#include "base/os_machine.h"
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

bool os_random(void *out, size_t n)
{
    unsigned char *p = out;

    while (n > 0) {
        ssize_t got = getrandom(p, n, 0);

        if (got < 0 && errno != EINTR) return false;
        if (got <= 0) continue;
        p += got;
        n -= (size_t)got;
    }
    return true;
}

const char *os_error_text(int code, char *buf, size_t cap)
{
    return strerror_r(code, buf, cap);
}

void os_sincosf(float x, float *sine, float *cosine)
{
    sincosf(x, sine, cosine);
}

/* arch/arm64/include/uapi/asm/hwcap.h */
uint32_t os_arm_features(void)
{
#if defined(__aarch64__)
    const unsigned long one = getauxval(AT_HWCAP), two = getauxval(AT_HWCAP2);

    return (one & 1ul << 1 ? OS_ARM_ASIMD : 0) | (one & 1ul << 20 ? OS_ARM_DOTPROD : 0) |
           (two & 1ul << 13 ? OS_ARM_I8MM : 0);
#else
    return 0;
#endif
}

/* The kernel saves AMX's registers only for processes that asked. Documentation/arch/x86/xstate.rst */
bool os_allow_amx(void)
{
#if defined(__x86_64__) && defined(SYS_arch_prctl)
    const long request_permission = 0x1023, tile_data = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */

    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return false;
#endif
}
