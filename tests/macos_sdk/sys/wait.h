#pragma once
#include <signal.h>
#define WNOHANG        1
#define WIFEXITED(s)   (((s)&0177) == 0)
#define WEXITSTATUS(s) (((s) >> 8) & 0xff)
#define WIFSIGNALED(s) (((s)&0177) != 0177 && ((s)&0177) != 0)
#define WTERMSIG(s)    ((s)&0177)
typedef enum { P_ALL, P_PID, P_PGID } idtype_t;
#define WEXITED 0x04
#define WNOWAIT 0x20
int waitid(idtype_t, id_t, siginfo_t *, int);
pid_t waitpid(pid_t, int *, int);
pid_t wait(int *);
