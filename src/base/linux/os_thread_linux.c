/* base/linux/os_thread_linux.c - see os_thread.h. */
#include "base/os_thread.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "base/checked.h"
#include "base/linux/cgroup.h"
#include "base/linux/kernel_file.h"

#define NS_PER_S 1000000000ull

void os_thread_set_name(const char *name)
{
    pthread_setname_np(pthread_self(), name);
}

void os_thread_name(char name[OS_THREAD_NAME_BYTES])
{
    name[0] = 0;
    prctl(PR_GET_NAME, name);
}

void os_thread_set_idle(void)
{
    const struct sched_param none = {0};

    (void)sched_setscheduler(0, SCHED_IDLE, &none); /* 0: this thread; refused at worst */
}

/* Linux has a niceness for each thread, and ten of it are a tenth of the time. */
void os_thread_set_low(void)
{
    (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + 10); /* 0: this thread; 19 at most */
}

uint32_t os_n_cores(void)
{
    uint32_t n = 0, quota = cgroup_cores();
    cpu_set_t set;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) == 0) n = (uint32_t)CPU_COUNT(&set);
    return quota && n ? u32_min(n, quota) : n;
}

/* "0-3,8": does the list name a CPU below `cpu` that is in the set? */
static bool lists_earlier(const char *list, const cpu_set_t *set, uint32_t cpu)
{
    uint64_t first, last;

    for (const char *at = list; *at;) {
        if (!kernel_list_next(&at, &first, &last)) return false;
        for (; first <= last && first < cpu; first++)
            if (CPU_ISSET(first, set)) return true;
    }
    return false;
}

uint32_t os_n_physical_cores(void)
{
    uint32_t n = 0;
    cpu_set_t set;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0) return 0;
    for (uint32_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        char path[96], list[256];

        if (!CPU_ISSET(cpu, &set)) continue;
        snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", cpu);
        if (!kernel_file_line(path, list, sizeof(list)) || !lists_earlier(list, &set, cpu)) n++;
    }
    return n;
}

int os_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t attr;
    int rc = pthread_condattr_init(&attr);

    if (rc) return rc;
    rc = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    if (!rc) rc = pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
    return rc;
}

int os_cond_wait_ns(pthread_cond_t *c, pthread_mutex_t *m, uint64_t timeout_ns)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    timeout_ns += (uint64_t)until.tv_nsec;
    until.tv_sec += (time_t)(timeout_ns / NS_PER_S);
    until.tv_nsec = (long)(timeout_ns % NS_PER_S);
    return pthread_cond_timedwait(c, m, &until);
}

bool os_word_wait_ns(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    const struct timespec left = {(time_t)(timeout_ns / NS_PER_S), (long)(timeout_ns % NS_PER_S)};

    return syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &left, NULL, 0) == 0 || errno != ETIMEDOUT;
}

void os_word_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

int os_thread_id(void)
{
    return (int)syscall(SYS_gettid);
}

/* readdir() takes memory. */
void os_each_thread(int most, void (*fn)(int id))
{
    struct entry {
        uint64_t inode;
        int64_t next;
        unsigned short n;
        unsigned char type;
        char name[];
    };
    char bytes[4096] __attribute__((aligned(8)));
    int fd = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long n;

    while (fd >= 0 && most > 0 && (n = syscall(SYS_getdents64, fd, bytes, sizeof(bytes))) > 0) {
        for (long at = 0; at < n && most > 0; most--) {
            const struct entry *e = (const struct entry *)(const void *)(bytes + at);
            int id = 0;

            at += e->n;
            for (const char *s = e->name; *s >= '0' && *s <= '9'; s++) id = id * 10 + (*s - '0');
            if (id) fn(id);
        }
    }
    if (fd >= 0) close(fd);
}

bool os_thread_signal(int id, int number)
{
    return syscall(SYS_tgkill, getpid(), id, number) == 0;
}

void os_thread_rest_ms(uint32_t ms)
{
    const struct timespec rest = {ms / 1000, (long)(ms % 1000) * 1000000};

    syscall(SYS_nanosleep, &rest, NULL);
}

size_t os_signal_stack_bytes(void)
{
    return getauxval(AT_MINSIGSTKSZ);
}
