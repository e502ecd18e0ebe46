/* test_submit.c - handing tasks over: keys, ids, and submits from many threads. Room, batches and barriers have their
 * own files. */
#include "exec/support.h"

/* --- Keys --- */

static kl_outcome note_key(kl_run *run, void *ctx)
{
    kl_bytes key = kl_run_key(run), *expected = ctx;
    journal_add("%s", key.len == expected->len && memcmp(key.data, expected->data, key.len) == 0 ? "same" : "other");
    return KL_DONE;
}

TEST(a_key_may_have_up_to_512_bytes_of_any_kind_and_is_copied)
{
    static const size_t lengths[] = {1, 2, 7, 8, 9, 16, 17, 37, 38, 39, 40, 41, 64, 100, 511, 512};
    kl_exec *exec = open_exec(OPTS(.shards = 4));
    REQUIRE(exec != NULL);
    static char kept[COUNT(lengths)][KL_KEY_BYTES_MAX];
    kl_bytes expected[COUNT(lengths)];
    for (size_t i = 0; i < COUNT(lengths); i++) {
        char lent[KL_KEY_BYTES_MAX];
        for (size_t c = 0; c < lengths[i]; c++)
            lent[c] = kept[i][c] = (char)(c * 7 + i); /* zeros and bytes above 127 among them */
        expected[i] = (kl_bytes){kept[i], lengths[i]};
        CHECK_INT(kl_exec_submit(exec, (kl_bytes){lent, lengths[i]}, note_key, &expected[i], NULL, NULL), KL_OK);
        memset(lent, 'x', sizeof lent);
    }
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    journal_await(COUNT(lengths));
    CHECK(!strstr(journal_text(), "other"));
    kl_exec_close(exec);
}

TEST(a_key_of_513_bytes_is_refused_by_every_call)
{
    static const char bytes[KL_KEY_BYTES_MAX + 1] = "too long";
    kl_bytes key = {bytes, sizeof bytes};
    kl_key_info info;
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    CHECK_INT(kl_exec_submit(exec, key, nothing, NULL, NULL, NULL), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "513");
    CHECK_INT(kl_exec_submit_batch(exec, &(kl_exec_task){key, nothing, NULL, NULL}, 1, NULL, NULL), KL_EINVAL);
    CHECK_INT(kl_exec_barrier(exec, key, 0), KL_EINVAL);
    CHECK_INT(kl_exec_key_show(exec, key, &info), KL_EINVAL);
    CHECK_INT(kl_exec_key_pause(exec, key), KL_EINVAL);
    CHECK_INT(kl_exec_key_resume(exec, key), KL_EINVAL);
    CHECK_INT(kl_exec_key_skip(exec, key), KL_EINVAL);
    CHECK_INT(kl_exec_key_drain(exec, key, NULL), KL_EINVAL);
    kl_exec_close(exec);
}

TEST(long_keys_that_differ_only_in_their_last_byte_are_different_keys)
{
    char a[KL_KEY_BYTES_MAX + 1], b[KL_KEY_BYTES_MAX + 1];
    static const size_t lengths[] = {9, 16, 38, 39, 40, 41, 512};
    kl_exec *exec = open_exec(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    for (size_t i = 0; i < COUNT(lengths); i++) {
        struct gate gate = GATE;
        memset(a, 'k', sizeof a);
        memset(b, 'k', sizeof b);
        a[lengths[i]] = b[lengths[i]] = '\0';
        b[lengths[i] - 1] = 'l';
        submit(exec, a, hold, &gate, NULL);
        submit(exec, b, hold, &gate, NULL);
        gate_await(&gate, 2); /* both run at once */
        gate_open(&gate);
        CHECK_INT(kl_exec_barrier(exec, kl_str(a), KL_FOREVER), KL_OK);
        CHECK_INT(kl_exec_barrier(exec, kl_str(b), KL_FOREVER), KL_OK);
    }
    kl_exec_close(exec);
}

TEST(tasks_without_a_key_ask_for_no_order_and_run_at_once_beside_each_other)
{
    struct gate gate = GATE;
    kl_exec *exec = open_exec(OPTS(.threads = 4, .shards = 2));
    REQUIRE(exec != NULL);
    for (int i = 0; i < 4; i++)
        submit(exec, "", hold, &gate, NULL);
    gate_await(&gate, 4);
    gate_open(&gate);
    kl_exec_close(exec);
}

TEST(calls_about_one_key_need_a_key)
{
    kl_key_info info;
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    CHECK_INT(kl_exec_barrier(exec, kl_str(""), 0), KL_EINVAL);
    CHECK_INT(kl_exec_key_show(exec, kl_str(""), &info), KL_EINVAL);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("")), KL_EINVAL);
    CHECK_INT(kl_exec_key_resume(exec, kl_str("")), KL_EINVAL);
    CHECK_INT(kl_exec_key_skip(exec, kl_str("")), KL_EINVAL);
    CHECK_INT(kl_exec_key_drain(exec, kl_str(""), NULL), KL_EINVAL);
    kl_exec_close(exec);
}

