/* test_history_model.c - whatever is added, forgotten and trimmed: what is found is what a plain list says. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/random.h"
#include "history_support.h"
#include "store/disk/history_inside.h"

enum { TASKS = 6000, ROWS = 60, WORDS = 10, ERRORS = 4, PARTITIONS = 3, SHARDS = 2, KEYS = 12, KINDS = 4, JOBS = 5 };

static const char *const words[WORDS] = {"alpha", "beta", "gamma", "delta", "eta",
                                         "theta", "iota", "kappa", "mu",    "nu"};

struct task {
    uint32_t partition, shard, key, kind, job; /* 0: none */
    kl_task_state state;                       /* UNKNOWN: not kept */
    uint64_t order;
    int64_t finished_ms, expires_ms;
    uint32_t errors[ERRORS]; /* each a set of words */
    int error_count;
    uint32_t pending[ERRORS]; /* errors of retries of a life that is not finished */
    int pending_count;
};

struct model {
    struct shelf shelf;
    struct task tasks[TASKS];
    uint32_t count;
    uint64_t order, random;
    int64_t now_ms;
};

static uint64_t below(struct model *m, uint64_t bound) { return kl__random_below(&m->random, bound); }

/* ---- Names ---- */

static kl_bytes name(char *to, char letter, uint32_t number)
{
    return number ? (kl_bytes){to, (size_t)snprintf(to, 8, "%c%u", letter, number)} : (kl_bytes){0};
}

static kl_task_id job_id(uint32_t job) { return job ? shelf_id(1000000 + job) : (kl_task_id){{0}}; }

static kl_bytes print_error(char *to, uint32_t set)
{
    size_t len = 0;
    for (int i = 0; i < WORDS; i++)
        if (set >> i & 1)
            len += (size_t)sprintf(to + len, "%s%s", len ? (i % 2 ? " " : "-") : "", words[i]);
    return (kl_bytes){to, len};
}

/* ---- Adding ---- */

struct batch {
    kl_entry entries[ROWS];
    kl__history_row rows[ROWS];
    char keys[ROWS][8], kinds[ROWS][8], errors[ROWS][96];
    size_t count;
};

static uint32_t some_words(struct model *m)
{
    uint32_t set = 0;
    for (uint64_t i = 0, n = 1 + below(m, 3); i < n; i++)
        set |= 1u << below(m, 2 + below(m, WORDS - 1)); /* the first ones are common */
    return set;
}

static void put_row(struct model *m, struct batch *batch, uint32_t number, kl_outcome outcome, uint32_t set,
                    int64_t expires_ms)
{
    const struct task *task = &m->tasks[number];
    size_t at = batch->count++;
    kl_entry entry = shelf_entry(number, NULL);
    entry.place = (kl_place){task->partition, task->shard};
    entry.key = name(batch->keys[at], 'k', task->key);
    entry.kind = name(batch->kinds[at], 'n', task->kind);
    entry.job = job_id(task->job);
    entry.group = (uint16_t)(number * 7919);
    batch->entries[at] = entry;
    batch->rows[at] = (kl__history_row){.entry = &batch->entries[at],
                                        .outcome = outcome,
                                        .attempts = (uint32_t)task->pending_count + 1,
                                        .finished_ms = m->now_ms,
                                        .expires_ms = expires_ms,
                                        .error = print_error(batch->errors[at], set)};
}

static void retry(struct model *m, struct batch *batch, uint32_t number)
{
    struct task *task = &m->tasks[number];
    uint32_t set = some_words(m);
    put_row(m, batch, number, KL_RETRY, set, m->now_ms + 1000000000); /* these tests look at errors that last */
    task->pending[task->pending_count++] = set;
}

static void finish(struct model *m, struct batch *batch, uint32_t number)
{
    static const kl_outcome outcomes[] = {KL_DONE, KL_DONE, KL_DONE, KL_DEAD, KL_CANCELLED};
    struct task *task = &m->tasks[number];
    kl_outcome outcome = outcomes[below(m, 5)];
    uint32_t set = below(m, 3) ? 0 : some_words(m);
    task->expires_ms = m->now_ms + (int64_t)(below(m, 4) ? 300 : 5000);
    put_row(m, batch, number, outcome, set, task->expires_ms);
    memcpy(task->errors, task->pending, sizeof task->errors);
    task->error_count = task->pending_count;
    task->pending_count = 0;
    if (set)
        task->errors[task->error_count++] = set;
    task->state = outcome == KL_DONE ? KL_TASK_DONE : outcome == KL_DEAD ? KL_TASK_DEAD : KL_TASK_CANCELLED;
    task->finished_ms = m->now_ms;
    task->order = ++m->order;
}

