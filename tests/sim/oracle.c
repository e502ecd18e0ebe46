/* oracle.c - what is true, and what must never happen.
 *
 * From: store.c (every effect, at the moment when it takes place), worker.c and clients.c (what they do and are told).
 *
 * The store is trusted: it is the reference engine, which a conformance suite and a model have compared call by call.
 * What is checked is what the library does with it. A task is followed from the put that asked for it (sim_task)
 * through the entries that the store has of it (sim_entry): one, and one more for each move to another layout or
 * redrive. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/compare.h"
#include "base/hash.h"
#include "sim/world.h"
#include "work/owners_inside.h"

enum { BUCKETS = 1 << 12 };

static const char *role_of(const struct sim_process *process)
{
    static const char *const names[] = {"worker", "producer", "submitter", "operator"};
    return names[process->role];
}

/* --- Tasks and entries --- */

struct sim_task *oracle_task(struct world *world, uint32_t key)
{
    if (world->task_count + 1 >= world->task_room) {
        world->task_room = world->task_room ? world->task_room * 2 : 1024;
        world->tasks = realloc(world->tasks, world->task_room * sizeof(struct sim_task *));
        KL_ASSERT(world->tasks);
    }
    struct sim_task *task = kl__alloc_zeroed(1, sizeof *task);
    KL_ASSERT(task);
    task->number = ++world->task_count;
    task->key = key;
    task->job = task->unique = -1;
    task->lives = 1;
    world->tasks[task->number] = task;
    return task;
}

static struct sim_entry **bucket_of(const struct world *world, const kl_task_id *id)
{
    return &world->buckets[kl__hash((kl_bytes){id->bytes, sizeof id->bytes}, 77) % BUCKETS];
}

struct sim_entry *oracle_find(const struct world *world, uint32_t partition, const kl_task_id *id)
{
    struct sim_entry *entry = world->buckets ? *bucket_of(world, id) : NULL;
    while (entry && (memcmp(&entry->id, id, sizeof *id) != 0 || (partition && entry->place.partition != partition)))
        entry = entry->next_in_bucket;
    return entry;
}

static struct sim_entry *add_entry(struct world *world, const kl_entry *from, struct sim_task *task)
{
    struct sim_entry *entry = kl__alloc_zeroed(1, sizeof *entry);
    if (!world->buckets)
        world->buckets = calloc(BUCKETS, sizeof(struct sim_entry *));
    KL_ASSERT(entry && world->buckets);
    entry->id = from->id;
    entry->place = from->place;
    entry->layout = world->partitions[from->place.partition]->layout_number;
    entry->sequence = ++world->entry_count;
    entry->task = task;
    entry->due = from->due_ms != 0;
    entry->due_ms = from->due_ms;
    entry->stored_ms = world->now_ms;
    entry->taken_by = entry->finished_by = entry->settled_by = entry->drained_by = SIM_NOBODY;
    entry->next = world->entries;
    world->entries = entry;
    struct sim_entry **bucket = bucket_of(world, &from->id);
    entry->next_in_bucket = *bucket;
    *bucket = entry;
    entry->next_of_task = task->entries;
    task->entries = entry;
    entry->next_of_key = world->keys[task->key].waiting;
    world->keys[task->key].waiting = entry;
    world->waiting++;
    return entry;
}

static void end_entry(struct world *world, struct sim_entry *entry, kl_outcome outcome)
{
    struct sim_entry **link = &world->keys[entry->task->key].waiting;
    while (*link != entry)
        link = &(*link)->next_of_key;
    *link = entry->next_of_key;
    entry->ended = true;
    entry->outcome = outcome;
    world->waiting--;
}

static void revive_entry(struct world *world, struct sim_entry *entry)
{
    entry->ended = entry->retry_line = false;
    entry->attempts = entry->starts = entry->extra = 0;
    entry->finished_by = entry->taken_by = SIM_NOBODY;
    entry->sequence = ++world->entry_count;
    entry->stored_ms = world->now_ms;
    entry->task->lives++;
    entry->task->ended_told = false;
    entry->next_of_key = world->keys[entry->task->key].waiting;
    world->keys[entry->task->key].waiting = entry;
    world->waiting++;
}

