/* test_dead.c - dead letters: put back in order and as they were, moved, purged; each once, and the run ends. */
#include <pthread.h>

#include "queue/job_support.h"
#include "queue/tasks.h"

static kl_bytes none(void) { return (kl_bytes){NULL, 0}; }

enum { KEEP_MS = 1 << 30 };

/* Tasks of three keys and some without, whose payloads are their numbers; all die. */
static void make_letters(kl_queue *queue, uint32_t first, uint32_t count)
{
    static const char *keys[] = {"a", "b", "c", ""};
    for (uint32_t i = first; i < first + count; i++) {
        kl_bytes tag = kl_str("t");
        kl_put task = {.key = kl_str(keys[i % 4]),
                       .kind = kl_str("charge"),
                       .payload = {&i, sizeof i},
                       .priority = 3,
                       .group = kl_str("g"),
                       .tags = &tag,
                       .tag_count = 1,
                       .job = {{1, 2, 3}}};
        CHECK_INT(kl_queue_put(queue, &task, 1, none(), NULL), KL_OK);
    }
    CHECK_INT(settle_tasks(queue, KL_DEAD, KEEP_MS, "disk on fire"), count);
}

static uint64_t count_dead(kl_queue *queue)
{
    kl_arena arena = {0};
    kl_queue_info info = {0};
    CHECK_INT(kl_queue_show(queue, &arena, &info), KL_OK);
    kl_arena_free(&arena);
    return info.counts.dead;
}

/* What waits is the letters first..first+count-1, each key in order, as they were put. */
static void check_waiting_of(struct rig *rig, kl_queue *queue, uint32_t first, uint32_t count, uint8_t job)
{
    struct tasks tasks = scan_tasks(queue, &rig->arena);
    uint32_t last[256] = {0};
    static bool seen[4096];
    memset(seen, 0, sizeof seen);
    CHECK_INT(tasks.count, count);
    for (size_t i = 0; i < tasks.count && !test_failed(); i++) {
        const kl_entry *entry = &tasks.tasks[i].entry;
        uint32_t number, key = entry->key.len ? *(const uint8_t *)entry->key.data : 0;
        kl_task_extra extra;
        REQUIRE(entry->payload.len == sizeof number);
        memcpy(&number, entry->payload.data, sizeof number);
        REQUIRE(number >= first && number < first + count && number < COUNT(seen) && !seen[number]);
        seen[number] = true;
        CHECK(key == 0 || last[key] == 0 || number > last[key]);
        last[key] = number;
        CHECK(same_bytes(entry->kind, "charge") && entry->priority == 3 && entry->job.bytes[2] == job);
        CHECK(tasks.tasks[i].attempts == 0 && entry->group == kl__group_hash(kl_str("g")));
        REQUIRE(kl__envelope_decode(entry->headers, &rig->arena, &extra) == KL_OK);
        CHECK(same_bytes(extra.group, "g") && extra.tag_count == 1 && extra.origin.bytes[6] >> 4 == 8);
        CHECK(kl_id_compare(&extra.origin, &entry->id) != 0);
    }
}

static void check_waiting(struct rig *rig, kl_queue *queue, uint32_t first, uint32_t count)
{
    check_waiting_of(rig, queue, first, count, 3);
}

CLAIM(retried_letters_stand_in_line_as_they_died_and_are_what_they_were)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    kl_account account;
    REQUIRE(queue);
    make_letters(queue, 1, 150); /* more than two pages */
    atomic_fetch_add(&rig->clock_ms, 1);
    make_letters(queue, 151, 150);
    CHECK_INT(count_dead(queue), 300);
    CHECK_INT(kl_dead_retry(queue, &(kl_redrive){.rate = 0}, &account), KL_OK);
    CHECK(account.seen == 300 && account.done == 300 && account.failed == 0);
    CHECK_INT(count_dead(queue), 0);
    check_waiting(rig, queue, 1, 300);
    kl_queue_close(queue);
}

