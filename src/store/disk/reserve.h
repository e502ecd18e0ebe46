/* reserve.h - room that is kept so that the store can be opened on a full disk: the file `reserve` in the data
 * directory.
 *
 * SQLite makes files beside history.db when that is opened, `-shm` and the log, and removes them when it is closed.
 * When others have filled the disk since, there is no room for them, and a store that cannot be opened cannot be worked
 * off. So KL_RESERVE_BYTES are held in a file: given back to the file system before history.db is opened, when there is
 * no more than that left, and taken again when there is much more, or when the store is closed and SQLite's files are
 * gone.
 *
 * It is a help, and nothing depends on it: calls that fail are passed over. Where the vfs cannot tell how much room
 * there is, there is no reserve. */
#ifndef KL_STORE_RESERVE_H
#define KL_STORE_RESERVE_H

#include <stdbool.h>

#include "store/disk/vfs.h"

enum { KL_RESERVE_BYTES = 256 << 10 }; /* `-shm` has 32 KiB; the rest is for the log */

/* False: there is no room, and history.db must not be opened. SQLite maps `-shm` into memory, and sees to it that each
 * page has one block; where it takes several, and there are none, the process would be ended by a signal (SIGBUS). */
bool kl__reserve_give(kl__vfs *vfs, const char *path);
void kl__reserve_take(kl__vfs *vfs, const char *path, bool is_closed);

#endif
