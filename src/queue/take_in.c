/* take_in.c - tasks that were left in the store by its own means become tasks of the queue.
 *
 * From: work/worker_inbox.c, and operators (work/control.c).  To: the store, which shows what was left and does the
 * rest in one step.
 *
 *     options (JSON) -> kl_put -> checked, placed, given ids as by any put -> appended, while they leave the inbox
 *
 * A run of tasks goes in together. Two kinds cannot: a task with a unique, which a record has to decide about, and one
 * whose partition lies in another store. They end the run before them, and then go one by one through kl_queue_put,
 * with their number as token, so that a repeat after a crash (within the hour that tokens last) stores nothing twice. One
 * stays in the inbox while it is put, with nothing of the inbox held: a put needs a connection, and all may be held so. So
 * another process may put it, too, and whichever has done so takes it out: no later task of its key is taken in before.
 *
 * While another store is away, tasks for it stay, and those behind them are taken in. A store that was found to be away
 * is so until the call ends: else, when it comes back meanwhile, a later task of a key could pass an earlier one.
 *
 * A task goes to the partition that it names, unless the layout has none of that name: it had when the task was put; or
 * the layout is out of date, and then the append is refused as sealed and the next try knows better. Else a task without
 * a key goes to the partition that its number says. A store that cannot append and take out in one step
 * (S3) may show a task twice, to two workers at once or after a crash: then both put it into the same partition, which
 * knows it.
 *
 * What put() in SQL lets through is a valid task; should one be refused all the same, it is set aside with the
 * sentence. */
#include <poll.h>
#include <stdio.h>

#include "queue/json.h"
#include "queue/put.h"
#include "store/quick.h"

enum { TAKE_MAX = 8000, WHY_BYTES = 512, AWAY_MAX = 2 * KL_QUEUE_STORES_MAX };

struct taking {
    kl_queue *queue;
    kl_log_fn *log;
    void *log_ctx;
    kl_arena arena;    /* of options */
    kl__put_call call; /* what is being appended */
    bool begun;
    char why[WHY_BYTES];
    const kl_handed *alone; /* it is to go alone; a copy, in the arena; NULL: none is */
    size_t alone_place;     /* among those that were shown */
    kl_store *alone_store;  /* its partition's */
    const kl_store *away[AWAY_MAX];
    size_t away_count;
    char away_why[WHY_BYTES]; /* of the last of them */
};

/* --- Options --- */

static kl_rc read_headers(kl__json *from, kl_arena *arena, kl_put *task)
{
    if (!kl__json_has(from, "headers"))
        return KL_OK;
    json_t *object = json_object_get(from->object, "headers");
    kl_header *headers = kl_arena_alloc(arena, (json_object_size(object) + 1) * sizeof *headers);
    size_t count = 0;
    const char *name;
    json_t *value;
    if (!headers)
        return kl__fail_memory();
    json_object_foreach(object, name, value)
    {
        if (!kl_arena_copy(arena, kl_str(name), &headers[count].name))
            return kl__fail_memory();
        headers[count++].value = kl__json_bytes_of(from, value, name, arena);
    }
    task->headers = headers;
    task->header_count = count;
    return KL_OK;
}

static kl_rc read_tags(kl__json *from, kl_arena *arena, kl_put *task)
{
    json_t *array = kl__json_has(from, "tags") ? kl__json_array_of(from, "tags", KL_TAGS_MAX) : NULL;
    size_t count = array ? json_array_size(array) : 0;
    kl_bytes *tags = kl_arena_alloc(arena, (count + 1) * sizeof *tags);
    if (!tags)
        return kl__fail_memory();
    for (size_t i = 0; i < count; i++)
        tags[i] = kl__json_bytes_of(from, json_array_get(array, i), "tags", arena);
    task->tags = tags;
    task->tag_count = count;
    return KL_OK;
}

/* NULL: it names none. */
static kl_rc read_partition(kl__json *from, kl_arena *arena, kl_put *task)
{
    kl_bytes name = kl__json_bytes_or(from, "partition", arena, (kl_bytes){"", 0});
    char *text = name.len > 0 ? kl_arena_alloc(arena, name.len + 1) : NULL;
    if (name.len > 0 && !text)
        return kl__fail_memory();
    if (text) {
        memcpy(text, name.data, name.len);
        text[name.len] = '\0';
    }
    task->partition = text;
    return KL_OK;
}