CLAIM(letters_of_an_old_layout_are_put_into_the_newest)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    kl_queue *stale = OPEN(rig->store, "orders", .partitions = 1);
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 3, .shard_prefix_len = 2};
    kl_account account;
    REQUIRE(queue && stale);
    make_letters(queue, 1, 100);
    CHECK_INT(kl_queue_alter(queue, &opts), KL_OK);
    make_letters(queue, 101, 100);
    CHECK_INT(kl_dead_retry(stale, &(kl_redrive){.max = 100}, &account), KL_OK); /* it knows the first layout only */
    CHECK_INT(account.done, 100);
    CHECK_INT(kl_dead_retry(queue, &(kl_redrive){.rate = 0}, &account), KL_OK);
    CHECK_INT(account.done, 100);
    check_waiting(rig, queue, 1, 200);
    kl_queue_close(queue);
    kl_queue_close(stale);
}

/* A task in each partition, or in each but its own, for each of these keys; all die. Says how many. */
static size_t make_named(kl_queue *queue, const char *const *keys, size_t count, bool own)
{
    static const char *const partitions[] = {"orders", "orders__p1", "orders__p2"};
    size_t made = 0;
    for (size_t i = 0; i < 3 * count; i++) {
        kl_put task = {
            .key = kl_str(keys[i / 3]), .payload = kl_str(partitions[i % 3]), .partition = partitions[i % 3]};
        if (!own && kl_partition_of(&(kl_layout){3, 1}, task.key) == i % 3)
            continue;
        CHECK_INT(kl_queue_put(queue, &task, 1, none(), NULL), KL_OK);
        made++;
    }
    CHECK_INT(settle_tasks(queue, KL_DEAD, KEEP_MS, "disk on fire"), made);
    return made;
}

/* So many wait, each in the partition whose name it bears; but what was in partition 2 is where its key says, if
 * `two`. */
static void check_named(struct rig *rig, kl_queue *queue, size_t count, bool two)
{
    struct tasks tasks = scan_tasks(queue, &rig->arena);
    CHECK_INT(tasks.count, count);
    for (size_t i = 0; i < tasks.count && !test_failed(); i++) {
        kl_found found;
        const kl_entry *entry = &tasks.tasks[i].entry;
        REQUIRE(kl_queue_task(queue, &entry->id, &rig->arena, &found) == KL_OK);
        if (two && same_bytes(entry->payload, "orders__p2"))
            CHECK_STR(found.partition, kl_partition_of(&(kl_layout){2, 1}, entry->key) == 1 ? "orders__p1" : "orders");
        else
            CHECK(same_bytes(entry->payload, found.partition));
    }
}

CLAIM(letters_that_were_put_into_a_partition_by_name_are_retried_into_it)
{
    static const char *const keys[] = {"a", "b", "c", ""};
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 3, .shard_prefix_len = 2);
    kl_account account;
    REQUIRE(queue);
    CHECK_INT(make_named(queue, keys, 4, true), 12);
    CHECK_INT(kl_dead_retry(queue, &(kl_redrive){.max = 5}, &account), KL_OK);
    CHECK_INT(kl_dead_retry(queue, &(kl_redrive){.rate = 0}, &account), KL_OK);
    CHECK_INT(count_dead(queue), 0);
    check_named(rig, queue, 12, false);
    kl_queue_close(queue);
}

CLAIM(a_letter_that_is_retried_by_its_id_stays_in_the_partition_that_was_named)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 3);
    kl_account account;
    kl_found found[3];
    kl_bytes cursor;
    size_t count;
    REQUIRE(queue);
    make_named(queue, (const char *const[]){"a"}, 1, true);
    kl_finished dead = {.state = KL_TASK_DEAD, .max = 3};
    REQUIRE(kl_queue_finished(queue, &dead, &rig->arena, found, &count, &cursor) == KL_OK);
    REQUIRE(count == 3);
    for (size_t i = 0; i < count; i++)
        CHECK_INT(kl_dead_retry(queue, &(kl_redrive){.id = found[i].task.entry.id}, &account), KL_OK);
    check_named(rig, queue, 3, false);
    kl_queue_close(queue);
}