void oracle_free(struct world *world)
{
    while (world->entries) {
        struct sim_entry *entry = world->entries;
        world->entries = entry->next;
        kl__free(entry);
    }
    for (uint64_t i = 1; i <= world->task_count; i++)
        kl__free(world->tasks[i]);
    for (uint32_t i = 0; i < SIM_PARTITIONS_MAX; i++)
        kl__free(world->partitions[i]);
    free(world->tasks);
    free(world->buckets);
}

/* --- Partitions and their owners --- */

void oracle_partition(struct world *world, uint32_t number, const char *name, uint32_t shard_prefix_len)
{
    KL_ASSERT(number < SIM_PARTITIONS_MAX && shard_prefix_len <= 2);
    if (world->partitions[number])
        return;
    struct sim_partition *partition = kl__alloc_zeroed(1, sizeof *partition);
    KL_ASSERT(partition);
    const char *at = strchr(name, '@');
    snprintf(partition->name, sizeof partition->name, "%s", name);
    partition->layout = (kl_layout){1, shard_prefix_len};
    partition->layout_number = at ? strtoull(at + 1, NULL, 10) : 1;
    for (uint32_t i = 0; i < SIM_SHARDS_MAX; i++)
        partition->owners[i].process = partition->owners[i].fenced_by = SIM_NOBODY;
    world->partitions[number] = partition;
    world->layouts = partition->layout_number > world->layouts ? partition->layout_number : world->layouts;
}

struct sim_owner *oracle_owner(const struct world *world, kl_place place)
{
    return &world->partitions[place.partition]->owners[place.shard];
}

void oracle_fenced(struct sim_process *process, const kl_fence *fences, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (fences[i].rc == KL_OK && !fences[i].seal)
            oracle_owner(process->world, fences[i].place)->fenced_by = process->number;
}

/* Workers are known by their ids; an id that is new belongs to whoever writes it: an operator may stand in for one. */
static uint32_t process_of(struct sim_process *writer, const kl_task_id *id)
{
    struct world *world = writer->world;
    for (uint32_t i = world->worker_count; i-- > 0;)
        if (memcmp(&world->workers[i].id, id, sizeof *id) == 0)
            return world->workers[i].process;
    KL_ASSERT(world->worker_count < SIM_PROCESSES_MAX);
    world->workers[world->worker_count].id = *id;
    world->workers[world->worker_count++].process = writer->number;
    return writer->number;
}

/* Whether the process has a task of the shard with a thread. */
static const struct sim_entry *running_in(const struct world *world, uint32_t partition, uint32_t shard,
                                          uint32_t process)
{
    for (uint32_t key = 0; key < SIM_KEYS_MAX; key++)
        for (const struct sim_entry *entry = world->keys[key].waiting; entry; entry = entry->next_of_key)
            if (entry->running && entry->taken_by == process && entry->place.partition == partition &&
                entry->place.shard == shard)
                return entry;
    return NULL;
}

static void check_change(struct sim_process *writer, uint32_t number, uint32_t shard, const struct sim_owner *before,
                         const struct sim_owner *after)
{
    struct world *world = writer->world;
    if (before->process == SIM_NOBODY || (before->process == after->process && before->epoch == after->epoch))
        return;
    world->takeovers++;
    int64_t left_ms = before->expires_ms - world->now_ms;
    if (before->process != writer->number && left_ms > 0)
        sim_break(world, "I3", NULL, "p%u takes shard %u of %s from p%u, whose lease holds for %lld ms", writer->number,
                  shard, world->partitions[number]->name, before->process, (long long)left_ms);
    const struct sim_entry *entry = running_in(world, number, shard, before->process);
    if (before->process == writer->number && !after->unclean && entry && entry->taken_epoch == before->epoch)
        sim_break(world, "I3", entry->task, "p%u gives shard %u of %s back while a task of it runs", writer->number,
                  shard, world->partitions[number]->name);
}

