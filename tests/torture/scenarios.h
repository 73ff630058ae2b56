/* tests/torture/scenarios.h - requests to every route of the server, as clients make them. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SCENARIO_STEPS 4

enum {
    STEP_SETUP = 1, /* comes before anything fails, as many times as the scenario */
    STEP_LEAVE = 2, /* the client goes when the first bytes are there */
    STEP_ANY = 4,   /* the answer is another each time */
    STEP_RAW = 8    /* path: the request's bytes */
};

struct step {
    const char *method, *path, *body; /* body: NULL: none. {id} in the path or body: the one before gave it */
    unsigned flags;
};

struct scenario {
    const char *name;
    struct step steps[SCENARIO_STEPS];
};

extern const struct scenario scenarios[];
extern const uint32_t n_scenarios;
/* The chat template that they are for. */
extern const char scenario_template[];

/* The request as bytes; its length, 0: larger than cap. */
size_t scenario_request(const struct step *s, const char *id, char *out, size_t cap);
