/* pg_clock.h - the PostgreSQL engine under a clock that a test sets.
 *
 * The engine judges times by a function of its schema, which shows the database's clock. Here that function shows a
 * number in a table instead, and an engine around the real one writes opts.now_ms there before each call, unless that
 * would set it back: as the clock of a database that is not set back. */
#ifndef TESTS_STORE_PG_CLOCK_H
#define TESTS_STORE_PG_CLOCK_H

#include "keyline/store.h"

/* As kl_store_open of a postgres:// URL. */
KL_MUST_USE kl_rc pg_clock_open(const char *url, const kl_store_opts *opts, kl_store **ret_store);

#endif