static void read_owners(struct sim_process *writer, uint32_t number)
{
    struct world *world = writer->world;
    struct sim_partition *partition = world->partitions[number];
    char name[KL_OWNERS_RECORD_NAME_BYTES];
    kl__owners_record record;
    kl_arena arena = {0};
    kl_rc rc = kl__owners_record_name(partition->name, name);
    if (rc == KL_OK)
        rc = kl__owners_record_read(world->inner, name, &partition->layout, &arena, &record);
    for (uint32_t shard = 0; rc == KL_OK && shard < record.group_count; shard++) {
        struct sim_owner *before = &partition->owners[shard], after = *before;
        int index = record.groups[shard].owner;
        after.process = index < 0 ? SIM_NOBODY : process_of(writer, &record.workers[index].id);
        after.epoch = record.groups[shard].epoch;
        after.unclean = record.groups[shard].unclean;
        after.expires_ms = index < 0 ? 0 : record.workers[index].expires_ms;
        check_change(writer, number, shard, before, &after);
        if (after.process == writer->number && (before->process != after.process || before->epoch != after.epoch))
            order_taken_over(writer, &after);
        *before = after;
    }
    for (size_t i = 0; rc == KL_OK && i < record.worker_count; i++)
        if (process_of(writer, &record.workers[i].id) == writer->number)
            sim_note(world, writer, NULL, "beats in %s: %u shards, for %lld ms", partition->name,
                     record.workers[i].held, (long long)(record.workers[i].expires_ms - world->now_ms));
    if (rc != KL_OK)
        sim_break(world, "I7", NULL, "the owners of %s cannot be read: %s", partition->name, kl_error_text());
    kl_arena_free(&arena);
}

void oracle_written(struct sim_process *process, const kl_write *writes, size_t count)
{
    static const char prefix[] = "owners/";
    for (size_t i = 0; i < count; i++) {
        kl_bytes name = writes[i].name;
        if (writes[i].rc != KL_OK || name.len < sizeof prefix || memcmp(name.data, prefix, sizeof prefix - 1) != 0)
            continue;
        kl_bytes rest = {(const char *)name.data + sizeof prefix - 1, name.len - (sizeof prefix - 1)};
        for (uint32_t number = 0; number < SIM_PARTITIONS_MAX; number++) {
            const struct sim_partition *partition = process->world->partitions[number];
            if (partition && kl__bytes_equal(kl_str(partition->name), rest))
                read_owners(process, number);
        }
    }
}

/* --- Appends --- */

bool oracle_may_be_cancelled(const struct world *world, const struct sim_task *task)
{
    const struct sim_key *key = &world->keys[task->key];
    return task->cancel_asked || world->purge_asked || (task->job >= 0 && world->jobs[task->job].cancel_asked) ||
           (task->key && (key->skip_asked || key->drain_asked));
}

static bool is_waiting(struct world *world, const kl_entry *entry)
{
    kl_ref ref = {.place = entry->place, .id = entry->id};
    kl_arena arena = {0};
    kl_task task = {.state = KL_TASK_UNKNOWN};
    size_t count = 0;
    kl_rc rc = kl_store_read(world->inner, &ref, 1, &arena, &task, &count);
    kl_arena_free(&arena);
    return rc == KL_OK && count == 1 && task.state == KL_TASK_WAITING;
}

/* A task of the schedule is known by the time that it is for. */
static struct sim_task *tick_task(struct world *world, const kl_entry *entry)
{
    kl_task_extra extra;
    kl_arena arena = {0};
    struct sim_task *task = NULL;
    int year, month, day, hour, minute;
    int64_t tick_ms = 0;
    if (kl__envelope_decode(entry->headers, &arena, &extra) == KL_OK && extra.header_count >= 2 &&
        sscanf(extra.headers[1].value.data, "%d-%d-%dT%d:%d", &year, &month, &day, &hour, &minute) == 5)
        tick_ms = (((int64_t)year * 12 + month) * 10000000 + day * 10000 + hour * 60 + minute) * SIM_CRONS +
                  ((const char *)entry->payload.data)[4] - '0';
    kl_arena_free(&arena);
    for (uint64_t i = 1; i <= world->task_count && tick_ms && !task; i++)
        task = world->tasks[i]->tick_ms == tick_ms ? world->tasks[i] : NULL;
    if (task || !tick_ms)
        return task;
    task = oracle_task(world, 0);
    task->tick_ms = tick_ms;
    return task;
}

static struct sim_task *task_of(struct world *world, const kl_entry *entry)
{
    uint64_t number = 0;
    if (entry->payload.len == 5 && memcmp(entry->payload.data, "tick", 4) == 0)
        return tick_task(world, entry);
    if (entry->payload.len == sizeof number)
        memcpy(&number, entry->payload.data, sizeof number);
    return number > 0 && number <= world->task_count ? world->tasks[number] : NULL;
}