/* Partitions of the same number have the same name in all layouts; what is gone cannot be kept. */
CLAIM(a_named_partition_is_kept_in_another_layout_that_has_it)
{
    static const char *const keys[] = {"a", "b", "c", "d"};
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 3);
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 2};
    kl_account account;
    REQUIRE(queue);
    CHECK_INT(make_named(queue, keys, 4, false), 8);
    CHECK_INT(kl_queue_alter(queue, &opts), KL_OK);
    CHECK_INT(kl_dead_retry(queue, &(kl_redrive){.rate = 0}, &account), KL_OK);
    CHECK_INT(account.done, 8);
    check_named(rig, queue, 8, true);
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    CHECK(kl__put_layout(descriptor)->by_name); /* so that the keys are looked for there */
    kl__descriptor_release(descriptor);
    kl_queue_close(queue);
}

CLAIM(letters_move_to_another_queue)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1), *to = OPEN(rig->store, "again", .partitions = 2);
    kl_account account;
    REQUIRE(queue && to);
    make_letters(queue, 1, 70);
    CHECK_INT(kl_dead_move(queue, &(kl_redrive){.to = to}, &account), KL_OK);
    CHECK_INT(account.done, 70);
    CHECK_INT(count_dead(queue), 0);
    CHECK_INT(scan_tasks(queue, &rig->arena).count, 0);
    check_waiting_of(rig, to, 1, 70, 0); /* without their job */
    CHECK_FAILS(kl_dead_move(queue, &(kl_redrive){.max = 1}, &account), KL_EINVAL, "set `to`");
    CHECK_FAILS(kl_dead_move(queue, &(kl_redrive){.to = queue}, &account), KL_EINVAL, "retry them");
    CHECK_FAILS(kl_dead_retry(queue, &(kl_redrive){.to = to}, &account), KL_EINVAL, "kl_dead_move");
    CHECK_FAILS(kl_dead_retry(queue, &(kl_redrive){.rate = -1}, &account), KL_EINVAL, "rate is -1");
    CHECK_FAILS(kl_dead_purge(NULL, &(kl_redrive){.max = 1}, &account), KL_EINVAL, "kl_queue_open");
    CHECK_FAILS(kl_dead_purge(queue, NULL, &account), KL_EINVAL, "pass both");
    kl_queue_close(queue);
    kl_queue_close(to);
}

CLAIM_IN_MEMORY(a_letter_that_is_moved_leaves_its_unique_and_its_job_behind)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1), *to = OPEN(rig->store, "again", .partitions = 1);
    kl_put task = {.key = kl_str("k"), .unique = kl_str("u"), .group = kl_str("g"), .keep_ms = 1000};
    kl_account account;
    kl_task_extra extra;
    REQUIRE(queue && to);
    for (int in_job = 0; in_job < 2; in_job++) {
        task.job = (kl_task_id){{(uint8_t)(in_job ? 9 : 0)}};
        task.job_run = in_job;
        task.unique = kl_str(in_job ? "v" : "u");
        CHECK_INT(kl_queue_put(queue, &task, 1, none(), NULL), KL_OK);
        CHECK_INT(settle_tasks(queue, KL_DEAD, KEEP_MS, "disk on fire"), 1);
        CHECK_INT(kl_dead_move(queue, &(kl_redrive){.to = to}, &account), KL_OK);
        struct tasks tasks = scan_tasks(to, &rig->arena);
        REQUIRE(tasks.count == 1);
        REQUIRE(kl__envelope_decode(tasks.tasks[0].entry.headers, &rig->arena, &extra) == KL_OK);
        CHECK(extra.unique.len == 0 && same_bytes(extra.group, "g") && tasks.tasks[0].entry.job.bytes[0] == 0);
        CHECK_INT(extra.keep_ms, in_job ? 0 : 1000); /* a job's is the job's to say */
        CHECK_INT(extra.job_run, 0);
        settle_tasks(to, KL_DONE, 0, NULL);
    }
    kl_queue_close(queue);
    kl_queue_close(to);
}

CLAIM(purged_letters_are_gone)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    kl_account account;
    REQUIRE(queue);
    make_letters(queue, 1, 200);
    CHECK_INT(kl_dead_purge(queue, &(kl_redrive){.which = {.key = kl_str("a")}}, &account), KL_OK);
    CHECK_INT(account.done, 50);
    CHECK_INT(count_dead(queue), 150);
    CHECK_INT(kl_dead_purge(queue, &(kl_redrive){.max = 130}, &account), KL_OK);
    CHECK_INT(account.done, 130);
    CHECK_INT(kl_dead_purge(queue, &(kl_redrive){.max = 0}, &account), KL_OK);
    CHECK_INT(account.done, 20);
    CHECK_INT(count_dead(queue), 0);
    CHECK_INT(scan_tasks(queue, &rig->arena).count, 0);
    kl_queue_close(queue);
}

