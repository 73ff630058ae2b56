#pragma once
#include <sys/types.h>
#define STDIN_FILENO         0
#define STDOUT_FILENO        1
#define STDERR_FILENO        2
#define F_OK                 0
#define X_OK                 1
#define W_OK                 2
#define R_OK                 4
#define SEEK_SET             0
#define SEEK_CUR             1
#define SEEK_END             2
#define _SC_PAGESIZE         29
#define _SC_NPROCESSORS_CONF 57
#define _SC_NPROCESSORS_ONLN 58
#define _SC_PHYS_PAGES       200
#define _SC_OPEN_MAX         5
ssize_t read(int, void *, size_t);
ssize_t write(int, const void *, size_t);
ssize_t pread(int, void *, size_t, off_t);
ssize_t pwrite(int, const void *, size_t, off_t);
off_t lseek(int, off_t, int);
int close(int);
int dup(int);
int dup2(int, int);
int pipe(int[2]);
int unlink(const char *);
int unlinkat(int, const char *, int);
int rmdir(const char *);
int link(const char *, const char *);
int linkat(int, const char *, int, const char *, int);
int symlink(const char *, const char *);
int symlinkat(const char *, int, const char *);
ssize_t readlink(const char *, char *, size_t);
ssize_t readlinkat(int, const char *, char *, size_t);
int access(const char *, int);
int faccessat(int, const char *, int, int);
int fsync(int);
int ftruncate(int, off_t);
int truncate(const char *, off_t);
int isatty(int);
int chdir(const char *);
int fchdir(int);
char *getcwd(char *, size_t);
pid_t getpid(void);
pid_t getppid(void);
pid_t getpgrp(void);
pid_t setsid(void);
int setpgid(pid_t, pid_t);
pid_t tcgetpgrp(int);
uid_t getuid(void);
uid_t geteuid(void);
gid_t getgid(void);
pid_t fork(void);
int execv(const char *, char *const[]);
int execvp(const char *, char *const[]);
int execve(const char *, char *const[], char *const[]);
void _exit(int) __attribute__((noreturn));
unsigned sleep(unsigned);
int usleep(useconds_t);
unsigned alarm(unsigned);
int pause(void);
long sysconf(int);
int gethostname(char *, size_t);
int getpagesize(void);
int getdtablesize(void);
int fchown(int, uid_t, gid_t);
int chown(const char *, uid_t, gid_t);
extern char *optarg;
