/* tests/torture/faults.h - makes one allocation or one system call of this process fail, at a place of one's choosing.
 *
 * Memory: by base/mem's hook, which libevent, jansson and PCRE2 allocate through as well. System calls: this program
 * defines the C library's functions itself (open, pread, accept4, readv, ...; the list is FAULT_CALLS), so that every call
 * comes by, base/'s, libevent's, and any that somebody makes elsewhere.
 *
 * A site is a call stack: the same place reached on the same way. What happens at one is a hit. Sites are collected while
 * recording; then one of them is armed, by its key (its first hit fails) or, for memory, by the number of the allocation.
 *
 * Thread  any thread; the one that is exempt (a client, the test itself) is neither recorded nor failed.
 */
#pragma once
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAULT_MAX_SITES 65536u
#define FAULT_DEPTH     24
#define FAULT_SHORT     (-1) /* errors: the call does one byte of what it was asked for */
#define FAULT_END       (-2) /* a read finds the end of the file */

/* name, kind of file it is about: ANY, FILE, SOCKET; the errors that it can give, first the likely one */
#define FAULT_CALLS(X)                                                                                                 \
    X(MEMORY, ENOMEM)                                                                                                  \
    X(OPEN, EMFILE, EIO, EACCES, ENOENT, ENOSPC, EROFS, EINTR, ENOMEM)                                                 \
    X(STAT, EIO, EACCES, ENOENT, ENOMEM)                                                                               \
    X(READ_FILE, EIO, EINTR, FAULT_SHORT, FAULT_END, ESTALE)                                                           \
    X(WRITE_FILE, ENOSPC, EIO, EDQUOT, EROFS, EFBIG, EINTR, FAULT_SHORT)                                               \
    X(READ_OTHER, EAGAIN, EINTR)                                                                                       \
    X(WRITE_OTHER, EAGAIN, EINTR)                                                                                      \
    X(SYNC, EIO, ENOSPC, EDQUOT, EROFS)                                                                                \
    X(TRUNCATE, EIO, ENOSPC, EROFS, EINTR)                                                                             \
    X(ALLOCATE, ENOSPC, EOPNOTSUPP, EIO, EINTR)                                                                        \
    X(RENAME, ENOSPC, EIO, EACCES, EROFS)                                                                              \
    X(UNLINK, EIO, EACCES, EBUSY, EROFS, ENOENT)                                                                       \
    X(MKDIR, EACCES, ENOSPC, EROFS, EIO)                                                                               \
    X(LOCK, EWOULDBLOCK, ENOLCK, EINTR, EIO)                                                                           \
    X(LIST, EMFILE, EACCES, EIO, ENOMEM)                                                                               \
    X(TOUCH, EACCES, EROFS, EIO)                                                                                       \
    X(ROOM, EIO, ENOSYS)                                                                                               \
    X(MAP, ENOMEM, ENODEV, EACCES)                                                                                     \
    X(CLOSE_FILE, EIO, EINTR, ENOSPC)                                                                                  \
    X(SOCKET, EMFILE, ENFILE, ENOBUFS, EAFNOSUPPORT)                                                                   \
    X(BIND, EADDRINUSE, EACCES, EADDRNOTAVAIL)                                                                         \
    X(LISTEN, EADDRINUSE, EOPNOTSUPP)                                                                                  \
    X(NAME, ENOBUFS)                                                                                                   \
    X(OPTION, ENOPROTOOPT, EINVAL, ENOMEM)                                                                             \
    X(ACCEPT, EMFILE, ENFILE, ENOBUFS, ENOMEM, ECONNABORTED, EINTR, EAGAIN, EPROTO)                                    \
    X(RECEIVE, ECONNRESET, ETIMEDOUT, EINTR, EAGAIN, ENOBUFS, EHOSTUNREACH, FAULT_SHORT)                               \
    X(SEND, EPIPE, ECONNRESET, ETIMEDOUT, EINTR, EAGAIN, ENOBUFS, EHOSTUNREACH, FAULT_SHORT)                           \
    X(POLL_MAKE, EMFILE, ENFILE, ENOMEM)                                                                               \
    X(POLL_SET, ENOMEM, ENOSPC)                                                                                        \
    X(POLL_WAIT, EINTR)                                                                                                \
    X(PIPE, EMFILE, ENFILE, ENOMEM)                                                                                    \
    X(THREAD, EAGAIN)                                                                                                  \
    X(RANDOM, EINTR, ENOSYS)

#define FAULT_KIND(name, ...) FAULT_##name,
enum fault_kind { FAULT_CALLS(FAULT_KIND) FAULT_N_KINDS };
#undef FAULT_KIND

struct fault_site {
    uint64_t key; /* digest of kind and stack; 0: none */
    enum fault_kind kind;
    uint32_t n_hits, scenario; /* while it was recorded; whose recording met it first */
    int n_frames;
    void *frames[FAULT_DEPTH];
};

struct fault {
    enum fault_kind kind;
    uint64_t site;   /* 0: by number */
    uint64_t number; /* of the allocation, from the arming on */
    int error;       /* an errno, FAULT_SHORT, FAULT_END */
    bool for_ever;   /* all later calls of that kind, too */
};

/* First of all, from main's thread. */
void fault_init(void);
/* This thread is left alone. */
void fault_exempt(bool exempt);

/* Collects sites from here on (also those that were there before stay). scenario: noted with what is new. */
void fault_record(uint32_t scenario);
/* Forgets the sites. */
void fault_forget(void);
/* Ends recording, or what fails. */
void fault_stop(void);
void fault_arm(const struct fault *f);
/* Failures since the arming; allocations and calls (of all kinds) since fault_record or fault_arm. */
uint64_t fault_n_failed(void);
uint64_t fault_n_memory(void);

uint32_t fault_n_sites(void);
const struct fault_site *fault_site(uint32_t i);
/* The i-th error that a call of that kind can give, 0: there are no more. */
int fault_error(enum fault_kind kind, unsigned i);
const char *fault_kind_name(enum fault_kind kind);
/* "EIO", "short" ... */
const char *fault_error_name(int error);
/* Prints the stack with names of functions, to stdout. */
void fault_print(const struct fault_site *s);
/* The caller's own stack. */
void fault_print_here(void);
/* The site that failed last. */
const struct fault_site *fault_last(void);