static uint32_t new_task(struct model *m)
{
    struct task *task = &m->tasks[m->count];
    *task = (struct task){.partition = 1 + (uint32_t)below(m, PARTITIONS),
                          .shard = (uint32_t)below(m, SHARDS),
                          .key = (uint32_t)below(m, 1 + below(m, KEYS)),
                          .kind = (uint32_t)below(m, KINDS),
                          .job = (uint32_t)below(m, JOBS)};
    return m->count++;
}

static bool is_in(const struct batch *batch, uint32_t number)
{
    kl_task_id id = shelf_id(number);
    for (size_t i = 0; i < batch->count; i++)
        if (memcmp(&batch->entries[i].id, &id, sizeof id) == 0)
            return true;
    return false;
}

/* A row of a task that is there already: of a life under way, or now and then of a new one. */
static bool put_old(struct model *m, struct batch *batch, uint32_t number)
{
    const struct task *task = &m->tasks[number];
    if (!task->pending_count && !(task->state && !below(m, 15)))
        return false;
    if (task->pending_count < ERRORS - 1 && below(m, 3))
        retry(m, batch, number);
    else
        finish(m, batch, number);
    return true;
}

/* Of one settle: all of one moment, and each task once. */
static void fill(struct model *m, struct batch *batch, bool one_settle)
{
    batch->count = 0;
    size_t rows = below(m, 4) ? 1 + below(m, 4) : 1 + below(m, ROWS);
    m->now_ms += (int64_t)below(m, 3);
    while (batch->count < rows && m->count < TASKS) {
        m->now_ms += one_settle ? 0 : (int64_t)below(m, 3);
        uint32_t old = m->count ? (uint32_t)below(m, m->count) : 0;
        if (m->count && !(one_settle && is_in(batch, old)) && put_old(m, batch, old))
            continue;
        if (below(m, 6))
            finish(m, batch, new_task(m));
        else
            retry(m, batch, new_task(m));
    }
}

static void add(struct model *m)
{
    static struct batch batch;
    fill(m, &batch, false);
    CHECK_OK(kl__history_add(m->shelf.history, batch.rows, batch.count, m->order));
}

/* Adds the first `count` rows in parts, of which only the last moves the position, if it is another. */
static void add_parts(struct model *m, const struct batch *batch, size_t count, uint64_t before, uint64_t position)
{
    for (size_t at = 0, part; at < count && m->shelf.history; at += part) {
        part = 1 + below(m, count - at);
        CHECK_OK(kl__history_add(m->shelf.history, batch->rows + at, part, at + part < count ? before : position));
    }
}

/* Whole settles, and the first rows of the next, which are ahead of the position. */
static void add_mixed(struct model *m, const struct batch *whole, const struct batch *next, uint64_t position)
{
    kl__history_row rows[2 * ROWS];
    size_t count = whole->count;
    memcpy(rows, whole->rows, count * sizeof rows[0]);
    for (size_t i = 0, n = below(m, next->count + 1); i < n; i++) {
        rows[count] = next->rows[i];
        rows[count++].ahead = true;
    }
    CHECK_OK(kl__history_add(m->shelf.history, rows, count, position));
}

/* One settle, which is broken off and begun again a few times. */
static void add_again(struct model *m)
{
    static struct batch whole, next;
    bool mixed = !below(m, 3);
    if (mixed)
        fill(m, &whole, false);
    uint64_t before = m->order;
    fill(m, &next, true);
    if (mixed)
        add_mixed(m, &whole, &next, before);
    for (uint64_t i = 0, n = below(m, 3); i < n && next.count; i++) {
        add_parts(m, &next, 1 + below(m, next.count), before, before);
        if (!below(m, 8)) {
            shelf_close(&m->shelf);
            shelf_open(&m->shelf);
        }
    }
    add_parts(m, &next, next.count, before, m->order);
}

/* ---- Forgetting ---- */

static void forget(struct model *m)
{
    for (uint64_t i = 0, n = 1 + below(m, 10); i < n && m->count; i++) {
        uint32_t number = (uint32_t)below(m, m->count);
        struct task *task = &m->tasks[number];
        kl_task_id id = shelf_id(number);
        CHECK_OK(kl__history_forget(m->shelf.history, (kl_place){task->partition, task->shard}, &id, 1));
        task->state = KL_TASK_UNKNOWN;
    }
}

