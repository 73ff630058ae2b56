/* base/crash.c - handlers that write with write(2) alone. */
#include "base/crash.h"
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "base/os_socket.h"
#include "base/os_thread.h"

#define N_SIGNALS    5
#define FRAMES       64
#define STACK_BYTES  (64u << 10) /* and what the processor's state takes */
#define TURN_MS      200         /* for a thread to tell where it is */
#define MOST_THREADS 256
#define REPORT_S     30 /* then the process ends without the rest: another thread may hold the loader's lock */

static const struct {
    int number;
    const char *name;
} signals[N_SIGNALS] = {
    {SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGILL, "SIGILL"}, {SIGFPE, "SIGFPE"}, {SIGABRT, "SIGABRT"}};

struct note {
    _Atomic(const char *) name; /* NULL: there is none */
    atomic_ullong value;
};

static struct {
    struct sigaction before[N_SIGNALS];
    const char *version;
    struct timespec started;
    struct note notes[CRASH_NOTES];
    atomic_bool installed, as_json;
    atomic_int reporter; /* the thread that reports; 0: none yet */
    atomic_int asked;    /* the thread that is to tell where it is */
} crash;

/* ---- text, without stdio ---- */

struct line {
    char text[1536];
    size_t n;
};

static void put(struct line *l, const char *s)
{
    while (*s && l->n < sizeof(l->text) - 1) l->text[l->n++] = *s++;
}

static void put_number(struct line *l, uint64_t v, unsigned base)
{
    char digits[24];
    size_t at = sizeof(digits) - 1;

    digits[at] = 0;
    do digits[--at] = "0123456789abcdef"[v % base];
    while ((v /= base) > 0);
    put(l, digits + at);
}

static void put_two(struct line *l, uint64_t v)
{
    put(l, v < 10 ? "0" : "");
    put_number(l, v, 10);
}

/* 2026-11-23T10:41:48Z. gmtime() may take locks; days since 1970 by the calendar of 400 years from a first of March. */
static void put_time(struct line *l)
{
    struct timespec now;
    uint64_t days, day, era, year, month;

    clock_gettime(CLOCK_REALTIME, &now);
    days = (uint64_t)now.tv_sec / 86400 + 719468;
    era = days / 146097;
    day = days % 146097;
    year = (day - day / 1460 + day / 36524 - day / 146096) / 365;
    day -= 365 * year + year / 4 - year / 100;
    month = (5 * day + 2) / 153;
    put_number(l, era * 400 + year + (month >= 10), 10);
    put(l, "-");
    put_two(l, month < 10 ? month + 3 : month - 9);
    put(l, "-");
    put_two(l, day - (153 * month + 2) / 5 + 1);
    put(l, "T");
    put_two(l, (uint64_t)now.tv_sec / 3600 % 24);
    put(l, ":");
    put_two(l, (uint64_t)now.tv_sec / 60 % 60);
    put(l, ":");
    put_two(l, (uint64_t)now.tv_sec % 60);
    put(l, "Z");
}

/* As the text of a JSON string. */
static void put_quoted(struct line *l, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c[3] = {s[i], 0, 0};

        if (s[i] == '"' || s[i] == '\\') c[0] = '\\', c[1] = s[i];
        if ((unsigned char)s[i] < 0x20 || (unsigned char)s[i] > 0x7e) c[0] = '?';
        put(l, c);
    }
}

static void put_out(struct line *l)
{
    ssize_t n;

    l->text[l->n++] = '\n';
    n = write(STDERR_FILENO, l->text, l->n);
    (void)n;
    l->n = 0;
}

/* fields: of the line as JSON, each behind a comma. */
static void end_line_with(struct line *l, const char *fields)
{
    struct line json = {.n = 0};

    if (!atomic_load(&crash.as_json)) {
        put_out(l);
        return;
    }
    put(&json, "{\"time\":\"");
    put_time(&json);
    put(&json, "\",\"level\":\"error\",\"event\":\"crash\",\"message\":\"");
    put_quoted(&json, l->text, l->n < 600 ? l->n : 600);
    put(&json, "\"");
    put(&json, fields);
    put(&json, "}");
    put_out(&json);
    l->n = 0;
}

static void end_line(struct line *l)
{
    end_line_with(l, "");
}

static void put_thread(struct line *l)
{
    char name[OS_THREAD_NAME_BYTES];

    os_thread_name(name);
    put(l, name);
}

/* ---- what is told ---- */

/* ,"thread":"engine" */
static void put_thread_field(struct line *l)
{
    char name[OS_THREAD_NAME_BYTES];

    os_thread_name(name);
    put(l, ",\"thread\":\"");
    put_quoted(l, name, strlen(name));
    put(l, "\"");
}

/* What the library writes into a descriptor, as lines of JSON: a pipe holds all of it. */
static void tell_frames(void *const *frames, int n_frames, const char *fields)
{
    struct line l = {.n = 0};
    int ends[2];
    char bytes[512];
    ssize_t n;

    if (os_pipe(ends, false)) return;
    backtrace_symbols_fd(frames, n_frames, ends[1]);
    close(ends[1]);
    while ((n = read(ends[0], bytes, sizeof(bytes))) > 0)
        for (ssize_t i = 0; i < n; i++) {
            const char one[2] = {bytes[i], 0};

            if (bytes[i] == '\n')
                end_line_with(&l, fields);
            else
                put(&l, one);
        }
    close(ends[0]);
}

