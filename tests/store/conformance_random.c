/* conformance_random.c - random operations on a store and on a naive model, which must go on to say the same.
 *
 * Once as the store is, and once with replies that are lost on the way (lossy.h): then each failed call is repeated
 * until it is answered, and neither a lost effect nor a double one may show (S5, S6). All operations are chosen by the
 * test's seed. */
#include <stdlib.h>

#include "store/conformance_model.h"
#include "store/lossy.h"

enum { SETTLE_MAX = 6, BATCHES_MAX = 3, WRITES_MAX = 4, FORGET_MAX = 8, CHECK_ALL_EVERY = 1000, SEALED_FROM = 4 };

/* ---- Calls that are repeated until they are answered ---- */

static kl_rc put_all(struct model *m, kl_write *writes, size_t count)
{
    kl_rc rc;
    do {
        rc = kl_store_put(m->store, writes, count);
    } while (rc == LOSSY_RC);
    return rc;
}

static kl_rc settle_all(struct model *m, kl_settle *batches, size_t count)
{
    kl_rc rc;
    do {
        rc = kl_store_settle(m->store, batches, count);
    } while (rc == LOSSY_RC);
    return rc;
}

struct reply {
    struct tally tally;
    kl_rc rc;
};

static void take_reply(void *ctx, kl_rc rc, const char *error)
{
    struct reply *reply = ctx;
    (void)error;
    reply->rc = rc;
    tally_add(&reply->tally, 1);
}

static kl_rc append_async_once(struct model *m, const kl_entry *entries, size_t count, const kl_token *token)
{
    struct reply reply = {.tally = TALLY, .rc = KL_EDEAD};
    kl_rc rc = kl_store_append_async(m->store, entries, count, token, take_reply, &reply);
    if (rc == KL_OK && tally_await(&reply.tally, 1))
        rc = reply.rc;
    return rc;
}

static kl_rc append_all(struct model *m, const kl_entry *entries, size_t count, const kl_token *token)
{
    bool waits = model_below(m, 8) > 0;
    kl_rc rc;
    do {
        rc = waits ? kl_store_append(m->store, entries, count, token) : append_async_once(m, entries, count, token);
    } while (rc == LOSSY_RC);
    return rc;
}

/* ---- Appending ---- */

/* Few of a place that is sealed, or nothing would be appended any more. */
static int choose_place(struct model *m)
{
    int place = (int)model_below(m, MODEL_PLACES);
    while (m->seals[place] && model_below(m, 16) > 0)
        place = (int)model_below(m, MODEL_PLACES);
    return place;
}

static kl_entry make_task(struct model *m)
{
    static const char *const keys[] = {NULL, "anna", "bert", "carl"}, *const kinds[] = {NULL, "mail", "print"};
    struct model_task *task = &m->tasks[m->count];
    task->place = choose_place(m);
    task->entry = make_entry(m->t, m->places[task->place], keys[model_below(m, 4)], NULL);
    snprintf(task->number, sizeof task->number, "%zu", m->count++);
    task->entry.payload = kl_str(task->number);
    task->entry.kind = kl_str(kinds[model_below(m, 3)]);
    task->entry.headers = kl_str(model_below(m, 2) ? "h" : NULL);
    if (model_below(m, 2))
        task->entry.group = (uint16_t)model_below(m, UINT16_MAX + 1);
    if (model_below(m, 3) == 0)
        task->entry.job = m->jobs[model_below(m, MODEL_JOBS)];
    if (model_below(m, 4) == 0)
        task->entry.priority = KL_PRIORITY_MIN + (int32_t)model_below(m, 32);
    if (model_below(m, 5) == 0)
        task->entry.due_ms = model_now(m) + (int64_t)model_below(m, 100);
    task->line = task->entry.due_ms ? KL_LINE_DUE : task->entry.priority;
    task->not_before_ms = task->entry.due_ms;
    task->state = KL_TASK_WAITING;
    return task->entry;
}

static void do_append(struct model *m)
{
    struct model_append new = {.count = 1 + model_below(m, MODEL_ENTRIES), .token = make_token()};
    if (m->count + new.count > m->room)
        return;
    bool sealed = false;
    for (size_t i = 0; i < new.count; i++) {
        new.entries[i] = make_task(m);
        sealed |= m->seals[m->tasks[m->count - 1].place];
    }
    bool named = m->lossy || model_below(m, 2);
    CHECK_RC(append_all(m, new.entries, new.count, named ? &new.token : NULL), sealed ? KL_ESEALED : KL_OK);
    if (sealed)
        m->count -= new.count; /* none of them */
    else if (named)
        m->appends[model_below(m, MODEL_APPENDS)] = new;
}

