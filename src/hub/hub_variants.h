/* hub/hub_variants.h - inside of hub/: the quantisations among a model's files. */
#pragma once
#include "hub/hub_listing.h"

/* Fills m->variants from m->files, which are sorted. false: out of memory. */
bool hub_find_variants(struct hub_listing *m);