static void trim(struct model *m)
{
    size_t trimmed, expected = 0, sum = 0;
    for (uint32_t i = 0; i < m->count; i++)
        if (m->tasks[i].state && m->tasks[i].expires_ms <= m->now_ms) {
            m->tasks[i].state = KL_TASK_UNKNOWN;
            expected++;
        }
    do {
        CHECK_OK(kl__history_trim(m->shelf.history, m->now_ms, 100, false, &trimmed));
        sum += trimmed;
    } while (trimmed == 100);
    CHECK_INT(sum, expected);
}

/* ---- Looking ---- */

struct query {
    uint32_t partition, key, kind, job, set;
    kl_task_state state;
    int64_t from_ms, until_ms;
};

static bool fits(const struct task *task, const struct query *query)
{
    bool said = query->set == 0;
    for (int i = 0; i < task->error_count; i++)
        said |= (task->errors[i] & query->set) == query->set;
    return task->state && said && (!query->partition || task->partition == query->partition) &&
           (!query->key || task->key == query->key) && (!query->kind || task->kind == query->kind) &&
           (!query->job || task->job == query->job) && (!query->state || task->state == query->state) &&
           (!query->from_ms || task->finished_ms >= query->from_ms) &&
           (!query->until_ms || task->finished_ms < query->until_ms);
}

static struct query some_query(struct model *m)
{
    struct query query = {0};
    if (!below(m, 3))
        query.partition = 1 + (uint32_t)below(m, PARTITIONS);
    if (!below(m, 3))
        query.key = 1 + (uint32_t)below(m, KEYS);
    if (!below(m, 4))
        query.kind = 1 + (uint32_t)below(m, KINDS);
    if (!below(m, 4))
        query.job = 1 + (uint32_t)below(m, JOBS);
    if (!below(m, 3))
        query.set = some_words(m);
    if (!below(m, 3))
        query.state = KL_TASK_DONE + (kl_task_state)below(m, 3);
    if (!below(m, 4))
        query.from_ms = SHELF_MS + (int64_t)below(m, (uint64_t)(m->now_ms - SHELF_MS) + 1);
    if (!below(m, 4))
        query.until_ms = SHELF_MS + (int64_t)below(m, (uint64_t)(m->now_ms - SHELF_MS) + 2);
    return query;
}

static struct model *sorted_by;

static int latest_first(const void *a, const void *b)
{
    uint64_t x = sorted_by->tasks[*(const uint32_t *)a].order, y = sorted_by->tasks[*(const uint32_t *)b].order;
    return (x < y) - (x > y);
}

static const char *expect(struct model *m, const struct query *query)
{
    static char text[1 << 16];
    static uint32_t numbers[TASKS];
    size_t count = 0, len = 0;
    for (uint32_t i = 0; i < m->count; i++)
        if (fits(&m->tasks[i], query))
            numbers[count++] = i;
    sorted_by = m;
    qsort(numbers, count, sizeof numbers[0], latest_first);
    text[0] = '\0';
    for (size_t i = 0; i < count && len + 16 < sizeof text; i++)
        len += (size_t)snprintf(text + len, sizeof text - len, "%s%u", len ? " " : "", numbers[i]);
    return text;
}

static void find(struct model *m)
{
    char key[8], kind[8], error[96];
    struct query query = some_query(m);
    kl_find find = {.partition = query.partition,
                    .state = query.state,
                    .key = name(key, 'k', query.key),
                    .kind = name(kind, 'n', query.kind),
                    .job = job_id(query.job),
                    .from_ms = query.from_ms,
                    .until_ms = query.until_ms,
                    .words = print_error(error, query.set)};
    CHECK_STR(shelf_find(&m->shelf, find, 1 + below(m, below(m, 2) ? 5 : 100)), expect(m, &query));
}

static void read_some(struct model *m)
{
    char error[96];
    for (int i = 0; i < 10 && m->count; i++) {
        uint32_t number = (uint32_t)below(m, m->count);
        const struct task *expected = &m->tasks[number];
        kl_task task = {.state = KL_TASK_UNKNOWN};
        kl_task_id id = shelf_id(number);
        kl_arena_reset(&m->shelf.arena);
        CHECK_OK(read_kept(m->shelf.history, (kl_place){expected->partition, expected->shard}, &id, 1, &m->shelf.arena,
                           &task));
        CHECK_INT(task.state, expected->state);
        if (expected->state)
            CHECK_INT(task.entry.group, (uint16_t)(number * 7919));
        if (expected->state && expected->error_count)
            CHECK_BYTES(task.error, print_error(error, expected->errors[expected->error_count - 1]));
    }
}

