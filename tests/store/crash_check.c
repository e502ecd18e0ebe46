/* crash_check.c - opens what a killed process left, and holds it against the ledger; see crash.h for C1 to C8. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crash.h"
#include "store/calls.h"

enum { SEGMENT_BYTES = 256 << 10, PAGE_MAX = 512, KEPT_MAX = 1000 };

/* What the store shows of a slot. */
struct seen {
    uint64_t position;
    uint8_t is_waiting, attempts, kept;
    bool is_there; /* waiting now, or it must have been when its settle was attempted */
};

struct check {
    struct crash_ledger *ledger;
    kl_store *store;
    struct seen *seen; /* by slot */
    char *rooms;       /* of CRASH_CALL_MAX entries */
    kl_arena arenas[2];
    uint64_t waiting, kept;
    bool failed;
    char *why;
};

static void fail(struct check *check, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (!check->failed)
        vsnprintf(check->why, CRASH_TEXT_BYTES, format, arguments);
    check->failed = true;
    va_end(arguments);
}

static bool ok(struct check *check, kl_rc rc, const char *what)
{
    if (rc != KL_OK)
        fail(check, "%s: %s", what, kl_error_text());
    return rc == KL_OK;
}

kl_rc crash_open(const char *dir, kl_store **ret_store)
{
    char url[WORKDIR_BYTES + 16];
    kl_store_opts opts = {.size = sizeof opts, .segment_bytes = SEGMENT_BYTES};
    snprintf(url, sizeof url, "disk:%s", dir);
    return kl_store_open(url, &opts, ret_store);
}

