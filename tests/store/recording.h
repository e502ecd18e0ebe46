/* recording.h - a script's run over the disk engine on a simulated disk, with every operation and what was
 * acknowledged when.
 *
 * The engine's own threads make each run a little different, so a run in which something was found is saved to a
 * file, and can be looked at again exactly as it was. */
#ifndef TESTS_RECORDING_H
#define TESTS_RECORDING_H

#include "script.h"
#include "simdisk.h"
#include "simsqlite.h"

#define RECORDING_PATH "/data"

struct recording {
    struct script *script;
    simdisk *disk;
    uint64_t began[SCRIPT_CALLS_MAX]; /* operations that were done before the call */
    uint64_t ended[SCRIPT_CALLS_MAX]; /* and when it was acknowledged */
    uint64_t positions[SCRIPT_TASKS_MAX];
    uint64_t versions[SCRIPT_CALLS_MAX][SCRIPT_STEPS_MAX];
    char why[SCRIPT_WHY_BYTES]; /* "": it went well */
};

/* A disk that can be opened as a store's: the subject's ctx. */
struct sim_store {
    kl__vfs *vfs;
    simsqlite *layer;
};

struct sim_store sim_store_on(kl__vfs *vfs);
void sim_store_end(struct sim_store *store);
kl_rc sim_store_open(void *ctx, const kl_store_opts *opts, kl_store **ret_store);

/* The run; look at `why`. */
struct recording *recording_make(uint64_t seed, uint32_t calls);
void recording_free(struct recording *recording);

/* The call, with the positions and versions that this run learned. `model` is the one before, and becomes the one
 * after. */
void recording_apply(const struct recording *recording, struct model *model, uint32_t call);

bool recording_save(const struct recording *recording, const char *path);
struct recording *recording_load(const char *path); /* NULL: it cannot be read */

#endif
