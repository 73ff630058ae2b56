/* base/child_process.c - fork and exec; between them only what a signal handler might call: other threads may hold any lock. */
#include "base/child_process.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/error.h"
#include "base/mem.h"
#include "base/os_process.h"
#include "base/os_socket.h"

#define MOST_WORDS  256u
#define MOST_FILES  4096u /* open at once */
#define EXEC_FAILED 127

/* Whole names, or beginnings that end with a star. Secrets (HF_TOKEN, RADISH_API_KEY, AWS_..) are none of these. */
static const char *const passed[] = {
    "PATH",          "HOME",         "USER",    "LOGNAME",         "LANG",        "LC_*",  "TZ",         "TMPDIR",
    "VIRTUAL_ENV",   "CONDA_PREFIX", "PYTHON*", "LD_LIBRARY_PATH", "OMP_*",       "MKL_*", "OPENBLAS_*", "CUDA_*",
    "NVIDIA_*",      "XDG_*",        "HF_HOME", "HF_HUB_*",        "HF_ENDPOINT", "MLX_*", "GGML_*",     "LLAMA_*",
    "TRANSFORMERS_*"};

static bool is_passed(const char *entry)
{
    const size_t n = strcspn(entry, "=");

    for (size_t i = 0; i < sizeof(passed) / sizeof(passed[0]); i++) {
        const size_t k = strlen(passed[i]);

        if (passed[i][k - 1] == '*' ? n >= k - 1 && memcmp(entry, passed[i], k - 1) == 0
                                    : n == k && memcmp(entry, passed[i], k) == 0)
            return true;
    }
    return false;
}

/* words[] point into text, which is changed. */
static rd_status split(char *text, char **words, struct rd_error *err)
{
    uint32_t n = 0;
    char *to = text, *at = text;

    while (*at) {
        char quote = 0;

        while (*at == ' ' || *at == '\t' || *at == '\n') at++;
        if (!*at) break;
        if (n == MOST_WORDS) return error_set(err, RD_E_INVALID, "command: more than %u words", MOST_WORDS);
        words[n++] = to;
        for (; *at && (quote || !strchr(" \t\n", *at)); at++) {
            if (quote ? *at == quote : *at == '"' || *at == '\'')
                quote = quote ? 0 : *at;
            else if (*at == '\\' && quote != '\'' && at[1])
                *to++ = *++at;
            else
                *to++ = *at;
        }
        if (quote) return error_set(err, RD_E_INVALID, "command: a quote (%c) has no end", quote);
        if (*at) at++;
        *to++ = 0; /* at is beyond to: each word has lost its blank at least, or was the last */
    }
    words[n] = NULL;
    return n ? RD_OK : error_set(err, RD_E_INVALID, "command: no word");
}

static char **make_environment(const char *const *extra)
{
    char **own = os_environment(), **out;
    size_t n = 0, at = 0;

    for (char **e = own; e && *e; e++) n++;
    for (const char *const *e = extra; e && *e; e++) n++;
    out = mem_zalloc(n + 1, sizeof(*out));
    if (!out) return NULL;
    for (char **e = own; e && *e; e++)
        if (is_passed(*e)) out[at++] = *e;
    for (const char *const *e = extra; e && *e; e++) out[at++] = (char *)(uintptr_t)*e;
    return out;
}

/* In the child. Does not return. */
static void become(char **words, char **env, pid_t parent, const struct os_guard *guard, const int fds[3], int told)
{
    const struct rlimit no_core = {0, 0};
    struct rlimit files = {MOST_FILES, MOST_FILES};
    sigset_t none;
    int e;

    for (int s = 1; s < NSIG; s++) signal(s, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0);
    os_guard_join(guard);
    if (getppid() != parent) _exit(EXEC_FAILED); /* it has ended meanwhile: no signal will come */
    setrlimit(RLIMIT_CORE, &no_core);
    setrlimit(RLIMIT_NOFILE, &files);
    for (int i = 0; i < 3; i++) dup2(fds[i], i); /* fds are 3 or more: see high() */
    fcntl(told, F_SETFD, FD_CLOEXEC);
    if (told != 3) dup2(told, 3), fcntl(3, F_SETFD, FD_CLOEXEC);
    os_close_from(4);
    os_exec(words, env);
    e = errno;
    (void)!write(3, &e, sizeof(e));
    _exit(EXEC_FAILED);
}

/* fd as one that is 10 or more, so that dup2 in the child overwrites none that is still needed. */
static int high(int fd)
{
    int moved = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 10);

    if (fd >= 0) close(fd);
    return moved;
}

static void close_all(int *fds, int n)
{
    for (int i = 0; i < n; i++)
        if (fds[i] >= 0) close(fds[i]);
}

rd_status child_process_start(const char *command, const char *const *extra, struct child_process *out,
                              struct rd_error *err)
{
    enum { IN, IN_THEIRS, OUT, OUT_THEIRS, ERR, ERR_THEIRS, TOLD, TOLD_THEIRS, N };
    int fds[N] = {-1, -1, -1, -1, -1, -1, -1, -1}, why = 0;
    char *text = mem_strdup(command), **words = mem_zalloc(MOST_WORDS + 1, sizeof(*words));
    char **env = make_environment(extra);
    const pid_t parent = getpid();
    struct os_guard guard = OS_GUARD_NONE;
    rd_status st = RD_E_NOMEM;
    pid_t pid = -1;

