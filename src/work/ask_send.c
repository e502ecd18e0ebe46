/* ask_send.c - leave a request for the owner of a shard, and wait for the answer.
 *
 * From: control.c, control_task.c.  To: ask.c, in whatever process owns the shard; in this one when nobody does. */
#include <time.h>

#include "base/random.h"
#include "keyline/control.h"
#include "work/ask.h"
#include "work/inside.h"

enum { POLL_MIN_MS = 2, POLL_MAX_MS = 50, OWNERS_EVERY_MS = 250, END_MS = 5000 };

/* A request under way. */
struct sent {
    kl_queue *queue;
    kl__source source;
    uint32_t shard;
    char partition[KL_PARTITION_NAME_BYTES];
    char name_buffer[KL_RECORD_NAME_BYTES];
    kl_bytes name;
    kl__pump *stand_in; /* owns the shard for the time being, if nobody else does */
    char shard_name[KL_SHARD_NAME_BYTES];
    char shards[2 * KL_SHARD_NAME_BYTES]; /* that are owned together with it */
    int64_t owners_ms;                    /* when it was last looked who does */
};

static void rest(int64_t ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* --- Standing in for a worker --- */

static kl_rc stand_in(struct sent *sent)
{
    uint64_t random[2] = {kl__random_seed(), kl__random_seed()};
    kl__pump_opts opts = {.queue = sent->queue,
                          .worker_name = KL_OPERATOR_NAME,
                          .shards = sent->shards,
                          .shards_layout = &sent->source.layout->layout,
                          .partition = sent->partition,
                          .window_max = KL_WINDOW_MIN,
                          .concurrency = 1,
                          .seed = random[0],
                          .local_ms = kl__local_ms};
    memcpy(&opts.worker, random, sizeof opts.worker);
    return kl__pump_open(&opts, &sent->stand_in);
}

static kl_rc work_as_stand_in(struct sent *sent)
{
    uint64_t ignored;
    kl_rc rc = kl__pump_beat(sent->stand_in);
    if (rc == KL_OK)
        rc = kl__pump_look(sent->stand_in, &ignored);
    while (rc == KL_OK && kl__pump_has_finished(sent->stand_in))
        rc = kl__pump_settle(sent->stand_in, &ignored);
    return kl_rc_class(rc) == KL_CLASS_RETRY ? KL_OK : rc;
}

/* Settles and gives the shard back; whatever cannot be expires. */
static void end_stand_in(struct sent *sent)
{
    int64_t began_ms = kl__local_ms(NULL);
    if (!sent->stand_in)
        return;
    kl__pump_stop(sent->stand_in);
    while (!kl__pump_gone(sent->stand_in) && kl__local_ms(NULL) - began_ms < END_MS) {
        uint64_t ignored;
        if (kl__pump_settle(sent->stand_in, &ignored) != KL_OK || kl__pump_beat(sent->stand_in) != KL_OK)
            rest(POLL_MAX_MS);
    }
    kl__pump_close(sent->stand_in);
}

static kl_rc look_for_owner(struct sent *sent, kl_arena *arena)
{
    kl__ownership ownership;
    int64_t now_ms = kl__local_ms(NULL);
    if (sent->stand_in || (sent->owners_ms && now_ms - sent->owners_ms < OWNERS_EVERY_MS))
        return KL_OK;
    sent->owners_ms = now_ms;
    kl_rc rc = kl__owners_read(kl__source_store(sent->source), sent->partition, &sent->source.layout->layout, arena,
                               &ownership);
    return rc == KL_OK && !kl__ownership_of(&ownership, sent->shard) ? stand_in(sent) : rc;
}

/* --- Asking --- */

json_t *kl__ask_for(const char *verb)
{
    json_t *ask = kl__json_object();
    if (kl__json_set_text(ask, "verb", verb))
        return ask;
    json_decref(ask);
    return NULL;
}

/* Shards of four digits are owned in groups of 16 (owners.h). */
static void name_shards(struct sent *sent)
{
    const kl_layout *layout = &sent->source.layout->layout;
    char first[KL_SHARD_NAME_BYTES], last[KL_SHARD_NAME_BYTES];
    uint32_t others = kl_layout_shards(layout) > 4096 ? 15 : 0;
    kl_shard_name(layout, sent->shard, sent->shard_name);
    kl_shard_name(layout, sent->shard & ~others, first);
    kl_shard_name(layout, sent->shard | others, last);
    snprintf(sent->shards, sizeof sent->shards, "%s-%s", first, last);
}

static kl_rc leave_request(struct sent *sent, json_t *ask)
{
    char suffix[64];
    int64_t now_ms;
    kl_store *store = kl__source_store(sent->source);
    kl_rc rc = kl__layout_partition_name(sent->queue, sent->source.layout, sent->source.partition, sent->partition);
    if (rc == KL_OK)
        rc = kl_store_now(store, &now_ms);
    if (rc != KL_OK)
        return rc;
    name_shards(sent);
    snprintf(suffix, sizeof suffix, "%s/%016llx", sent->shard_name, (unsigned long long)kl__random_seed());
    sent->name = kl__record_name(sent->name_buffer, sizeof sent->name_buffer, "ask", sent->partition, suffix);
    rc = kl__record_write(store, sent->name, 0, ask, now_ms + KL_ASK_EXPIRES_MS, NULL);
    return rc == KL_ECONFLICT ? KL_OK : rc; /* nobody else has the name: it was written, and the reply was lost */
}

/* KL_EBUSY: not answered yet. */
static kl_rc read_answer(struct sent *sent, kl_arena *arena, kl__json *ret_answer, kl_record *ret_record)
{
    kl_rc rc = kl__record_read(kl__source_store(sent->source), sent->name, arena, ret_answer, ret_record);
    if (rc == KL_ENOTFOUND)
        return kl__fail(KL_ETIMEDOUT, "the request has expired without an answer; ask again");
    if (rc != KL_OK)
        return rc;
    if (kl__json_bool_or(ret_answer, "answered", false))
        return KL_OK;
    kl__json_free(ret_answer);
    return KL_EBUSY;
}

static kl_rc wait_for_answer(struct sent *sent, kl_arena *arena, kl__json *ret_answer, kl_record *ret_record)
{
    int64_t poll_ms = POLL_MIN_MS, began_ms = kl__local_ms(NULL);
    kl_arena scratch = {0};
    for (;;) {
        kl_rc rc = look_for_owner(sent, &scratch);
        if (rc == KL_OK && sent->stand_in)
            rc = work_as_stand_in(sent);
        if (rc == KL_OK)
            rc = read_answer(sent, arena, ret_answer, ret_record);
        kl_arena_reset(&scratch);
        if (rc == KL_EBUSY && kl__local_ms(NULL) - began_ms >= KL_CONTROL_WAIT_MS)
            rc = kl__fail(KL_ETIMEDOUT,
                          "the worker that owns the shard has not answered within %d s; is it stuck, or its store?",
                          KL_CONTROL_WAIT_MS / 1000);
        if (rc != KL_EBUSY) {
            kl_arena_free(&scratch);
            return rc;
        }
        rest(poll_ms);
        poll_ms = poll_ms * 2 < POLL_MAX_MS ? poll_ms * 2 : POLL_MAX_MS;
    }
}

/* What the owner said becomes what this process says. One of another version may say that it was the owner no more. */
static kl_rc pass_on(kl__json *answer, kl_arena *arena)
{
    kl_rc rc = (kl_rc)kl__json_int(answer, "rc", INT32_MIN, 0);
    const char *error = kl__json_text_or(answer, "error", arena, "");
    if (answer->rc != KL_OK)
        return answer->rc;
    return rc == KL_OK ? KL_OK : kl__fail(rc == KL_ESTALE ? KL_EBUSY : rc, "%s", error);
}

kl_rc kl__ask_send(kl_queue *queue, kl__source source, uint32_t shard, json_t *ask, kl_arena *arena,
                   kl__json *ret_answer)
{
    struct sent sent = {.queue = queue, .source = source, .shard = shard};
    kl_record record = {0};
    kl__json answer = {0};
    kl_rc rc = ask ? leave_request(&sent, ask) : kl__fail_memory();
    json_decref(ask);
    if (rc != KL_OK)
        return rc;
    rc = wait_for_answer(&sent, arena, &answer, &record);
    end_stand_in(&sent);
    if (rc != KL_OK)
        return rc;
    kl_rc removed = kl__record_remove(kl__source_store(source), sent.name, record.version);
    (void)removed; /* what stays expires */
    rc = pass_on(&answer, arena);
    if (rc != KL_OK)
        kl__json_free(&answer);
    else
        *ret_answer = answer;
    return rc;
}
