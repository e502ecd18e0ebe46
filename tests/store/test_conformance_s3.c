/* test_conformance_s3.c - the S3 engine keeps the contract, on a real server (Ceph's radosgw).
 *
 * Each claim has a prefix of its own. Checkpoints come every few settles, and what they cover is deleted at once, so
 * that this is gone through as well: no other process is there that could still be about to use a number. Random claims
 * do less than elsewhere, because every call is a request or more; KL_TEST_OPS asks for more. */
#include <stdlib.h>

#include "store/conformance.h"
#include "store/dispatch.h"
#include "store/engines.h"
#include "store/s3/s3.h"
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
    strcat(place->where, "&clock=caller&settle_ms=0&checkpoint=6&grace_ms=0");
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

/* ---- What is not in the contract ---- */

static size_t objects_below(struct trial *t, const char *prefix)
{
    kl__s3_names names;
    CHECK_OK(kl__s3_list_page(t->store->self, prefix, NULL, 0, &names));
    size_t count = names.count;
    kl__s3_names_free(&names);
    return count;
}

/* The newest of each log stays, so that its end can be found. */
CLAIM(what_is_settled_is_deleted_in_time_and_what_waits_is_not)
{
    kl_task_id ids[60];
    kl_place place = order_place(t, 4);
    append_many(t, place, ids, COUNT(ids));
    for (size_t i = 1; i < COUNT(ids); i++)
        finish(t, place, &ids[i], KL_DONE, 0, NULL, NULL);
    AWAIT(objects_below(t, "tasks/orders/4/") <= 20 && objects_below(t, "journal/orders/4/") <= 20);
    CHECK_LINE(t, place, 0, ids, 1);
    CHECK(next_life(t));
    CHECK_LINE(t, place, 0, ids, 1);
    CHECK(objects_below(t, "tasks/orders/4/") >= 1);
}