CLAIM(one_letter_is_retried_by_its_id)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    kl_found found[1];
    kl_account account;
    size_t count;
    kl_bytes cursor;
    REQUIRE(queue);
    make_letters(queue, 1, 9);
    REQUIRE(kl_queue_finished(queue, &(kl_finished){.max = 1}, &rig->arena, found, &count, &cursor) == KL_OK);
    kl_redrive which = {.id = found[0].task.entry.id};
    CHECK_INT(kl_dead_retry(queue, &which, &account), KL_OK);
    CHECK(account.seen == 1 && account.done == 1);
    CHECK_INT(count_dead(queue), 8);
    struct tasks tasks = scan_tasks(queue, &rig->arena);
    REQUIRE(tasks.count == 1);
    kl_found again;
    REQUIRE(kl_queue_task(queue, &tasks.tasks[0].entry.id, &rig->arena, &again) == KL_OK);
    CHECK(kl_id_compare(&again.extra.origin, &which.id) == 0);
    CHECK_FAILS(kl_dead_retry(queue, &which, &account), KL_ENOTFOUND, "has no task");
    which.id = tasks.tasks[0].entry.id;
    CHECK_FAILS(kl_dead_retry(queue, &which, &account), KL_ENOTFOUND, "no dead letter of the queue orders: it waits");
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(a_due_time_that_has_passed_is_left_out_and_one_to_come_is_kept)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    int64_t now_ms = atomic_load(&rig->clock_ms);
    kl_account account;
    REQUIRE(queue);
    kl_put tasks[] = {{.due_ms = now_ms - 5, .kind = kl_str("past")}, {.due_ms = now_ms + 5000}};
    CHECK_INT(kl_queue_put(queue, tasks, 2, none(), NULL), KL_OK);
    CHECK_INT(settle_tasks(queue, KL_DEAD, KEEP_MS, "e"), 2);
    CHECK_INT(kl_dead_retry(queue, &(kl_redrive){.rate = 0}, &account), KL_OK);
    struct tasks stored = scan_tasks(queue, &rig->arena);
    REQUIRE(stored.count == 2);
    for (size_t i = 0; i < 2; i++)
        CHECK_INT(stored.tasks[i].entry.due_ms, same_bytes(stored.tasks[i].entry.kind, "past") ? 0 : now_ms + 5000);
    kl_task_id late = stored.tasks[stored.tasks[0].entry.due_ms ? 0 : 1].entry.id;
    CHECK_INT(settle_tasks(queue, KL_DEAD, KEEP_MS, "e"), 2);
    CHECK_INT(kl_dead_retry(queue, &(kl_redrive){.id = late}, &account), KL_OK); /* asked for by itself */
    stored = scan_tasks(queue, &rig->arena);
    REQUIRE(stored.count == 1);
    CHECK_INT(stored.tasks[0].entry.due_ms, 0);
    kl_queue_close(queue);
}

/* --- The run --- */

struct listener {
    struct rig *rig;
    kl_queue *queue;
    int calls, stop_after;
    bool kills; /* what was put back dies again at once */
};

static bool listen(void *ctx, const kl_account *account)
{
    struct listener *listener = ctx;
    CHECK(account->seen > 0);
    listener->calls++;
    if (listener->kills) {
        atomic_fetch_add(&listener->rig->clock_ms, 1);
        settle_tasks(listener->queue, KL_DEAD, KEEP_MS, "again");
    }
    return listener->calls != listener->stop_after;
}

CLAIM_IN_MEMORY(letters_that_die_again_meanwhile_are_left_alone)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    struct listener listener = {.rig = rig, .queue = queue, .kills = true};
    kl_account account;
    REQUIRE(queue);
    make_letters(queue, 1, 300);
    CHECK_INT(kl_dead_retry(queue, &(kl_redrive){.told = listen, .told_ctx = &listener}, &account), KL_OK);
    CHECK_INT(account.seen, 300);
    CHECK_INT(count_dead(queue), 300);
    CHECK(listener.calls >= 5);
    kl_queue_close(queue);
}