TEST(a_task_needs_a_function)
{
    kl_exec_id ids[2] = {7, 7};
    size_t taken = 7;
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    CHECK_INT(kl_exec_submit(exec, kl_str("k"), NULL, NULL, NULL, &ids[0]), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "function");
    CHECK_INT(ids[0], 7);
    kl_exec_task tasks[] = {{kl_str("k"), note, "a", NULL}, {kl_str("k"), NULL, NULL, NULL}};
    CHECK_INT(kl_exec_submit_batch(exec, tasks, 2, ids, &taken), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "task 2 of 2: it has no function");
    CHECK(taken == 0 && ids[0] == 0 && ids[1] == 0);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "");
    kl_exec_close(exec);
}

/* --- Ids --- */

TEST(ids_are_never_zero_and_never_used_again)
{
    enum { TASKS = 1000 };
    static kl_exec_id ids[TASKS];
    kl_exec *exec = open_exec(OPTS(.threads = 2, .shards = 3, .shard_capacity = 4, .submit_timeout_ms = KL_FOREVER));
    REQUIRE(exec != NULL);
    for (int i = 0; i < TASKS; i++) {
        char key[8];
        snprintf(key, sizeof key, "%d", i % 5);
        ids[i] = submit(exec, key, nothing, NULL, NULL);
        CHECK(ids[i] != 0);
    }
    for (int i = 0; i < TASKS; i++)
        for (int j = 0; j < i; j++)
            if (ids[i] == ids[j])
                test_fail(__FILE__, __LINE__, "tasks %d and %d have the same id", j, i);
    kl_exec_close(exec);
}

TEST(an_id_that_names_no_shard_is_not_found)
{
    struct gate gate = GATE;
    kl_exec_status status;
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shards = 3));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit(exec, "k", hold, &gate, NULL);
    kl_exec_id forged = id | (kl_exec_id)3 << exec->index_bits; /* the shards have two bits, and there is none with 3 */
    CHECK_INT(kl_exec_status_of(exec, forged, &status), KL_ENOTFOUND);
    CHECK_INT(kl_exec_cancel(exec, forged), KL_ENOTFOUND);
    gate_open(&gate);
    kl_exec_close(exec);
}

/* With one place there are two tasks, numbered 1 and 2 in their ids. */
TEST(the_last_of_a_shards_tasks_has_an_id_too)
{
    struct gate gate = GATE;
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shard_capacity = 1, .submit_timeout_ms = KL_NO_WAIT));
    REQUIRE(exec != NULL);
    REQUIRE(kl_exec_key_pause(exec, kl_str("paused")) == KL_OK);
    kl_exec_id first = submit(exec, "paused", nothing, NULL, NULL);
    CHECK_INT(status_of(exec, first).state, KL_EXEC_WAITING);
    kl_exec_id last = submit(exec, "k", hold, &gate, NULL);
    await_state(exec, last, KL_EXEC_RUNNING);
    CHECK(first != last);
    gate_open(&gate);
    kl_exec_close(exec);
}

static kl_outcome tell_id(kl_run *run, void *ctx)
{
    *(kl_exec_id *)ctx = kl_run_id(run);
    return KL_DONE;
}

TEST(a_run_knows_its_tasks_id)
{
    kl_exec_id told = 0;
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shards = 4));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit(exec, "k", tell_id, &told, NULL);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK(told == id);
    kl_exec_close(exec);
}

