/* test_asked.c - requests to the owner of a shard, where a call of the store fails, or something happens, in between.
 *
 * Whoever asks and whoever owns the shard each see the store in their own way. The owner is driven by hand whenever the
 * asker looks for its answer. */
#include <string.h>

#include "queue/put.h"
#include "store/lossy.h"
#include "work/hand.h"

enum { BUSY = 12 }; /* calls: more than are made at a time */

/* What happens while a copy of the first task is put. */
enum meanwhile {
    NOTHING,
    STARTS,     /* the task does, */
    ENDS,       /* and ends */
    UNANSWERED, /* requests cannot be answered at once from then on */
};

struct asked {
    struct hand hand;
    struct lossy asker, owner;
    kl_store *asker_store;
    kl_queue *queue, *to;
    struct hand_pump *pump;   /* NULL: nobody owns the shards, and the asker stands in */
    int settles_busy;         /* so many, without effect */
    int answers_lost;         /* so many writes of answers have no effect */
    const char *request_lost; /* the reply to the request with this verb is, and nothing more is heard of it */
    enum meanwhile meanwhile;
};

static struct asked *of_asker(void *self) { return KL_CONTAINER((struct lossy *)self, struct asked, asker); }
static struct asked *of_owner(void *self) { return KL_CONTAINER((struct lossy *)self, struct asked, owner); }

static bool is_request(kl_bytes name) { return name.len > 4 && memcmp(name.data, "ask/", 4) == 0; }

static bool says(kl_bytes value, const char *word)
{
    char quoted[32];
    int length = snprintf(quoted, sizeof quoted, "\"%s\"", word);
    return value.len > 0 && memmem(value.data, value.len, quoted, (size_t)length) != NULL;
}

static kl_rc fail_busy(void) { return kl__fail(KL_EBUSY, "the store is busy"); }

static void drive(struct asked *asked)
{
    kl_rc ignored;
    asked->hand.now_ms += HAND_STEP_MS;
    ignored = kl__pump_beat(asked->pump->pump);
    (void)ignored; /* a store that is busy is asked again */
}

/* --- What fails for either --- */

static kl_rc settle(struct asked *asked, kl_settle *batches, size_t count)
{
    if (asked->settles_busy == 0)
        return kl_store_settle(asked->hand.memory, batches, count);
    asked->settles_busy--;
    for (size_t i = 0; i < count; i++)
        batches[i].rc = KL_EBUSY;
    return fail_busy();
}

static kl_rc put(struct asked *asked, kl_write *writes, size_t count)
{
    if (asked->answers_lost == 0 || !is_request(writes[0].name) || !says(writes[0].value, "answered"))
        return kl_store_put(asked->hand.memory, writes, count);
    asked->answers_lost--;
    return fail_busy();
}

/* --- The store as the asker sees it --- */

static void start_first(struct asked *asked)
{
    hand_looks(asked->pump);
    CHECK_STR(hand_start(asked->pump), "first");
}

static kl_rc asker_get(void *self, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *ret_records)
{
    struct asked *asked = of_asker(self);
    if (asked->pump && is_request(names[0]))
        drive(asked);
    return kl_store_get(asked->asker.inner, names, count, arena, ret_records);
}

static kl_rc asker_put(void *self, kl_write *writes, size_t count)
{
    struct asked *asked = of_asker(self);
    bool lost = asked->request_lost && is_request(writes[0].name) && says(writes[0].value, asked->request_lost);
    kl_rc rc = put(asked, writes, count);
    return lost ? fail_busy() : rc;
}

static kl_rc asker_append(void *self, const kl_append *append)
{
    struct asked *asked = of_asker(self);
    if (asked->meanwhile == UNANSWERED)
        asked->answers_lost = BUSY;
    if (asked->meanwhile == STARTS || asked->meanwhile == ENDS)
        start_first(asked);
    if (asked->meanwhile == ENDS) {
        hand_end(asked->pump, hand_running(asked->pump, 0), KL_DONE);
        hand_settle(asked->pump);
    }
    asked->meanwhile = NOTHING;
    return kl_store_append(asked->asker.inner, append->entries, append->count, append->token);
}

static kl_rc asker_settle(void *self, kl_settle *batches, size_t count)
{
    return settle(of_asker(self), batches, count);
}

/* --- As its owner does --- */

static kl_rc owner_settle(void *self, kl_settle *batches, size_t count)
{
    return settle(of_owner(self), batches, count);
}

static kl_rc owner_put(void *self, kl_write *writes, size_t count) { return put(of_owner(self), writes, count); }

/* --- Beginning and end --- */

