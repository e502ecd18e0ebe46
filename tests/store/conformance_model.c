/* conformance_model.c - what the naive model says, compared with what the store shows. */
#include "store/conformance_model.h"

#include <stdlib.h>

#include "base/random.h"

static const char *const errors[] = {NULL,           "connection refused",  "Connection timed out",
                                     "disk is full", "DISK: timed/refused", "caf\xc3\xa9 closed"};
static const char *const words[] = {"connection",  "REFUSED", "timed disk",    "full is disk",
                                    "caf\xc3\xa9", "conn",    "refused timed", "closed"};

uint64_t model_below(struct model *m, uint64_t bound) { return kl__random_below(&m->random, bound); }
int64_t model_now(const struct model *m) { return atomic_load(&m->t->clock_ms); }
const char *model_error(struct model *m) { return errors[model_below(m, COUNT(errors))]; }
const char *model_words(struct model *m) { return words[model_below(m, COUNT(words))]; }

static void name_records(struct model *m)
{
    for (int i = 0; i < MODEL_RECORDS; i++)
        snprintf(m->records[i].name, sizeof m->records[i].name, "%s/%d", i % 3 ? "worker" : "queue", i * i);
}

bool model_open(struct model *m, struct trial *t, uint64_t seed, size_t room)
{
    *m = (struct model){.t = t, .store = t->store, .random = seed, .room = room};
    m->tasks = calloc(room, sizeof *m->tasks);
    static const uint32_t shards[MODEL_PLACES] = {0, 7, 15, 0, 0x5a, 0xff};
    for (int i = 0; i < MODEL_PLACES; i++)
        m->places[i] = i < 3 ? order_place(t, shards[i]) : bill_place(t, shards[i]);
    for (int i = 0; i < MODEL_JOBS; i++)
        m->jobs[i] = make_id(t, m->places[i], kl_str(NULL));
    name_records(m);
    return m->tasks != NULL;
}

void model_close(struct model *m)
{
    for (int i = 0; i < MODEL_RECORDS; i++)
        free(m->records[i].versions);
    free(m->tasks);
}

struct model_task *model_waiting(struct model *m, int place)
{
    size_t start = m->count ? model_below(m, m->count) : 0;
    for (size_t i = 0; i < m->count; i++) {
        struct model_task *task = &m->tasks[(start + i) % m->count];
        if (task->place == place && task->line != NOWHERE)
            return task;
    }
    return NULL;
}

/* ---- Lines and counts ---- */

static int by_due(const void *a, const void *b)
{
    const struct model_task *x = *(struct model_task *const *)a, *y = *(struct model_task *const *)b;
    if (x->line == KL_LINE_DUE && x->entry.due_ms != y->entry.due_ms)
        return x->entry.due_ms < y->entry.due_ms ? -1 : 1;
    return x < y ? -1 : 1; /* the array is in the order of appends */
}

static void check_shown(const struct model *m, struct model_task *task, const kl_stub *stub, int32_t line)
{
    CHECK_ID(stub->id, task->entry.id);
    CHECK(task->position == 0 || task->position == stub->position);
    task->position = stub->position;
    CHECK_INT(stub->attempts, task->attempts);
    CHECK_INT(stub->due_ms, line <= KL_PRIORITY_MAX ? 0 : task->not_before_ms);
    CHECK_INT(stub->priority, task->entry.priority);
    CHECK_INT(stub->group, can(m->t, KL_STORE_GROUP) ? task->entry.group : 0);
}

void model_check_line(struct model *m, int place, int32_t line)
{
    struct model_task **expected = malloc((m->count + 1) * sizeof *expected);
    size_t count = 0, shown;
    if (!expected)
        abort();
    kl_scan scan = {.place = m->places[place], .line = line, .until_ms = KL_ID_MS_MAX};
    if (model_below(m, 2))
        scan.until_ms = model_now(m) + (int64_t)model_below(m, 200);
    for (size_t i = 0; i < m->count; i++) {
        struct model_task *task = &m->tasks[i];
        if (task->place == place && task->line == line && (line != KL_LINE_DUE || task->entry.due_ms <= scan.until_ms))
            expected[count++] = task;
    }
    qsort(expected, count, sizeof(struct model_task *), by_due);
    kl_stub *stubs = scan_pieces(m->t, &scan, 1 + model_below(m, 40), &shown);
    CHECK_INT(shown, count);
    for (size_t i = 0; i < shown && i < count; i++) {
        check_shown(m, expected[i], &stubs[i], line);
        CHECK(i == 0 || line == KL_LINE_DUE || stubs[i].position > stubs[i - 1].position);
    }
    free(expected);
}

