/* tests/torture/fault_calls.h - between the calls and the verdict on them. */
#pragma once
#include "faults.h"

#define FAULT_SITE_DEPTH 10 /* frames that tell sites apart */

/* 0: the call is made; else what it does instead: an errno, FAULT_SHORT, FAULT_END. Keeps errno. */
int fault_verdict(enum fault_kind kind);
