/* take_in.c - tasks that were left in the store by its own means become tasks of the queue.
 *
 * From: work/worker_inbox.c, and operators (work/control.c).  To: the store, which shows what was left and does the
 * rest in one step.
 *
 *     options (JSON) -> kl_put -> checked, placed, given ids as by any put -> appended, while they leave the inbox
 *
 * Nearly all that is shown goes in together. Two kinds of tasks go alone: one with a unique, which a record has to
 * decide about, and one whose partition lies in another store. Some of those that are shown go in a call, behind what
 * goes together: one by one through kl_queue_put, with their number as token, so that a repeat after a crash (within
 * the hour that tokens last) stores nothing twice. They hold up only their own keys: a task behind one of its key stays
 * until that is out.
 *
 * They stay in the inbox while they are put, with nothing of the inbox held: a put needs a connection, and all may be
 * held so. So another process may put them, too, and whichever has done so takes them out. For the same reason all stay
 * when it is first to be written that partitions were named (Q4 of inside.h): the next call takes them in.
 *
 * While another store is away, or fails otherwise, tasks for it stay, and those behind them are taken in. A store that
 * was found to be away is so until the call ends: else, when it comes back meanwhile, a later task of a key could pass
 * an earlier one.
 *
 * A task goes to the partition that it names, unless the layout has none of that name: it had when the task was put; or
 * the layout is out of date, and then the append is refused as sealed and the next try knows better. Else a task
 * without a key goes to the partition that its number says. A store that cannot append and take out in one step (S3)
 * may show a task twice, to two workers at once or after a crash: then both put it into the same partition, which knows
 * it.
 *
 * What put() in SQL lets through is a valid task; should one be refused all the same, it is set aside with the
 * sentence. */
#include <poll.h>
#include <stdio.h>

#include "base/wait.h"
#include "queue/json.h"
#include "queue/put.h"
#include "store/quick.h"

enum { TAKE_MAX = 8000, ALONE_MAX = 32, WHY_BYTES = 512, AWAY_MAX = 2 * KL_QUEUE_STORES_MAX };

/* A set of keys, by their hashes: so many bits that all that are shown leave seven eighths of them free. */
enum { KEYS_BITS = 1 << 16 };

struct keys {
    uint64_t words[KEYS_BITS / 64];
};

/* One that goes alone: a copy, in the arena. */
struct alone {
    kl_handed handed;
    kl_store *store; /* its partition's */
    size_t place;    /* among those that were shown */
};

