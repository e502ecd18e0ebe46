/* migrate.h - the schema's version, for who brings it up to date by hand (`keyline migrate`). */
#ifndef KL_STORE_POSTGRES_MIGRATE_H
#define KL_STORE_POSTGRES_MIGRATE_H

#include <stdbool.h>

#include "keyline/store.h"

typedef struct kl__pg_versions {
    char schema[64];
    int before; /* steps that had been applied; 0: there was no schema */
    int after;  /* and now */
    int known;  /* to this release */
} kl__pg_versions;

/* Is it the URL of a PostgreSQL store? */
bool kl__pg_is_url(const char *url);

/* Applies the steps that are missing, in one transaction; with `only_look` nothing. KL_EINVAL: a bad URL, a server that
 * is too old, or a schema of a newer release. KL_EBUSY: the server is not to be reached. KL_ESYSTEM: it refused. */
kl_rc kl__pg_migrate(const char *url, bool only_look, kl__pg_versions *ret_versions);

#endif