/* Whatever has become of its tasks meanwhile. */
static void repeat_append(struct model *m)
{
    const struct model_append *old = &m->appends[model_below(m, MODEL_APPENDS)];
    if (old->count)
        CHECK_OK(append_all(m, old->entries, old->count, &old->token));
}

/* ---- Settling ---- */

static kl_settled make_settled(struct model *m, struct model_task *task)
{
    static const kl_outcome outcomes[] = {KL_DONE, KL_DONE, KL_DONE, KL_DEAD, KL_CANCELLED, KL_RETRY, KL_RETRY};
    if (task->line != NOWHERE && task->position == 0)
        model_check_task(m, (size_t)(task - m->tasks));
    kl_settled settled = {.id = task->entry.id, .position = task->position ? task->position : 1};
    settled.outcome = outcomes[model_below(m, COUNT(outcomes))];
    if (task->attempts + 2 >= MODEL_ATTEMPTS)
        settled.outcome = KL_DEAD;
    settled.attempts = task->attempts + 1;
    settled.due_ms = settled.outcome == KL_RETRY && model_below(m, 2) ? model_now(m) + (int64_t)model_below(m, 100) : 0;
    settled.keep_ms = model_below(m, 5) < 2 ? KEEP_MS : 0;
    settled.error = kl_str(model_error(m));
    settled.result = kl_str(settled.outcome == KL_DONE && model_below(m, 2) ? "result" : NULL);
    return settled;
}

static struct model_task *task_of(struct model *m, const kl_task_id *id)
{
    size_t at = 0;
    while (!same_id(&m->tasks[at].entry.id, id))
        at++;
    return &m->tasks[at];
}

static void apply(struct model *m, const kl_settled *settled)
{
    struct model_task *task = task_of(m, &settled->id);
    if (task->line == NOWHERE)
        return;
    task->attempts = settled->attempts;
    if (settled->keep_ms && settled->error.len)
        task->errors[task->error_count++] = settled->error.data;
    if (settled->outcome == KL_RETRY) {
        task->line = KL_LINE_RETRY;
        task->not_before_ms = settled->due_ms;
        return;
    }
    task->line = NOWHERE;
    task->state = !settled->keep_ms             ? KL_TASK_UNKNOWN
                  : settled->outcome == KL_DONE ? KL_TASK_DONE
                  : settled->outcome == KL_DEAD ? KL_TASK_DEAD
                                                : KL_TASK_CANCELLED;
    task->finished_ms = model_now(m);
    task->result = settled->result.len ? settled->result.data : NULL;
}

/* Tasks of one place, mostly such as wait, each once. */
static size_t choose_tasks(struct model *m, int place, kl_settled *ret_tasks)
{
    size_t asked = 1 + model_below(m, SETTLE_MAX), count = 0;
    for (size_t i = 0; i < asked && m->count; i++) {
        struct model_task *task = model_waiting(m, place);
        if (!task || model_below(m, 8) == 0)
            task = &m->tasks[model_below(m, m->count)];
        bool fits = task->place == place;
        for (size_t j = 0; j < count; j++)
            fits = fits && !same_id(&ret_tasks[j].id, &task->entry.id);
        if (fits)
            ret_tasks[count++] = make_settled(m, task);
    }
    return count;
}

static kl_rc expected_rc(const struct model *m, const kl_settle *batch, int place)
{
    return batch->epoch < m->fences[place] ? KL_ESTALE : KL_OK;
}