static void add_task(kl_counts *counts, const struct model_task *task)
{
    counts->due += task->line == KL_LINE_DUE;
    counts->retry += task->line == KL_LINE_RETRY;
    counts->done += task->state == KL_TASK_DONE;
    counts->dead += task->state == KL_TASK_DEAD;
    counts->cancelled += task->state == KL_TASK_CANCELLED;
    if (task->line <= KL_PRIORITY_MAX) {
        counts->ready++;
        counts->priorities |= UINT32_C(1) << (task->line - KL_PRIORITY_MIN);
    }
}

static void compare_counts(const kl_counts *shown, const kl_counts *expected, bool finished)
{
    CHECK_INT(shown->ready, expected->ready);
    CHECK_INT(shown->due, expected->due);
    CHECK_INT(shown->retry, expected->retry);
    CHECK_INT(shown->priorities, expected->priorities);
    if (finished) {
        CHECK_INT(shown->done, expected->done);
        CHECK_INT(shown->dead, expected->dead);
        CHECK_INT(shown->cancelled, expected->cancelled);
    }
}

static void check_job(struct model *m, const kl_task_id *job)
{
    kl_counts expected[2] = {{0}};
    for (size_t i = 0; i < m->count; i++)
        if (m->tasks[i].line == NOWHERE && same_id(&m->tasks[i].entry.job, job))
            add_task(&expected[m->tasks[i].place < 3 ? 0 : 1], &m->tasks[i]);
    for (int i = 0; i < 2; i++) {
        kl_counts shown = job_counts_of(m->t, i == 0 ? m->t->orders : m->t->bills, job);
        compare_counts(&shown, &expected[i], true);
    }
}

void model_check_counts(struct model *m)
{
    kl_counts shards[MODEL_PLACES] = {{0}}, orders = {0}, bills = {0}, shown;
    for (size_t i = 0; i < m->count; i++) {
        add_task(&shards[m->tasks[i].place], &m->tasks[i]);
        add_task(m->tasks[i].place < 3 ? &orders : &bills, &m->tasks[i]);
    }
    for (int i = 0; i < MODEL_PLACES; i++) {
        shown = counts_of(m->t, m->places[i]);
        compare_counts(&shown, &shards[i], false);
    }
    shown = counts_of(m->t, whole(m->t->orders));
    compare_counts(&shown, &orders, true);
    shown = counts_of(m->t, whole(m->t->bills));
    compare_counts(&shown, &bills, true);
    for (int i = 0; i < MODEL_JOBS; i++)
        check_job(m, &m->jobs[i]);
}

/* ---- Tasks ---- */

static void compare_task(const struct model_task *expected, const kl_task *shown)
{
    CHECK_INT(shown->state, expected->state);
    if (shown->state == KL_TASK_UNKNOWN)
        return;
    CHECK_ENTRY(&shown->entry, &expected->entry);
    CHECK_INT(shown->attempts, expected->attempts);
    if (shown->state == KL_TASK_WAITING) {
        CHECK(expected->position == 0 || shown->position == expected->position);
        CHECK_INT(shown->not_before_ms, expected->not_before_ms);
        return;
    }
    if (subject.clocked)
        CHECK_INT(shown->finished_ms, expected->finished_ms);
    CHECK_BYTES(shown->error, kl_str(expected->error_count ? expected->errors[expected->error_count - 1] : NULL));
    CHECK_BYTES(shown->result, kl_str(expected->result));
}

void model_check_task(struct model *m, size_t number)
{
    struct model_task *task = &m->tasks[number];
    kl_task shown = read_one(m->t, m->places[task->place], &task->entry.id);
    compare_task(task, &shown);
    if (shown.state == KL_TASK_WAITING)
        task->position = shown.position;
}

/* ---- Finding ---- */

static int lower(int c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; }

static bool in_word(int c) { return (lower(c) >= 'a' && lower(c) <= 'z') || (c >= '0' && c <= '9') || c >= 0x80; }

/* The length of the word at text, 0 between words. */
static size_t word_at(const char *text)
{
    size_t length = 0;
    while (in_word((unsigned char)text[length]))
        length++;
    return length;
}

static bool has_word(const char *text, const char *word, size_t length)
{
    for (size_t here; *text; text += here ? here : 1) {
        here = word_at(text);
        size_t same = 0;
        while (here == length && same < length && lower(text[same]) == lower(word[same]))
            same++;
        if (here == length && same == length)
            return true;
    }
    return false;
}