static void tell_where(void)
{
    void *frames[FRAMES];
    struct line l = {.n = 0}, fields = {.n = 0};
    int n;

    put_thread_field(&fields);
    fields.text[fields.n] = 0;
    put(&l, "radish: thread ");
    put_thread(&l);
    end_line_with(&l, fields.text);
    n = backtrace(frames, FRAMES);
    if (atomic_load(&crash.as_json))
        tell_frames(frames, n, fields.text);
    else
        backtrace_symbols_fd(frames, n, STDERR_FILENO);
}

static void tell_signal(int number, const siginfo_t *info)
{
    struct line l = {.n = 0}, fields = {.n = 0};

    put(&fields, ",\"signal\":");
    put_number(&fields, (uint64_t)number, 10);
    put_thread_field(&fields);
    fields.text[fields.n] = 0;
    put(&l, "radish: crashed by signal ");
    put_number(&l, (uint64_t)number, 10);
    for (int i = 0; i < N_SIGNALS; i++) {
        if (signals[i].number != number) continue;
        put(&l, " (");
        put(&l, signals[i].name);
        put(&l, ")");
    }
    if (info->si_code <= 0) {
        put(&l, " of process ");
        put_number(&l, (uint64_t)info->si_pid, 10);
    } else {
        put(&l, " at address 0x");
        put_number(&l, (uint64_t)(uintptr_t)info->si_addr, 16);
    }
    put(&l, ", in thread ");
    put_thread(&l);
    end_line_with(&l, fields.text);
}

static void tell_state(void)
{
    struct timespec now;
    struct line l = {.n = 0};
    uint64_t ms;

    clock_gettime(CLOCK_MONOTONIC, &now);
    ms = (uint64_t)((now.tv_sec - crash.started.tv_sec) * 1000 + (now.tv_nsec - crash.started.tv_nsec) / 1000000);
    put(&l, "radish: version ");
    put(&l, crash.version);
    put(&l, ", ");
    put_number(&l, ms / 1000, 10);
    put(&l, ".");
    put_number(&l, ms / 100 % 10, 10);
    put(&l, " s after the start");
    end_line(&l);
    put(&l, "radish: ");
    for (unsigned i = 0; i < CRASH_NOTES; i++) {
        const char *name = atomic_load(&crash.notes[i].name);

        if (!name) continue;
        if (l.n > 8) put(&l, ", ");
        put(&l, name);
        put(&l, " ");
        put_number(&l, atomic_load(&crash.notes[i].value), 10);
    }
    if (l.n > 8) end_line(&l);
}

/* Another thread is sent SIGABRT, in whose handler it tells where it is; one that does not is left out. */
static void ask(int id)
{
    if (id == os_thread_id()) return;
    atomic_store(&crash.asked, id);
    if (!os_thread_signal(id, SIGABRT)) return;
    for (int i = 0; i < TURN_MS && atomic_load(&crash.asked) == id; i++) os_thread_rest_ms(1);
}

static void ask_others(void)
{
    os_each_thread(MOST_THREADS, ask);
    atomic_store(&crash.asked, 0);
}

/* SIGALRM, as the kernel has it, ends a report that waits for what a stopped thread holds. */
static void bound_report(void)
{
    sigset_t only;

    sigemptyset(&only);
    sigaddset(&only, SIGALRM);
    signal(SIGALRM, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &only, NULL);
    alarm(REPORT_S);
}

static void on_crash(int number, siginfo_t *info, void *context)
{
    int none = 0, own = os_thread_id();

    (void)context;
    if (!atomic_compare_exchange_strong(&crash.reporter, &none, own)) {
        if (atomic_load(&crash.asked) == own) {
            tell_where();
            atomic_store(&crash.asked, 0);
        }
        for (;;) pause(); /* crashed as well, or asked: the reporter ends the process */
    }
    bound_report();
    tell_signal(number, info);
    tell_state();
    tell_where();
    ask_others();
    for (int i = 0; i < N_SIGNALS; i++)
        if (signals[i].number == number) sigaction(number, &crash.before[i], NULL);
    os_thread_signal(own, number); /* blocked until this returns */
}

/* ---- before ---- */

static _Thread_local bool has_stack; /* of ours: a sanitizer's stays */

void crash_thread_begin(void)
{
    size_t n = STACK_BYTES + os_signal_stack_bytes();
    stack_t stack = {.ss_size = n}, was;

    if (!atomic_load(&crash.installed) || sigaltstack(NULL, &was) || !(was.ss_flags & SS_DISABLE)) return;
    stack.ss_sp = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack.ss_sp == MAP_FAILED) return;
    has_stack = sigaltstack(&stack, NULL) == 0;
    if (!has_stack) munmap(stack.ss_sp, n);
}

void crash_thread_end(void)
{
    stack_t stack = {.ss_flags = SS_DISABLE}, was;

    if (has_stack && sigaltstack(&stack, &was) == 0) munmap(was.ss_sp, was.ss_size);
}

void crash_set_json(bool on)
{
    atomic_store(&crash.as_json, on);
}

void crash_install(const char *version)
{
    struct sigaction action = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    void *frame[1];

    if (atomic_exchange(&crash.installed, true)) return;
    crash.version = version;
    clock_gettime(CLOCK_MONOTONIC, &crash.started);
    backtrace(frame, 1); /* loads what it needs: not in a handler */
    crash_thread_begin();
    sigfillset(&action.sa_mask);
    for (int i = 0; i < N_SIGNALS; i++) sigaction(signals[i].number, &action, &crash.before[i]);
}

void crash_note(unsigned place, const char *name, uint64_t value)
{
    if (place >= CRASH_NOTES) return;
    atomic_store_explicit(&crash.notes[place].value, value, memory_order_relaxed);
    atomic_store_explicit(&crash.notes[place].name, name, memory_order_relaxed);
}
