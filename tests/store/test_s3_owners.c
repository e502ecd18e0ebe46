/* test_s3_owners.c - the S3 engine and shards that change hands: what the next owner sees, shards that are sealed while
 * others append, and workers that are killed. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/random.h"
#include "harness.h"
#include "keyline/keyline.h"
#include "keyline/store.h"
#include "queue/inside.h"
#include "store/check_rc.h"
#include "store/dispatch.h"
#include "store/fault_proxy.h"
#include "store/s3/s3.h"
#include "store/s3_server.h"
#include "store/workdir.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum { PATIENCE_NS_MS = 60000 };

static const kl_layout layout = {1, 1};

/* ---- What the next owner sees ---- */

enum { TRIED = 3 };

/* Two processes, as far as the store knows, and a shard. */
struct pair {
    kl_store *first, *next;
    struct fault_proxy *proxy; /* of the next one's requests */
    kl_place place;
    kl_task_id ids[TRIED + 1]; /* all but the last were tried */
};

static kl__s3 *inside(kl_store *store) { return store->self; }

static bool pair_open(struct pair *pair)
{
    char url[S3_URL_BYTES], endpoint[S3_URL_BYTES], watched[S3_URL_BYTES + 64];
    *pair = (struct pair){0};
    if (!s3_server_new_url(url) || s3_server_endpoint(endpoint) != KL_OK)
        return false;
    pair->proxy = fault_proxy_start(atoi(strrchr(endpoint, ':') + 1), test_seed(), 0);
    CHECK(pair->proxy);
    strcat(url, "&settle_ms=0");
    snprintf(watched, sizeof watched, "%.*sendpoint=http://127.0.0.1:%d&settle_ms=0",
             (int)(strstr(url, "endpoint=") - url), url, pair->proxy ? fault_proxy_port(pair->proxy) : 0);
    CHECK_OK(kl_store_open(url, NULL, &pair->first));
    CHECK_OK(kl_store_open(watched, NULL, &pair->next));
    if (!pair->first || !pair->next)
        return false;
    CHECK_OK(kl_store_partition(pair->first, "p", 1, &pair->place.partition));
    CHECK_OK(kl_store_partition(pair->next, "p", 1, &pair->place.partition));
    return !test_failed();
}

static void pair_close(struct pair *pair)
{
    kl_store_close(pair->first);
    kl_store_close(pair->next);
    fault_proxy_stop(pair->proxy);
}

static void fence(kl_store *store, kl_place place, uint64_t epoch)
{
    kl_fence fence = {.place = place, .epoch = epoch};
    CHECK_OK(kl_store_fence(store, &fence, 1));
}

/* The first owner puts an object for each task, and begins all but the last. */
static void try_tasks(struct pair *pair)
{
    kl_idgen *ids = NULL;
    kl_stub stubs[TRIED + 1];
    kl_settled tried[TRIED];
    kl_scan scan = {.place = pair->place, .stubs = stubs, .max = COUNT(stubs)};
    kl_settle batch = {.place = pair->place, .epoch = 2, .tasks = tried, .count = TRIED};
    CHECK_OK(kl_idgen_open(&layout, NULL, &ids));
    fence(pair->first, pair->place, 2);
    for (size_t i = 0; i < COUNT(pair->ids); i++) {
        kl_entry entry = {.place = pair->place, .key = kl_str("k"), .payload = kl_str("x")};
        CHECK_OK(kl_idgen_next(ids, 0, 0, &entry.id));
        CHECK_OK(kl_store_append(pair->first, &entry, 1, NULL));
        pair->ids[i] = entry.id;
    }
    CHECK_OK(kl_store_scan(pair->first, &scan, 1));
    CHECK_INT(scan.count, COUNT(stubs));
    for (size_t i = 0; i < TRIED; i++)
        tried[i] = (kl_settled){.id = stubs[i].id, .position = stubs[i].position, .attempts = 1, .outcome = KL_RETRY};
    CHECK_OK(kl_store_settle(pair->first, &batch, 1));
    kl_idgen_close(ids);
}

static void check_tried(const struct pair *pair, const kl_scan *scan)
{
    CHECK_INT(scan->count, TRIED);
    for (size_t i = 0; i < scan->count && i < TRIED; i++)
        CHECK(kl_id_compare(&scan->stubs[i].id, &pair->ids[i]) == 0);
}

