/* reserve.c - gives and takes the file `reserve`; see reserve.h. */
#include "store/disk/reserve.h"

#include <stdio.h>

#include "base/base.h"
#include "store/disk/segments.h"

enum { PAGE = 4096, LEAST = 64 << 10 }; /* `-shm`, and as much again */
enum { PLENTY = 4 * KL_RESERVE_BYTES }; /* while the store is open: SQLite needs some of it */

static void name_file(const char *path, char ret_path[KL_PATH_BYTES])
{
    snprintf(ret_path, KL_PATH_BYTES, "%.4000s/reserve", path);
}

/* At least so many bytes? */
static bool has_room(kl__vfs *vfs, const char *path, uint64_t bytes)
{
    uint64_t room = 0, block = 0;
    return vfs->room && vfs->room(vfs, path, &room, &block) == 0 && room >= bytes;
}

/* As many as it should have. One that a kill has left unfinished has fewer. */
static bool is_whole(kl__vfs *vfs, const char *name)
{
    kl__file *file = NULL;
    uint64_t size = 0;
    bool is_read = vfs->open(vfs, name, KL_OPEN_READ, &file) == 0 && vfs->size(vfs, file, &size) == 0;
    vfs->close(vfs, file);
    return is_read && size == KL_RESERVE_BYTES;
}

bool kl__reserve_give(kl__vfs *vfs, const char *path)
{
    char name[KL_PATH_BYTES];
    uint64_t room = 0, block = 0;
    name_file(path, name);
    bool is_known = vfs->room && vfs->room(vfs, path, &room, &block) == 0;
    if (is_known && room < KL_RESERVE_BYTES) {
        (void)vfs->unlink(vfs, name);
        is_known = vfs->room(vfs, path, &room, &block) == 0;
    }
    return !is_known || block >= PAGE || room >= LEAST;
}

void kl__reserve_take(kl__vfs *vfs, const char *path, bool is_closed)
{
    char name[KL_PATH_BYTES];
    kl__file *file = NULL;
    name_file(path, name);
    if (!vfs->room || is_whole(vfs, name) || !has_room(vfs, path, is_closed ? KL_RESERVE_BYTES : PLENTY))
        return;
    (void)vfs->unlink(vfs, name);
    char *zeros = kl__alloc_zeroed(1, KL_RESERVE_BYTES);
    bool is_made = zeros && vfs->open(vfs, name, KL_OPEN_CREATE, &file) == 0;
    bool is_taken = is_made && kl__vfs_write(vfs, file, zeros, KL_RESERVE_BYTES, 0) == 0 && vfs->sync(vfs, file) == 0;
    vfs->close(vfs, file);
    if (is_made && !is_taken)
        (void)vfs->unlink(vfs, name);
    kl__free(zeros);
}