static void count(struct model *m)
{
    for (uint32_t partition = 1; partition <= PARTITIONS; partition++) {
        uint64_t expected[KL_TASK_CANCELLED + 1] = {0}, done, dead, cancelled;
        for (uint32_t i = 0; i < m->count; i++)
            expected[m->tasks[i].state] += m->tasks[i].partition == partition;
        CHECK_OK(kl__history_counts(m->shelf.history, partition, NULL, &done, &dead, &cancelled));
        CHECK_INT(done, expected[KL_TASK_DONE]);
        CHECK_INT(dead, expected[KL_TASK_DEAD]);
        CHECK_INT(cancelled, expected[KL_TASK_CANCELLED]);
    }
}

static void count_job(struct model *m)
{
    uint32_t job = 1 + (uint32_t)below(m, JOBS - 1), partition = 1 + (uint32_t)below(m, PARTITIONS);
    uint64_t expected[KL_TASK_CANCELLED + 1] = {0}, done, dead, cancelled;
    kl_task_id id = job_id(job);
    for (uint32_t i = 0; i < m->count; i++)
        expected[m->tasks[i].state] += m->tasks[i].partition == partition && m->tasks[i].job == job;
    CHECK_OK(kl__history_counts(m->shelf.history, partition, &id, &done, &dead, &cancelled));
    CHECK_INT(done, expected[KL_TASK_DONE]);
    CHECK_INT(dead, expected[KL_TASK_DEAD]);
    CHECK_INT(cancelled, expected[KL_TASK_CANCELLED]);
}

static void list_results(struct model *m)
{
    uint32_t job = 1 + (uint32_t)below(m, JOBS - 1), partition = 1 + (uint32_t)below(m, PARTITIONS), at = 0;
    kl_task_id id = job_id(job), after;
    kl_task tasks[7];
    size_t found = 7;
    for (bool first = true; found == 7; first = false) {
        kl_arena_reset(&m->shelf.arena);
        CHECK_OK(kl__history_results(m->shelf.history, (kl_place){partition, 1}, &id, first ? NULL : &after, 7,
                                     &m->shelf.arena, tasks, &found));
        for (size_t i = 0; i < found; i++, at++) {
            const struct task *task = &m->tasks[at];
            while (at < m->count && !(task->state && task->job == job && task->partition == partition && task->shard))
                task = &m->tasks[++at];
            CHECK_INT(shelf_number(&tasks[i]), at);
        }
        if (found)
            after = tasks[found - 1].entry.id;
    }
    for (; at < m->count; at++)
        CHECK(!(m->tasks[at].state && m->tasks[at].job == job && m->tasks[at].partition == partition &&
                m->tasks[at].shard == 1));
}

static void reopen(struct model *m)
{
    shelf_close(&m->shelf);
    shelf_open(&m->shelf);
    if (m->shelf.history)
        CHECK_INT(kl__history_position(m->shelf.history), m->order);
}

TEST(what_is_found_is_what_a_plain_list_says)
{
    struct model *m = calloc(1, sizeof *m);
    REQUIRE(m);
    m->random = test_seed();
    m->now_ms = SHELF_MS;
    shelf_new(&m->shelf);
    for (uint64_t i = 0, ops = test_ops(3000); i < ops && m->shelf.history && !test_failed(); i++) {
        uint64_t dice = below(m, 100);
        if (dice < 25)
            add(m);
        else if (dice < 40)
            add_again(m);
        else if (dice < 85)
            find(m);
        else if (dice < 88)
            forget(m);
        else if (dice < 90)
            trim(m);
        else if (dice < 94)
            read_some(m);
        else if (dice < 97)
            list_results(m), count_job(m);
        else if (dice < 99)
            count(m);
        else
            reopen(m);
    }
    if (m->shelf.history)
        CHECK_OK(kl__history_check(m->shelf.history));
    shelf_free(&m->shelf);
    free(m);
}

/* ---- Full segments ---- */