/* Its last look at the bucket is good enough for tasks that nobody has begun, but not for these. */
TEST(what_another_owner_has_begun_is_shown_first_whatever_was_known_of_the_log)
{
    struct pair pair;
    kl_stub stubs[TRIED + 1];
    if (!pair_open(&pair))
        return;
    kl_scan scan = {.place = pair.place, .stubs = stubs, .max = COUNT(stubs)};
    fence(pair.next, pair.place, 1);
    CHECK_OK(kl_store_scan(pair.next, &scan, 1));
    CHECK_INT(scan.count, 0);
    inside(pair.next)->pulse_age_ms = PATIENCE_NS_MS;
    try_tasks(&pair);
    fence(pair.next, pair.place, 3);
    scan.line = KL_LINE_RETRY;
    CHECK_OK(kl_store_scan(pair.next, &scan, 1));
    check_tried(&pair, &scan);
    pair_close(&pair);
}

static void append_one(kl_store *store, kl_place place, kl_task_id *ret_id)
{
    kl_idgen *ids = NULL;
    kl_entry entry = {.place = place, .key = kl_str("k"), .payload = kl_str("x")};
    CHECK_OK(kl_idgen_open(&layout, NULL, &ids));
    CHECK_OK(kl_idgen_next(ids, 0, 0, &entry.id));
    CHECK_OK(kl_store_append(store, &entry, 1, NULL));
    *ret_id = entry.id;
    kl_idgen_close(ids);
}

static void settle_first(kl_store *store, kl_place place, uint64_t epoch)
{
    kl_stub stub = {0};
    kl_counts counts;
    kl_scan scan = {.place = place, .stubs = &stub, .max = 1};
    CHECK_OK(kl_store_counts(store, place, NULL, &counts)); /* its own shards it looks at less often */
    CHECK_INT(counts.ready, 1);
    CHECK_OK(kl_store_scan(store, &scan, 1));
    CHECK_INT(scan.count, 1);
    kl_settled done = {.id = stub.id, .position = stub.position, .attempts = 1, .outcome = KL_DONE, .keep_ms = 60000};
    kl_settle batch = {.place = place, .epoch = epoch, .tasks = &done, .count = 1};
    CHECK_OK(kl_store_settle(store, &batch, 1));
}

/* Nobody tells it: the next owner has fenced the shard, and the first has nothing to settle there, so nothing is
 * refused. */
TEST(who_has_given_a_shard_back_sees_what_its_next_owner_settles)
{
    struct pair pair;
    kl_stub stub;
    kl_counts counts;
    kl_arena arena = {0};
    kl_task task = {0};
    size_t read = 0;
    if (!pair_open(&pair))
        return;
    kl_ref ref = {.place = pair.place};
    kl_scan scan = {.place = pair.place, .stubs = &stub, .max = 1};
    fence(pair.first, pair.place, 1);
    append_one(pair.first, pair.place, &ref.id);
    CHECK_OK(kl_store_scan(pair.first, &scan, 1));
    CHECK_INT(scan.count, 1);
    fence(pair.next, pair.place, 2);
    settle_first(pair.next, pair.place, 2);
    CHECK_OK(kl_store_read(pair.first, &ref, 1, &arena, &task, &read));
    CHECK_INT(task.state, KL_TASK_DONE);
    append_one(pair.first, pair.place, &ref.id);
    settle_first(pair.next, pair.place, 2);
    CHECK_OK(kl_store_counts(pair.first, pair.place, NULL, &counts));
    CHECK_INT(counts.ready, 0);
    CHECK_OK(kl_store_scan(pair.first, &scan, 1));
    CHECK_INT(scan.count, 0);
    kl_arena_free(&arena);
    pair_close(&pair);
}

static bool wants_checkpoint(kl_store *store, kl_place place)
{
    kl__s3 *s3 = inside(store);
    kl__memory_enter(s3->memory);
    kl__s3_shard *shard = kl__s3_shard_of(s3, place);
    shard->written_ns = 1; /* long ago */
    bool wants = kl__s3_wants_checkpoint(s3, shard);
    kl__memory_leave(s3->memory);
    return wants;
}

TEST(who_has_given_a_shard_back_leaves_its_checkpoints_to_the_next_owner)
{
    struct pair pair;
    kl_counts counts;
    kl_task_id id;
    if (!pair_open(&pair))
        return;
    fence(pair.first, pair.place, 1);
    append_one(pair.first, pair.place, &id);
    settle_first(pair.first, pair.place, 1);
    CHECK(wants_checkpoint(pair.first, pair.place));
    fence(pair.next, pair.place, 2);
    append_one(pair.next, pair.place, &id);
    settle_first(pair.next, pair.place, 2);
    CHECK_OK(kl_store_counts(pair.first, pair.place, NULL, &counts)); /* it follows the journal */
    CHECK(!wants_checkpoint(pair.first, pair.place));
    CHECK(wants_checkpoint(pair.next, pair.place));
    pair_close(&pair);
}