static kl_rc read_options(kl_bytes options, kl_arena *arena, kl_put *task)
{
    kl__json from;
    kl_bytes none = {"", 0};
    kl_rc rc = kl__json_parse(options, "the options of a task in the inbox", &from);
    if (rc != KL_OK)
        return rc;
    task->priority = kl__json_int_or(&from, "priority", KL_PRIORITY_MIN, KL_PRIORITY_MAX, 0);
    task->due_ms = kl__json_int_or(&from, "due_ms", 0, KL_ID_MS_MAX, 0);
    task->attempts_max = kl__json_int_or(&from, "attempts_max", 0, KL_ATTEMPTS_MAX, 0);
    task->timeout_ms = kl__json_int_or(&from, "timeout_ms", 0, KL_ID_MS_MAX, 0);
    task->unique_ms = kl__json_int_or(&from, "unique_ms", 0, KL_ID_MS_MAX, 0);
    task->keep_ms = kl__json_int_or(&from, "keep_ms", 0, KL_ID_MS_MAX, 0);
    task->unique = kl__json_bytes_or(&from, "unique", arena, none);
    task->group = kl__json_bytes_or(&from, "group", arena, none);
    task->traceparent = kl__json_bytes_or(&from, "traceparent", arena, none);
    rc = read_headers(&from, arena, task);
    if (rc == KL_OK)
        rc = read_tags(&from, arena, task);
    if (rc == KL_OK)
        rc = read_partition(&from, arena, task);
    if (rc == KL_OK)
        rc = from.rc;
    kl__json_free(&from);
    return rc;
}

static kl_rc read_task(struct taking *taking, const kl_handed *handed, kl_put *ret_task)
{
    *ret_task = (kl_put){.key = handed->key, .kind = handed->kind, .payload = handed->payload};
    return handed->options.len > 0 ? read_options(handed->options, &taking->arena, ret_task) : KL_OK;
}

/* --- What becomes of them --- */

/* Its fault, and not that of the store or of memory. */
static bool is_bad(kl_rc rc) { return rc == KL_EINVAL || rc == KL_EDAMAGED; }

static kl_rc set_aside(struct taking *taking, const kl_handed *handed, kl_taken *ret_taken)
{
    char text[WHY_BYTES + 128];
    snprintf(taking->why, sizeof taking->why, "%s", kl_error_text());
    snprintf(text, sizeof text, "queue %s: task %llu of the inbox is refused and stays there: %s", taking->queue->name,
             (unsigned long long)handed->number, taking->why);
    if (taking->log)
        taking->log(taking->log_ctx, KL_LOG_ERROR, text);
    *ret_taken = (kl_taken){.count = 1, .refused = taking->why};
    return KL_OK;
}

/* The token is the row: two databases may have a number in common, but not a queue's record. A row that somebody changed
 * after it was put does not fit its token any more. */
static kl_rc put_alone(struct taking *taking, const kl_handed *handed, const kl_put *task, kl_taken *ret_taken)
{
    char token[64];
    snprintf(token, sizeof token, "inbox/%llu", (unsigned long long)handed->number);
    kl_rc rc = kl__queue_put_handed(taking->queue, handed, task, kl_str(token));
    if (is_bad(rc) || rc == KL_EMISMATCH)
        return set_aside(taking, handed, ret_taken);
    if (rc == KL_OK)
        *ret_taken = (kl_taken){.count = 1};
    return rc;
}

static kl_store *store_of(const struct taking *taking, size_t i)
{
    return taking->call.stores[taking->call.ways[i].store].store;
}

static bool is_away(const struct taking *taking, const kl_store *store)
{
    for (size_t i = 0; i < taking->away_count; i++)
        if (taking->away[i] == store)
            return true;
    return false;
}

/* False: there are too many, and the task holds up what is behind it. */
static bool note_away(struct taking *taking, const kl_store *store)
{
    if (store == taking->queue->store || taking->away_count == AWAY_MAX)
        return false;
    snprintf(taking->away_why, sizeof taking->away_why, "%s", kl_error_text());
    taking->away[taking->away_count++] = store;
    return true;
}

