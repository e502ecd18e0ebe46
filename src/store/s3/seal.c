/* seal.c - shards that take no more tasks.
 *
 * From: settle.c (a fence that seals).  To: tasks/<partition>/<shard>/<number>.json, the last of its log.
 *
 * A seal is a task object like any other, at the next number, that says that nothing follows. Whoever wants that number
 * finds it taken, and learns from a listing or from the object itself that it is a seal (E6). So an append was put
 * before the seal, or is refused; there is nothing in between.
 *
 * An append to several shards is refused whole, unless one of them turns out to be sealed when others have their part
 * (append.c): within one process that does not happen, because seals wait for the round to end. */
#include "store/s3/s3.h"

enum { TRIES_MAX = 64 };

bool kl__s3_is_sealed(kl__s3 *s3, const kl__s3_shard *shard)
{
    kl__memory_enter(s3->memory);
    bool sealed = shard->sealed;
    kl__memory_leave(s3->memory);
    return sealed;
}

/* The seal is there, under this number. */
static void note_sealed(kl__s3 *s3, kl__s3_shard *shard, uint64_t number, int64_t asked_ns)
{
    kl__s3_text body = {.data = (char *)KL_S3_SEAL, .len = strlen(KL_S3_SEAL)};
    kl__memory_enter(s3->memory);
    shard->tail = number;
    shard->tail_ns = kl__s3_known_since(asked_ns);
    shard->sealed = true;
    if (shard->loaded && shard->taken + 1 == number)
        (void)kl__s3_apply_tasks(s3, shard, number, &body); /* else it is read when it is wanted */
    shard->ended = shard->taken >= shard->tail;
    kl__memory_leave(s3->memory);
}

/* One try, where the log ended a moment ago. */
static kl_rc try_seal(kl__s3 *s3, kl__s3_shard *shard)
{
    kl__memory_enter(s3->memory);
    uint64_t number = shard->tail + 1;
    int64_t since_ns = shard->tail_ns, asked_ns = kl__monotonic_ns();
    kl__memory_leave(s3->memory);
    char *name = kl__s3_log_name(s3, "tasks", shard, number);
    kl__s3_request request = {.kind = KL_S3_PUT, .name = name, .absent = true, .body = kl_str(KL_S3_SEAL)};
    kl_rc rc = name ? kl__s3_send(s3->http, &request, 1) : kl__fail_memory();
    if (rc == KL_OK && request.status >= 300 && request.status != 412)
        rc = kl__s3_refused(&request);
    if (rc == KL_OK && request.status < 300 && !kl__s3_is_late(s3, since_ns))
        note_sealed(s3, shard, number, asked_ns);
    else if (rc == KL_OK) /* taken; or so late that the number may have been used before: then it counts for nothing */
        rc = kl__s3_find_tail(s3, shard);
    kl__s3_request_free(&request);
    kl__free(name);
    return rc;
}

kl_rc kl__s3_seal(kl__s3 *s3, kl__s3_shard *shard)
{
    pthread_mutex_lock(&s3->round_mutex);
    kl__memory_enter(s3->memory);
    bool known = shard->tail_ns && kl__monotonic_ns() - shard->tail_ns < INT64_C(1000000) * KL_S3_POLL_MIN_MS;
    kl__memory_leave(s3->memory);
    kl_rc rc = known ? KL_OK : kl__s3_find_tail(s3, shard);
    for (int tries = 0; rc == KL_OK && !kl__s3_is_sealed(s3, shard); tries++)
        rc = tries < TRIES_MAX
                 ? try_seal(s3, shard)
                 : kl__fail(KL_EBUSY, "others append to shard %u all the time; call again", shard->place.shard);
    pthread_mutex_unlock(&s3->round_mutex);
    return rc;
}