/* A count of the whole queue does not ask for shards of its own each time. */
TEST(who_has_given_a_shard_back_counts_what_is_there_a_minute_later)
{
    struct pair pair;
    kl_counts counts;
    kl_task_id id;
    if (!pair_open(&pair))
        return;
    kl__s3 *s3 = inside(pair.first);
    kl_place all = {pair.place.partition, KL_ALL_SHARDS};
    fence(pair.first, pair.place, 1);
    append_one(pair.first, pair.place, &id);
    CHECK_OK(kl_store_counts(pair.first, all, NULL, &counts));
    CHECK_INT(counts.ready, 1);
    fence(pair.next, pair.place, 2);
    settle_first(pair.next, pair.place, 2);
    kl__memory_enter(s3->memory);
    kl__s3_shard_of(s3, pair.place)->followed_ns -= INT64_C(1000000) * KL_S3_TRUST_MS;
    kl__memory_leave(s3->memory);
    CHECK_OK(kl_store_counts(pair.first, all, NULL, &counts));
    CHECK_INT(counts.ready, 0);
    CHECK_INT(counts.done, 1);
    pair_close(&pair);
}

/* A look of the next owner, on a thread of its own. */
struct looking {
    struct pair *pair;
    kl_scan scans[2];
    kl_stub stubs[2][TRIED + 1];
    kl_task task; /* read, if it is not a scan */
    bool reads;
    kl_arena arena;
};

static void *look(void *ctx)
{
    struct looking *looking = ctx;
    struct pair *pair = looking->pair;
    kl_ref ref = {.place = pair->place, .id = pair->ids[0]};
    size_t count = 0;
    if (looking->reads)
        CHECK_OK(kl_store_read(pair->next, &ref, 1, &looking->arena, &looking->task, &count));
    else
        CHECK_OK(kl_store_scan(pair->next, looking->scans, COUNT(looking->scans)));
    return NULL;
}

/* The shard's replica is cleared while the look waits for a listing; upkeep does that when another owner's checkpoint
 * knows more. */
static void clear_under(struct pair *pair, struct looking *looking)
{
    pthread_t thread;
    kl__s3 *s3 = inside(pair->next);
    int64_t until_ns = kl__monotonic_ns() + (int64_t)PATIENCE_NS_MS * 1000000;
    s3->pulse_ns = 0;
    fault_proxy_hold(pair->proxy, "GET ", "list-type=2");
    REQUIRE(pthread_create(&thread, NULL, look, looking) == 0);
    while (fault_proxy_held(pair->proxy) == 0 && kl__monotonic_ns() < until_ns)
        sched_yield();
    kl__memory_enter(s3->memory);
    kl__s3_shard_clear(s3, kl__s3_shard_of(s3, pair->place));
    kl__memory_leave(s3->memory);
    fault_proxy_let_go(pair->proxy);
    pthread_join(thread, NULL);
}

TEST(a_shard_that_is_read_anew_under_a_scan_is_shown_whole)
{
    struct pair pair;
    if (!pair_open(&pair))
        return;
    struct looking looking = {.pair = &pair};
    for (int i = 0; i < 2; i++)
        looking.scans[i] = (kl_scan){.place = pair.place, .stubs = looking.stubs[i], .max = COUNT(looking.stubs[i])};
    looking.scans[0].line = KL_LINE_RETRY;
    try_tasks(&pair);
    fence(pair.next, pair.place, 3);
    clear_under(&pair, &looking);
    check_tried(&pair, &looking.scans[0]);
    CHECK_INT(looking.scans[1].count, 1);
    pair_close(&pair);
}

TEST(a_task_whose_shard_is_read_anew_under_a_read_is_found)
{
    struct pair pair;
    if (!pair_open(&pair))
        return;
    struct looking looking = {.pair = &pair, .reads = true};
    try_tasks(&pair);
    fence(pair.next, pair.place, 3);
    clear_under(&pair, &looking);
    CHECK_INT(looking.task.state, KL_TASK_WAITING);
    CHECK_INT(looking.task.attempts, 1);
    kl_arena_free(&looking.arena);
    pair_close(&pair);
}

/* ---- Seals ---- */

/* An append of a task to each of these shards. */
static kl_rc append_named(kl_store *store, uint32_t partition, const uint32_t *shards, size_t count,
                          const kl_token *token)
{
    kl_entry entries[4];
    kl_idgen *ids = NULL;
    CHECK_OK(kl_idgen_open(&layout, NULL, &ids));
    for (size_t i = 0; i < count; i++) {
        entries[i] = (kl_entry){.place = {partition, shards[i]}, .payload = kl_str("x")};
        CHECK_OK(kl_idgen_next(ids, shards[i], 0, &entries[i].id));
    }
    kl_rc rc = kl_store_append(store, entries, count, token);
    kl_idgen_close(ids);
    return rc;
}