static bool asked_open(struct asked *asked, bool with_owner)
{
    memset(asked, 0, sizeof *asked);
    if (!hand_open(&asked->hand, NULL))
        return false;
    CHECK_INT(lossy_open(&asked->asker, asked->hand.memory, 1, &asked->asker_store), KL_OK);
    CHECK_INT(lossy_open(&asked->owner, asked->hand.memory, 1, &asked->hand.store), KL_OK);
    asked->asker.replies_lost = asked->asker.requests_lost = 0;
    asked->owner.replies_lost = asked->owner.requests_lost = 0;
    asked->asker.engine.get = asker_get;
    asked->asker.engine.put = asker_put;
    asked->asker.engine.append = asker_append;
    asked->asker.engine.settle = asker_settle;
    asked->owner.engine.settle = owner_settle;
    asked->owner.engine.put = owner_put;
    CHECK_INT(kl_queue_find(asked->asker_store, "q", &asked->queue), KL_OK);
    CHECK_INT(kl_queue_open(asked->asker_store, "elsewhere", NULL, &asked->to), KL_OK);
    if (with_owner) {
        asked->pump = hand_pump(&asked->hand, NULL);
        hand_own(asked->pump);
    }
    return !test_failed();
}

static void asked_close(struct asked *asked)
{
    kl_store *owner_store = asked->hand.store;
    kl_queue_close(asked->to);
    kl_queue_close(asked->queue);
    kl_store_close(asked->asker_store);
    kl_store *memory = asked->hand.memory;
    kl_queue_close(asked->hand.queue);
    asked->hand.queue = NULL;
    asked->hand.memory = NULL;
    hand_close(&asked->hand);
    kl_store_close(owner_store);
    kl_store_close(memory);
}

static uint64_t waiting(kl_queue *queue)
{
    kl_arena arena = {0};
    kl_queue_info info = {0};
    CHECK_INT(kl_queue_show(queue, &arena, &info), KL_OK);
    kl_arena_free(&arena);
    return info.counts.ready + info.counts.due + info.counts.retry;
}

static bool waits(kl_queue *queue, const kl_task_id *id)
{
    kl_arena arena = {0};
    kl_found found = {0};
    kl_rc rc = kl_queue_task(queue, id, &arena, &found);
    kl_arena_free(&arena);
    return rc == KL_OK && found.task.state == KL_TASK_WAITING;
}

static kl_task_id first_waiting(kl_queue *queue)
{
    kl_arena arena = {0};
    kl_found found = {0};
    kl_waiting which = {.max = 1};
    kl_bytes cursor = {0};
    size_t count = 0;
    CHECK_INT(kl_queue_waiting(queue, &which, &arena, &found, &count, &cursor), KL_OK);
    CHECK_INT(count, 1);
    kl_arena_free(&arena);
    return found.task.entry.id;
}

static kl_task_id put_delayed(struct asked *asked, const char *payload, int priority, int64_t delay_ms)
{
    kl_put put = {.key = kl_str("k"), .payload = kl_str(payload), .priority = priority, .delay_ms = delay_ms};
    kl_put_result result = {0};
    CHECK_INT(kl_queue_put(asked->hand.queue, &put, 1, (kl_bytes){0}, &result), KL_OK);
    return result.id;
}

/* --- Moving --- */

TEST(a_move_whose_end_may_still_be_carried_out_leaves_the_copy)
{
    struct asked asked;
    kl_task_id moved;
    if (!asked_open(&asked, true))
        return;
    kl_task_id id = hand_put(&asked.hand, "k", "first", 0);
    asked.request_lost = "end";
    CHECK_INT(kl_task_move(asked.queue, &id, asked.to, &moved), KL_EBUSY);
    asked.request_lost = NULL;
    drive(&asked);
    CHECK(!waits(asked.queue, &id));
    CHECK_INT(waiting(asked.to), 1);
    asked_close(&asked);
}

TEST(a_task_that_begins_to_run_while_it_is_moved_can_be_moved_when_it_waits_again)
{
    struct asked asked;
    kl_task_id moved = {{0}};
    if (!asked_open(&asked, true))
        return;
    kl_task_id id = hand_put(&asked.hand, "k", "first", 0);
    asked.meanwhile = STARTS;
    CHECK_INT(kl_task_move(asked.queue, &id, asked.to, &moved), KL_EBUSY);
    CHECK_CONTAINS(kl_error_text(), "is running");
    CHECK_INT(waiting(asked.to), 0);
    hand_end(asked.pump, hand_running(asked.pump, 0), KL_RETRY);
    hand_settle(asked.pump);
    CHECK(waits(asked.queue, &id));
    CHECK_INT(kl_task_move(asked.queue, &id, asked.to, &moved), KL_OK);
    CHECK(!waits(asked.queue, &id));
    CHECK(waits(asked.to, &moved));
    CHECK_INT(waiting(asked.to), 1);
    asked_close(&asked);
}