/* Somebody else's run, behind the first letter of this one. */
static bool purge_two(void *ctx, const kl_account *account)
{
    struct listener *listener = ctx;
    kl_account purged;
    if (listener->calls++ == 0) {
        CHECK_INT(account->seen, 1);
        CHECK_INT(kl_dead_purge(listener->queue, &(kl_redrive){.max = 2}, &purged), KL_OK);
        CHECK_INT(purged.done, 2);
    }
    return true;
}

static void purge_in_between(struct rig *rig, kl_rc (*redrive)(kl_queue *, const kl_redrive *, kl_account *),
                             uint64_t waiting)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    struct listener listener = {.rig = rig, .queue = queue};
    kl_put tasks[8] = {{.job = {{0}}}};
    kl_account account;
    REQUIRE(queue);
    kl_task_id job = submit_job(queue, tasks, 8);
    CHECK_INT(settle_any(queue, KL_DEAD, 5), 5);
    kl__queue_sleep_by(sleep_not);
    CHECK_INT(redrive(queue, &(kl_redrive){.rate = 1, .told = purge_two, .told_ctx = &listener}, &account), KL_OK);
    kl__queue_sleep_by(NULL);
    CHECK(account.seen == 3 && account.done == 3 && account.failed == 0);
    kl_job_info info = show_job(queue, &job, &rig->arena);
    CHECK_INT(info.waiting, waiting);
    CHECK_INT(scan_tasks(queue, &rig->arena).count, waiting);
    CHECK_INT(count_dead(queue), 0);
    kl_queue_close(queue);
}

CLAIM(letters_that_others_have_purged_meanwhile_are_not_put_back) { purge_in_between(rig, kl_dead_retry, 6); }

CLAIM(letters_that_others_have_purged_meanwhile_leave_their_job_once) { purge_in_between(rig, kl_dead_purge, 3); }

CLAIM_IN_MEMORY(a_run_keeps_to_its_rate_and_stops_when_it_is_told_to)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    struct listener listener = {.rig = rig, .queue = queue};
    kl_account account;
    REQUIRE(queue);
    kl__queue_sleep_by(sleep_not);
    make_letters(queue, 1, 200);
    atomic_store(&slept_ms, 0);
    kl_redrive which = {.max = 100, .rate = 50, .told = listen, .told_ctx = &listener};
    CHECK_INT(kl_dead_retry(queue, &which, &account), KL_OK);
    CHECK_INT(account.done, 100);
    CHECK(listener.calls == 20 || listener.calls == 21); /* five at a time, but not across pages */
    CHECK(atomic_load(&slept_ms) >= 1900 && atomic_load(&slept_ms) <= 2000);
    listener.stop_after = listener.calls + 2;
    CHECK_INT(kl_dead_retry(queue, &which, &account), KL_OK);
    CHECK_INT(account.done, 10);
    CHECK_INT(count_dead(queue), 90);
    CHECK_INT(scan_tasks(queue, &rig->arena).count, 110);
    kl__queue_sleep_by(NULL);
    kl_queue_close(queue);
}

/* --- Faults --- */

/* The first run is cut after so many calls; the second one finishes. False: it was not cut. */
static bool cut_run(int calls, bool reply_lost)
{
    struct cut cut;
    kl_account account;
    bool happened = false;
    if (!cut_open(&cut))
        return false;
    kl_queue *dying = OPEN(cut.wire, "orders", .partitions = 1), *other = OPEN(cut.inner, "orders", .partitions = 0);
    if (dying && other) {
        make_letters(other, 1, 5);
        cut.reply_lost = reply_lost;
        cut_arm(&cut, calls);
        (void)!kl_dead_retry(dying, &(kl_redrive){.rate = 0}, &account);
        happened = cut_disarm(&cut);
        CHECK_INT(kl_dead_retry(other, &(kl_redrive){.rate = 0}, &account), KL_OK);
        struct rig rig = {.store = cut.inner};
        check_waiting(&rig, other, 1, 5);
        CHECK_INT(count_dead(other), 0);
        kl_arena_free(&rig.arena);
    }
    kl_queue_close(dying);
    kl_queue_close(other);
    cut_close(&cut);
    return happened;
}