static void check_unique(struct sim_process *process, struct sim_task *task)
{
    struct world *world = process->world;
    if (task->unique < 0)
        return;
    struct sim_task **first = &world->uniques[task->unique];
    if (*first && *first != task)
        sim_break(world, "I6", task, "tasks %llu and %llu have the same unique, and both were stored",
                  (unsigned long long)(*first)->number, (unsigned long long)task->number);
    *first = task;
}

/* A submit that was broken off and is continued: what operators ended meanwhile, unrun, is put again, because nothing
 * tells it from what was never put. */
static bool is_submitted_again(const struct sim_process *process, const struct sim_entry *other)
{
    const struct sim_task *task = other->task;
    return process->role == SIM_SUBMITTER && task->job >= 0 && !process->world->jobs[task->job].answered &&
           other->ended && other->outcome == KL_CANCELLED && other->starts == 0;
}

/* Likewise what had died by then and was put back: its dead letter is gone, which would have told, and the copy that
 * runs has another id. */
static bool was_put_back(const struct sim_process *process, const struct sim_entry *letter)
{
    const struct sim_task *task = letter->task;
    return process->role == SIM_SUBMITTER && task->job >= 0 && !process->world->jobs[task->job].answered &&
           letter->ended && letter->outcome == KL_DEAD && letter->moved;
}

static bool one_was_put_back(const struct sim_process *process, const struct sim_task *task)
{
    const struct sim_entry *letter = task->entries;
    while (letter && !was_put_back(process, letter))
        letter = letter->next_of_task;
    return letter != NULL;
}

/* A second entry of a task: moved by the owner of the first, put back from the dead letters, or a mistake. */
static void check_again(struct sim_process *process, const struct sim_entry *entry)
{
    struct world *world = process->world;
    struct sim_task *task = entry->task;
    bool put_back = one_was_put_back(process, task);
    for (struct sim_entry *other = task->entries; other; other = other->next_of_task) {
        if (other == entry)
            continue;
        bool owns = process->role == SIM_WORKER || process->role == SIM_OPERATOR;
        bool moves = owns && other->layout < entry->layout && other->due && !other->ended;
        if (moves || (process->redriving && (other->ended || other->moved)))
            other->moved = true; /* a letter: what is put back may be moved, and stands for both */
        else if (is_submitted_again(process, other) && !other->moved) {
            other->moved = true; /* the new one stands for it */
            task->real_ends--;
        } else if ((!other->moved || !other->ended) && !put_back)
            sim_break(world, "I6", task, "p%u (%s) stores task %llu, which is there already", process->number,
                      role_of(process), (unsigned long long)task->number);
    }
    if (process->redriving || put_back)
        task->lives++;
    task->ended_told = false;
}

static void append_one(struct sim_process *process, const kl_entry *from)
{
    struct world *world = process->world;
    struct sim_entry *entry = oracle_find(world, from->place.partition, &from->id);
    if (entry && !entry->ended)
        return;
    if (!is_waiting(world, from))
        return;
    if (entry && oracle_may_be_cancelled(world, entry->task) && entry->outcome == KL_CANCELLED) {
        revive_entry(world, entry); /* nothing is kept of what an operator has ended, so nobody can know */
        return;
    }
    if (entry && was_put_back(process, entry)) {
        entry->moved = false;
        revive_entry(world, entry);
        return;
    }
    if (entry) {
        sim_break(world, "I6", entry->task, "p%u (%s) stores task %llu again, which has ended", process->number,
                  role_of(process), (unsigned long long)entry->task->number);
        return;
    }
    struct sim_task *task = task_of(world, from);
    if (!task) {
        sim_break(world, "I7", NULL, "p%u stores a task that nobody has put", process->number);
        return;
    }
    entry = add_entry(world, from, task);
    sim_note(world, process, task, "is stored in shard %u of %s, priority %d, due at %lld", from->place.shard,
             world->partitions[from->place.partition]->name, task->priority,
             (long long)(entry->due ? entry->due_ms - SIM_BEGIN_MS : 0));
    check_unique(process, task);
    if (entry->next_of_task)
        check_again(process, entry);
}

void oracle_appended(struct sim_process *process, const kl_entry *entries, size_t count)
{
    for (size_t i = 0; i < count; i++)
        append_one(process, &entries[i]);
}