static void do_settle(struct model *m)
{
    kl_settled tasks[BATCHES_MAX][SETTLE_MAX];
    kl_settle batches[BATCHES_MAX];
    int places[BATCHES_MAX], first_place = (int)model_below(m, MODEL_PLACES);
    size_t count = 1 + model_below(m, BATCHES_MAX);
    kl_rc first = KL_OK;
    for (size_t i = 0; i < count; i++) {
        places[i] = (first_place + (int)i * 2) % MODEL_PLACES;
        uint64_t fence = m->fences[places[i]], epoch = fence + model_below(m, 2);
        if (fence && model_below(m, 6) == 0)
            epoch = fence - 1;
        batches[i] = (kl_settle){m->places[places[i]], epoch, tasks[i], choose_tasks(m, places[i], tasks[i]), KL_EDEAD};
        if (first == KL_OK)
            first = expected_rc(m, &batches[i], places[i]);
    }
    bool repeats = model_below(m, 5) == 0;
    for (int repeat = 0; repeat <= (int)repeats; repeat++) {
        CHECK_RC(settle_all(m, batches, count), first);
        for (size_t i = 0; i < count; i++) {
            CHECK_INT(batches[i].rc, expected_rc(m, &batches[i], places[i]));
            for (size_t j = 0; repeat == 0 && batches[i].rc == KL_OK && j < batches[i].count; j++)
                apply(m, &tasks[i][j]);
        }
    }
}

static void do_fence(struct model *m)
{
    int place = (int)model_below(m, MODEL_PLACES);
    uint64_t epoch = m->fences[place] + model_below(m, 4);
    epoch = epoch > 1 ? epoch - 1 : 1;
    kl_fence one = {.place = m->places[place], .epoch = epoch};
    kl_rc rc;
    if (place >= SEALED_FROM && can(m->t, KL_STORE_SEAL) && model_below(m, 8) == 0) {
        one.seal = true;
        one.epoch = epoch = model_below(m, 2) ? epoch : 0;
    }
    do {
        rc = kl_store_fence(m->store, &one, 1);
    } while (rc == LOSSY_RC);
    CHECK_INT(rc, epoch < m->fences[place] && !one.seal ? KL_ESTALE : KL_OK);
    m->seals[place] |= one.seal;
    CHECK_INT(one.rc, rc);
    m->fences[place] = epoch > m->fences[place] ? epoch : m->fences[place];
}

static void do_forget(struct model *m)
{
    kl_task_id ids[FORGET_MAX];
    size_t count = 0;
    int place = (int)model_below(m, MODEL_PLACES);
    for (int i = 0; i < 4 * FORGET_MAX && m->count && count < FORGET_MAX; i++) {
        struct model_task *task = &m->tasks[model_below(m, m->count)];
        if (task->place != place)
            continue;
        ids[count++] = task->entry.id;
        if (task->line == NOWHERE)
            task->state = KL_TASK_UNKNOWN;
    }
    kl_rc rc;
    do {
        rc = kl_store_forget(m->store, m->places[place], ids, count);
    } while (rc == LOSSY_RC);
    CHECK_INT(rc, KL_OK);
}

/* ---- Records ---- */

/* A write and what must come of it. Values are unique, so that only a repeat can find its own. */
static kl_rc make_write(struct model *m, struct model_record *record, char value[32], kl_write *ret_write)
{
    bool live = model_record_live(m, record), wrong = live && model_below(m, 4) == 0;
    snprintf(value, 32, "value %" PRIu64, ++m->values);
    *ret_write = (kl_write){.name = kl_str(record->name), .version = live ? record->version : 0, .rc = KL_EDEAD};
    if (wrong)
        ret_write->version = model_below(m, 2) ? 0 : record->version + 1000000;
    if (model_below(m, 4) == 0) {
        ret_write->remove = true;
    } else {
        ret_write->value = kl_str(value);
        if (subject.clocked && model_below(m, 4) == 0)
            ret_write->expires_ms = model_now(m) + 1 + (int64_t)model_below(m, 100);
    }
    return wrong ? KL_ECONFLICT : KL_OK;
}

static void apply_write(struct model_record *record, const kl_write *write)
{
    record->there = !write->remove;
    if (write->remove) {
        CHECK_INT(write->new_version, 0);
        return;
    }
    snprintf(record->value, sizeof record->value, "%.*s", (int)write->value.len, (const char *)write->value.data);
    record->expires_ms = write->expires_ms;
    model_record_version(record, write->new_version);
}