static kl_rc append_to(kl_store *store, uint32_t partition, const uint32_t *shards, size_t count)
{
    return append_named(store, partition, shards, count, NULL);
}

static void seal(kl_store *store, uint32_t partition, uint32_t shard)
{
    kl_fence fence = {.place = {partition, shard}, .seal = true};
    CHECK_OK(kl_store_fence(store, &fence, 1));
}

static void check_ready(kl_store *store, uint32_t partition, uint32_t shard, size_t expected)
{
    kl_stub stubs[8];
    kl_scan scan = {.place = {partition, shard}, .stubs = stubs, .max = COUNT(stubs)};
    CHECK_OK(kl_store_scan(store, &scan, 1));
    CHECK_INT(scan.count, expected);
}

/* The first process believes to know where both logs end; it finds out when its parts are on their way. */
TEST(an_append_that_meets_another_process_s_seal_is_taken_back)
{
    static const uint32_t both[] = {3, 4}, sealed[] = {4}, open[] = {3};
    struct pair pair;
    if (!pair_open(&pair))
        return;
    uint32_t partition = pair.place.partition;
    CHECK_OK(append_to(pair.first, partition, both, 2));
    seal(pair.next, partition, 4);
    CHECK_RC(append_to(pair.first, partition, both, 2), KL_ESEALED);
    CHECK_CONTAINS(kl_error_text(), "entry 1");
    check_ready(pair.first, partition, 3, 1);
    check_ready(pair.next, partition, 3, 1);
    CHECK_RC(append_to(pair.first, partition, sealed, 1), KL_ESEALED);
    CHECK_OK(append_to(pair.first, partition, open, 1));
    check_ready(pair.first, partition, 3, 2);
    check_ready(pair.next, partition, 4, 1);
    pair_close(&pair);
}

/* An append of which a first try has reached one shard only; the other has been sealed before the next try. What is
 * there stays, for it may have been run, and each shard says by itself whether it has its part. */
static void try_again(bool knows)
{
    static const uint32_t both[] = {3, 4}, reached[] = {3}, sealed[] = {4};
    static const kl_token token = {{9}};
    struct pair pair;
    if (!pair_open(&pair))
        return;
    uint32_t partition = pair.place.partition;
    CHECK_OK(append_to(pair.first, partition, both, 2));
    CHECK_OK(append_named(pair.next, partition, reached, 1, &token));
    seal(pair.next, partition, 4);
    if (knows)
        CHECK_RC(append_to(pair.first, partition, sealed, 1), KL_ESEALED);
    CHECK_RC(append_named(pair.first, partition, both, 2, &token), KL_ESEALED);
    CHECK_CONTAINS(kl_error_text(), "entry 1");
    CHECK_OK(append_named(pair.first, partition, reached, 1, &token));
    CHECK_RC(append_named(pair.first, partition, sealed, 1, &token), KL_ESEALED);
    check_ready(pair.first, partition, 3, 2);
    check_ready(pair.next, partition, 3, 2);
    check_ready(pair.next, partition, 4, 1);
    pair_close(&pair);
}

TEST(what_an_earlier_try_has_left_of_an_append_that_is_refused_is_told_shard_by_shard) { try_again(true); }

TEST(what_an_earlier_try_has_left_is_told_shard_by_shard_if_the_seal_is_met_on_the_way) { try_again(false); }

TEST(an_append_is_refused_if_one_sealed_shard_has_its_part_and_another_has_not)
{
    static const uint32_t both[] = {3, 4}, reached[] = {3}, missing[] = {4};
    static const kl_token token = {{9}};
    struct pair pair;
    if (!pair_open(&pair))
        return;
    uint32_t partition = pair.place.partition;
    CHECK_OK(append_named(pair.next, partition, reached, 1, &token));
    seal(pair.next, partition, 3);
    seal(pair.next, partition, 4);
    CHECK_RC(append_named(pair.first, partition, both, 2, &token), KL_ESEALED);
    CHECK_OK(append_named(pair.first, partition, reached, 1, &token)); /* a repeat, of which all is there */
    CHECK_RC(append_named(pair.first, partition, missing, 1, &token), KL_ESEALED);
    check_ready(pair.first, partition, 3, 1);
    check_ready(pair.next, partition, 3, 1);
    pair_close(&pair);
}

