/* cli/cli_signals.c - see the header. */
#include "cli/cli_signals.h"

void cli_on_stop(const struct sigaction *a)
{
    const struct sigaction ignored = {.sa_handler = SIG_IGN};

    sigaction(SIGINT, a, NULL);
    sigaction(SIGTERM, a, NULL);
    if (signal(SIGHUP, SIG_IGN) != SIG_IGN) sigaction(SIGHUP, a, NULL);
    sigaction(SIGXFSZ, &ignored, NULL);
}