TEST(a_copy_of_an_earlier_call_whose_end_was_carried_out_late_is_not_taken_back)
{
    struct asked asked;
    kl_task_id moved = {{0}};
    if (!asked_open(&asked, true))
        return;
    kl_task_id id = hand_put(&asked.hand, "k", "first", 0);
    asked.request_lost = "end";
    CHECK_INT(kl_task_move(asked.queue, &id, asked.to, &moved), KL_EBUSY);
    asked.request_lost = NULL;
    CHECK_INT(kl_task_move(asked.queue, &id, asked.to, &moved), KL_ENOTFOUND); /* the owner ended it only now */
    CHECK_CONTAINS(kl_error_text(), "an earlier call has put it there");
    CHECK_INT(waiting(asked.to), 1);
    asked_close(&asked);
}

TEST(the_copy_of_a_task_that_runs_to_its_end_while_it_is_moved_is_taken_back)
{
    struct asked asked;
    kl_task_id moved = {{0}};
    if (!asked_open(&asked, true))
        return;
    kl_task_id id = hand_put(&asked.hand, "k", "first", 0);
    asked.meanwhile = ENDS;
    CHECK_INT(kl_task_move(asked.queue, &id, asked.to, &moved), KL_ENOTFOUND);
    CHECK_CONTAINS(kl_error_text(), "has ended");
    CHECK_INT(waiting(asked.to), 0);
    asked_close(&asked);
}

static int64_t due_of(kl_queue *queue, const kl_task_id *id)
{
    kl_arena arena = {0};
    kl_found found = {0};
    CHECK_INT(kl_queue_task(queue, id, &arena, &found), KL_OK);
    kl_arena_free(&arena);
    return found.task.entry.due_ms;
}

TEST(a_task_that_is_due_already_is_moved_behind_what_waits_there)
{
    struct asked asked;
    kl_task_id moved = {{0}};
    if (!asked_open(&asked, true))
        return;
    kl_task_id due = put_delayed(&asked, "due", 0, 100), later = put_delayed(&asked, "later", 0, 3600000);
    asked.hand.now_ms += 1000;
    CHECK_INT(kl_task_move(asked.queue, &due, asked.to, &moved), KL_OK);
    CHECK_INT(due_of(asked.to, &moved), 0);
    CHECK_INT(kl_task_move(asked.queue, &later, asked.to, &moved), KL_OK);
    CHECK(due_of(asked.to, &moved) > asked.hand.now_ms);
    asked_close(&asked);
}

TEST(a_move_that_is_repeated_when_the_task_is_due_finds_its_copy)
{
    struct asked asked;
    kl_task_id moved = {{0}};
    if (!asked_open(&asked, false))
        return;
    kl_task_id id = put_delayed(&asked, "first", 0, 1000);
    asked.request_lost = "end";
    CHECK_INT(kl_task_move(asked.queue, &id, asked.to, &moved), KL_EBUSY);
    asked.request_lost = NULL;
    asked.hand.now_ms += 120000; /* nobody carries the first request out any more */
    CHECK_INT(kl_task_move(asked.queue, &id, asked.to, &moved), KL_OK);
    CHECK(!waits(asked.queue, &id));
    CHECK_INT(waiting(asked.to), 1);
    asked_close(&asked);
}

/* --- Answers that cannot be written --- */

static bool open_unanswered(struct asked *asked, bool with_owner)
{
    if (!asked_open(asked, with_owner))
        return false;
    asked->answers_lost = BUSY;
    return true;
}

static void cancel_unanswered(bool with_owner)
{
    struct asked asked;
    bool running = true;
    if (!open_unanswered(&asked, with_owner))
        return;
    kl_task_id id = hand_put(&asked.hand, "k", "first", 0);
    CHECK_INT(kl_task_cancel(asked.queue, &id, &running), KL_OK);
    CHECK(!running);
    CHECK_INT(asked.answers_lost, 0);
    CHECK(!waits(asked.queue, &id));
    CHECK_INT(kl_task_cancel(asked.queue, &id, &running), KL_ENOTFOUND);
    asked_close(&asked);
}

TEST(a_task_is_cancelled_though_that_cannot_be_answered_at_once) { cancel_unanswered(true); }
TEST(a_task_is_cancelled_without_a_worker_though_that_cannot_be_answered_at_once) { cancel_unanswered(false); }