/* --- Settles --- */

static bool may_die(const struct world *world, const struct sim_process *process, const struct sim_entry *entry)
{
    const struct sim_task *task = entry->task;
    const struct sim_key *key = &world->keys[task->key];
    bool drained = task->key && (world->plan.policy == KL_HEAD_DRAIN || key->drain_asked);
    return drained || entry->starts + entry->extra >= world->plan.attempts_max ||
           (entry->finished_by == process->number && entry->verdict_dead) || (entry->halted && task->key);
}

/* Starts that an earlier owner has written down and never made. */
static void note_extra(const struct sim_process *process, struct sim_entry *entry, uint64_t epoch)
{
    if ((entry->settled_by != process->number || entry->settled_epoch != epoch) && entry->attempts > entry->starts)
        entry->extra = entry->attempts - entry->starts;
}

static void check_attempts(struct world *world, const struct sim_process *process, const struct sim_entry *entry,
                           const kl_settled *settled)
{
    if (settled->attempts > entry->starts + entry->extra && !entry->halted && !entry->verdict_dead)
        sim_break(world, "I7", entry->task, "p%u says that task %llu had %u attempts; it was started %u times",
                  process->number, (unsigned long long)entry->task->number, settled->attempts, entry->starts);
}

static void check_outcome(struct world *world, struct sim_process *process, struct sim_entry *entry, uint64_t epoch,
                          const kl_settled *settled)
{
    struct sim_task *task = entry->task;
    unsigned long long number = task->number;
    bool own = entry->finished_by == process->number && entry->finished_epoch == epoch;
    switch (settled->outcome) {
    case KL_DONE:
        if (own && entry->final && !entry->verdict_dead)
            break;
        if (!entry->moved)
            sim_break(world, "I1", task, "p%u settles task %llu as done, and has not run it", process->number, number);
        return;
    case KL_RETRY:
        return;
    case KL_DEAD:
        if (!may_die(world, process, entry))
            sim_break(world, "I7", task, "p%u settles task %llu as dead after %u starts of %u", process->number, number,
                      entry->starts, world->plan.attempts_max);
        break;
    case KL_CANCELLED:
        if (!oracle_may_be_cancelled(world, task))
            sim_break(world, "I1", task, "p%u settles task %llu as cancelled, and nobody asked for that",
                      process->number, number);
        break;
    }
    if (++task->real_ends > task->lives)
        sim_break(world, "I6", task, "task %llu has ended twice", number);
}

/* What is settled of a key is always its first tasks: otherwise a crash would run one again behind a later one. */
static void check_turn(struct sim_process *process, const struct sim_entry *entry, uint64_t epoch)
{
    struct world *world = process->world;
    if (entry->task->key == 0 || entry->finished_by != process->number || entry->finished_epoch != epoch)
        return;
    for (const struct sim_entry *other = world->keys[entry->task->key].waiting; other; other = other->next_of_key)
        if (other != entry && other->finished_by == process->number && other->finished_epoch == epoch && other->final &&
            other->place.partition == entry->place.partition && other->finished_order > 0 &&
            other->finished_order < entry->finished_order)
            sim_break(world, "I3", entry->task, "p%u settles task %llu before task %llu, which ended before",
                      process->number, (unsigned long long)entry->task->number,
                      (unsigned long long)other->task->number);
}

static void settle_one(struct sim_process *process, const kl_settle *batch, const kl_settled *settled)
{
    static const char *const names[] = {"done", "to be retried", "dead", "cancelled"};
    struct world *world = process->world;
    struct sim_entry *entry = oracle_find(world, batch->place.partition, &settled->id);
    if (!entry || entry->ended)
        return;
    const struct sim_owner *owner = oracle_owner(world, batch->place);
    sim_note(world, process, entry->task, "settled as %s, %u attempts, epoch %llu", names[settled->outcome],
             settled->attempts, (unsigned long long)batch->epoch);
    if (owner->fenced_by != process->number)
        sim_break(world, "I2", entry->task, "p%u settles task %llu in shard %u of %s, which p%d has fenced since",
                  process->number, (unsigned long long)entry->task->number, batch->place.shard,
                  world->partitions[batch->place.partition]->name, (int)owner->fenced_by);
    if (entry->taken_by != process->number && entry->finished_by != process->number)
        note_extra(process, entry, batch->epoch);
    check_attempts(world, process, entry, settled);
    check_outcome(world, process, entry, batch->epoch, settled);
    if (settled->outcome != KL_RETRY)
        check_turn(process, entry, batch->epoch);
    entry->attempts = settled->attempts;
    entry->settled_by = process->number;
    entry->settled_epoch = batch->epoch;
    if (settled->outcome != KL_RETRY) {
        if (entry->retry_line)
            world->keys[entry->task->key].tried_epoch = batch->epoch;
        end_entry(world, entry, settled->outcome);
        return;
    }
    entry->retry_line = true;
    if (entry->finished_by == process->number && !entry->halted)
        entry->finished_by = SIM_NOBODY; /* it may be run again */
}

