/* late.c - a store whose server was away when it was opened, and that is ready when the server is there.
 *
 * From: store.c, for stores that are hasty (kl_store_opts).  To: the engine.
 *
 * The handle is there from the beginning, and its calls fail with KL_EBUSY until one of them finds the server, also
 * while that lets nobody in: what is wrong is not an argument of the call. No partition is known before, so whatever
 * names a place is refused in check.c. Of the callers one tries now and then, and the others fail at once: who has
 * something else to do is not held up. */
#include <stdio.h>

#include "base/clock.h"
#include "store/dispatch.h"
#include "store/engines.h"
#include "store/socket/socket.h"

enum {
    TRY_MS = 250,  /* between two tries, */
    TRY_TIMES = 4, /* or so many times as long as one took: a server may let it wait instead of refusing it */
};

/* What the engine can is known before it is open. */
bool kl__late_may_wait(const kl_store *store)
{
    return store->opts.hasty && store->engine != &kl__engine_shared && store->engine != &kl__engine_http &&
           store->engine != &kl__engine_https;
}

static void note(kl__late *late, int64_t began_ns)
{
    int64_t now_ns = kl__monotonic_ns(), rest_ns = TRY_TIMES * (now_ns - began_ns);
    int64_t least_ns = TRY_MS * INT64_C(1000000);
    snprintf(late->why, sizeof late->why, "%s", kl_error_text());
    late->again_ns = now_ns + (rest_ns > least_ns ? rest_ns : least_ns);
}

kl_rc kl__late_wait(kl_store *store, const char *where, int64_t began_ns)
{
    size_t bytes = strlen(where) + 1;
    store->late.where = kl__alloc(bytes);
    if (!store->late.where)
        return kl__fail_memory();
    memcpy(store->late.where, where, bytes);
    note(&store->late, began_ns);
    atomic_store(&store->late.waits, true);
    return KL_OK;
}

kl_rc kl__late_refuse(kl_store *store)
{
    char why[KL_LATE_BYTES];
    pthread_mutex_lock(&store->late.mutex);
    snprintf(why, sizeof why, "%s", *store->late.why ? store->late.why : "its store was away; try again");
    pthread_mutex_unlock(&store->late.mutex);
    return kl__fail(KL_EBUSY, "%s", why);
}

/* The mutex is left meanwhile, so that others can tell why they are refused. */
static kl_rc open_now(kl_store *store)
{
    kl__late *late = &store->late;
    int64_t began_ns = kl__monotonic_ns();
    void *self = NULL;
    late->trying = true;
    pthread_mutex_unlock(&late->mutex);
    kl_rc rc = store->engine->open(late->where, &store->opts, &self);
    pthread_mutex_lock(&late->mutex);
    late->trying = false;
    if (rc == KL_OK) {
        store->self = self;
        atomic_store_explicit(&late->waits, false, memory_order_release);
    } else {
        note(late, began_ns);
    }
    return rc;
}

kl_rc kl__late_ready(kl_store *store)
{
    kl__late *late = &store->late;
    pthread_mutex_lock(&late->mutex);
    bool try = atomic_load(&late->waits) && !late->trying && kl__monotonic_ns() >= late->again_ns;
    kl_rc rc = try ? open_now(store) : KL_OK;
    bool waits = atomic_load(&late->waits);
    pthread_mutex_unlock(&late->mutex);
    return waits && (rc == KL_OK || rc == KL_EINVAL) ? kl__late_refuse(store) : rc;
}
