/* pg_trial.h - what the claims share that are of the PostgreSQL engine alone: the trial's schema, looked at from
 * outside. Part of test-conformance-postgres. */
#ifndef TESTS_STORE_PG_TRIAL_H
#define TESTS_STORE_PG_TRIAL_H

#include "store/conformance.h"

enum { PG_SQL_BYTES = 2048 };

const char *schema_of(const struct trial *t);

/* Statements, in which $S stands for the schema; as pg_server_run and pg_server_number. */
void run_there(const struct trial *t, const char *sql);
long long number_there(const struct trial *t, const char *sql);

long long rows_of(const struct trial *t, const char *table);

#endif
