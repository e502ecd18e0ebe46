/* simsqlite.h - SQLite on a kl__vfs, so that history.db fails, fills up and loses power together with the journal.
 *
 * Files go through the vfs as SQLite's own layer for Unix does it: a new journal or WAL syncs its directory with its
 * first sync, a delete syncs it when SQLite asks. Locks and the WAL's index live in this process. Time and
 * randomness are the same in every run. */
#ifndef TESTS_SIMSQLITE_H
#define TESTS_SIMSQLITE_H

#include "store/disk/vfs.h"

typedef struct simsqlite simsqlite;

/* Registers a layer under a name of its own and sets vfs->sqlite_vfs to that name. */
simsqlite *simsqlite_new(kl__vfs *vfs);
void simsqlite_free(simsqlite *layer); /* NULL is fine; no database may be open */

#endif