/* Adds tasks [from, until), every tenth with key "ten", and each with its number as a word. */
static void add_many(struct shelf *shelf, uint32_t from, uint32_t until, int64_t keep_ms)
{
    size_t count = until - from;
    kl_entry *entries = calloc(count, sizeof *entries);
    kl__history_row *rows = calloc(count, sizeof *rows);
    char(*errors)[16] = calloc(count, sizeof *errors);
    for (uint32_t i = 0; i < count && entries && rows && errors; i++) {
        snprintf(errors[i], sizeof errors[i], "n%u", from + i);
        entries[i] = shelf_entry(from + i, (from + i) % 10 ? NULL : "ten");
        rows[i] = shelf_row(&entries[i], KL_DEAD, 1, errors[i]);
        rows[i].expires_ms = SHELF_MS + ((from + i) % 10 ? keep_ms : INT32_MAX);
    }
    CHECK_OK(kl__history_add(shelf->history, rows, count, until));
    free(entries);
    free(rows);
    free(errors);
}

TEST(more_tasks_than_a_segment_holds_are_found_wherever_they_are)
{
    enum { MANY = 150000 };
    struct shelf shelf;
    size_t trimmed = 1;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    add_many(&shelf, 1, 70000, 1000); /* more than one segment at once */
    for (uint32_t i = 70000; i < MANY; i += 10000)
        add_many(&shelf, i, i + 10000, 1000);
    CHECK(atoi(shelf_sql(&shelf, "select count(*) from segments")) < 12);
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("n1")}, 5), "1");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("n65536")}, 5), "65536");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("n65537")}, 5), "65537");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("N149999"), .key = kl_str("ten")}, 5), "");
    CHECK_STR(shelf_find(&shelf,
                         (kl_find){.key = kl_str("ten"), .from_ms = SHELF_MS + 65520, .until_ms = SHELF_MS + 65551}, 2),
              "65550 65540 65530 65520");
    CHECK_OK(kl__history_check(shelf.history));

    /* Nine tenths expire: what is left comes together in few segments, and is found as before. */
    while (trimmed)
        CHECK_OK(kl__history_trim(shelf.history, SHELF_MS + 1000, 20000, false, &trimmed));
    CHECK_STR(shelf_sql(&shelf, "select count(*) || ' ' || sum(live) from segments"), "1 14999");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("n65540")}, 5), "65540");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("n65537")}, 5), "");
    CHECK_STR(shelf_find(&shelf,
                         (kl_find){.key = kl_str("ten"), .from_ms = SHELF_MS + 65520, .until_ms = SHELF_MS + 65551}, 2),
              "65550 65540 65530 65520");
    CHECK_OK(kl__history_check(shelf.history));
    shelf_free(&shelf);
}

TEST(errors_of_many_words_make_segments_of_few_tasks)
{
    enum { TASKS_OF_MANY_WORDS = 1500, LONG = 4000 };
    struct shelf shelf;
    shelf_new(&shelf);
    REQUIRE(shelf.history);
    kl_entry *entries = calloc(TASKS_OF_MANY_WORDS, sizeof *entries);
    kl__history_row *rows = calloc(TASKS_OF_MANY_WORDS, sizeof *rows);
    char(*errors)[LONG + 32] = calloc(TASKS_OF_MANY_WORDS, sizeof *errors);
    REQUIRE(entries && rows && errors);
    for (uint32_t i = 0; i < TASKS_OF_MANY_WORDS; i++) {
        size_t len = 0;
        for (uint32_t word = 0; len < LONG; word++)
            len += (size_t)sprintf(errors[i] + len, "%x ", word);
        sprintf(errors[i] + len, "task%u", i);
        entries[i] = shelf_entry(i + 1, NULL);
        rows[i] = shelf_row(&entries[i], KL_DEAD, 1, errors[i]);
    }
    CHECK_OK(kl__history_add(shelf.history, rows, TASKS_OF_MANY_WORDS, 1));
    CHECK_STR(shelf_sql(&shelf, "select count(*) from segments"), "2");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("3ab task0")}, 5), "1");
    CHECK_STR(shelf_find(&shelf, (kl_find){.words = kl_str("3ab task1499")}, 5), "1500");
    CHECK_OK(kl__history_check(shelf.history));
    free(entries);
    free(rows);
    free(errors);
    shelf_free(&shelf);
}

#define ALIKE_BITS ((UINT64_C(7) << 60) + 1)