void oracle_settled(struct sim_process *process, const kl_settle *batches, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; batches[i].rc == KL_OK && j < batches[i].count; j++)
            settle_one(process, &batches[i], &batches[i].tasks[j]);
}

/* --- What clients are told --- */

static bool stored_as(const struct sim_task *task, const kl_task_id *id)
{
    for (const struct sim_entry *entry = task->entries; entry; entry = entry->next_of_task)
        if (memcmp(&entry->id, id, sizeof *id) == 0)
            return true;
    return false;
}

void oracle_acknowledged(struct sim_process *process, struct sim_task **tasks, const kl_put_result *results,
                         size_t count)
{
    struct world *world = process->world;
    for (size_t i = 0; i < count; i++) {
        struct sim_task *task = tasks[i];
        unsigned long long number = task->number;
        bool own = stored_as(task, &results[i].id);
        const struct sim_entry *entry = own ? NULL : oracle_find(world, 0, &results[i].id);
        sim_note(world, process, task, "is acknowledged%s", results[i].duplicate ? " as a duplicate" : "");
        if (!own && !entry)
            sim_break(world, "I1", task, "task %llu is acknowledged, and the store does not have it", number);
        else if (!own && (task->unique < 0 || entry->task->unique != task->unique))
            sim_break(world, "I6", task, "task %llu is acknowledged under the id of task %llu", number,
                      (unsigned long long)entry->task->number);
        task->acknowledged = true;
        task->duplicate |= !own;
    }
}

void oracle_answered(struct sim_process *process, struct sim_job *job, const kl_job_answer *answer)
{
    struct world *world = process->world;
    sim_note(world, process, job->tasks[0], "the job of idempotency key %s is answered%s", job->key,
             answer->replayed ? " again" : "");
    if (job->answered && (kl_id_compare(&job->answer.job, &answer->job) != 0 || job->answer.tasks != answer->tasks))
        sim_break(world, "I6", job->tasks[0], "two answers for the idempotency key %s", job->key);
    if (answer->tasks != job->count)
        sim_break(world, "I6", job->tasks[0], "the answer says %llu tasks of %zu", (unsigned long long)answer->tasks,
                  job->count);
    job->answered = true;
    job->answer = *answer;
    for (size_t i = 0; i < job->count; i++) {
        job->tasks[i]->acknowledged = true;
        if (!job->tasks[i]->entries)
            sim_break(world, "I1", job->tasks[i], "a job is acknowledged, and its task %llu is not stored",
                      (unsigned long long)job->tasks[i]->number);
    }
}

/* --- Starts --- */

static void check_owner(struct sim_process *process, const struct sim_entry *entry, uint64_t epoch, const char *does)
{
    struct world *world = process->world;
    const struct sim_owner *owner = oracle_owner(world, entry->place);
    if (owner->process == process->number && owner->epoch == epoch && owner->expires_ms > world->now_ms)
        return;
    sim_break(world, "I3", entry->task, "p%u %s task %llu at epoch %llu; p%d owns its shard at %llu, for %lld ms",
              process->number, does, (unsigned long long)entry->task->number, (unsigned long long)epoch,
              (int)owner->process, (unsigned long long)owner->epoch, (long long)(owner->expires_ms - world->now_ms));
}

/* Ticks that were begun after this time have told the worker of it. */
static bool knows(const struct sim_process *process, int64_t since_ms)
{
    return since_ms > 0 && process->tick_began_ms > since_ms;
}

