/* audit.h - one line of JSON for each change that somebody made: when, who, from where, what, to what, and what came of
 * it. Never payloads. See audit.c.
 *
 * Whoever has no token can make no more than KL_AUDIT_STRANGERS_MAX lines a minute (401); one more says how many were
 * left out. */
#ifndef KL_NET_AUDIT_H
#define KL_NET_AUDIT_H

#include "net/api.h"
#include "store/socket/socket.h"

enum { KL_AUDIT_STRANGERS_MAX = 60 };

typedef struct kl__audit kl__audit;

/* path NULL: nothing is written, and *ret_audit is NULL; "-": standard error. A file is made when it is not there, for
 * its owner and group, and only ever added to. KL_ESYSTEM: it cannot be written. KL_ENOMEM. */
KL_MUST_USE kl_rc kl__audit_open(const char *path, kl__audit **ret_audit);
void kl__audit_close(kl__audit *audit); /* NULL is fine; nobody may note anything any more */

/* Opens the file of that name again: somebody may have moved it away. KL_ESYSTEM: then it goes on with the old one.
 * NULL is fine. */
KL_MUST_USE kl_rc kl__audit_reopen(kl__audit *audit);

/* The exchange is about to be answered with this status. Any thread. NULL is fine. A line that cannot be written is
 * told on standard error, once until one can be written again. */
void kl__audit_note(kl__audit *audit, const kl__exchange *exchange, int status);

/* A connection to the store that a line tells of (route "store") has ended: a line with the route "store_closed". */
void kl__audit_note_left(kl__audit *audit, const char *who);

/* What was done through such a connection: a line with the route "store_append" and so on, whose target is a partition
 * or a record. What was refused there changed nothing and has none; nor have records by which workers tell that they
 * are alive, and those that belong to a put, which has its own line. */
void kl__audit_note_made(kl__audit *audit, const char *who, const kl__made *made);

/* From time to time: what the limit on strangers' lines has left out is told. NULL is fine. */
void kl__audit_tick(kl__audit *audit);

#endif