/* An append, on a thread of its own. */
struct trying {
    kl_store *store;
    uint32_t partition;
    kl_rc rc;
};

static void *try_both(void *ctx)
{
    static const uint32_t both[] = {4, 3};
    static const kl_token token = {{9}};
    struct trying *trying = ctx;
    trying->rc = append_named(trying->store, trying->partition, both, 2, &token);
    return NULL;
}

/* One shard is known to be sealed, and is looked at for the token; meanwhile the other one is sealed, too. */
TEST(an_append_is_not_done_if_a_shard_without_its_part_is_sealed_while_another_is_looked_at)
{
    static const uint32_t reached[] = {3};
    static const kl_token token = {{9}};
    struct pair pair;
    pthread_t thread;
    if (!pair_open(&pair))
        return;
    struct trying trying = {.store = pair.next, .partition = pair.place.partition};
    kl__s3 *s3 = inside(pair.next);
    CHECK_OK(append_named(pair.first, trying.partition, reached, 1, &token));
    seal(pair.first, trying.partition, 3);
    int64_t until_ns = kl__monotonic_ns() + (int64_t)PATIENCE_NS_MS * 1000000;
    fault_proxy_hold(pair.proxy, "GET ", "/journal/p/3/");
    REQUIRE(pthread_create(&thread, NULL, try_both, &trying) == 0);
    while (fault_proxy_held(pair.proxy) == 0 && kl__monotonic_ns() < until_ns)
        sched_yield();
    seal(pair.first, trying.partition, 4);
    CHECK_OK(kl__s3_find_tail(s3, kl__s3_shard_of(s3, (kl_place){trying.partition, 4})));
    fault_proxy_let_go(pair.proxy);
    pthread_join(thread, NULL);
    CHECK_INT(trying.rc, KL_ESEALED);
    check_ready(pair.first, trying.partition, 3, 1);
    check_ready(pair.first, trying.partition, 4, 0);
    pair_close(&pair);
}

TEST(a_large_append_that_meets_a_seal_looks_at_its_shard_once)
{
    enum { MANY = 20000 };
    static const uint32_t sealed[] = {4};
    static const kl_token token = {{9}};
    kl_entry *entries = calloc(MANY, sizeof *entries);
    kl_idgen *ids = NULL;
    struct pair pair;
    if (!entries || !pair_open(&pair)) {
        free(entries);
        return;
    }
    CHECK_OK(kl_idgen_open(&layout, NULL, &ids));
    for (size_t i = 0; i < MANY; i++) {
        entries[i] = (kl_entry){.place = {pair.place.partition, 4}, .payload = kl_str("x")};
        CHECK_OK(kl_idgen_next(ids, 4, 0, &entries[i].id));
    }
    CHECK_OK(append_to(pair.first, pair.place.partition, sealed, 1));
    seal(pair.first, pair.place.partition, 4);
    fault_proxy_watch(pair.proxy, "GET ", "/journal/p/4/");
    CHECK_RC(kl_store_append(pair.next, entries, MANY, &token), KL_ESEALED);
    CHECK_INT(fault_proxy_watched(pair.proxy), 1);
    kl_idgen_close(ids);
    free(entries);
    pair_close(&pair);
}

enum { CHANGED_KEYS = 6, CHANGED_TASKS = 12 };

struct changed {
    pthread_mutex_t mutex;
    int next[CHANGED_KEYS], runs;
};

static kl_outcome note_order(kl_work *work, void *ctx)
{
    struct changed *changed = ctx;
    int key = atoi(kl_work_key(work).data), number = atoi(kl_work_payload(work).data);
    pthread_mutex_lock(&changed->mutex);
    CHECK(key >= 0 && key < CHANGED_KEYS && changed->next[key] == number);
    changed->next[key] = number + 1;
    changed->runs++;
    pthread_mutex_unlock(&changed->mutex);
    return KL_DONE;
}

static int runs_of(struct changed *changed)
{
    pthread_mutex_lock(&changed->mutex);
    int runs = changed->runs;
    pthread_mutex_unlock(&changed->mutex);
    return runs;
}

static void put_round(kl_queue *queue, int number)
{
    kl_put puts[CHANGED_KEYS];
    char keys[CHANGED_KEYS][8], payload[8];
    snprintf(payload, sizeof payload, "%d", number);
    for (int k = 0; k < CHANGED_KEYS; k++) {
        snprintf(keys[k], sizeof keys[k], "%d", k);
        puts[k] = (kl_put){.key = kl_str(keys[k]), .payload = kl_str(payload)};
    }
    CHECK_OK(kl_queue_put(queue, puts, CHANGED_KEYS, (kl_bytes){0}, NULL));
}