/* As many terms as two blocks hold have the same highest bits, so no block may end between them (G2). */
TEST(terms_that_differ_in_their_lowest_bits_only_are_all_found)
{
    enum { ALIKE = 800, APART = 2000 };
    static uint64_t bits[KL_HISTORY_WORDS];
    kl__hdb *db = NULL;
    kl__index index = {0};
    struct shelf shelf;
    shelf_new(&shelf);
    shelf_close(&shelf);
    CHECK_OK(kl__hdb_open(shelf.path, NULL, true, &db));
    REQUIRE(db);
    CHECK_OK(kl__hdb_do(db, KL_SQL_BEGIN_WRITE));
    kl__index_start(&index, 1, 0);
    CHECK_OK(kl__index_doc(&index, db));
    CHECK_OK(kl__index_doc(&index, db));
    for (uint64_t i = 0; i < ALIKE; i++)
        CHECK_OK(kl__index_term(&index, ALIKE_BITS + i));
    for (uint64_t i = 1; i < APART; i++)
        CHECK_OK(kl__index_term(&index, i << 52));
    CHECK_OK(kl__index_write(&index, db));
    kl__term_segment segment = {
        .first = 1, .last = 2, .segment = 1, .docs = 2, .postings = ALIKE + APART - 1, .live = 2};
    bool any = false;
    for (uint64_t i = 0; i < ALIKE + APART - 1; i++) {
        CHECK_OK(kl__term_segment_term(db, &segment, i < ALIKE ? ALIKE_BITS + i : (i - ALIKE + 1) << 52, bits, &any));
        CHECK(any && bits[0] == 2);
    }
    CHECK_OK(kl__term_segment_term(db, &segment, ALIKE_BITS + ALIKE, bits, &any));
    CHECK(!any);
    uint64_t sum = 0;
    CHECK_OK(kl__term_segment_check(db, &segment, &sum));
    CHECK_INT(sum, 3);
    CHECK_OK(kl__hdb_end(db, KL_OK));
    kl__index_free(&index);
    kl__hdb_close(db);
    shelf_free(&shelf);
}

/* ---- Threads ---- */

struct crowd {
    struct shelf shelf;
    atomic_bool over;
    uint32_t written;
};

/* Adds pairs of tasks, and forgets old pairs: whoever looks sees both or none. */
static void *write_pairs(void *ctx)
{
    struct crowd *crowd = ctx;
    for (uint32_t i = 1; i <= crowd->written; i++) {
        kl_entry entries[2] = {shelf_entry(2 * i, "pair"), shelf_entry(2 * i + 1, "pair")};
        kl__history_row rows[2] = {shelf_row(&entries[0], KL_DEAD, 1, "left"),
                                   shelf_row(&entries[1], KL_DEAD, 1, "right")};
        CHECK_OK(kl__history_add(crowd->shelf.history, rows, 2, i));
        if (i > 20) {
            kl_task_id ids[2] = {shelf_id(2 * (i - 20)), shelf_id(2 * (i - 20) + 1)};
            CHECK_OK(kl__history_forget(crowd->shelf.history, (kl_place){1, 2}, ids, 2));
        }
    }
    atomic_store(&crowd->over, true);
    return NULL;
}

static void *look_for_pairs(void *ctx)
{
    struct crowd *crowd = ctx;
    kl_arena arena = {0};
    kl_task tasks[64];
    bool last;
    do {
        last = atomic_load(&crowd->over);
        size_t count = 0;
        kl_find find = {.key = kl_str("pair"), .state = KL_TASK_DEAD, .max = 64};
        kl_arena_reset(&arena);
        CHECK_OK(kl__history_find(crowd->shelf.history, &find, &arena, tasks, &count));
        CHECK_INT(count % 2, 0);
        CHECK(count <= 42);
        for (size_t i = 0; i + 1 < count; i++)
            CHECK_INT(shelf_number(&tasks[i]), shelf_number(&tasks[i + 1]) + 1);
    } while (!last);
    kl_arena_free(&arena);
    return NULL;
}

TEST(readers_see_each_write_whole_while_it_goes_on)
{
    enum { LOOKERS = 6 }; /* more than connections */
    static struct crowd crowd;
    pthread_t writer, lookers[LOOKERS];
    shelf_new(&crowd.shelf);
    REQUIRE(crowd.shelf.history);
    atomic_store(&crowd.over, false);
    crowd.written = (uint32_t)test_ops(500);
    for (int i = 0; i < LOOKERS; i++)
        REQUIRE(pthread_create(&lookers[i], NULL, look_for_pairs, &crowd) == 0);
    REQUIRE(pthread_create(&writer, NULL, write_pairs, &crowd) == 0);
    pthread_join(writer, NULL);
    for (int i = 0; i < LOOKERS; i++)
        pthread_join(lookers[i], NULL);
    CHECK_OK(kl__history_check(crowd.shelf.history));
    shelf_free(&crowd.shelf);
}
