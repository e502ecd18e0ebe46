/* reach.c - reads and writes the file `reached`; see reach.h.
 *
 * There are two places for the mark, in pages of their own, and the one that says less is written: so the other one
 * stands while a write is torn. */
#include "store/disk/reach.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "store/disk/segments.h"

enum { PLACES = 2 };

static void name_file(const char *path, char ret_path[KL_PATH_BYTES])
{
    snprintf(ret_path, KL_PATH_BYTES, "%.4000s/reached", path);
}

/* The frame of each place; 0: nothing of this journal stands there. */
static int read_marks(kl__vfs *vfs, kl__file *file, uint64_t journal, kl__reach marks[PLACES])
{
    for (int i = 0; i < PLACES; i++) {
        kl__reach_mark mark;
        size_t got = 0;
        int error = kl__vfs_read(vfs, file, &mark, sizeof mark, (uint64_t)i * KL_REACH_BYTES, &got);
        if (error)
            return error;
        bool is_ours = got == sizeof mark && memcmp(mark.magic, KL_REACH_MAGIC, sizeof mark.magic) == 0 &&
                       mark.crc == kl__reach_crc(&mark) && mark.version == KL_FORMAT_VERSION && mark.journal == journal;
        marks[i] = is_ours ? (kl__reach){mark.segment, mark.frame} : (kl__reach){0, 0};
    }
    return 0;
}

static int highest(const kl__reach marks[PLACES]) { return marks[1].frame > marks[0].frame; }

int kl__reach_read(kl__vfs *vfs, const char *path, uint64_t journal, kl__reach *ret_reach)
{
    char name[KL_PATH_BYTES];
    kl__reach marks[PLACES];
    kl__file *file = NULL;
    name_file(path, name);
    *ret_reach = (kl__reach){0, 0};
    int error = vfs->open(vfs, name, KL_OPEN_READ, &file);
    if (error)
        return error == -ENOENT ? 0 : error;
    error = read_marks(vfs, file, journal, marks);
    vfs->close(vfs, file);
    if (!error)
        *ret_reach = marks[highest(marks)];
    return error;
}

static int write_mark(kl__vfs *vfs, kl__file *file, uint64_t journal, const kl__reach *reach)
{
    kl__reach marks[PLACES];
    kl__reach_mark mark = {.magic = KL_REACH_MAGIC,
                           .version = KL_FORMAT_VERSION,
                           .journal = journal,
                           .segment = reach->segment,
                           .frame = reach->frame};
    mark.crc = kl__reach_crc(&mark);
    int error = read_marks(vfs, file, journal, marks);
    if (!error)
        error = kl__vfs_write(vfs, file, &mark, sizeof mark, (uint64_t)!highest(marks) * KL_REACH_BYTES);
    return error ? error : vfs->sync(vfs, file);
}

int kl__reach_write(kl__vfs *vfs, const char *path, uint64_t journal, const kl__reach *reach)
{
    char name[KL_PATH_BYTES];
    kl__file *file = NULL;
    name_file(path, name);
    int error = vfs->open(vfs, name, KL_OPEN_WRITE, &file);
    bool is_new = error == -ENOENT;
    if (is_new)
        error = vfs->open(vfs, name, KL_OPEN_CREATE, &file);
    if (error)
        return error;
    error = write_mark(vfs, file, journal, reach);
    vfs->close(vfs, file);
    return error || !is_new ? error : vfs->sync_dir(vfs, path);
}
