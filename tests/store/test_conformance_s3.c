/* test_conformance_s3.c - the S3 engine keeps the contract, on a real server (Ceph's radosgw).
 *
 * Each claim has a prefix of its own. Checkpoints come every few settles, so that they are gone through as well. Random
 * claims do less than elsewhere, because every call is a request or more; KL_TEST_OPS asks for more. */
#include <stdlib.h>

#include "store/conformance.h"
#include "store/engines.h"
#include "store/s3_server.h"

struct s3_place {
    char where[S3_URL_BYTES];
};

static kl_rc reopen_s3(void *place, const kl_store_opts *opts, kl_store **ret_store)
{
    return kl_store_open_engine(&kl__engine_s3, ((struct s3_place *)place)->where, opts, ret_store);
}

static kl_rc open_s3(const kl_store_opts *opts, void **ret_place, kl_store **ret_store)
{
    struct s3_place *place = calloc(1, sizeof *place);
    if (!place)
        return kl__fail_memory();
    kl_rc rc = s3_server_new_place(place->where);
    strcat(place->where, "&clock=caller&settle_ms=0&checkpoint=6");
    if (rc == KL_OK)
        rc = reopen_s3(place, opts, ret_store);
    if (rc != KL_OK)
        free(place);
    else
        *ret_place = place;
    return rc;
}

enum { OPERATIONS = 120 };

__attribute__((constructor)) static void do_less(void)
{
    char operations[16];
    snprintf(operations, sizeof operations, "%d", OPERATIONS);
    setenv("KL_TEST_OPS", operations, 0);
}

const struct subject subject = {.name = "s3", .clocked = true, .open = open_s3, .reopen = reopen_s3, .destroy = free};