TEST(a_job_has_a_task_less_when_one_is_moved_though_that_cannot_be_answered_at_once)
{
    struct asked asked;
    kl_task_id job, moved = {{0}};
    kl_arena arena = {0};
    kl_job_info info = {0};
    if (!asked_open(&asked, true))
        return;
    kl_put puts[] = {{.key = kl_str("k"), .payload = kl_str("first")},
                     {.key = kl_str("k"), .payload = kl_str("second")}};
    kl_job_spec spec = {.size = sizeof spec, .tasks = puts, .count = 2};
    kl_job_answer answer = {0};
    CHECK_INT(kl_job_submit(asked.hand.queue, &spec, &answer, NULL), KL_OK);
    job = answer.job;
    kl_task_id id = first_waiting(asked.hand.queue);
    asked.meanwhile = UNANSWERED;
    CHECK_INT(kl_task_move(asked.queue, &id, asked.to, &moved), KL_OK);
    CHECK_INT(asked.answers_lost, 0);
    CHECK(waits(asked.to, &moved));
    CHECK_INT(waiting(asked.queue), 1);
    CHECK_INT(kl_job_show(asked.queue, &job, &arena, &info), KL_OK);
    CHECK_INT(info.tasks, 1);
    kl_arena_free(&arena);
    asked_close(&asked);
}

TEST(a_key_is_drained_though_that_cannot_be_answered_at_once)
{
    struct asked asked;
    uint64_t count;
    if (!open_unanswered(&asked, true))
        return;
    hand_put(&asked.hand, "k", "first", 0);
    CHECK_INT(kl_key_drain(asked.queue, kl_str("k"), NULL, false, &count), KL_OK);
    CHECK_INT(asked.answers_lost, 0);
    CHECK_INT(waiting(asked.queue), 0);
    CHECK_INT(kl_key_drain(asked.queue, kl_str("k"), NULL, false, &count), KL_ENOTFOUND);
    asked_close(&asked);
}
/* --- A store that is busy --- */

static void skip_while_busy(bool with_owner)
{
    struct asked asked;
    kl_task_id skipped = {{0}};
    if (!asked_open(&asked, with_owner))
        return;
    kl_task_id first = hand_put(&asked.hand, "k", "first", 0), second = hand_put(&asked.hand, "k", "second", 0);
    if (asked.pump)
        hand_looks(asked.pump);
    asked.settles_busy = BUSY;
    CHECK_INT(kl_key_skip(asked.queue, kl_str("k"), NULL, &skipped), KL_OK);
    CHECK(kl_id_compare(&skipped, &first) == 0);
    CHECK_INT(asked.settles_busy, 0);
    CHECK(!waits(asked.queue, &first));
    CHECK(waits(asked.queue, &second));
    asked_close(&asked);
}

TEST(a_skip_whose_settle_is_busy_skips_one_task) { skip_while_busy(true); }
TEST(a_skip_whose_settle_is_busy_skips_one_task_without_a_worker) { skip_while_busy(false); }

static void move_while_busy(bool with_owner)
{
    struct asked asked;
    kl_task_id moved = {{0}};
    if (!asked_open(&asked, with_owner))
        return;
    kl_task_id id = hand_put(&asked.hand, "k", "first", 0);
    if (asked.pump)
        hand_looks(asked.pump);
    asked.settles_busy = BUSY;
    CHECK_INT(kl_task_move(asked.queue, &id, asked.to, &moved), KL_OK);
    CHECK_INT(asked.settles_busy, 0);
    CHECK(!waits(asked.queue, &id));
    CHECK(waits(asked.to, &moved));
    asked_close(&asked);
}

TEST(a_task_is_moved_though_its_settle_is_busy) { move_while_busy(true); }
TEST(a_task_is_moved_without_a_worker_though_its_settle_is_busy) { move_while_busy(false); }

TEST(a_key_is_drained_though_its_settle_is_busy)
{
    struct asked asked;
    uint64_t count = 0;
    if (!asked_open(&asked, true))
        return;
    hand_put(&asked.hand, "k", "first", 0);
    hand_put(&asked.hand, "k", "second", 0);
    asked.settles_busy = BUSY;
    CHECK_INT(kl_key_drain(asked.queue, kl_str("k"), NULL, false, &count), KL_OK);
    CHECK_INT(asked.settles_busy, 0);
    CHECK_INT(waiting(asked.queue), 0);
    asked_close(&asked);
}

/* --- The order of a key --- */

