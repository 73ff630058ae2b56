/* cli/cli_signals.h - commands that write files, and are told to stop.
 * Thread  main thread.
 */
#pragma once
#include <signal.h>

/* Ctrl-C, SIGTERM and a terminal that goes away (not under nohup: it goes on) do what a says; a write beyond the limit on a
 * file's size fails and says why. */
void cli_on_stop(const struct sigaction *a);