TEST(an_id_is_not_found_once_its_task_has_ended_even_when_its_memory_is_used_again)
{
    kl_exec_status status;
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shard_capacity = 1, .submit_timeout_ms = KL_FOREVER));
    REQUIRE(exec != NULL);
    kl_exec_id old = submit(exec, "k", nothing, NULL, NULL);
    await_gone(exec, old);
    struct gate gate = GATE;
    kl_exec_id new = submit(exec, "k", hold, &gate, NULL); /* the only place there is */
    gate_await(&gate, 1);
    CHECK_INT(kl_exec_status_of(exec, old, &status), KL_ENOTFOUND);
    CHECK_INT(kl_exec_cancel(exec, old), KL_ENOTFOUND);
    CHECK_INT(status_of(exec, new).state, KL_EXEC_RUNNING);
    static const kl_exec_id never[] = {0, 1, 2, UINT64_MAX, UINT64_MAX - 1, UINT64_C(1) << 63};
    for (size_t i = 0; i < COUNT(never); i++) {
        if (never[i] == new)
            continue;
        CHECK_INT(kl_exec_status_of(exec, never[i], &status), KL_ENOTFOUND);
        CHECK_INT(kl_exec_cancel(exec, never[i]), KL_ENOTFOUND);
    }
    CHECK(!status_of(exec, new).stop_asked);
    gate_open(&gate);
    kl_exec_close(exec);
}

/* --- Concurrent submits --- */

struct producer {
    kl_exec *exec;
    int number;
    uint64_t tasks;
    struct helper helper;
};

enum { PRODUCERS = 4, SHARED_KEYS = 3 };

static _Atomic(uint64_t) expected_next[PRODUCERS][SHARED_KEYS];
static atomic_int inside[SHARED_KEYS];

static kl_outcome check_turn(kl_run *run, void *ctx)
{
    uintptr_t packed = (uintptr_t)ctx;
    int key = *(const char *)kl_run_key(run).data - 'a';
    CHECK_INT(atomic_fetch_add(&inside[key], 1), 0);
    CHECK_INT(packed >> 8, atomic_fetch_add(&expected_next[packed & 255][key], 1));
    atomic_fetch_sub(&inside[key], 1);
    return KL_DONE;
}

static void produce(void *ctx)
{
    struct producer *producer = ctx;
    uint64_t next[SHARED_KEYS] = {0};
    static const char *const keys[SHARED_KEYS] = {"a", "b", "c"};
    for (uint64_t i = 0; i < producer->tasks && !test_failed(); i++) {
        uint64_t key = i * 7 % SHARED_KEYS;
        void *packed = (void *)(uintptr_t)(next[key] << 8 | (unsigned)producer->number);
        if (i % 16 == 0) {
            kl_exec_task batch[] = {
                {kl_str(keys[key]), check_turn, packed, NULL},
                {kl_str(keys[key]), check_turn, (void *)((uintptr_t)packed + 256), NULL},
            };
            CHECK_INT(kl_exec_submit_batch(producer->exec, batch, 2, NULL, NULL), KL_OK);
            next[key] += 2;
        } else {
            CHECK_INT(kl_exec_submit(producer->exec, kl_str(keys[key]), check_turn, packed, NULL, NULL), KL_OK);
            next[key]++;
        }
    }
}

TEST(concurrent_submits_for_one_key_are_safe_and_each_threads_own_keep_their_order)
{
    struct producer producers[PRODUCERS];
    kl_exec *exec = open_exec(OPTS(.threads = 3, .shards = 2, .shard_capacity = 64, .submit_timeout_ms = KL_FOREVER));
    REQUIRE(exec != NULL);
    memset(expected_next, 0, sizeof expected_next);
    for (int i = 0; i < PRODUCERS; i++) {
        producers[i] = (struct producer){.exec = exec, .number = i, .tasks = test_ops(40000)};
        helper_start(&producers[i].helper, produce, &producers[i]);
    }
    for (int i = 0; i < PRODUCERS; i++)
        helper_join(&producers[i].helper);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    kl_exec_close(exec);
}