static void retry_behind_due(bool with_owner)
{
    struct asked asked;
    kl_task_id again;
    if (!asked_open(&asked, with_owner))
        return;
    put_delayed(&asked, "due", 0, 100);
    kl_task_id later = put_delayed(&asked, "later", 0, 3600000);
    kl_task_id urgent = put_delayed(&asked, "urgent", -1, 3600000);
    asked.hand.now_ms += 1000;
    CHECK_INT(kl_task_retry(asked.queue, &later, &again), KL_EBUSY);
    CHECK_CONTAINS(kl_error_text(), "other tasks of its key come before it");
    CHECK_INT(kl_task_retry(asked.queue, &urgent, &again), KL_OK);
    if (!asked.pump) {
        asked.pump = hand_pump(&asked.hand, NULL);
        hand_own(asked.pump);
    }
    hand_looks(asked.pump);
    CHECK_STR(hand_start(asked.pump), "urgent");
    hand_end(asked.pump, hand_running(asked.pump, 0), KL_DONE);
    hand_settle(asked.pump);
    CHECK_STR(hand_start(asked.pump), "due");
    hand_end(asked.pump, hand_running(asked.pump, 0), KL_DONE);
    hand_settle(asked.pump);
    CHECK_INT(kl_task_retry(asked.queue, &later, &again), KL_OK);
    asked_close(&asked);
}

TEST(a_delayed_task_that_is_tried_now_passes_no_due_one_of_its_key) { retry_behind_due(true); }
TEST(without_a_worker_a_delayed_task_that_is_tried_now_passes_no_due_one_either) { retry_behind_due(false); }

/* The owner holds the key's first task in memory, and it has not been tried. */
TEST(an_urgent_task_passes_one_that_was_only_kept_by_a_pause_when_another_worker_comes)
{
    struct asked asked;
    if (!asked_open(&asked, true))
        return;
    CHECK_INT(kl_key_pause(asked.queue, kl_str("k")), KL_OK);
    hand_beats(asked.pump, 2, HAND_STEP_MS);
    hand_put(&asked.hand, "k", "first", 0);
    hand_looks(asked.pump);
    CHECK_INT(kl_key_resume(asked.queue, kl_str("k")), KL_OK);
    kl__pump_stop(asked.pump->pump);
    hand_beats(asked.pump, 4, HAND_STEP_MS);
    CHECK(kl__pump_gone(asked.pump->pump));
    hand_put(&asked.hand, "k", "urgent", -1);
    struct hand_pump *next = hand_pump(&asked.hand, NULL);
    hand_own(next);
    CHECK_STR(hand_start(next), "urgent");
    asked_close(&asked);
}

/* Its worker has looked at it, and nothing here runs its kind. Then that is looked at again: the kind may be wanted
 * now (claims.c), or the key was paused and is resumed. */
TEST(a_first_task_that_is_looked_at_again_is_passed_by_none_behind_it)
{
    struct hand hand;
    kl_put puts[2] = {{.key = kl_str("k"), .kind = kl_str("rare"), .payload = kl_str("first")},
                      {.key = kl_str("k"), .kind = kl_str("often"), .payload = kl_str("second")}};
    kl_put_result results[2];
    if (!hand_open(&hand, &(kl_queue_opts){.size = sizeof(kl_queue_opts), .lease_ms = 3600000}))
        return;
    hand.now_ms += 365 * INT64_C(86400000); /* they were put long before they are looked at */
    CHECK_INT(kl_queue_put(hand.queue, puts, 2, (kl_bytes){0}, results), KL_OK);
    struct hand_pump *pump = hand_pump(&hand, "often");
    hand_own(pump);
    CHECK_STR(hand_start(pump), "");
    hand_looks(pump);
    CHECK_INT(kl__pump_serve(pump->pump, 0, 1), 1);
    hand_looks(pump);
    CHECK_INT(kl__pump_held(pump->pump), 2);
    CHECK_STR(hand_start(pump), "");
    CHECK_STR(hand_start(pump), "");
    hand_close(&hand);
}

TEST(a_delayed_task_that_is_tried_now_goes_before_a_less_urgent_one_of_its_key_that_is_ready)
{
    struct asked asked;
    kl_task_id again;
    if (!asked_open(&asked, true))
        return;
    hand_put(&asked.hand, "k", "ready", 0);
    kl_task_id urgent = put_delayed(&asked, "urgent", -1, 3600000);
    hand_looks(asked.pump);
    CHECK(kl__pump_ready(asked.pump->pump) > 0);
    CHECK_INT(kl_task_retry(asked.queue, &urgent, &again), KL_OK);
    CHECK_STR(hand_start(asked.pump), "urgent");
    CHECK_STR(hand_start(asked.pump), "");
    asked_close(&asked);
}
