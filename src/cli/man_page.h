/* cli/man_page.h - the man pages, from the tables that --help prints: radish(1), radish-COMMAND(1) and
 * radish.toml(5).
 *
 * The source is plain man(7), which man-db and mandoc read without a warning. Main thread. */
#pragma once
#include <stdio.h>
#include "cli/args.h"

void man_page_overview(FILE *out);
void man_page_config(FILE *out);
void man_page(const struct command *c, FILE *out);