TEST(a_run_that_is_cut_at_any_call_doubles_nothing_and_loses_nothing)
{
    kl__queue_sleep_by(sleep_not);
    for (int lost = 0; lost < 2; lost++) {
        int calls = lost;
        while (cut_run(calls, lost) && !test_failed() && calls < 100)
            calls++;
        CHECK(calls > 8 && calls < 100);
        if (test_failed())
            printf("# lost %d, after %d calls\n", lost, calls);
    }
    kl__queue_sleep_by(NULL);
}

/* --- A store that says: not just now --- */

enum busy { AT_ONCE, LATER };

/* The store refuses appends of this payload, so often. */
static struct {
    const char *payload;
    int left;
    enum busy how;
    pthread_t thread;
    bool started;
    kl_append refused;
} busy;

static void *refuse_later(void *ctx)
{
    (void)ctx;
    busy.refused.done(busy.refused.ctx, KL_EBUSY, "not just now");
    return NULL;
}

static kl_rc append_busy(void *self, const kl_append *append)
{
    const struct lossy *lossy = self;
    if (busy.left == 0 || !same_bytes(append->entries[0].payload, busy.payload))
        return append->done ? kl_store_append_async(lossy->inner, append->entries, append->count, append->token,
                                                    append->done, append->ctx)
                            : kl_store_append(lossy->inner, append->entries, append->count, append->token);
    busy.left--;
    if (busy.how == AT_ONCE)
        return kl__fail(KL_EBUSY, "not just now");
    busy.refused = *append;
    busy.started = true;
    CHECK_INT(pthread_create(&busy.thread, NULL, refuse_later, NULL), 0);
    return KL_OK;
}

/* Letters "a1", "b1", "a2", ... of the keys a and b, which died in this order; then appends of "a1" are refused. */
static kl_queue *open_busy(struct rig *rig, struct lossy *lossy, kl_store **ret_store, enum busy how, int times)
{
    if (lossy_open(lossy, rig->store, 1, ret_store) != KL_OK)
        return NULL;
    lossy->replies_lost = lossy->requests_lost = 0;
    lossy->engine.append = append_busy;
    if (how == LATER)
        lossy->engine.can &= ~(uint32_t)KL_STORE_ATOMIC_APPEND;
    busy.left = 0;
    busy.started = false;
    kl_queue *queue = OPEN(*ret_store, "orders", .partitions = 1);
    for (int i = 0; queue && i < 8; i++) {
        char payload[] = {"ab"[i % 2], (char)('1' + i / 2), '\0'}, key[] = {payload[0], '\0'};
        CHECK_INT(kl_queue_put(queue, &(kl_put){.key = kl_str(key), .payload = kl_str(payload)}, 1, none(), NULL),
                  KL_OK);
        CHECK_INT(settle_tasks(queue, KL_DEAD, KEEP_MS, "disk on fire"), 1);
        atomic_fetch_add(&rig->clock_ms, 1);
    }
    busy.payload = "a1";
    busy.left = times;
    busy.how = how;
    kl__queue_sleep_by(sleep_not);
    return queue;
}

static void close_busy(kl_queue *queue, kl_store *store)
{
    kl__queue_sleep_by(NULL);
    if (busy.started)
        pthread_join(busy.thread, NULL);
    kl_queue_close(queue);
    kl_store_close(store);
}

/* What waits of the key is this, in this order. */
static void check_line(struct rig *rig, kl_queue *queue, const char *key, const char *expected)
{
    struct tasks tasks = scan_tasks(queue, &rig->arena);
    char line[64] = "";
    for (size_t i = 0; i < tasks.count; i++)
        if (same_bytes(tasks.tasks[i].entry.key, key))
            strncat(line, (const char *)tasks.tasks[i].entry.payload.data, 2);
    CHECK_STR(line, expected);
}

