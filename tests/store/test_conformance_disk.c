/* test_conformance_disk.c - the disk engine keeps the contract, in a directory of its own for each claim.
 *
 * Segments are as small as they may be, so that a few hundred tasks roll the journal over. */
#include <errno.h>
#include <ftw.h>
#include <stdlib.h>
#include <unistd.h>

#include "store/conformance.h"

struct directory {
    char path[64];
    char url[80];
};

static kl_rc reopen_disk(void *place, const kl_store_opts *opts, kl_store **ret_store)
{
    struct directory *directory = place;
    return kl_store_open(directory->url, opts, ret_store);
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status, (void)type, (void)walk;
    return remove(path);
}

static void remove_disk(void *place)
{
    struct directory *directory = place;
    if (directory && nftw(directory->path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0)
        test_fail(__FILE__, __LINE__, "%s is not to be removed: %s", directory->path, strerror(errno));
    free(directory);
}

static kl_rc open_disk(const kl_store_opts *opts, void **ret_place, kl_store **ret_store)
{
    struct directory *directory = calloc(1, sizeof *directory);
    if (!directory)
        return kl__fail_memory();
    strcpy(directory->path, "/tmp/keyline-conformance-XXXXXX");
    if (!mkdtemp(directory->path)) {
        free(directory);
        return kl__fail(KL_ESYSTEM, "no directory is to be made in /tmp: %s", strerror(errno));
    }
    snprintf(directory->url, sizeof directory->url, "disk:%s/data", directory->path);
    kl_rc rc = reopen_disk(directory, opts, ret_store);
    if (rc != KL_OK)
        remove_disk(directory);
    else
        *ret_place = directory;
    return rc;
}

const struct subject subject = {
    .name = "disk", .clocked = true, .trims = true, .open = open_disk, .reopen = reopen_disk, .destroy = remove_disk};