/* Producer, worker and operator have a store each, as they would in three processes. */
TEST(a_live_queue_changes_its_number_of_shards_and_keeps_keys_in_order)
{
    char url[S3_URL_BYTES];
    kl_store *stores[3] = {NULL};
    kl_queue *queues[3] = {NULL};
    kl_worker *worker = NULL;
    static struct changed changed = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    if (!s3_server_new_url(url))
        return;
    strcat(url, "&poll_ms=100&settle_ms=0");
    for (int i = 0; i < 3; i++) {
        CHECK_OK(kl_store_open(url, NULL, &stores[i]));
        CHECK_OK(kl_queue_open(stores[i], "changed", NULL, &queues[i]));
    }
    for (int i = 0; i < CHANGED_TASKS / 2; i++)
        put_round(queues[0], i);
    kl_handler any = {.fn = note_order, .ctx = &changed};
    kl_worker_queue served = {.queue = queues[1], .handlers = &any, .handler_count = 1};
    kl_worker_opts opts = {.size = sizeof opts, .concurrency = 4};
    CHECK_OK(kl_worker_start(&served, 1, &opts, &worker));
    kl_queue_opts more = {.size = sizeof more, .shard_prefix_len = 2};
    CHECK_OK(kl_queue_alter(queues[2], &more));
    for (int i = CHANGED_TASKS / 2; i < CHANGED_TASKS; i++)
        put_round(queues[0], i);
    int64_t until_ns = kl__monotonic_ns() + (int64_t)PATIENCE_NS_MS * 1000000;
    while (runs_of(&changed) < CHANGED_KEYS * CHANGED_TASKS && !test_failed() && kl__monotonic_ns() < until_ns)
        sched_yield();
    CHECK_INT(runs_of(&changed), CHANGED_KEYS * CHANGED_TASKS);
    kl_worker_close(worker);
    for (int i = 0; i < 3; i++) {
        kl_queue_close(queues[i]);
        kl_store_close(stores[i]);
    }
}

TEST(a_layout_is_not_drained_while_shards_of_other_workers_hold_tasks)
{
    struct pair pair;
    kl_queue *queues[2] = {NULL};
    kl_counts counts;
    kl_put put = {.key = kl_str("0"), .payload = kl_str("x")};
    uint32_t shard = kl_shard_of(&layout, put.key);
    if (!pair_open(&pair))
        return;
    CHECK_OK(kl_queue_open(pair.first, "shared", NULL, &queues[0]));
    CHECK_OK(kl_queue_open(pair.next, "shared", NULL, &queues[1]));
    kl__descriptor *descriptor = kl__queue_descriptor(queues[0]);
    kl_place own = {descriptor->layouts[0].numbers[0], shard == 0 ? 1 : 0};
    kl__descriptor_release(descriptor);
    fence(pair.first, own, 1);
    CHECK_OK(kl_queue_put(queues[1], &put, 1, (kl_bytes){0}, NULL));
    kl_queue_opts more = {.size = sizeof more, .shard_prefix_len = 2};
    CHECK_OK(kl_queue_alter(queues[1], &more));
    CHECK_OK(kl_store_counts(pair.first, (kl_place){own.partition, KL_ALL_SHARDS}, NULL, &counts));
    CHECK_INT(counts.ready, 1);
    CHECK_INT(kl__queue_drained(queues[0], 1), KL_EBUSY);
    settle_first(pair.next, (kl_place){own.partition, shard}, 0);
    CHECK_OK(kl__queue_drained(queues[0], 1));
    for (int i = 0; i < 2; i++)
        kl_queue_close(queues[i]);
    pair_close(&pair);
}

static void *put_first_round(void *queue)
{
    put_round(queue, 0);
    return NULL;
}

static int shard_keys(uint32_t shard)
{
    int count = 0;
    for (int k = 0; k < CHANGED_KEYS; k++) {
        char key[8];
        snprintf(key, sizeof key, "%d", k);
        count += kl_shard_of(&layout, kl_str(key)) == shard;
    }
    return count;
}

static void wait_for_runs(struct changed *changed, int runs)
{
    int64_t until_ns = kl__monotonic_ns() + (int64_t)PATIENCE_NS_MS * 1000000;
    while (runs_of(changed) < runs && !test_failed() && kl__monotonic_ns() < until_ns)
        sched_yield();
    CHECK_INT(runs_of(changed), runs);
}

/* One object of a put is on its way while the others are run, and its shard is sealed. The second round stands behind
 * whatever there is of the first, so when it has been run nothing of the first can be left. */