struct taking {
    kl_queue *queue;
    kl_log_fn *log;
    void *log_ctx;
    kl_arena arena;    /* of options */
    kl__put_call call; /* what is being appended */
    bool begun, moved; /* moved: some were taken in */
    char why[WHY_BYTES];
    size_t together_count;         /* that were chosen to go so */
    struct alone alone[ALONE_MAX]; /* the first that are to go so */
    size_t alone_count;
    struct keys leading; /* of which some go alone, */
    struct keys behind;  /* and of those, some wait that do not */
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

static bool goes_alone(const struct taking *taking, const kl_put *task, size_t i)
{
    return task->unique.len > 0 || store_of(taking, i) != taking->queue->store;
}

/* Those without a key wait for nobody. */
static bool has_key(const struct keys *keys, kl_bytes key)
{
    uint64_t bit = key.len > 0 ? kl__hash_local(key) % KEYS_BITS : 0;
    return key.len > 0 && keys->words[bit / 64] >> bit % 64 & 1;
}

static void add_key(struct keys *keys, kl_bytes key)
{
    uint64_t bit = key.len > 0 ? kl__hash_local(key) % KEYS_BITS : 0;
    if (key.len > 0)
        keys->words[bit / 64] |= UINT64_C(1) << bit % 64;
}

static kl_rc keep_alone(struct taking *taking, const kl_handed *handed, size_t place)
{
    kl_handed copy = {.number = handed->number};
    if (!kl_arena_copy(&taking->arena, handed->key, &copy.key) ||
        !kl_arena_copy(&taking->arena, handed->kind, &copy.kind) ||
        !kl_arena_copy(&taking->arena, handed->payload, &copy.payload) ||
        !kl_arena_copy(&taking->arena, handed->options, &copy.options))
        return kl__fail_memory();
    taking->alone[taking->alone_count++] = (struct alone){copy, store_of(taking, place), place};
    return KL_OK;
}

/* The places of tasks that go in together; some of those that go alone are kept. */
static kl_rc part(struct taking *taking, const kl_handed *handed, const kl_put *tasks, size_t count, size_t *which,
                  size_t *ret_chosen)
{
    size_t chosen = 0;
    kl_rc rc = KL_OK;
    memset(&taking->leading, 0, sizeof taking->leading);
    memset(&taking->behind, 0, sizeof taking->behind);
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        if (is_away(taking, store_of(taking, i)))
            continue;
        kl_bytes key = tasks[i].key;
        if (goes_alone(taking, &tasks[i], i)) {
            add_key(&taking->leading, key);
            if (taking->alone_count < ALONE_MAX && !has_key(&taking->behind, key))
                rc = keep_alone(taking, &handed[i], i);
        } else if (has_key(&taking->leading, key)) {
            add_key(&taking->behind, key);
        } else {
            which[chosen++] = i;
        }
    }
    *ret_chosen = taking->together_count = chosen;
    return rc;
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

static kl_rc choose(struct taking *taking, const kl_handed *handed, const kl_put *tasks, size_t count,
                    kl_taken *ret_taken)
{
    size_t *which = kl_arena_alloc(&taking->arena, count * sizeof *which), chosen;
    if (!which)
        return kl__fail_memory();
    kl_rc rc = part(taking, handed, tasks, count, which, &chosen);
    if (rc == KL_OK && chosen > 0)
        return take_together(taking, which, chosen, ret_taken);
    if (rc == KL_OK && taking->alone_count == 0)
        return kl__fail(KL_EBUSY, "%s", taking->away_why);
    return rc;
}

/* A fault of one among several is found out by halves: what stands before it goes in together, and then it alone. */
static kl_rc place(struct taking *taking, const kl_handed *handed, const kl_put *tasks, size_t count,
                   kl_taken *ret_taken)
{
    taking->begun = true;
    kl_rc rc = kl__put_begin_handed(&taking->call, taking->queue, handed, tasks, count);
    taking->call.marks_later = true;
    if (rc == KL_OK)
        rc = kl__put_route_tasks(&taking->call, (kl__put_range){0, count}, false);
    if (is_bad(rc) && count > 1) {
        kl__put_end(&taking->call);
        return place(taking, handed, tasks, count / 2, ret_taken);
    }
    if (is_bad(rc))
        return set_aside(taking, handed, ret_taken);
    if (rc != KL_OK || taking->call.unmarked)
        return rc;
    return choose(taking, handed, tasks, count, ret_taken);
}

static void forget(struct taking *taking)
{
    if (taking->begun)
        kl__put_end(&taking->call);
    taking->begun = false;
    taking->alone_count = taking->together_count = 0;
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

/* --- One by one --- */

struct leaving {
    struct taking *taking;
    uint64_t numbers[ALONE_MAX]; /* ascending */
    size_t count, max;           /* so many have to be shown, to see them all */
    size_t found;                /* when it was last tried */
    const char *refused;
    size_t places[ALONE_MAX];
};

/* Some may be gone: another process has put them, too. */
static kl_rc take_out(void *ctx, const kl_handed *handed, size_t count, kl_taken *ret_taken)
{
    struct leaving *leaving = ctx;
    size_t found = 0;
    leaving->found = 0;
    for (size_t i = 0, next = 0; i < count && next < leaving->count; i++) {
        while (next < leaving->count && leaving->numbers[next] < handed[i].number)
            next++;
        if (next < leaving->count && leaving->numbers[next] == handed[i].number)
            leaving->places[found++] = i;
    }
    leaving->found = found;
    *ret_taken = (kl_taken){.count = found, .which = leaving->places, .refused = leaving->refused};
    return KL_OK;
}

static kl_rc leave(struct leaving *leaving)
{
    const kl_queue *queue = leaving->taking->queue;
    size_t count = 0;
    kl_rc rc = KL_OK;
    if (leaving->count > 0)
        rc = kl_store_take_in(queue->store, queue->name, 0, leaving->max, take_out, leaving, &count);
    leaving->taking->moved |= rc == KL_OK && count > 0 && leaving->found > 0;
    leaving->count = 0;
    return rc;
}

static void add_leaving(struct leaving *leaving, const struct alone *alone)
{
    leaving->numbers[leaving->count++] = alone->handed.number;
    leaving->max = alone->place + 1;
}

static kl_rc refuse(struct leaving *leaving, const struct alone *alone)
{
    kl_taken taken;
    kl_rc rc = set_aside(leaving->taking, &alone->handed, &taken);
    if (rc == KL_OK)
        rc = leave(leaving); /* those before it, which are not refused */
    if (rc != KL_OK)
        return rc;
    leaving->refused = taken.refused;
    add_leaving(leaving, alone);
    rc = leave(leaving);
    leaving->refused = NULL;
    return rc;
}

/* The store is asked first: what fails then is not the task's fault. */
static kl_rc ask(const struct taking *taking, kl_store *store)
{
    int64_t now_ms;
    return store == taking->queue->store ? KL_OK : kl_store_now(store, &now_ms);
}

/* The token is the row: two databases may have a number in common, but not a queue's record. */
static kl_rc put_alone(struct taking *taking, const struct alone *alone)
{
    kl_put task;
    char token[64];
    snprintf(token, sizeof token, "inbox/%llu", (unsigned long long)alone->handed.number);
    kl_rc rc = read_task(taking, &alone->handed, &task);
    return rc == KL_OK ? kl__queue_put_handed(taking->queue, &alone->handed, &task, kl_str(token)) : rc;
}

/* What is behind one that could not be put, and needs the same store, stays behind it. A row that somebody changed
 * after it was put does not fit its token any more. */
static kl_rc take_alone(struct taking *taking)
{
    struct leaving leaving = {.taking = taking};
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && i < taking->alone_count; i++) {
        const struct alone *alone = &taking->alone[i];
        if (is_away(taking, alone->store))
            continue;
        kl_rc asked = ask(taking, alone->store);
        rc = asked == KL_OK ? put_alone(taking, alone) : asked;
        if (rc == KL_OK)
            add_leaving(&leaving, alone);
        else if (asked == KL_OK && (is_bad(rc) || rc == KL_EMISMATCH))
            rc = refuse(&leaving, alone);
        else if (rc != KL_ESEALED && note_away(taking, alone->store))
            rc = KL_OK;
    }
    kl_rc left = leave(&leaving); /* what was put, whatever came then */
    return rc != KL_OK ? rc : left;
}

/* Again when all that was to go alone needs stores that are away: what needs others may stand behind it. */
static kl_rc take_next(struct taking *taking, int64_t wait_ms, size_t *ret_count)
{
    const kl_queue *queue = taking->queue;
    size_t away, count = 0;
    kl_rc rc;
    do {
        away = taking->away_count;
        count = 0;
        rc = kl_store_take_in(queue->store, queue->name, wait_ms, TAKE_MAX, take, taking, &count);
        if (count == 0)
            forget(taking); /* what was chosen came to nothing, and then somebody else was at it */
        taking->moved |= rc == KL_OK && taking->together_count > 0;
        if (rc == KL_OK && taking->begun && taking->call.unmarked)
            rc = kl__put_mark(&taking->call);
        if (rc == KL_OK && taking->alone_count > 0)
            rc = take_alone(taking);
        forget(taking);
        wait_ms = 0;
    } while (rc == KL_OK && taking->away_count > away);
    if (rc == KL_EBUSY && taking->moved) /* the next call tells */
        rc = KL_OK;
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
kl_rc kl__queue_take_in_all(kl_queue *queue, int64_t wait_ms)
{
    enum { TRIES_MAX = 200, PAUSE_MS = 20 };
    size_t count = 0;
    uint64_t left = 0;
    int64_t until_ns = kl__deadline_ns(wait_ms);
    kl_rc rc = kl__store_left(queue->store, queue->name, &left);
    for (int tries = 0; rc == KL_OK && left > 0 && tries < TRIES_MAX; tries += count == 0) {
        rc = kl__queue_take_in(queue, 0, NULL, NULL, &count);
        if (rc == KL_OK && count == 0)
            poll(NULL, 0, PAUSE_MS);
        if (rc == KL_OK)
            rc = kl__store_left(queue->store, queue->name, &left);
        if (rc == KL_OK && left > 0 && kl__monotonic_ns() >= until_ns)
            rc = kl__fail(KL_ETIMEDOUT,
                          "%llu tasks that were put in SQL are still to be taken in after %lld s; call again, or run a "
                          "worker of the queue %s, which does it, too",
                          (unsigned long long)left, (long long)(wait_ms / 1000), queue->name);
    }
    return rc;
}