static bool has_words(const char *text, const char *asked)
{
    for (size_t here; *asked; asked += here ? here : 1) {
        here = word_at(asked);
        if (here && !has_word(text, asked, here))
            return false;
    }
    return true;
}

static bool matches(const struct model *m, const struct model_task *task, const kl_find *find)
{
    if (task->state < KL_TASK_DONE || (find->state && task->state != find->state))
        return false;
    if (find->partition && m->places[task->place].partition != find->partition)
        return false;
    if ((find->key.len && !same_bytes(find->key, task->entry.key)) ||
        (find->kind.len && !same_bytes(find->kind, task->entry.kind)))
        return false;
    static const kl_task_id none;
    if (!same_id(&find->job, &none) && !same_id(&find->job, &task->entry.job))
        return false;
    if (task->finished_ms < find->from_ms || (find->until_ms && task->finished_ms >= find->until_ms))
        return false;
    for (int i = 0; find->words.len && i < task->error_count; i++)
        if (has_words(task->errors[i], find->words.data))
            return true;
    return !find->words.len;
}

static kl_find random_find(struct model *m)
{
    kl_find find = {.max = 1 + model_below(m, 200)};
    const struct model_task *like = m->count ? &m->tasks[model_below(m, m->count)] : NULL;
    if (!like)
        return find;
    if (model_below(m, 3) == 0)
        find.partition = m->places[like->place].partition;
    if (model_below(m, 3) == 0)
        find.state = KL_TASK_DONE + (int)model_below(m, 3);
    if (model_below(m, 4) == 0)
        find.key = like->entry.key;
    if (model_below(m, 4) == 0)
        find.kind = like->entry.kind;
    if (model_below(m, 4) == 0)
        find.job = like->entry.job;
    if (subject.clocked && like->finished_ms && model_below(m, 4) == 0)
        *(model_below(m, 2) ? &find.from_ms : &find.until_ms) = like->finished_ms;
    if (model_below(m, 3) == 0)
        find.words = kl_str(model_words(m));
    return find;
}

/* One page: each task is what the model says, is asked for, and was not on a page before. */
static void check_page(struct model *m, const kl_find *find, const kl_task *tasks, size_t count, bool *seen)
{
    for (size_t i = 0; i < count; i++) {
        char number[24] = "";
        kl_bytes payload = tasks[i].entry.payload;
        if (payload.len < sizeof number)
            memcpy(number, payload.data, payload.len);
        size_t at = strtoull(number, NULL, 10);
        REQUIRE(at < m->count);
        compare_task(&m->tasks[at], &tasks[i]);
        CHECK(!seen[at] && matches(m, &m->tasks[at], find));
        seen[at] = true;
        CHECK(i == 0 || tasks[i].finished_ms <= tasks[i - 1].finished_ms);
    }
}

void model_check_find(struct model *m)
{
    kl_find find = random_find(m);
    bool *seen = calloc(m->count + 1, sizeof *seen);
    kl_task *tasks = calloc(find.max, sizeof *tasks), last;
    size_t found = 0, count = 0, expected = 0;
    if (!seen || !tasks)
        abort();
    kl_arena arena = {0};
    do {
        CHECK_OK(kl_store_find(m->t->store, &find, &arena, tasks, &count));
        CHECK(count <= find.max);
        check_page(m, &find, tasks, count, seen);
        if (count) {
            CHECK(found == 0 || tasks[0].finished_ms <= last.finished_ms);
            last = tasks[count - 1];
            find.after = &last;
        }
        found += count;
    } while (count && !test_failed());
    for (size_t i = 0; i < m->count; i++)
        expected += matches(m, &m->tasks[i], &find);
    CHECK_INT(found, expected);
    kl_arena_free(&arena);
    free(seen);
    free(tasks);
}

void model_check_results(struct model *m, int place, int job)
{
    kl_task tasks[16];
    kl_task_id after = {{0}};
    size_t at = 0, count = 0, max = 1 + model_below(m, COUNT(tasks));
    kl_arena arena = {0};
    bool first = true;
    do {
        const kl_task_id *behind = first ? NULL : &after;
        CHECK_OK(kl_store_results(m->t->store, m->places[place], &m->jobs[job], behind, max, &arena, tasks, &count));
        for (size_t i = 0; i < count && i < max; i++, at++) {
            while (at < m->count && !(m->tasks[at].place == place && m->tasks[at].state >= KL_TASK_DONE &&
                                      same_id(&m->tasks[at].entry.job, &m->jobs[job])))
                at++; /* ids ascend with the array */
            CHECK(at < m->count);
            if (at < m->count)
                compare_task(&m->tasks[at], &tasks[i]);
            after = tasks[i].entry.id;
        }
        first = false;
    } while (count && !test_failed());
    for (; at < m->count; at++)
        CHECK(m->tasks[at].place != place || m->tasks[at].state < KL_TASK_DONE ||
              !same_id(&m->tasks[at].entry.job, &m->jobs[job]));
    kl_arena_free(&arena);
}

