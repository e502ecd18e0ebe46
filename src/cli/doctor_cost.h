/* doctor_cost.h - `keyline doctor --cost`. */
#ifndef KL_CLI_DOCTOR_COST_H
#define KL_CLI_DOCTOR_COST_H

#include <stdbool.h>

/* Adds up what the store at this URL was asked for, and prints the bill. Returns the exit status. */
int kl__doctor_cost(const char *url, bool json);

#endif
