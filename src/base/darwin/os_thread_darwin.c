/* base/darwin/os_thread_darwin.c - see os_thread.h. A thread's number is its Mach port. */
#include "base/os_thread.h"
#include <errno.h>
#include <mach/mach.h>
#include <pthread/qos.h>
#include <signal.h>
#include <string.h>
#include <sys/sysctl.h>
#include <time.h>

#define NS_PER_S          1000000000ull
#define SHORTEST_SLEEP_NS 20000ull
#define LONGEST_SLEEP_NS  2000000ull

void os_thread_set_name(const char *name)
{
    pthread_setname_np(name);
}

/* Darwin's may be longer. */
void os_thread_name(char name[OS_THREAD_NAME_BYTES])
{
    char whole[64] = "";

    pthread_getname_np(pthread_self(), whole, sizeof(whole));
    memcpy(name, whole, OS_THREAD_NAME_BYTES - 1);
    name[OS_THREAD_NAME_BYTES - 1] = 0;
}

void os_thread_set_idle(void)
{
    (void)pthread_set_qos_class_self_np(QOS_CLASS_BACKGROUND, 0);
}

void os_thread_set_low(void)
{
    (void)pthread_set_qos_class_self_np(QOS_CLASS_UTILITY, 0);
}

static uint32_t number(const char *name)
{
    int32_t n = 0;
    size_t size = sizeof(n);

    return sysctlbyname(name, &n, &size, NULL, 0) == 0 && size == sizeof(n) && n > 0 ? (uint32_t)n : 0;
}

uint32_t os_n_cores(void)
{
    return number("hw.logicalcpu");
}

/* Fast cores alone, where there are slow ones: a step waits for its slowest thread. */
uint32_t os_n_physical_cores(void)
{
    uint32_t fast = number("hw.perflevel0.physicalcpu");

    return fast ? fast : number("hw.physicalcpu");
}

int os_cond_init(pthread_cond_t *c)
{
    return pthread_cond_init(c, NULL);
}

int os_cond_wait_ns(pthread_cond_t *c, pthread_mutex_t *m, uint64_t timeout_ns)
{
    const struct timespec left = {(time_t)(timeout_ns / NS_PER_S), (long)(timeout_ns % NS_PER_S)};

    return pthread_cond_timedwait_relative_np(c, m, &left);
}

/* The system has such a wait from 14.4 on; ranks of a Mac's cores are for tests. */
bool os_word_wait_ns(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    uint64_t ns = SHORTEST_SLEEP_NS, waited = 0;

    while (atomic_load(word) == seen) {
        const uint64_t left = timeout_ns - waited, now = left < ns ? left : ns;
        const struct timespec rest = {(time_t)(now / NS_PER_S), (long)(now % NS_PER_S)};

        if (left == 0) return false;
        nanosleep(&rest, NULL);
        waited += now;
        if (ns < LONGEST_SLEEP_NS) ns *= 2;
    }
    return true;
}

void os_word_wake_all(_Atomic uint32_t *word)
{
    (void)word;
}

int os_thread_id(void)
{
    return (int)pthread_mach_thread_np(pthread_self());
}

void os_each_thread(int most, void (*fn)(int id))
{
    thread_act_array_t list;
    mach_msg_type_number_t n;

    if (task_threads(mach_task_self(), &list, &n) != KERN_SUCCESS) return;
    for (mach_msg_type_number_t i = 0; i < n && most > 0; i++, most--) fn((int)list[i]);
}

/* Threads that the system has made for itself are none of pthread's. */
bool os_thread_signal(int id, int number)
{
    pthread_t thread = pthread_from_mach_thread_np((mach_port_t)id);

    return thread && pthread_kill(thread, number) == 0;
}

void os_thread_rest_ms(uint32_t ms)
{
    const struct timespec rest = {ms / 1000, (long)(ms % 1000) * 1000000};

    nanosleep(&rest, NULL);
}

size_t os_signal_stack_bytes(void)
{
    return MINSIGSTKSZ;
}