static void check_paused(struct sim_process *process, const struct sim_entry *entry)
{
    struct world *world = process->world;
    const struct sim_key *key = &world->keys[entry->task->key];
    if (entry->task->key && key->paused && knows(process, key->paused_ms))
        sim_break(world, "I5", entry->task, "p%u takes task %llu of key %u, which is paused", process->number,
                  (unsigned long long)entry->task->number, entry->task->key);
    if (world->queue_paused && knows(process, world->queue_paused_ms))
        sim_break(world, "I5", entry->task, "p%u takes task %llu, and the queue is paused", process->number,
                  (unsigned long long)entry->task->number);
}

struct sim_entry *oracle_taken(struct sim_process *process, const kl__held *held)
{
    struct world *world = process->world;
    struct sim_entry *entry = oracle_find(world, held->window->place.partition, &held->id);
    uint64_t epoch = held->window->epoch;
    if (!entry) {
        sim_break(world, "I7", NULL, "p%u takes a task that is not there", process->number);
        return NULL;
    }
    sim_note(world, process, entry->task, "taken, epoch %llu", (unsigned long long)epoch);
    if (!entry->ended) { /* else it was read before it ended, and load will see that */
        check_owner(process, entry, epoch, "takes");
        if (!world->plan.crons && entry->due_ms - world->plan.lease_ms / 10 > world->now_ms &&
            !entry->retry_line) /* clocks drift, and where time jumps they drift far */
            sim_break(world, "I3", entry->task, "p%u takes task %llu %lld ms before it is due", process->number,
                      (unsigned long long)entry->task->number, (long long)(entry->due_ms - world->now_ms));
        check_paused(process, entry);
        order_check(process, entry, held);
    }
    note_extra(process, entry, epoch);
    entry->taken_by = process->number;
    entry->taken_epoch = epoch;
    entry->drained_by = SIM_NOBODY; /* a drain leaves alone what is with a thread, also if that gives it back unrun */
    entry->starts++;
    entry->known_ms = process->tick_began_ms;
    entry->running = false;
    return entry;
}

/* It may have lost the shard, and have taken the task again under a later epoch. */
static bool is_taken_by(const struct sim_entry *entry, const struct sim_process *process, uint64_t epoch)
{
    return entry->taken_by == process->number && entry->taken_epoch == epoch;
}

void oracle_untaken(struct sim_process *process, struct sim_entry *entry, uint64_t epoch)
{
    sim_note(process->world, process, entry->task, "not run after all");
    if (!is_taken_by(entry, process, epoch))
        return;
    entry->taken_by = SIM_NOBODY;
    entry->starts--;
}

/* Load has ended it without a run, or set it aside, or it was not to be started any more. */
void oracle_dealt(struct sim_process *process, struct sim_entry *entry, uint64_t epoch)
{
    struct world *world = process->world;
    bool ends = order_ends_unrun(world, entry) && is_taken_by(entry, process, epoch);
    oracle_untaken(process, entry, epoch);
    if (!ends || (entry->task->rare && !process->all_kinds))
        return;
    entry->finished_by = process->number;
    entry->finished_epoch = entry->taken_epoch;
    entry->finished_order = 0; /* some time while it was loaded */
    entry->final = oracle_may_be_cancelled(world, entry->task) || !oracle_halted(world, entry->task->key);
    entry->verdict_dead = false;
}

/* Tasks that run in processes whose leases hold: those that are over nobody can count. */
static int64_t count_running(const struct world *world)
{
    int64_t count = 0;
    for (uint32_t key = 0; key < SIM_KEYS_MAX; key++) {
        for (const struct sim_entry *entry = world->keys[key].waiting; entry; entry = entry->next_of_key) {
            const struct sim_owner *owner = oracle_owner(world, entry->place);
            count += entry->running && owner->process == entry->taken_by && owner->epoch == entry->taken_epoch &&
                     owner->expires_ms > world->now_ms && !world->processes[owner->process]->dead;
        }
    }
    return count;
}

