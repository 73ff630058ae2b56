/* cli/doctor_findings.h - what is wrong with a machine for radish, and what to do about each.
 *
 * A pure function of what rd_doctor() reports (its JSON) and a few facts beside it, so that every finding is tested without
 * a machine that has it.  Any thread.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FINDING_TEXT = 512, FINDINGS_MAX = 24 };

struct finding {
    const char *id;          /* "huge-pages": stays the same, for programs */
    bool is_fault;           /* something does not work; else it works, but slower, or less of it */
    char what[FINDING_TEXT]; /* a sentence */
    char remedy[FINDING_TEXT];
};

struct doctor_facts {
    const json_t *report;
    const char *unusable[3]; /* of the folders models, packed, cache: why nothing can be written there; NULL: it can */
    size_t n_models;         /* that commands find */
    uint64_t n_open_files;   /* that a server may have */
    const char *run_dir_error; /* why servers cannot be registered; NULL */
};

/* How many there are. */
size_t doctor_findings(const struct doctor_facts *f, struct finding out[FINDINGS_MAX]);