TEST(what_was_run_while_a_put_met_a_seal_is_not_run_again)
{
    static struct changed changed = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    uint32_t shard = kl_shard_of(&layout, kl_str("0"));
    char held[64];
    struct pair pair;
    kl_queue *queues[2] = {NULL};
    kl_worker *worker = NULL;
    pthread_t thread;
    if (!pair_open(&pair))
        return;
    CHECK_OK(kl_queue_open(pair.first, "split", NULL, &queues[0]));
    CHECK_OK(kl_queue_open(pair.next, "split", NULL, &queues[1]));
    kl_handler any = {.fn = note_order, .ctx = &changed};
    kl_worker_queue served = {.queue = queues[0], .handlers = &any, .handler_count = 1};
    kl_worker_opts opts = {.size = sizeof opts, .concurrency = 4};
    CHECK_OK(kl_worker_start(&served, 1, &opts, &worker));
    snprintf(held, sizeof held, "/tasks/split/%x/", shard);
    fault_proxy_hold(pair.proxy, "PUT ", held);
    REQUIRE(pthread_create(&thread, NULL, put_first_round, queues[1]) == 0);
    wait_for_runs(&changed, CHANGED_KEYS - shard_keys(shard));
    kl_queue_opts more = {.size = sizeof more, .shard_prefix_len = 2};
    CHECK_OK(kl_queue_alter(queues[0], &more));
    fault_proxy_let_go(pair.proxy);
    pthread_join(thread, NULL);
    put_round(queues[1], 1);
    wait_for_runs(&changed, 2 * CHANGED_KEYS);
    kl_worker_close(worker);
    for (int i = 0; i < 2; i++)
        kl_queue_close(queues[i]);
    pair_close(&pair);
}

/* ---- Workers that are killed ---- */

enum { WORKERS = 4, KEYS = 8, TASKS = 40, KILLS = 6 };

struct runs {
    int file;
    kl_store *store;
    uint32_t partition;
};

/* Under which the key's shard is owned. */
static uint64_t epoch_of(const struct runs *runs, kl_bytes key)
{
    kl__s3 *s3 = inside(runs->store);
    kl__memory_enter(s3->memory);
    const kl__s3_shard *shard = kl__s3_shard_of(s3, (kl_place){runs->partition, kl_shard_of(&layout, key)});
    uint64_t epoch = shard ? shard->fenced : 0;
    kl__memory_leave(s3->memory);
    return epoch;
}

static kl_outcome note_run(kl_work *work, void *ctx)
{
    char line[64];
    const struct runs *runs = ctx;
    kl_bytes key = kl_work_key(work), payload = kl_work_payload(work);
    int length =
        snprintf(line, sizeof line, "%.*s %.*s %d %llu\n", (int)key.len, (const char *)key.data, (int)payload.len,
                 (const char *)payload.data, (int)getpid(), (unsigned long long)epoch_of(runs, key));
    if (write(runs->file, line, (size_t)length) != length)
        return KL_RETRY;
    struct timespec time = {.tv_nsec = 3000000};
    nanosleep(&time, NULL); /* it works */
    return KL_DONE;
}

/* This program, started again as a worker, until it is killed. */
__attribute__((constructor)) static void be_a_worker(void)
{
    const char *url = getenv("KL_S3_WORKER"), *path = getenv("KL_S3_RUNS");
    if (!url || !path)
        return;
    kl_queue *queue;
    kl_worker *worker;
    static struct runs runs;
    runs.file = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    kl_handler any = {.fn = note_run, .ctx = &runs};
    kl_worker_opts opts = {.size = sizeof opts, .concurrency = 4};
    if (kl_store_open(url, NULL, &runs.store) != KL_OK || kl_queue_find(runs.store, "killed", &queue) != KL_OK ||
        kl_store_partition(runs.store, "killed", 1, &runs.partition) != KL_OK)
        _exit(3);
    kl_worker_queue served = {.queue = queue, .handlers = &any, .handler_count = 1};
    if (kl_worker_start(&served, 1, &opts, &worker) != KL_OK)
        _exit(4);
    for (;;)
        pause();
}

static pid_t start_worker(const char *url, const char *runs)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    setenv("KL_S3_WORKER", url, 1);
    setenv("KL_S3_RUNS", runs, 1);
    execl("/proc/self/exe", "worker", (char *)NULL);
    _exit(127);
}

