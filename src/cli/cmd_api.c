/* cli/cmd_api.c - `radish api`: the parameters that the server's endpoints take, from the table that checks them. */
#include <stdio.h>
#include <string.h>
#include "cli/commands.h"
#include "server/server.h"

static int run_api(const struct command *self, int argc, char **argv)
{
    const char *words[ARGS_MAX_WORDS];
    struct buf out = {0};
    uint32_t n_words;
    bool nothing = false, ok;
    int rc = args_parse(self, argc, argv, &nothing, words, &n_words);

    if (rc != ARGS_GO) return rc;
    server_list_parameters(&out);
    ok = !out.failed && fwrite(out.data, 1, out.n, stdout) == out.n && fflush(stdout) == 0;
    buf_deinit(&out);
    return ok ? EXIT_DONE : EXIT_FAILED;
}

const struct command cmd_api = {
    .name = "api",
    .section = "Look inside",
    .summary = "the parameters of the server's endpoints, as JSON",
    .about =
        "Prints {\"endpoints\": [...], \"parameters\": [...]}: name, aliases, types, range, default and meaning of "
        "every "
        "field of a request. It is the table by which `radish serve` checks requests; docs/api.md is made from it.",
    .examples = "  radish api | jq -r '.parameters[] | [.name, .default] | @tsv'\n",
    .run = run_api,
};