/* The places of tasks that can go in together, past those whose store is away; *ret_end: of the first that ends the
 * run. */
static size_t together(const struct taking *taking, const kl_put *tasks, size_t count, size_t *which, size_t *ret_end)
{
    size_t chosen = 0, i = 0;
    for (; i < count; i++) {
        const kl_store *store = store_of(taking, i);
        if (is_away(taking, store))
            continue;
        if (tasks[i].unique.len > 0 || store != taking->queue->store)
            break;
        which[chosen++] = i;
    }
    *ret_end = i;
    return chosen;
}

static kl_rc take_together(struct taking *taking, const size_t *which, size_t count, kl_taken *ret_taken)
{
    const kl_entry *all = taking->call.entries;
    *ret_taken = (kl_taken){.count = count, .entries = all, .entry_count = count};
    if (which[count - 1] == count - 1) /* there is no gap */
        return KL_OK;
    kl_entry *entries = kl_arena_alloc(&taking->arena, count * sizeof *entries);
    if (!entries)
        return kl__fail_memory();
    for (size_t i = 0; i < count; i++)
        entries[i] = all[which[i]];
    ret_taken->entries = entries;
    ret_taken->which = which;
    return KL_OK;
}

static kl_rc keep_alone(struct taking *taking, const kl_handed *handed, size_t place)
{
    kl_handed *copy = kl_arena_alloc(&taking->arena, sizeof *copy);
    if (!copy)
        return kl__fail_memory();
    *copy = (kl_handed){.number = handed->number};
    if (!kl_arena_copy(&taking->arena, handed->key, &copy->key) ||
        !kl_arena_copy(&taking->arena, handed->kind, &copy->kind) ||
        !kl_arena_copy(&taking->arena, handed->payload, &copy->payload) ||
        !kl_arena_copy(&taking->arena, handed->options, &copy->options))
        return kl__fail_memory();
    taking->alone = copy;
    taking->alone_place = place;
    taking->alone_store = store_of(taking, place);
    return KL_OK;
}

static kl_rc choose(struct taking *taking, const kl_handed *handed, const kl_put *tasks, size_t count,
                    kl_taken *ret_taken)
{
    size_t *which = kl_arena_alloc(&taking->arena, count * sizeof *which), end;
    if (!which)
        return kl__fail_memory();
    size_t chosen = together(taking, tasks, count, which, &end);
    if (chosen > 0)
        return take_together(taking, which, chosen, ret_taken);
    if (end == count)
        return kl__fail(KL_EBUSY, "%s", taking->away_why);
    return keep_alone(taking, &handed[end], end);
}

/* A fault of one among several is found out by halves: what stands before it goes in together, and then it alone. */
static kl_rc place(struct taking *taking, const kl_handed *handed, const kl_put *tasks, size_t count,
                   kl_taken *ret_taken)
{
    taking->begun = true;
    kl_rc rc = kl__put_begin_handed(&taking->call, taking->queue, handed, tasks, count);
    if (rc == KL_OK)
        rc = kl__put_route_tasks(&taking->call, (kl__put_range){0, count}, false);
    if (is_bad(rc) && count > 1) {
        kl__put_end(&taking->call);
        return place(taking, handed, tasks, count / 2, ret_taken);
    }
    if (is_bad(rc))
        return set_aside(taking, handed, ret_taken);
    if (rc != KL_OK)
        return rc;
    return choose(taking, handed, tasks, count, ret_taken);
}

static void forget(struct taking *taking)
{
    if (taking->begun)
        kl__put_end(&taking->call);
    taking->begun = false;
    taking->alone = NULL;
    kl_arena_reset(&taking->arena);
}

static kl_rc take(void *ctx, const kl_handed *handed, size_t count, kl_taken *ret_taken)
{
    struct taking *taking = ctx;
    forget(taking);
    kl_put *tasks = kl_arena_alloc(&taking->arena, count * sizeof *tasks);
    size_t good = 0;
    kl_rc rc = tasks ? KL_OK : kl__fail_memory();
    while (rc == KL_OK && good < count && (rc = read_task(taking, &handed[good], &tasks[good])) == KL_OK)
        good++;
    if (is_bad(rc) && good == 0)
        return set_aside(taking, handed, ret_taken);
    if (rc != KL_OK && !is_bad(rc))
        return rc;
    return place(taking, handed, tasks, good, ret_taken);
}