static bool is_same(kl_bytes a, kl_bytes b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* The ledger's task of an id. NULL: nobody ever appended that (C3). */
static struct crash_task *task_of(struct check *check, const kl_task_id *id, const char *where)
{
    uint64_t serial = crash_serial(id);
    struct crash_task *task = &check->ledger->tasks[serial % CRASH_SLOTS];
    if (task->serial == serial && serial != 0 && atomic_load(&task->appended) != CRASH_NONE)
        return task;
    fail(check, "C3: %s shows task %llu, which nobody appended, or which is gone", where, (unsigned long long)serial);
    return NULL;
}

static struct seen *seen_of(struct check *check, const struct crash_task *task)
{
    return &check->seen[task->serial % CRASH_SLOTS];
}

/* ---- Tokens ---- */

static void repeat(struct check *check, const struct crash_call *call)
{
    kl_entry entries[CRASH_CALL_MAX];
    kl_token token = crash_token(call->serials[0]);
    for (uint32_t i = 0; i < call->count; i++)
        crash_entry(check->ledger, call->serials[i], check->rooms + (size_t)i * CRASH_ENTRY_BYTES, &entries[i]);
    ok(check, kl_store_append(check->store, entries, call->count, &token), "C8: a repeated append");
}

/* Before anything is looked at, so that whatever it stores twice is found (C8). */
static void repeat_all(struct check *check)
{
    struct crash_ledger *ledger = check->ledger;
    for (int i = 0; i < CRASH_PRODUCERS; i++) {
        struct crash_call *told = &ledger->told[i], *telling = &ledger->telling[i];
        if (atomic_load(&told->state) == CRASH_ACKNOWLEDGED)
            repeat(check, told);
        if (atomic_load(&telling->state) != CRASH_ATTEMPTED)
            continue;
        repeat(check, telling);
        for (uint32_t j = 0; j < telling->count; j++)
            atomic_store(&ledger->tasks[telling->serials[j] % CRASH_SLOTS].appended, CRASH_ACKNOWLEDGED);
        *told = *telling;
        atomic_store(&told->state, CRASH_ACKNOWLEDGED);
        atomic_store(&telling->state, CRASH_NONE);
    }
}

/* ---- What waits ---- */

static bool is_in_order(const kl_stub *before, const kl_stub *stub, bool by_due)
{
    if (by_due && before->due_ms != stub->due_ms)
        return before->due_ms < stub->due_ms;
    return before->position < stub->position;
}

static void see_stub(struct check *check, const kl_stub *stub)
{
    struct crash_task *task = task_of(check, &stub->id, "scan");
    if (!task)
        return;
    struct seen *seen = seen_of(check, task);
    if (seen->is_waiting++)
        fail(check, "task %llu stands in line twice", (unsigned long long)task->serial);
    seen->position = stub->position;
    seen->attempts = (uint8_t)stub->attempts;
    check->waiting++;
}

static void scan_line(struct check *check, kl_place place, int32_t line)
{
    kl_stub stubs[PAGE_MAX], last;
    kl_scan scan = {.place = place, .line = line, .until_ms = KL_ID_MS_MAX, .max = PAGE_MAX};
    size_t count = PAGE_MAX;
    while (count == PAGE_MAX && ok(check, scan_one(check->store, &scan, stubs, &count), "scan")) {
        for (size_t i = 0; i < count; i++) {
            if (i > 0 && !is_in_order(&stubs[i - 1], &stubs[i], line == KL_LINE_DUE))
                fail(check, "line %d of shard %u is out of order", line, place.shard);
            see_stub(check, &stubs[i]);
        }
        if (count)
            last = stubs[count - 1];
        scan.after = &last;
    }
}

static void scan_all(struct check *check)
{
    for (uint32_t shard = 0; shard < CRASH_SHARDS; shard++)
        for (int32_t line = KL_PRIORITY_MIN; line <= KL_LINE_RETRY; line++)
            scan_line(check, (kl_place){check->ledger->partition, shard}, line);
}

static void check_entry(struct check *check, const kl_task *found, uint64_t serial)
{
    kl_entry expected;
    crash_entry(check->ledger, serial, check->rooms, &expected);
    const kl_entry *entry = &found->entry;
    if (memcmp(&entry->job, &expected.job, sizeof entry->job) != 0 || entry->due_ms != expected.due_ms ||
        entry->priority != expected.priority || entry->group != expected.group || !is_same(entry->key, expected.key) ||
        !is_same(entry->kind, expected.kind) || !is_same(entry->headers, expected.headers) ||
        !is_same(entry->payload, expected.payload))
        fail(check, "task %llu has other bytes than it was appended with", (unsigned long long)serial);
}

static void read_page(struct check *check, kl_place place, const kl_task_id *ids, size_t count)
{
    kl_task tasks[PAGE_MAX];
    for (size_t done = 0, got = 1; done < count && got > 0; done += got) {
        kl_arena_reset(&check->arenas[0]);
        got = 0;
        if (!ok(check, read_some(check->store, place, ids + done, count - done, &check->arenas[0], tasks, &got),
                "read"))
            return;
        for (size_t i = 0; i < got; i++) {
            if (tasks[i].state != KL_TASK_WAITING)
                fail(check, "a task that scan shows is not waiting when it is read");
            else
                check_entry(check, &tasks[i], crash_serial(&ids[done + i]));
        }
    }
}

static void read_all(struct check *check)
{
    kl_task_id ids[PAGE_MAX];
    for (uint32_t shard = 0; shard < CRASH_SHARDS; shard++) {
        kl_place place = {check->ledger->partition, shard};
        size_t count = 0;
        for (uint32_t slot = 0; slot < CRASH_SLOTS; slot++) {
            uint64_t serial = check->ledger->tasks[slot].serial;
            if (!check->seen[slot].is_waiting || crash_shard(serial) != shard)
                continue;
            ids[count++] = crash_id(serial);
            if (count == PAGE_MAX) {
                read_page(check, place, ids, count);
                count = 0;
            }
        }
        read_page(check, place, ids, count);
    }
}

/* ---- What is kept ---- */

/* The error of the last attempt that left one and was kept. */
static kl_bytes error_of(uint64_t serial, uint32_t attempt, char *room)
{
    for (; attempt > 0; attempt--) {
        kl_settled settled = crash_settled(serial, attempt, room);
        if (settled.keep_ms && settled.error.len)
            return settled.error;
    }
    return (kl_bytes){0};
}

static void see_kept(struct check *check, const kl_task *found)
{
    static const kl_task_state states[] = {KL_TASK_DONE, KL_TASK_UNKNOWN, KL_TASK_DEAD, KL_TASK_CANCELLED};
    char room[CRASH_SETTLED_BYTES];
    struct crash_task *task = task_of(check, &found->entry.id, "history");
    if (!task)
        return;
    uint64_t serial = task->serial;
    uint32_t attempt = atomic_load(&task->settling);
    check->kept++;
    if (seen_of(check, task)->kept++)
        fail(check, "C7: task %llu is kept twice", (unsigned long long)serial);
    kl_settled settled = crash_settled(serial, attempt, room);
    if (attempt == 0 || !settled.keep_ms || found->state != states[settled.outcome] || found->attempts != attempt)
        fail(check, "C7: task %llu is kept as state %d after %u attempts; attempt %u, outcome %d, was its last",
             (unsigned long long)serial, found->state, found->attempts, attempt, settled.outcome);
    else if (!is_same(found->result, settled.result))
        fail(check, "C7: task %llu is kept with another result", (unsigned long long)serial);
    else if (!is_same(found->error, error_of(serial, attempt, room)))
        fail(check, "C7: task %llu is kept with the error \"%.*s\" after %u attempts", (unsigned long long)serial,
             (int)found->error.len, (const char *)found->error.data, attempt);
    check_entry(check, found, serial);
}

static void find_all(struct check *check)
{
    kl_task tasks[PAGE_MAX];
    kl_find find = {.partition = check->ledger->partition, .max = PAGE_MAX};
    size_t count = PAGE_MAX;
    for (int page = 0; count == PAGE_MAX; page++) {
        kl_arena *arena = &check->arenas[page % 2]; /* `after` lies in the other */
        kl_arena_reset(arena);
        if (!ok(check, kl_store_find(check->store, &find, arena, tasks, &count), "find"))
            return;
        for (size_t i = 0; i < count; i++)
            see_kept(check, &tasks[i]);
        kl_task last = tasks[count ? count - 1 : 0];
        tasks[0] = last;
        find.after = &tasks[0];
    }
}

static void check_counts(struct check *check)
{
    kl_counts counts;
    kl_place all = {check->ledger->partition, KL_ALL_SHARDS};
    if (!ok(check, kl_store_counts(check->store, all, NULL, &counts), "counts"))
        return;
    if (counts.ready + counts.due + counts.retry != check->waiting)
        fail(check, "counts says that %llu tasks wait, scan shows %llu",
             (unsigned long long)(counts.ready + counts.due + counts.retry), (unsigned long long)check->waiting);
    if (counts.done + counts.dead + counts.cancelled != check->kept)
        fail(check, "C7: counts says that %llu tasks are kept, find shows %llu",
             (unsigned long long)(counts.done + counts.dead + counts.cancelled), (unsigned long long)check->kept);
}

/* ---- Tasks ---- */

static void judge_waiting(struct check *check, const struct crash_task *task, const struct seen *seen)
{
    char room[CRASH_SETTLED_BYTES];
    unsigned long long serial = (unsigned long long)task->serial;
    uint32_t settled = atomic_load(&task->settled), settling = atomic_load(&task->settling);
    if (seen->attempts != settled && seen->attempts != settling)
        fail(check, "C2: task %llu waits after %u attempts; %u are acknowledged, %u attempted", serial, seen->attempts,
             settled, settling);
    if (seen->attempts && crash_settled(task->serial, seen->attempts, room).outcome != KL_RETRY)
        fail(check, "C2: task %llu waits although attempt %u finished it", serial, seen->attempts);
    if (seen->kept)
        fail(check, "C7: task %llu waits and is kept", serial);
}

static void judge_gone(struct check *check, const struct crash_task *task, const struct seen *seen)
{
    char room[CRASH_SETTLED_BYTES];
    unsigned long long serial = (unsigned long long)task->serial;
    uint32_t settling = atomic_load(&task->settling);
    kl_settled settled = crash_settled(task->serial, settling, room);
    if (settling == 0 || settled.outcome == KL_RETRY) {
        if (atomic_load(&task->appended) == CRASH_ACKNOWLEDGED || settling)
            fail(check, "C1: task %llu is lost; of its attempts %u are acknowledged and %u attempted", serial,
                 atomic_load(&task->settled), settling);
    } else if (seen->kept != (settled.keep_ms != 0)) {
        fail(check, "C7: task %llu, finished by attempt %u, %s in history", serial, settling,
             seen->kept ? "should not be" : "is not");
    }
}

/* How many tasks of each append are there, by the slot of its first. */
static void judge_calls(struct check *check, uint16_t *there)
{
    struct crash_ledger *ledger = check->ledger;
    for (uint32_t slot = 0; slot < CRASH_SLOTS; slot++) {
        const struct crash_task *task = &ledger->tasks[slot];
        if (task->serial && ledger->tasks[task->call % CRASH_SLOTS].serial == task->call)
            there[task->call % CRASH_SLOTS] += check->seen[slot].is_there;
    }
    for (uint32_t slot = 0; slot < CRASH_SLOTS; slot++) {
        const struct crash_task *task = &ledger->tasks[slot];
        uint16_t count = there[task->call % CRASH_SLOTS];
        if (task->serial && atomic_load(&task->appended) == CRASH_ATTEMPTED && count != 0 && count != task->call_size)
            fail(check, "C1: of an append of %u tasks %u are there", task->call_size, count);
    }
}

static void judge_tasks(struct check *check)
{
    struct crash_ledger *ledger = check->ledger;
    for (uint32_t slot = 0; slot < CRASH_SLOTS; slot++) {
        struct crash_task *task = &ledger->tasks[slot];
        struct seen *seen = &check->seen[slot];
        if (task->serial == 0 || atomic_load(&task->appended) == CRASH_NONE)
            continue;
        seen->is_there = seen->is_waiting || atomic_load(&task->settling);
        if (seen->is_waiting)
            judge_waiting(check, task, seen);
        else
            judge_gone(check, task, seen);
    }
    uint16_t *there = calloc(CRASH_SLOTS, sizeof *there);
    if (there)
        judge_calls(check, there);
    free(there);
}

/* A settle that was under way counts for all of its tasks or for none (C2). */
static void judge_settles(struct check *check)
{
    for (int i = 0; i < CRASH_SETTLERS; i++) {
        const struct crash_call *call = &check->ledger->settles[i];
        uint32_t applied = 0;
        if (atomic_load(&call->state) != CRASH_ATTEMPTED)
            continue;
        for (uint32_t j = 0; j < call->count; j++) {
            const struct seen *seen = &check->seen[call->serials[j] % CRASH_SLOTS];
            applied += !seen->is_waiting || seen->attempts >= call->attempts[j];
        }
        if (applied != 0 && applied != call->count)
            fail(check, "C2: a settle of %u tasks counts for %u", call->count, applied);
    }
}

/* ---- Order ---- */

struct standing {
    uint64_t group, order, position; /* group: producer and shard */
};

static int compare_standing(const void *left, const void *right)
{
    const struct standing *a = left, *b = right;
    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

static void judge_order(struct check *check)
{
    struct standing *all = calloc(check->waiting + 1, sizeof *all);
    size_t count = 0;
    for (uint32_t slot = 0; all && slot < CRASH_SLOTS; slot++) {
        const struct crash_task *task = &check->ledger->tasks[slot];
        if (check->seen[slot].is_waiting)
            all[count++] = (struct standing){(uint64_t)task->producer * CRASH_SHARDS + crash_shard(task->serial),
                                             task->order, check->seen[slot].position};
    }
    if (all)
        qsort(all, count, sizeof *all, compare_standing);
    for (size_t i = 1; i < count; i++)
        if (all[i].group == all[i - 1].group && all[i].position <= all[i - 1].position)
            fail(check, "C4: of producer %llu, its append %llu stands behind its append %llu",
                 (unsigned long long)all[i].group / CRASH_SHARDS, (unsigned long long)all[i - 1].order,
                 (unsigned long long)all[i].order);
    free(all);
}

/* ---- Fences and records ---- */

static kl_rc try_epoch(struct check *check, kl_place place, uint64_t epoch)
{
    uint64_t unknown = 1; /* serial numbers of tasks begin at CRASH_SLOTS */
    while (crash_shard(unknown) != place.shard)
        unknown++;
    kl_settled settled = {.id = crash_id(unknown), .position = 1, .outcome = KL_DONE, .attempts = 1};
    kl_settle batch = {.place = place, .epoch = epoch, .tasks = &settled, .count = 1};
    return kl_store_settle(check->store, &batch, 1);
}

static void judge_fences(struct check *check)
{
    struct crash_ledger *ledger = check->ledger;
    for (uint32_t shard = 0; shard < CRASH_SHARDS; shard++) {
        kl_place place = {ledger->partition, shard};
        uint64_t fenced = atomic_load(&ledger->fenced[shard]), fencing = atomic_load(&ledger->fencing[shard]);
        if (fenced && try_epoch(check, place, fenced - 1) != KL_ESTALE)
            fail(check, "C5: shard %u was fenced at epoch %llu, and is not", shard, (unsigned long long)fenced);
        if (try_epoch(check, place, fencing) != KL_OK)
            fail(check, "C5: shard %u at epoch %llu: %s", shard, (unsigned long long)fencing, kl_error_text());
        kl_fence fence = {.place = place, .epoch = fencing};
        if (fencing)
            ok(check, kl_store_fence(check->store, &fence, 1), "C5: a repeated fence");
        atomic_store(&ledger->fenced[shard], fencing);
    }
}

static void judge_seals(struct check *check)
{
    enum { LOOKED_AT = 50 };
    struct crash_ledger *ledger = check->ledger;
    uint32_t sealed = atomic_load(&ledger->sealed), sealing = atomic_load(&ledger->sealing), partition;
    if (!ok(check, kl_store_partition(check->store, CRASH_SEALS_NAME, CRASH_SEALS_PREFIX_LEN, &partition), "partition"))
        return;
    uint32_t from = sealed > LOOKED_AT ? sealed - LOOKED_AT : 0;
    for (uint32_t shard = from; shard <= sealing && shard < CRASH_SEALS; shard++) {
        kl_entry entry = {.place = {partition, shard}, .id = crash_sealed_id(shard)};
        kl_rc rc = kl_store_append(check->store, &entry, 1, NULL);
        if (shard < sealed ? rc != KL_ESEALED : shard >= sealing ? rc != KL_OK : rc != KL_OK && rc != KL_ESEALED)
            fail(check, "C9: %u shards were sealed and %u tried, and an append to shard %u is %s", sealed, sealing,
                 shard, kl_rc_name(rc));
    }
    kl_fence again = {.place = {partition, sealing - 1}, .seal = true};
    if (sealing)
        ok(check, kl_store_fence(check->store, &again, 1), "C9: a repeated seal");
    atomic_store(&ledger->sealed, sealing);
}

static void judge_record(struct check *check, uint32_t record, const kl_record *found, char *room)
{
    struct crash_ledger *ledger = check->ledger;
    uint64_t written = atomic_load(&ledger->written[record]), writing = atomic_load(&ledger->writing[record]);
    kl_bytes value = {0};
    uint64_t is = writing;
    for (;; is = written) {
        bool there = crash_value(ledger->seed, record, is, room, &value);
        if (there ? found->version != 0 && is_same(found->value, value) : found->version == 0)
            break;
        if (is == written) {
            fail(check, "C6: record %u is neither what was acknowledged (write %llu) nor what was attempted", record,
                 (unsigned long long)written);
            return;
        }
    }
    if (written == writing && found->version != atomic_load(&ledger->versions[record]))
        fail(check, "C6: record %u has another version than was acknowledged", record);
    atomic_store(&ledger->written[record], is);
    atomic_store(&ledger->writing[record], is);
    atomic_store(&ledger->versions[record], found->version);
}

static void judge_records(struct check *check)
{
    kl_record found[CRASH_RECORDS + 1];
    kl_bytes names[CRASH_RECORDS], none = {0};
    char texts[CRASH_RECORDS][16];
    size_t listed = 0, there = 0;
    for (uint32_t i = 0; i < CRASH_RECORDS; i++)
        names[i] = crash_name(i, texts[i]);
    kl_arena_reset(&check->arenas[0]);
    if (!ok(check, kl_store_get(check->store, names, CRASH_RECORDS, &check->arenas[0], found), "get"))
        return;
    for (uint32_t i = 0; i < CRASH_RECORDS; i++) {
        judge_record(check, i, &found[i], check->rooms);
        there += found[i].version != 0;
    }
    if (ok(check, kl_store_list(check->store, none, none, CRASH_RECORDS + 1, &check->arenas[0], found, &listed),
           "list") &&
        listed != there)
        fail(check, "C3: %zu records are listed, and %zu should be there", listed, there);
}

/* ---- For the next round ---- */

/* Forgets half of what is kept in a shard, so that history does not grow from round to round. */
static void forget_some(struct check *check, uint32_t shard)
{
    struct crash_ledger *ledger = check->ledger;
    kl_task_id ids[PAGE_MAX];
    size_t count = 0;
    for (uint32_t slot = 0; slot < CRASH_SLOTS && count < PAGE_MAX; slot++) {
        uint64_t serial = ledger->tasks[slot].serial;
        if (!check->seen[slot].kept || crash_shard(serial) != shard || crash_hash(serial, ledger->round) % 2)
            continue;
        ids[count++] = crash_id(serial);
        check->seen[slot].kept = 0;
    }
    if (count)
        ok(check, kl_store_forget(check->store, (kl_place){ledger->partition, shard}, ids, count), "forget");
    check->kept -= count;
}

/* What was open is now known. Finished tasks leave the ledger, so that they are noticed should they ever come back. */
static void close_books(struct check *check)
{
    struct crash_ledger *ledger = check->ledger;
    for (uint32_t shard = 0; shard < CRASH_SHARDS && check->kept > KEPT_MAX; shard++)
        forget_some(check, shard);
    ledger->free_count = 0;
    for (uint32_t slot = 0; slot < CRASH_SLOTS; slot++) {
        struct crash_task *task = &ledger->tasks[slot];
        const struct seen *seen = &check->seen[slot];
        if (seen->is_waiting || seen->kept) {
            uint8_t attempts = seen->is_waiting ? seen->attempts : atomic_load(&task->settling);
            atomic_store(&task->appended, CRASH_ACKNOWLEDGED);
            atomic_store(&task->settled, attempts);
            atomic_store(&task->settling, attempts);
        } else {
            task->serial = 0;
            atomic_store(&task->appended, CRASH_NONE);
            ledger->free_slots[ledger->free_count++] = slot;
        }
    }
    for (int i = 0; i < CRASH_SETTLERS; i++)
        atomic_store(&ledger->settles[i].state, CRASH_NONE);
    atomic_store(&ledger->waiting, (int64_t)check->waiting);
    atomic_store(&ledger->free_next, 0);
}

static void compare(struct check *check)
{
    uint32_t partition;
    if (!ok(check, kl_store_partition(check->store, "crash", 1, &partition), "partition"))
        return;
    if (partition != check->ledger->partition)
        fail(check, "the partition has number %u now", partition);
    repeat_all(check);
    scan_all(check);
    read_all(check);
    find_all(check);
    check_counts(check);
    judge_tasks(check);
    judge_settles(check);
    judge_order(check);
    judge_fences(check);
    judge_seals(check);
    judge_records(check);
    if (!check->failed)
        close_books(check);
}

bool crash_check(struct crash_ledger *ledger, const char *dir, struct crash_found *ret_found,
                 char why[CRASH_TEXT_BYTES])
{
    char journal[WORKDIR_BYTES + 16];
    struct check check = {.ledger = ledger, .why = why};
    check.seen = calloc(CRASH_SLOTS, sizeof(*check.seen));
    check.rooms = malloc((size_t)CRASH_CALL_MAX * CRASH_ENTRY_BYTES);
    snprintf(why, CRASH_TEXT_BYTES, "out of memory");
    check.failed = !check.seen || !check.rooms;
    if (!check.failed && ok(&check, crash_open(dir, &check.store), "it does not open"))
        compare(&check);
    snprintf(journal, sizeof journal, "%s/journal", dir);
    *ret_found = (struct crash_found){check.waiting, check.kept, workdir_files(journal, ".seg").count};
    kl_store_close(check.store);
    for (int i = 0; i < 2; i++)
        kl_arena_free(&check.arenas[i]);
    free(check.rooms);
    free(check.seen);
    return !check.failed;
}
