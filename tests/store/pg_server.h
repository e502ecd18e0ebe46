/* pg_server.h - a PostgreSQL server of a test program's own: in a temporary directory, on a socket there, gone with it.
 *
 * It starts when it is first asked for and ends with the program, however that ends. KL_TEST_POSTGRES may name a server
 * that is to be used instead (postgres://...); tests then make and drop schemas of their own there. */
#ifndef TESTS_STORE_PG_SERVER_H
#define TESTS_STORE_PG_SERVER_H

#include <libpq-fe.h>
#include <stdbool.h>

#include "keyline/error.h"

enum { PG_URL_BYTES = 512 };

/* The URL of a database in which tests may do everything. KL_ESYSTEM: there is no server, and the sentence says what to
 * install or look at. */
KL_MUST_USE kl_rc pg_server_url(char ret_url[PG_URL_BYTES]);

/* Where a trial of test-conformance-postgres has its store. */
struct pg_place {
    char url[PG_URL_BYTES];
    char schema[64];
    size_t url_length; /* as it was at first */
};

/* The same database, with a schema that no other call has got; its connections bear the schema's name, too. */
KL_MUST_USE kl_rc pg_server_new_schema(char ret_url[PG_URL_BYTES], char ret_schema[64]);

/* The same database through PgBouncer in transaction mode, with `connections` to the server for everybody together. It
 * is started for this; there is one in a program. With `dbname=single` there is one connection to the server.
 * KL_ESYSTEM: as above; also where the server is not this program's. */
KL_MUST_USE kl_rc pg_bouncer_url(int connections, char ret_url[PG_URL_BYTES]);

/* Stops that PgBouncer where it stands, so that it neither answers nor goes away, or lets it go on. */
void pg_bouncer_stop(bool stop);

/* A standby of the server, which answers queries; it is made and started for this, and there is one in a program.
 * KL_ESYSTEM: as above. */
KL_MUST_USE kl_rc pg_standby_url(char ret_url[PG_URL_BYTES]);

/* Runs a program that comes with the server, pg_dump say, as the server's user; its first word is its name. */
bool pg_server_call(const char *program, char *const *arguments);

/* A connection to that database, to be finished. */
PGconn *pg_server_connect(void);

/* Runs statements; a failure fails the test. */
void pg_server_run(const char *sql);

/* The first value of the first row as a number; -1: there is none, which fails the test. */
long long pg_server_number(const char *sql);

/* Ends the server as a crash would (SIGQUIT: it writes nothing more) and starts it again. Call it from the main thread:
 * the server ends with the thread that started it. False: it is not this program's server, so it is left alone. */
bool pg_server_crash(void);

#endif
