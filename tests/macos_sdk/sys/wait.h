#pragma once
#include <signal.h>
#define WNOHANG        1
#define WIFEXITED(s)   (((s)&0177) == 0)
#define WEXITSTATUS(s) (((s) >> 8) & 0xff)
#define WIFSIGNALED(s) (((s)&0177) != 0177 && ((s)&0177) != 0)
#define WTERMSIG(s)    ((s)&0177)
pid_t waitpid(pid_t, int *, int);
pid_t wait(int *);