static void put_tasks(kl_queue *queue)
{
    for (int i = 0; i < TASKS; i++) {
        kl_put puts[KEYS];
        char keys[KEYS][8], payloads[KEYS][8];
        for (int k = 0; k < KEYS; k++) {
            snprintf(keys[k], sizeof keys[k], "%d", k);
            snprintf(payloads[k], sizeof payloads[k], "%d", i);
            puts[k] = (kl_put){.key = kl_str(keys[k]), .payload = kl_str(payloads[k])};
        }
        CHECK_OK(kl_queue_put(queue, puts, KEYS, (kl_bytes){0}, NULL));
    }
}

/* Every task ran; and per key each run is the next one, or (by another owner) one that had not been settled, from which
 * it goes on in order again. A process that has lost a shard and got it back is another owner, but passes nothing
 * over. */
static int check_runs(const char *path)
{
    int last[KEYS], highest[KEYS], owner[KEYS], key, number, pid, lines = 0;
    unsigned long long epochs[KEYS], epoch;
    FILE *file = fopen(path, "re");
    CHECK(file);
    for (int i = 0; i < KEYS; i++)
        last[i] = highest[i] = owner[i] = -1;
    while (file && fscanf(file, "%d %d %d %llu", &key, &number, &pid, &epoch) == 4) {
        lines++;
        CHECK(key >= 0 && key < KEYS && number <= highest[key] + 1);
        bool same = pid == owner[key], passes = number > last[key] + 1, back = number <= last[key];
        if (same && (passes || (back && epoch == epochs[key])))
            test_fail(__FILE__, __LINE__, "line %d: process %d in epoch %llu runs %d of key %d after %d", lines, pid,
                      epoch, number, key, last[key]);
        last[key] = number;
        owner[key] = pid;
        epochs[key] = epoch;
        highest[key] = number > highest[key] ? number : highest[key];
    }
    if (file)
        fclose(file);
    for (int i = 0; i < KEYS; i++)
        CHECK_INT(highest[i], TASKS - 1);
    return lines;
}

static int lines_of(const char *path)
{
    FILE *file = fopen(path, "re");
    int lines = 0;
    for (int c; file && (c = fgetc(file)) != EOF;)
        lines += c == '\n';
    if (file)
        fclose(file);
    return lines;
}

static uint64_t still_waiting(kl_store *store, uint32_t partition)
{
    kl_counts counts = {.ready = 1};
    kl_rc rc = kl_store_counts(store, (kl_place){partition, KL_ALL_SHARDS}, NULL, &counts);
    CHECK(rc == KL_OK || rc == KL_EBUSY);
    return counts.ready + counts.retry;
}

TEST(workers_that_are_killed_lose_nothing_and_keep_keys_in_order)
{
    char url[S3_URL_BYTES], dir[WORKDIR_BYTES], runs[WORKDIR_BYTES + 8];
    kl_store *store = NULL;
    kl_queue *queue = NULL;
    pid_t pids[WORKERS];
    uint32_t partition;
    uint64_t random = test_seed();
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = 1000};
    if (!s3_server_new_url(url) || !workdir_make(dir))
        return;
    strcat(url, "&poll_ms=200&settle_ms=50&checkpoint=8");
    snprintf(runs, sizeof runs, "%s/runs", dir);
    close(open(runs, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    CHECK_OK(kl_store_open(url, NULL, &store));
    CHECK_OK(kl_queue_open(store, "killed", &opts, &queue));
    for (int i = 0; i < WORKERS; i++)
        pids[i] = start_worker(url, runs);
    put_tasks(queue);
    CHECK_OK(kl_store_partition(store, "killed", 1, &partition));
    int64_t until_ns = kl__monotonic_ns() + (int64_t)PATIENCE_NS_MS * 1000000;
    int kills = 0;
    for (int lines = 0; kills < KILLS && lines < KEYS * TASKS && kl__monotonic_ns() < until_ns;
         lines = lines_of(runs)) {
        if (lines < (kills + 1) * KEYS * TASKS / (KILLS + 2)) {
            sched_yield();
            continue; /* each in the middle of work */
        }
        size_t victim = (size_t)kl__random_below(&random, WORKERS);
        kill(pids[victim], SIGKILL);
        waitpid(pids[victim], NULL, 0);
        pids[victim] = start_worker(url, runs);
        kills++;
    }
    while (!test_failed() && still_waiting(store, partition) > 0 && kl__monotonic_ns() < until_ns)
        sched_yield();
    CHECK_INT(still_waiting(store, partition), 0);
    for (int i = 0; i < WORKERS; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
    int lines = check_runs(runs);
    CHECK(kills >= KILLS / 2);
    printf("# %d tasks ran %d times under %d kills\n", KEYS * TASKS, lines, kills);
    kl_queue_close(queue);
    kl_store_close(store);
    workdir_remove(dir);
}
