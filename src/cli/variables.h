/* cli/variables.h - RADISH_ variables of the environment that nothing reads: mistyped ones, mostly. Main thread. */
#pragma once

/* A line on stderr for each, with the nearest name that something reads. What Kubernetes sets for services called radish..
 * is not meant. */
void variables_warn(void);