CLAIM_IN_MEMORY(letters_of_a_key_keep_their_order_when_the_store_is_busy)
{
    for (enum busy how = AT_ONCE; how <= LATER; how++) {
        struct lossy lossy;
        struct rig fresh;
        kl_store *store = NULL;
        kl_account account;
        REQUIRE(rig_open(&fresh, false));
        kl_queue *queue = open_busy(&fresh, &lossy, &store, how, 1);
        REQUIRE(queue);
        CHECK_INT(kl_dead_retry(queue, &(kl_redrive){.rate = 0}, &account), KL_OK);
        CHECK(account.done == 8 && account.failed == 0);
        check_line(&fresh, queue, "a", "a1a2a3a4");
        check_line(&fresh, queue, "b", "b1b2b3b4");
        close_busy(queue, store);
        rig_close(&fresh);
    }
    (void)rig;
}

CLAIM_IN_MEMORY(letters_wait_for_one_of_their_key_that_cannot_be_put_back)
{
    struct lossy lossy;
    kl_store *store = NULL;
    kl_account account;
    kl_queue *queue = open_busy(rig, &lossy, &store, AT_ONCE, 1 << 20);
    REQUIRE(queue);
    CHECK_FAILS(kl_dead_retry(queue, &(kl_redrive){.rate = 0}, &account), KL_EBUSY, "not just now");
    CHECK(account.seen == 8 && account.done == 4 && account.failed == 4);
    CHECK_STR(account.error, "not just now");
    check_line(rig, queue, "a", "");
    check_line(rig, queue, "b", "b1b2b3b4");
    CHECK_INT(count_dead(queue), 4);
    busy.left = 0;
    CHECK_INT(kl_dead_retry(queue, &(kl_redrive){.rate = 0}, &account), KL_OK);
    check_line(rig, queue, "a", "a1a2a3a4");
    close_busy(queue, store);
}

static int finds_left;

static kl_rc find_some(void *self, const kl_find *find, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    const struct lossy *lossy = self;
    if (finds_left-- == 0)
        return kl__fail(KL_ESYSTEM, "the disk is gone");
    return kl_store_find(lossy->inner, find, arena, ret_tasks, ret_count);
}

CLAIM_IN_MEMORY(a_run_that_fails_half_way_says_what_it_has_done)
{
    struct lossy lossy;
    kl_store *store = NULL;
    kl_account account;
    REQUIRE(lossy_open(&lossy, rig->store, 1, &store) == KL_OK);
    lossy.replies_lost = lossy.requests_lost = 0;
    kl_queue *queue = OPEN(store, "orders", .partitions = 1);
    REQUIRE(queue);
    make_letters(queue, 1, 100);
    lossy.engine.find = find_some;
    finds_left = 2; /* both pages to be marked, and then the last is in memory */
    CHECK_FAILS(kl_dead_retry(queue, &(kl_redrive){.rate = 0}, &account), KL_ESYSTEM, "the disk is gone");
    uint64_t back = scan_tasks(queue, &rig->arena).count;
    CHECK(back > 0 && back < 100 && account.done == back && account.seen == back && account.failed == 0);
    finds_left = 1;
    CHECK_FAILS(kl_dead_purge(queue, &(kl_redrive){.rate = 0}, &account), KL_ESYSTEM, "the disk is gone");
    CHECK(account.done > 0 && account.done + count_dead(queue) + back == 100);
    kl_queue_close(queue);
    kl_store_close(store);
}

CLAIM_IN_MEMORY(a_run_without_memory_says_so_and_loses_nothing)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    kl_account account;
    REQUIRE(queue);
    make_letters(queue, 1, 70);
    for (uint64_t n = 1, calm = 0; calm < 1 && n < 3000 && !test_failed(); n++) {
        kl__alloc_fail_at(n);
        kl_rc rc = kl_dead_retry(queue, &(kl_redrive){.rate = 0}, &account);
        calm = kl__alloc_fail_at(0) < n;
        CHECK(rc == KL_OK || rc == KL_ENOMEM);
        CHECK_INT(count_dead(queue) + scan_tasks(queue, &rig->arena).count, 70);
        kl_arena_reset(&rig->arena);
    }
    CHECK_INT(count_dead(queue), 0);
    kl_queue_close(queue);
}
