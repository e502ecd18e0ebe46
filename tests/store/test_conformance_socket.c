/* test_conformance_socket.c - a disk store that another handle holds keeps the contract, call by call over its socket.
 *
 * For each claim there are two handles on one directory: the holder, which only serves, and its client, which is the
 * store under proof. Both live in this process; the bytes between them go through the kernel all the same. In the
 * second life the holder was closed and opened again as well. */
#include <errno.h>
#include <stdlib.h>

#include "store/conformance.h"
#include "store/workdir.h"

struct shared_place {
    char path[WORKDIR_BYTES];
    char url[WORKDIR_BYTES + 16];
    kl_store *holder;
};

static kl_rc reopen_shared(void *place, const kl_store_opts *opts, kl_store **ret_store)
{
    struct shared_place *its = place;
    kl_store_close(its->holder);
    its->holder = NULL;
    kl_rc rc = kl_store_open(its->url, opts, &its->holder);
    if (rc == KL_OK)
        rc = kl_store_open(its->url, opts, ret_store);
    if (rc == KL_OK)
        CHECK(!(kl_store_info_of(*ret_store).can & KL_STORE_ASYNC)); /* it is the client, and the other the holder */
    return rc;
}

static void remove_shared(void *place)
{
    struct shared_place *its = place;
    if (!its)
        return;
    kl_store_close(its->holder);
    CHECK(workdir_remove(its->path));
    free(its);
}

static kl_rc open_shared(const kl_store_opts *opts, void **ret_place, kl_store **ret_store)
{
    struct shared_place *its = calloc(1, sizeof *its);
    if (!its)
        return kl__fail_memory();
    if (!workdir_make(its->path)) {
        free(its);
        return kl__fail(KL_ESYSTEM, "no directory is to be made: %s", strerror(errno));
    }
    snprintf(its->url, sizeof its->url, "disk:%s/data", its->path);
    kl_rc rc = reopen_shared(its, opts, ret_store);
    if (rc != KL_OK)
        remove_shared(its);
    else
        *ret_place = its;
    return rc;
}

const struct subject subject = {.name = "disk",
                                .clocked = true,
                                .trims = true,
                                .open = open_shared,
                                .reopen = reopen_shared,
                                .destroy = remove_shared};