/* --- One alone --- */

struct leaving {
    uint64_t number;
    kl_taken taken;
    size_t place;
};

/* It may be gone: another process has put it, too. */
static kl_rc take_out(void *ctx, const kl_handed *handed, size_t count, kl_taken *ret_taken)
{
    struct leaving *leaving = ctx;
    size_t i = 0;
    while (i < count && handed[i].number != leaving->number)
        i++;
    if (i == count)
        return KL_OK;
    leaving->place = i;
    *ret_taken = leaving->taken;
    ret_taken->which = &leaving->place;
    return KL_OK;
}

static kl_rc put_there(struct taking *taking, kl_taken *ret_taken)
{
    int64_t now_ms;
    kl_put task;
    kl_store *store = taking->alone_store;
    kl_rc rc = store == taking->queue->store ? KL_OK : kl_store_now(store, &now_ms);
    if (rc == KL_OK)
        rc = read_task(taking, taking->alone, &task);
    return rc == KL_OK ? put_alone(taking, taking->alone, &task, ret_taken) : rc;
}

/* *ret_again: its store is away, and tasks for others may go on. */
static kl_rc take_alone(struct taking *taking, bool *ret_again)
{
    struct leaving leaving = {.number = taking->alone->number};
    const kl_queue *queue = taking->queue;
    size_t count, max = taking->alone_place + 1;
    kl_rc rc = put_there(taking, &leaving.taken);
    *ret_again = rc == KL_EBUSY && note_away(taking, taking->alone_store);
    return rc == KL_OK ? kl_store_take_in(queue->store, queue->name, 0, max, take_out, &leaving, &count) : rc;
}

static kl_rc take_next(struct taking *taking, int64_t wait_ms, size_t *ret_count)
{
    const kl_queue *queue = taking->queue;
    size_t count = 0;
    kl_rc rc;
    for (bool again = true; again; wait_ms = 0) {
        again = false;
        rc = kl_store_take_in(queue->store, queue->name, wait_ms, TAKE_MAX, take, taking, &count);
        if (rc == KL_OK && taking->alone)
            rc = take_alone(taking, &again);
        forget(taking);
    }
    if (rc == KL_OK)
        *ret_count = count;
    return rc;
}

kl_rc kl__queue_take_in(kl_queue *queue, int64_t wait_ms, kl_log_fn *log, void *log_ctx, size_t *ret_count)
{
    struct taking *taking = kl__alloc_zeroed(1, sizeof *taking);
    kl_rc rc = KL_ESEALED;
    if (!taking)
        return kl__fail_memory();
    taking->queue = queue;
    taking->log = log;
    taking->log_ctx = log_ctx;
    for (int tries = 0; rc == KL_ESEALED && tries < KL_PUT_LAYOUT_TRIES; tries++) {
        rc = take_next(taking, tries == 0 ? wait_ms : 0, ret_count);
        if (rc == KL_ESEALED) {
            kl_rc sealed = kl__queue_seal(queue);
            rc = sealed == KL_OK ? rc : sealed;
        }
    }
    kl_arena_free(&taking->arena);
    kl__free(taking);
    return rc;
}

/* Of several who take in, one does at a time and the others are shown nothing, so it counts what is left. */
kl_rc kl__queue_take_in_all(kl_queue *queue)
{
    enum { TRIES_MAX = 200, PAUSE_MS = 20 };
    size_t count = 0;
    uint64_t left = 0;
    kl_rc rc = kl__store_left(queue->store, queue->name, &left);
    for (int tries = 0; rc == KL_OK && left > 0 && tries < TRIES_MAX; tries += count == 0) {
        rc = kl__queue_take_in(queue, 0, NULL, NULL, &count);
        if (rc == KL_OK && count == 0)
            poll(NULL, 0, PAUSE_MS);
        if (rc == KL_OK)
            rc = kl__store_left(queue->store, queue->name, &left);
    }
    return rc;
}