    *out = (struct child_process){.end = -1, .in = -1, .out = -1, .err = -1, .guard = OS_GUARD_NONE};
    if (!text || !words || !env) {
        error_set(err, st, "out of memory");
        goto done;
    }
    st = split(text, words, err);
    if (st != RD_OK) goto done;
    st = RD_E_IO;
    if (os_socket_pair(&fds[IN]) != 0 || os_pipe(&fds[OUT], true) != 0 || os_pipe(&fds[ERR], true) != 0 ||
        os_pipe(&fds[TOLD], true) != 0 || os_guard_open(&guard) != 0) {
        error_set(err, st, "command: %s", strerror(errno));
        goto done;
    }
    /* The read ends of pipes come first; of each pair ours is the first, theirs the second. */
    for (int i = 0; i < N; i++)
        if ((fds[i] = high(fds[i])) < 0) {
            error_set(err, st, "command: %s", strerror(errno));
            goto done;
        }
    pid = fork();
    if (pid == 0)
        become(words, env, parent, &guard, (const int[]){fds[IN_THEIRS], fds[OUT_THEIRS], fds[ERR_THEIRS]},
               fds[TOLD_THEIRS]);
    if (pid < 0) {
        error_set(err, st, "command: %s", strerror(errno));
        goto done;
    }
    setpgid(pid, pid); /* whoever of the two comes first */
    close(fds[TOLD_THEIRS]);
    fds[TOLD_THEIRS] = -1;
    while (read(fds[TOLD], &why, sizeof(why)) < 0 && errno == EINTR) {}
    if (why) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {}
        st = why == ENOENT ? RD_E_NOT_FOUND : RD_E_IO;
        error_set(err, st, "command %s: %s", words[0], strerror(why));
        goto done;
    }
    for (int i = IN; i <= ERR; i += 2) fcntl(fds[i], F_SETFL, fcntl(fds[i], F_GETFL) | O_NONBLOCK);
    *out = (struct child_process){pid, os_process_open(pid), fds[IN], fds[OUT], fds[ERR], guard};
    guard = OS_GUARD_NONE;
    fds[IN] = fds[OUT] = fds[ERR] = -1;
    st = RD_OK;

done:
    os_guard_close(&guard);
    close_all(fds, N);
    mem_free(env);
    mem_free(words);
    mem_free(text);
    return st;
}

void child_process_kill(struct child_process *c)
{
    if (c->pid > 0) kill(-c->pid, SIGKILL);
}

static bool wait_for(struct child_process *c, int flags, char how[64])
{
    siginfo_t ended = {.si_pid = 0};
    int status = 0;
    pid_t got;

    while (waitid(P_PID, (id_t)c->pid, &ended, WEXITED | WNOWAIT | flags) < 0 && errno == EINTR) {}
    if (ended.si_pid == 0 && (flags & WNOHANG)) return false;
    child_process_kill(c); /* what it has started itself; while it is not reaped its number is its own */
    while ((got = waitpid(c->pid, &status, 0)) < 0 && errno == EINTR) {}
    c->pid = 0;
    os_guard_close(&c->guard);
    if (got < 0)
        snprintf(how, 64, "gone");
    else if (WIFSIGNALED(status))
        snprintf(how, 64, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(how, 64, "exit %d", WEXITSTATUS(status));
    return true;
}

bool child_process_reap(struct child_process *c, char how[64])
{
    if (c->pid > 0) return wait_for(c, WNOHANG, how);
    snprintf(how, 64, "gone");
    return true;
}

void child_process_end(struct child_process *c)
{
    char how[64];

    if (!c) return;
    if (c->pid > 0) {
        child_process_kill(c);
        wait_for(c, 0, how);
    }
    close_all((int[]){c->end, c->in, c->out, c->err}, 4);
    *c = (struct child_process){.end = -1, .in = -1, .out = -1, .err = -1, .guard = OS_GUARD_NONE};
}

static bool is_program(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* As execvp() looks for it. */
static bool find_program(const char *name, char *path, size_t cap)
{
    const char *path_of_all = getenv("PATH"), *dirs = path_of_all ? path_of_all : "/bin:/usr/bin";

    snprintf(path, cap, "%s", name);
    if (strchr(name, '/')) return is_program(path);
    for (const char *at = dirs, *end; *at; at = *end ? end + 1 : end) {
        end = at + strcspn(at, ":");
        snprintf(path, cap, "%.*s/%s", end > at ? (int)(end - at) : 1, end > at ? at : ".", name);
        if (is_program(path)) return true;
    }
    return false;
}

rd_status child_process_find(const char *command, char *path, size_t cap, struct rd_error *err)
{
    char *text = mem_strdup(command), **words = mem_zalloc(MOST_WORDS + 1, sizeof(*words)), quoted[96];
    rd_status st = text && words ? split(text, words, err) : error_set(err, RD_E_NOMEM, "out of memory");

    if (st == RD_OK && !find_program(words[0], path, cap))
        st = error_set(err, RD_E_NOT_FOUND, "command: no program %s",
                       error_quote(quoted, sizeof(quoted), words[0], strlen(words[0])));
    mem_free(words);
    mem_free(text);
    return st;
}