/* ---- Records ---- */

bool model_record_live(const struct model *m, const struct model_record *record)
{
    return record->there && (!record->expires_ms || record->expires_ms > model_now(m));
}

void model_record_version(struct model_record *record, uint64_t version)
{
    CHECK(version != 0);
    for (size_t i = 0; i < record->version_count; i++)
        CHECK(record->versions[i] != version);
    uint64_t *grown = realloc(record->versions, (record->version_count + 1) * sizeof *grown);
    if (!grown)
        abort();
    record->versions = grown;
    record->versions[record->version_count++] = version;
    record->version = version;
}

static void compare_record(const struct model_record *expected, const kl_record *shown)
{
    CHECK(shown->version == expected->version);
    CHECK_BYTES(shown->name, kl_str(expected->name));
    CHECK_BYTES(shown->value, kl_str(expected->value));
    CHECK_INT(shown->expires_ms, expected->expires_ms);
}

void model_check_get(struct model *m)
{
    kl_bytes names[MODEL_RECORDS];
    kl_record records[MODEL_RECORDS];
    kl_arena arena = {0};
    for (int i = 0; i < MODEL_RECORDS; i++)
        names[i] = kl_str(m->records[i].name);
    CHECK_OK(kl_store_get(m->t->store, names, MODEL_RECORDS, &arena, records));
    for (int i = 0; i < MODEL_RECORDS; i++) {
        if (model_record_live(m, &m->records[i]))
            compare_record(&m->records[i], &records[i]);
        else
            CHECK_INT(records[i].version, 0);
    }
    kl_arena_free(&arena);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct model_record *const *)a)->name, (*(struct model_record *const *)b)->name);
}

void model_check_list(struct model *m)
{
    static const char *const prefixes[] = {"", "queue/", "worker/1", "worker/", "x"};
    const char *prefix = prefixes[model_below(m, COUNT(prefixes))];
    struct model_record *expected[MODEL_RECORDS];
    kl_record records[MODEL_RECORDS + 1];
    kl_bytes after = {0};
    kl_arena arena = {0};
    size_t live = 0, at = 0, count = 0, max = 1 + model_below(m, MODEL_RECORDS);
    for (int i = 0; i < MODEL_RECORDS; i++)
        if (model_record_live(m, &m->records[i]) && strncmp(m->records[i].name, prefix, strlen(prefix)) == 0)
            expected[live++] = &m->records[i];
    qsort(expected, live, sizeof(struct model_record *), by_name);
    do {
        CHECK_OK(kl_store_list(m->t->store, kl_str(prefix), after, max, &arena, records, &count));
        for (size_t i = 0; i < count && i < max; i++, at++) {
            CHECK(at < live);
            if (at < live)
                compare_record(expected[at], &records[i]);
            after = records[i].name;
        }
    } while (count && !test_failed());
    CHECK_INT(at, live);
    kl_arena_free(&arena);
}

void model_check_all(struct model *m)
{
    for (int place = 0; place < MODEL_PLACES && !test_failed(); place++) {
        for (int32_t line = KL_PRIORITY_MIN; line <= KL_LINE_RETRY; line++)
            model_check_line(m, place, line);
        model_check_results(m, place, (int)model_below(m, MODEL_JOBS));
    }
    for (size_t i = m->count > 200 ? m->count - 200 : 0; i < m->count && !test_failed(); i++)
        model_check_task(m, i);
    model_check_counts(m);
    model_check_find(m);
    model_check_get(m);
    model_check_list(m);
    for (int place = 0; place < MODEL_PLACES; place++) {
        uint64_t epoch = m->fences[place];
        if (epoch > 0)
            CHECK_OK(fence(m->t, m->places[place], epoch));
        if (epoch > 1)
            CHECK_RC(fence(m->t, m->places[place], epoch - 1), KL_ESTALE);
        kl_entry late = make_entry(m->t, m->places[place], "k", "too late");
        if (m->seals[place])
            CHECK_RC(kl_store_append(m->t->store, &late, 1, NULL), KL_ESEALED);
    }
    kl_arena_reset(&m->t->arena);
}
