/* tests/backend/fake_nccl.c - a libnccl that says its version and does nothing; FAKE_lacks: one that lacks a function. */
#include <stddef.h>

struct id {
    char bytes[128];
};

int ncclGetVersion(int *out);
int ncclGetUniqueId(struct id *out);
int ncclCommInitRank(void **comm, int n, struct id id, int rank);
int ncclCommDestroy(void *comm);
int ncclCommAbort(void *comm);
int ncclAllGather(const void *from, void *to, size_t n, int type, void *comm, void *stream);
const char *ncclGetErrorString(int error);

int ncclGetVersion(int *out)
{
    *out = 22809;
    return 0;
}
int ncclGetUniqueId(struct id *out)
{
    out->bytes[0] = 1;
    return 0;
}
int ncclCommInitRank(void **comm, int n, struct id id, int rank)
{
    *comm = NULL;
    return n + rank + id.bytes[0];
}
int ncclCommDestroy(void *comm)
{
    return comm != NULL;
}
int ncclCommAbort(void *comm)
{
    return comm != NULL;
}
#ifndef FAKE_lacks
int ncclAllGather(const void *from, void *to, size_t n, int type, void *comm, void *stream)
{
    return from != to || n || type || comm || stream;
}
#endif
const char *ncclGetErrorString(int error)
{
    return error ? "an error" : "none";
}