static void do_put(struct model *m)
{
    kl_write writes[WRITES_MAX];
    struct model_record *records[WRITES_MAX];
    char values[WRITES_MAX][32];
    kl_rc expected[WRITES_MAX], first = KL_OK;
    size_t count = 1 + model_below(m, WRITES_MAX), from = model_below(m, MODEL_RECORDS);
    for (size_t i = 0; i < count; i++) {
        records[i] = &m->records[(from + i * 5) % MODEL_RECORDS];
        expected[i] = make_write(m, records[i], values[i], &writes[i]);
        first = first == KL_OK ? expected[i] : first;
    }
    bool repeats = model_below(m, 4) == 0;
    for (int repeat = 0; repeat <= (int)repeats; repeat++) {
        CHECK_RC(put_all(m, writes, count), first);
        for (size_t i = 0; i < count; i++) {
            CHECK_INT(writes[i].rc, expected[i]);
            if (writes[i].rc == KL_OK && repeat == 0)
                apply_write(records[i], &writes[i]);
            else if (writes[i].rc == KL_OK)
                CHECK(writes[i].new_version == (writes[i].remove ? 0 : records[i]->version));
        }
    }
}

/* ---- Everything ---- */

/* No record expires in the very moment that the clock shows then: whether it is gone is for the store to say. */
static void pass_time(struct model *m)
{
    int64_t now = model_now(m) + (int64_t)model_below(m, 30);
    for (int i = 0; i < MODEL_RECORDS; i++)
        if (m->records[i].expires_ms == now) {
            now++;
            i = -1;
        }
    atomic_store(&m->t->clock_ms, now);
}

static void check_something(struct model *m)
{
    switch (model_below(m, 32)) {
    case 0:
        model_check_find(m);
        break;
    case 1:
        model_check_results(m, (int)model_below(m, MODEL_PLACES), (int)model_below(m, MODEL_JOBS));
        break;
    case 2:
        model_check_list(m);
        break;
    case 3:
        model_check_counts(m);
        break;
    case 4:
    case 5:
        model_check_get(m);
        break;
    case 6:
    case 7:
    case 8:
        if (m->count)
            model_check_task(m, model_below(m, m->count));
        break;
    default:
        model_check_line(m, (int)model_below(m, MODEL_PLACES),
                         KL_PRIORITY_MIN + (int32_t)model_below(m, KL_LINE_RETRY - KL_PRIORITY_MIN + 1));
    }
}

static void do_something(struct model *m)
{
    uint64_t dice = model_below(m, 100);
    if (dice < 24)
        do_append(m);
    else if (dice < 28)
        repeat_append(m);
    else if (dice < 54)
        do_settle(m);
    else if (dice < 58)
        do_fence(m);
    else if (dice < 62)
        do_forget(m);
    else if (dice < 76)
        do_put(m);
    else if (dice < 80 && subject.clocked)
        pass_time(m);
    else
        check_something(m);
}

static void do_many_things(struct model *m, uint64_t operations)
{
    for (uint64_t i = 1; i <= operations && !test_failed(); i++) {
        do_something(m);
        if (i % CHECK_ALL_EVERY == 0)
            model_check_all(m);
        if (!m->lossy && model_below(m, 2000) == 0 && next_life(m->t)) {
            m->store = m->t->store;
            model_check_all(m);
        }
    }
}

CLAIM(random_operations_do_what_a_naive_model_says)
{
    struct model m;
    uint64_t operations = test_ops(20000);
    REQUIRE(model_open(&m, t, test_seed(), operations * 2));
    do_many_things(&m, operations);
    BOTH_LIVES(t)
    model_check_all(&m);
    model_close(&m);
}

CLAIM(calls_repeated_after_lost_replies_lose_nothing_and_double_nothing)
{
    struct model m;
    struct lossy lossy;
    uint64_t operations = test_ops(10000);
    uint32_t partition;
    REQUIRE(model_open(&m, t, test_seed(), operations * 2));
    REQUIRE(lossy_open(&lossy, t->store, test_seed() + 1, &m.store) == KL_OK);
    m.lossy = true;
    while (kl_store_partition(m.store, "orders", 1, &partition) == LOSSY_RC)
        ;
    CHECK_INT(partition, t->orders);
    while (kl_store_partition(m.store, "bills", 2, &partition) == LOSSY_RC)
        ;
    CHECK_INT(partition, t->bills);
    do_many_things(&m, operations);
    kl_store_close(m.store);
    if (operations >= 1000) /* fewer may lose none by chance */
        CHECK(atomic_load(&lossy.lost_replies) > 0 && atomic_load(&lossy.lost_requests) > 0);
    BOTH_LIVES(t)
    model_check_all(&m);
    model_close(&m);
}