void oracle_runs(struct sim_process *process, struct sim_entry *entry, const kl__window *window)
{
    struct world *world = process->world;
    const struct sim_task *task = entry->task;
    unsigned long long number = task->number;
    world->operations++;
    world->starts++;
    entry->running = true;
    entry->finished_by = SIM_NOBODY;
    sim_note(world, process, task, "runs, start %u", entry->starts);
    if (world->plan.concurrency && count_running(world) > world->plan.concurrency)
        sim_break(world, "I8", task, "p%u runs task %llu, and more than %lld tasks of the queue run", process->number,
                  number, (long long)world->plan.concurrency);
    if (window->lost)
        sim_break(world, "I3", task, "p%u runs task %llu, and knows that the shard is lost", process->number, number);
    check_owner(process, entry, window->epoch, "runs");
    if (entry->ended && oracle_owner(world, entry->place)->fenced_by == process->number)
        sim_break(world, "I7", task, "p%u runs task %llu, which has ended", process->number, number);
    if (task->ended_told)
        sim_break(world, "I2", task, "p%u runs task %llu, of which an operator was told that it has ended",
                  process->number, number);
    if (task->rare && !process->all_kinds)
        sim_break(world, "I5", task, "p%u runs task %llu of a kind that it does not serve", process->number, number);
    if (task->job >= 0 && world->jobs[task->job].cancelled_ms > 0 && !world->jobs[task->job].rerun &&
        entry->known_ms > world->jobs[task->job].cancelled_ms)
        sim_break(world, "I5", task, "p%u runs task %llu of a cancelled job", process->number, number);
}

void oracle_finished(struct sim_process *process, struct sim_entry *entry, const kl__held *held)
{
    static const char *const names[] = {"done", "retry", "dead", "cancelled"};
    struct world *world = process->world;
    world->operations++;
    entry->running = false;
    if (entry->taken_by == process->number)
        entry->taken_by = SIM_NOBODY;
    sim_note(world, process, entry->task, "ends: %s", held ? names[held->outcome] : "the shard is lost");
    if (!held || (entry->finished_by != SIM_NOBODY && entry->finished_epoch > held->window->epoch))
        return; /* the next owner has run it again, and this one is about to learn that */
    entry->finished_by = process->number;
    entry->finished_epoch = held->window->epoch;
    entry->finished_order = ++world->finishes;
    entry->halted = held->halted;
    entry->verdict_dead = held->outcome == KL_DEAD;
    entry->final = held->outcome != KL_RETRY;
}

/* --- The end --- */

bool oracle_halted(const struct world *world, uint32_t key)
{
    if (key == 0 || world->plan.policy != KL_HEAD_HALT)
        return false;
    for (const struct sim_entry *entry = world->keys[key].waiting; entry; entry = entry->next_of_key)
        if (entry->retry_line && entry->attempts >= world->plan.attempts_max)
            return true;
    return false;
}

bool oracle_at_rest(const struct world *world, const struct sim_entry **ret_stuck)
{
    for (uint32_t key = 0; key < SIM_KEYS_MAX; key++) {
        if (!world->keys[key].waiting || world->keys[key].held || oracle_halted(world, key))
            continue;
        *ret_stuck = world->keys[key].waiting;
        return false;
    }
    return true;
}

/* Everything that waits in the store, the oracle says waits, and the other way round. */
static void check_store(struct world *world)
{
    uint64_t waiting = 0;
    for (uint32_t i = 0; i < SIM_PARTITIONS_MAX; i++) {
        kl_counts counts = {0};
        kl_place place = {i, KL_ALL_SHARDS};
        if (!world->partitions[i])
            continue;
        if (kl_store_counts(world->inner, place, NULL, &counts) != KL_OK)
            sim_break(world, "I7", NULL, "the store cannot be counted: %s", kl_error_text());
        waiting += counts.ready + counts.due + counts.retry;
    }
    if (waiting != world->waiting)
        sim_break(world, "I1", NULL, "%llu tasks wait in the store, and %llu should", (unsigned long long)waiting,
                  (unsigned long long)world->waiting);
}

void oracle_end(struct world *world)
{
    for (uint64_t i = 1; i <= world->task_count && !world->broken; i++) {
        const struct sim_task *task = world->tasks[i];
        const struct sim_entry *waiting = task->entries;
        while (waiting && waiting->ended)
            waiting = waiting->next_of_task;
        if (task->acknowledged && !task->duplicate && task->real_ends == 0 && !waiting)
            sim_break(world, "I1", task, "task %llu was acknowledged, and is neither waiting nor ended",
                      (unsigned long long)i);
        if (task->entries && task->real_ends + (waiting != NULL) > task->lives)
            sim_break(world, "I6", task, "task %llu has ended and waits again", (unsigned long long)i);
    }
    if (!world->broken)
        check_store(world);
}
