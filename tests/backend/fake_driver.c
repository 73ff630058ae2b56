/* tests/backend/fake_driver.c - a libcuda.so.1 with two GPUs, which reach each other's memory where $FAKE_PEER is 1; for what
 * radish asks a driver before anything computes. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cuInit(unsigned flags);
int cuDriverGetVersion(int *out);
int cuDeviceGetCount(int *out);
int cuDeviceGet(int *device, int ordinal);
int cuDeviceGetName(char *out, int n, int device);
int cuDeviceTotalMem_v2(size_t *out, int device);
int cuDeviceGetAttribute(int *out, int attribute, int device);
int cuGetErrorString(int error, const char **text);
int cuDeviceCanAccessPeer(int *out, int device, int other);

int cuInit(unsigned flags)
{
    return (int)flags;
}
int cuDriverGetVersion(int *out)
{
    *out = 13000;
    return 0;
}
int cuDeviceGetCount(int *out)
{
    const char *n = getenv("FAKE_GPUS");

    *out = n ? (int)strtol(n, NULL, 10) : 2;
    return 0;
}
int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return 0;
}
int cuDeviceGetName(char *out, int n, int device)
{
    snprintf(out, (size_t)n, "fake %d", device);
    return 0;
}
int cuDeviceTotalMem_v2(size_t *out, int device)
{
    *out = ((size_t)1 << 30) + (size_t)device;
    return 0;
}
int cuDeviceGetAttribute(int *out, int attribute, int device)
{
    *out = attribute == 75 ? 9 : device * 0;
    return 0;
}
int cuGetErrorString(int error, const char **text)
{
    *text = error ? "an error" : "none";
    return 0;
}
int cuDeviceCanAccessPeer(int *out, int device, int other)
{
    const char *peer = getenv("FAKE_PEER");

    *out = device != other && peer && strcmp(peer, "1") == 0;
    return 0;
}
