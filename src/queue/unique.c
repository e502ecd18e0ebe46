/* unique.c - tasks that are put once, however often and by whomever: a task's unique, and the token of a whole call.
 *
 * From: put.c.  To: record.c, and put.c again for the append itself.
 *
 * One record says who puts the tasks and under which ids; it ends with the window.
 *
 *     {"bytes": "invoice-7", "state": "claimed", "nonce": 123, "since_ms": 1700000000000, "where": 456,
 *      "layouts": [{"queue": "orders", "number": 1, "shard_prefix_len": 1}], "ids": {"base64": "..."}, "options": 789}
 *
 *      nothing --claim--> claimed --append--> claimed --finish--> stored --window ends--> nothing
 *                          |   ^
 *                          +---+  after CLAIM_MS, or when its producer gave up: taken over, with the same ids
 *
 * The ids are in the record before anything is stored. So whoever takes a claim over appends under the same ids, and
 * what the first producer has stored or is about to store is passed over: as an id that waits or is kept, or by the
 * append's token, which follows from the ids. (What is left: its task was stored, done and not kept, and the store has
 * forgotten the token, ten minutes or 65,536 of them later; or the first producer stands still for so long right before
 * its append.) A record that says "stored" is written behind the append, so it never
 * names a task that is not there.
 *
 * U1  Ids of a claim are written before a task with one of them is.
 * U2  A claim's ids change only by compare-and-set, and only while nothing can be stored under the old ones: their
 *     layout is sealed, or those who claimed them look at the record before they append.
 * U3  "stored" is written after the append returned KL_OK, or when the tasks were seen in the store.
 *
 * "where" tells whether two producers mean the same: it is a hash of the tasks' queues, keys and partitions, and for a
 * token also of their kinds and payloads. A task with the same unique and another key cannot have the first one's id:
 * who finds such a claim left looks for its task first, and takes ids of its own only when it is nowhere. "options", of
 * a token only, is a hash of the rest that was asked for; who wrote none is believed. Both stand in records that others
 * read, also after an update: what is hashed, and in which order, stays as it is, and what comes to it gets a hash of
 * its own. "done" marks tasks of a call that were stored in a layout before the others had to move to a newer one. */
#include <endian.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/compare.h"
#include "base/mutant.h"
#include "base/random.h"
#include "queue/put.h"

enum {
    CLAIM_MS = 10 * 1000,     /* a producer that is not heard of for so long may have died */
    LOOK_AGAIN_MS = 2 * 1000, /* an own claim is older than this: look whether it still is */
    POLLS_MAX = 32,           /* looks at a claim of somebody who is at it */
    POLL_MS_MAX = 32,         /* between two of them; the first wait is 1 ms */
    CONFLICTS_MAX = 32,       /* times that others were quicker */
    HASH_TEXT_BYTES = 33,     /* 128 bits in hex, and a terminator */
    LOOK_AT_ONCE = 64,        /* tasks looked for in one read */
};

static const char claimed[] = "claimed", stored[] = "stored";

/* One who wants to be the only one. */
struct claim {
    kl__put_call *call;
    kl__put_range range;
    kl_store *store; /* of the record */
    kl_bytes name, bytes;
    const char *kind;
    bool is_token;
    int64_t window_ms;
    int64_t nonce, where; /* not negative */
    int64_t options;      /* likewise; only of a token */
    size_t first_route, route_count;
    kl__put_made *made; /* by route of the call */
    bool given;         /* ids were chosen by whoever holds the token of the whole call */
    bool adopted;       /* ids were chosen by somebody who may have stored some of them */
    kl_arena arena;     /* of one look at the record */

    /* as held */
    uint64_t version;
    int64_t expires_ms;
    int64_t since_ms;
    int64_t looked_ns; /* when the claim was last seen to be held */
    char name_text[KL_RECORD_NAME_BYTES];
};

/* What the record says. */
struct found {
    uint64_t version; /* 0: there is none */
    int64_t expires_ms, since_ms, nonce, where;
    int64_t options; /* -1: it does not say */
    bool stored;
    kl_bytes ids, done;
    kl__put_made *made; /* by route of the call */
};

/* Tasks of the range that one store is asked for. */
struct looked {
    kl_store *store;
    kl_ref refs[LOOK_AT_ONCE];
    size_t tasks[LOOK_AT_ONCE]; /* their numbers in the call */
};

static size_t task_count(const struct claim *claim) { return claim->range.to - claim->range.from; }

/* --- Beginning --- */

static kl_queue *queue_of(const kl__put_call *call, size_t task) { return call->routes[call->ways[task].route].queue; }

static uint64_t mix_bytes(uint64_t hash, kl_bytes bytes) { return kl__hash(bytes, hash + bytes.len); }

static uint64_t mix_number(uint64_t hash, int64_t number)
{
    uint64_t bytes = htole64((uint64_t)number);
    return kl__hash((kl_bytes){&bytes, sizeof bytes}, hash);
}

/* Hashes are chained: where one text ends and the next begins counts too. */
static int64_t hash_where(const kl__put_call *call, kl__put_range range, bool with_payload)
{
    uint64_t hash = 0;
    for (size_t i = range.from; i < range.to; i++) {
        kl_bytes parts[] = {kl_str(queue_of(call, i)->name), call->entries[i].key, kl_str(call->tasks[i].partition),
                            call->entries[i].kind, call->entries[i].payload};
        for (size_t j = 0; j < (with_payload ? 5 : 3); j++)
            hash = kl__hash(parts[j], hash + parts[j].len);
        if (call->handed && call->entries[i].key.len == 0) /* its number chooses the partition */
            hash = mix_number(hash, (int64_t)call->handed[i].number);
    }
    return (int64_t)(hash >> 1);
}

static uint64_t mix_options(uint64_t hash, const kl_put *task)
{
    const int64_t numbers[] = {task->priority,          task->delay_ms,  task->due_ms,  task->attempts_max,
                               task->timeout_ms,        task->unique_ms, task->keep_ms, (int64_t)task->header_count,
                               (int64_t)task->tag_count};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        hash = mix_number(hash, numbers[i]);
    hash = mix_bytes(hash, task->unique);
    hash = mix_bytes(hash, task->group);
    hash = mix_bytes(hash, (kl_bytes){task->job.bytes, sizeof task->job.bytes});
    for (size_t i = 0; i < task->header_count; i++)
        hash = mix_bytes(mix_bytes(hash, task->headers[i].name), task->headers[i].value);
    for (size_t i = 0; i < task->tag_count; i++)
        hash = mix_bytes(hash, task->tags[i]);
    return hash;
}

/* All else that makes a call another one. Not its traces: when it is made again it has others. Nor the run of a job,
 * which may have begun meanwhile. */
static int64_t hash_options(const kl__put_call *call, kl__put_range range)
{
    uint64_t hash = 0;
    for (size_t i = range.from; i < range.to; i++)
        hash = mix_options(hash, &call->tasks[i]);
    return (int64_t)(hash >> 1);
}

static void hash_text(kl_bytes bytes, char ret_text[HASH_TEXT_BYTES])
{
    XXH128_hash_t hash = XXH3_128bits(bytes.data, bytes.len);
    snprintf(ret_text, HASH_TEXT_BYTES, "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
}

/* One for each route of the call: as given, to be changed without the giver's knowledge, or all zero. */
static kl__put_made *copy_made(kl__put_call *call, const kl__put_made *given)
{
    size_t bytes = call->route_count * sizeof *given;
    kl__put_made *made = kl_arena_alloc(&call->arena, bytes);
    if (made && given)
        memcpy(made, given, bytes);
    else if (made)
        memset(made, 0, bytes);
    return made;
}

static kl_rc begin(struct claim *claim, const kl__put_made *made)
{
    char hash[HASH_TEXT_BYTES];
    kl__put_call *call = claim->call;
    bool token = claim->is_token = strcmp(claim->kind, "token") == 0;
    const kl_put *task = &call->tasks[claim->range.from];
    kl_queue *queue = token ? call->queue : queue_of(call, claim->range.from);
    uint64_t seed = kl__random_seed();
    claim->given = made != NULL;
    claim->made = copy_made(call, made);
    if (!claim->made)
        return kl__fail_memory();
    hash_text(claim->bytes, hash);
    claim->name = kl__record_name(claim->name_text, sizeof claim->name_text, claim->kind, queue->name, hash);
    claim->store = queue->store;
    claim->window_ms = token || task->unique_ms == 0 ? KL_PUT_TOKEN_MS : task->unique_ms;
    claim->nonce = (int64_t)(kl__random_next(&seed) >> 1);
    claim->where = hash_where(call, claim->range, claim->is_token);
    claim->options = token ? hash_options(call, claim->range) : 0;
    claim->first_route = token ? 0 : call->ways[claim->range.from].route;
    claim->route_count = token ? call->route_count : 1;
    return KL_OK;
}

/* --- The record --- */

static kl_rc now(const struct claim *claim, int64_t *ret_ms)
{
    kl_rc rc;
    KL_ASK(rc, kl_store_now(claim->store, ret_ms));
    return rc;
}

static json_t *write_layouts(const struct claim *claim)
{
    json_t *layouts = kl__json_array();
    bool whole = layouts != NULL;
    for (size_t i = claim->first_route; whole && i < claim->first_route + claim->route_count; i++) {
        json_t *layout = kl__json_object();
        whole = kl__json_set_text(layout, "queue", claim->call->routes[i].queue->name) &&
                kl__json_set_int(layout, "number", (int64_t)claim->made[i].number) &&
                kl__json_set_int(layout, "shard_prefix_len", claim->made[i].layout.shard_prefix_len);
        if (whole)
            whole = kl__json_append(layouts, layout);
        else
            json_decref(layout);
    }
    if (whole)
        return layouts;
    json_decref(layouts);
    return NULL;
}

/* The ids of the range's tasks, and a bit for each that is stored. */
static bool pack(struct claim *claim, kl_bytes *ret_ids, kl_bytes *ret_done)
{
    size_t count = task_count(claim), done_bytes = (count + 7) / 8;
    uint8_t *ids = kl_arena_alloc(&claim->arena, count * sizeof(kl_task_id));
    uint8_t *done = kl_arena_alloc(&claim->arena, done_bytes);
    bool any = false;
    if (!ids || !done)
        return false;
    memset(done, 0, done_bytes);
    for (size_t i = 0; i < count; i++) {
        memcpy(ids + i * sizeof(kl_task_id), &claim->call->entries[claim->range.from + i].id, sizeof(kl_task_id));
        if (claim->call->ways[claim->range.from + i].stored) {
            done[i / 8] |= (uint8_t)(1u << (i % 8));
            any = true;
        }
    }
    *ret_ids = (kl_bytes){ids, count * sizeof(kl_task_id)};
    *ret_done = (kl_bytes){done, any ? done_bytes : 0};
    return true;
}

static json_t *write_value(struct claim *claim, const char *state, int64_t since_ms)
{
    kl_bytes ids, done;
    json_t *value = kl__json_object();
    bool whole = pack(claim, &ids, &done) && kl__json_set_bytes(value, "bytes", claim->bytes) &&
                 kl__json_set_text(value, "state", state) && kl__json_set_int(value, "nonce", claim->nonce) &&
                 kl__json_set_int(value, "since_ms", since_ms) && kl__json_set_int(value, "where", claim->where) &&
                 kl__json_set(value, "layouts", write_layouts(claim)) && kl__json_set_bytes(value, "ids", ids) &&
                 (!claim->is_token || kl__json_set_int(value, "options", claim->options)) &&
                 (done.len == 0 || state == stored || kl__json_set_bytes(value, "done", done));
    if (whole)
        return value;
    json_decref(value);
    return NULL;
}

/* Writes what the claim is now over this version. */
static kl_rc write(struct claim *claim, uint64_t over, const char *state, int64_t since_ms)
{
    json_t *value = write_value(claim, state, since_ms);
    kl_rc rc = kl__record_write(claim->store, claim->name, over, value, claim->expires_ms, &claim->version);
    json_decref(value);
    if (rc == KL_OK)
        claim->looked_ns = kl__monotonic_ns();
    return rc;
}

static kl_rc read_layouts(struct claim *claim, kl__json *from, struct found *found)
{
    json_t *layouts = kl__json_array_of(from, "layouts", claim->route_count);
    if (!layouts)
        return from->rc;
    if (json_array_size(layouts) != claim->route_count)
        return kl__json_damaged(from, "layouts", "are not those of the tasks");
    found->made = kl_arena_alloc(&claim->arena, claim->call->route_count * sizeof *found->made);
    if (!found->made)
        return kl__fail_memory();
    for (size_t i = 0; i < claim->route_count; i++) {
        kl__json item = kl__json_item(from, layouts, i);
        found->made[claim->first_route + i] = (kl__put_made){
            .number = (uint64_t)kl__json_int(&item, "number", 1, INT64_MAX),
            .layout = {1, (uint32_t)kl__json_int(&item, "shard_prefix_len", 1, KL_SHARD_PREFIX_LEN_MAX)},
        };
        if (item.rc != KL_OK)
            return item.rc;
    }
    return KL_OK;
}

static kl_rc refuse_other(const struct claim *claim, size_t count)
{
    return kl__fail(KL_EMISMATCH,
                    "the token was used for another call, with %zu task%s where this one has %zu; give each call a "
                    "token of its own",
                    count, count == 1 ? "" : "s", task_count(claim));
}

static kl_rc read_value(struct claim *claim, kl__json *from, struct found *found)
{
    kl_bytes bytes = kl__json_bytes(from, "bytes", &claim->arena);
    const char *state = kl__json_text(from, "state", &claim->arena);
    found->stored = strcmp(state, stored) == 0;
    found->nonce = kl__json_int(from, "nonce", 0, INT64_MAX);
    found->since_ms = kl__json_int(from, "since_ms", 0, INT64_MAX);
    found->where = kl__json_int(from, "where", 0, INT64_MAX);
    found->options = kl__json_int_or(from, "options", 0, INT64_MAX, -1);
    found->ids = kl__json_bytes(from, "ids", &claim->arena);
    found->done = kl__json_bytes_or(from, "done", &claim->arena, (kl_bytes){"", 0});
    if (from->rc != KL_OK)
        return from->rc;
    if (!kl__bytes_equal(bytes, claim->bytes))
        return kl__fail(KL_EINVAL, "the %s has the hash of another one; change it by a letter", claim->kind);
    size_t count = found->ids.len / sizeof(kl_task_id);
    if (found->ids.len != task_count(claim) * sizeof(kl_task_id))
        return refuse_other(claim, count);
    if (found->done.len != 0 && found->done.len != (count + 7) / 8)
        return kl__json_damaged(from, "done", "has another length than the ids");
    if (claim->is_token && found->where != claim->where)
        return kl__fail(KL_EMISMATCH, "the token was used for another call, whose tasks have other keys, "
                                      "kinds, payloads, queues or partitions; give each call a token of its own");
    if (claim->is_token && found->options >= 0 && found->options != claim->options)
        return kl__fail(KL_EMISMATCH, "the token was used for another call, whose tasks have other options, headers or "
                                      "tags; give each call a token of its own");
    return read_layouts(claim, from, found);
}

/* version 0: there is none. */
static kl_rc look(struct claim *claim, struct found *ret_found)
{
    kl__json value = {0};
    kl_record record;
    kl_arena_reset(&claim->arena);
    kl_rc rc = kl__record_read(claim->store, claim->name, &claim->arena, &value, &record);
    *ret_found = (struct found){.version = 0};
    if (rc == KL_ENOTFOUND)
        return KL_OK;
    if (rc == KL_OK) {
        ret_found->version = record.version;
        ret_found->expires_ms = record.expires_ms;
        rc = read_value(claim, &value, ret_found);
    }
    kl__json_free(&value);
    return rc;
}

/* --- What others did --- */

static kl_task_id found_id(const struct found *found, size_t i)
{
    kl_task_id id;
    memcpy(&id, (const uint8_t *)found->ids.data + i * sizeof id, sizeof id);
    return id;
}

static bool found_done(const struct found *found, size_t i)
{
    return found->done.len > 0 && (((const uint8_t *)found->done.data)[i / 8] >> (i % 8) & 1);
}

/* The tasks are there, under these ids: duplicates, unless these are the ids that this call was given. */
static void accept(struct claim *claim, const struct found *found)
{
    for (size_t i = 0; i < task_count(claim); i++) {
        kl_entry *entry = &claim->call->entries[claim->range.from + i];
        kl__put_way *way = &claim->call->ways[claim->range.from + i];
        kl_task_id id = found_id(found, i);
        way->stored = true;
        way->duplicate = !claim->given || kl_id_compare(&id, &entry->id) != 0;
        entry->id = id;
    }
}

static void use_layouts(struct claim *claim, const struct found *found)
{
    for (size_t i = claim->first_route; i < claim->first_route + claim->route_count; i++)
        claim->made[i] = found->made[i];
}

/* The ids, layouts and marks of the record become the claim's. */
static void adopt(struct claim *claim, const struct found *found)
{
    for (size_t i = 0; i < task_count(claim); i++) {
        claim->call->entries[claim->range.from + i].id = found_id(found, i);
        claim->call->ways[claim->range.from + i].stored = found_done(found, i);
        claim->call->ways[claim->range.from + i].seen = false;
    }
    use_layouts(claim, found);
}

/* Refs of tasks that are not known to be stored, from *next on and all of one store; *next goes behind them. */
static size_t gather_refs(const struct claim *claim, size_t *next, struct looked *looked)
{
    size_t count = 0;
    for (; *next < claim->range.to && count < LOOK_AT_ONCE; ++*next) {
        const kl_entry *entry = &claim->call->entries[*next];
        const kl__put_way *way = &claim->call->ways[*next];
        kl_store *store = claim->call->stores[way->store].store;
        if (way->stored)
            continue;
        if (count > 0 && store != looked->store)
            break;
        looked->store = store;
        looked->refs[count] = (kl_ref){.place = entry->place, .id = entry->id};
        looked->tasks[count++] = *next;
    }
    return count;
}

/* Marks those that the store knows, waiting or kept. *ret_all: it knows all of them. */
static kl_rc mark_some(struct claim *claim, const struct looked *looked, size_t count, bool *ret_all)
{
    kl_task found[LOOK_AT_ONCE];
    kl_arena arena = {0};
    kl_rc rc = KL_OK;
    *ret_all = true;
    for (size_t done = 0, read = 0; rc == KL_OK && done < count; done += read) {
        uint32_t tries = 0;
        do {
            kl_arena_reset(&arena);
            rc = kl_store_read(looked->store, looked->refs + done, count - done, &arena, found, &read);
        } while (kl__put_again(rc, tries++));
        for (size_t i = 0; rc == KL_OK && i < read; i++) {
            bool known = found[i].state != KL_TASK_UNKNOWN;
            claim->call->ways[looked->tasks[done + i]].stored = known;
            claim->call->ways[looked->tasks[done + i]].seen = known;
            *ret_all &= known;
        }
    }
    kl_arena_free(&arena);
    return rc;
}

/* Marks the range's tasks that are in the stores, at the places where they are to go. With only_all it ends at the
 * first that are not all there. */
static kl_rc mark_stored(struct claim *claim, bool only_all, bool *ret_all)
{
    struct looked looked;
    size_t next = claim->range.from, count;
    kl_rc rc = KL_OK;
    *ret_all = true;
    while (rc == KL_OK && (*ret_all || !only_all) && (count = gather_refs(claim, &next, &looked)) > 0) {
        bool all;
        rc = mark_some(claim, &looked, count, &all);
        *ret_all &= all;
    }
    return rc;
}

/* Whether the task goes into its store by one append with the others; one with a unique of its own does not. */
static bool goes_along(const struct claim *claim, size_t task, uint32_t store)
{
    return claim->call->ways[task].store == store && !(claim->is_token && claim->call->tasks[task].unique.len > 0);
}

/* What was put with a task that is there was stored with it, where the engine stores all of an append or nothing: if it
 * is not there any more, it has ended. */
static void mark_whole(struct claim *claim)
{
    kl__put_call *call = claim->call;
    for (uint32_t store = 0; store < call->store_count; store++) {
        bool seen = false;
        if (!(kl_store_info_of(call->stores[store].store).can & KL_STORE_ATOMIC_APPEND))
            continue;
        for (size_t i = claim->range.from; !seen && i < claim->range.to; i++)
            seen = goes_along(claim, i, store) && call->ways[i].seen;
        for (size_t i = claim->range.from; seen && i < claim->range.to; i++)
            call->ways[i].stored |= goes_along(claim, i, store);
    }
}

/* Looks for the one task that somebody else claimed, wherever it may be by now. */
static kl_rc find_one(const struct claim *claim, const struct found *found, bool *ret_there)
{
    kl_task_id id = found_id(found, 0);
    kl_arena arena = {0};
    kl_found task;
    kl_rc rc;
    KL_ASK(rc, kl_queue_task(queue_of(claim->call, claim->range.from), &id, &arena, &task));
    kl_arena_free(&arena);
    *ret_there = rc == KL_OK;
    return rc == KL_ENOTFOUND ? KL_OK : rc;
}

/* Whether what somebody else claimed can be seen already. Tasks of a call are looked for where they were to go. What
 * cannot be read counts as not seen. */
static bool is_seen(struct claim *claim, const struct found *found)
{
    bool there = false;
    if (task_count(claim) == 1)
        return find_one(claim, found, &there) == KL_OK && there;
    adopt(claim, found);
    return kl__put_place_tasks(claim->call, claim->range, claim->made) == KL_OK &&
           mark_stored(claim, true, &there) == KL_OK && there;
}

/* Writes for somebody else that his tasks are stored. Who was quicker has written the same. */
static kl_rc finish_for(struct claim *claim, const struct found *found)
{
    accept(claim, found);
    use_layouts(claim, found);
    claim->where = found->where;
    claim->expires_ms = found->expires_ms;
    kl_rc rc = write(claim, found->version, stored, found->since_ms);
    return rc == KL_ECONFLICT ? KL_OK : rc;
}

/* --- Holding the claim --- */

static void set_made(struct claim *claim)
{
    for (size_t i = claim->first_route; i < claim->first_route + claim->route_count; i++) {
        const kl__queue_layout *layout = claim->call->routes[i].layout;
        claim->made[i] = (kl__put_made){layout->number, layout->layout};
    }
}

/* A claim with ids of its own, over nothing or over one that was left and whose ids are of no use here. */
static kl_rc claim_anew(struct claim *claim, uint64_t over, int64_t now_ms)
{
    if (!claim->given) {
        for (size_t i = claim->range.from; i < claim->range.to; i++)
            claim->call->ways[i].stored = claim->call->ways[i].seen = false;
        kl_rc rc = kl__put_route_tasks(claim->call, claim->range, true);
        if (rc != KL_OK)
            return rc;
        set_made(claim);
        claim->adopted = false;
    }
    claim->since_ms = now_ms;
    claim->expires_ms = now_ms + claim->window_ms;
    return write(claim, over, claimed, now_ms);
}

/* A claim that was left and is for another key: its task may be there all the same, and this one is its duplicate. */
static kl_rc take_over_other(struct claim *claim, const struct found *found, int64_t now_ms, bool *ret_held)
{
    bool there;
    kl_rc rc = find_one(claim, found, &there);
    if (rc != KL_OK)
        return rc;
    *ret_held = !there;
    return there ? finish_for(claim, found) : claim_anew(claim, found->version, now_ms);
}

static kl_rc take_over(struct claim *claim, const struct found *found, int64_t now_ms, bool *ret_held)
{
    if (found->where != claim->where)
        return take_over_other(claim, found, now_ms, ret_held);
    *ret_held = true;
    adopt(claim, found);
    claim->adopted = true;
    claim->since_ms = now_ms;
    claim->expires_ms = now_ms + claim->window_ms;
    return write(claim, found->version, claimed, now_ms);
}

/* Whether its producer gave up or may have died. A claim that this call was given the ids of is its own, from a time
 * before its token was taken over. */
static bool is_left(const struct claim *claim, const struct found *found, int64_t now_ms)
{
    if (claim->given) {
        kl_task_id id = found_id(found, 0);
        if (kl_id_compare(&id, &claim->call->entries[claim->range.from].id) == 0)
            return true;
    }
    return found->since_ms == 0 || now_ms - found->since_ms >= CLAIM_MS;
}

static kl_rc wait_for(struct claim *claim, uint32_t *polls)
{
    if (*polls == POLLS_MAX)
        return kl__fail(KL_EBUSY,
                        "somebody is putting the same %s just now, or died at it; try again in a moment, after %d s it "
                        "is taken over",
                        claim->kind, CLAIM_MS / 1000);
    int64_t ms = INT64_C(1) << (*polls < 5 ? *polls : 5);
    kl__queue_sleep(ms < POLL_MS_MAX ? ms : POLL_MS_MAX);
    ++*polls;
    return KL_ECONFLICT;
}

/* One look, and what follows from it. KL_ECONFLICT: look again. */
static kl_rc try_hold(struct claim *claim, uint32_t *polls, bool *ret_held)
{
    struct found found;
    int64_t now_ms = 0;
    kl_rc rc = now(claim, &now_ms);
    if (rc == KL_OK)
        rc = look(claim, &found);
    if (rc != KL_OK)
        return rc;
    *ret_held = false;
    if (found.version > 0 && (found.stored || KL_MUTANT(unique_unwritten))) {
        accept(claim, &found);
        return KL_OK;
    }
    if (found.version > 0 && !is_left(claim, &found, now_ms))
        return is_seen(claim, &found) ? finish_for(claim, &found) : wait_for(claim, polls);
    if (found.version > 0)
        return take_over(claim, &found, now_ms, ret_held);
    *ret_held = true;
    return claim_anew(claim, 0, now_ms);
}

static kl_rc hold(struct claim *claim, bool *ret_held)
{
    uint32_t polls = 0;
    for (int conflicts = 0; conflicts < CONFLICTS_MAX + POLLS_MAX; conflicts++) {
        kl_rc rc = try_hold(claim, &polls, ret_held);
        if (rc != KL_ECONFLICT)
            return rc;
    }
    return kl__fail(KL_EBUSY, "many are putting the same %s just now; try again in a moment", claim->kind);
}

/* --- Putting --- */

/* KL_ECONFLICT: somebody else has the claim by now. */
static kl_rc still_held(struct claim *claim)
{
    struct found found;
    if (kl__monotonic_ns() - claim->looked_ns < LOOK_AGAIN_MS * INT64_C(1000000))
        return KL_OK;
    kl_rc rc = look(claim, &found);
    if (rc == KL_OK && (found.version == 0 || found.nonce != claim->nonce))
        rc = kl__fail(KL_ECONFLICT, "somebody else has taken the %s over", claim->kind);
    if (rc == KL_OK)
        claim->looked_ns = kl__monotonic_ns();
    return rc;
}

/* Tasks of the call that have a unique of their own: first, and each by itself, as without a token. The append of the
 * others does not name them. */
static kl_rc put_uniques(struct claim *claim)
{
    kl__put_call *call = claim->call;
    kl_rc rc = KL_OK;
    for (size_t i = claim->range.from; rc == KL_OK && claim->is_token && call->uniques > 0 && i < claim->range.to; i++)
        if (call->tasks[i].unique.len > 0 && !call->ways[i].stored) {
            rc = kl__put_once(call, (kl__put_range){i, i + 1}, "unique", call->tasks[i].unique, claim->made);
            call->ways[i].seen = false;
        }
    return rc;
}

/* What was adopted is looked for first: the store may have forgotten the append by now. */
static kl_rc try_put(struct claim *claim)
{
    bool all;
    kl_rc rc = still_held(claim);
    if (rc == KL_OK)
        rc = put_uniques(claim);
    if (rc == KL_OK)
        rc = kl__put_place_tasks(claim->call, claim->range, claim->made);
    if (rc == KL_OK && claim->adopted)
        rc = mark_stored(claim, false, &all);
    if (rc == KL_OK && claim->adopted)
        mark_whole(claim);
    return rc == KL_OK ? kl__put_append(claim->call, claim->range, true) : rc;
}

/* The old layout takes nothing any more: what is not stored gets the ids that it has in the newest (U2). What is stays
 * behind, and appends there do not name it. */
static kl_rc move(struct claim *claim)
{
    for (size_t i = claim->range.from; i < claim->range.to; i++)
        claim->call->ways[i].seen = false;
    kl_rc rc = kl__put_refresh(claim->call);
    if (rc == KL_OK)
        rc = kl__put_move_tasks(claim->call, claim->range, claim->made);
    return rc == KL_OK ? write(claim, claim->version, claimed, claim->since_ms) : rc;
}

static kl_rc put_held(struct claim *claim)
{
    for (int tries = 0; tries < KL_PUT_LAYOUT_TRIES; tries++) {
        kl_rc rc = try_put(claim);
        if (rc == KL_ESEALED)
            rc = move(claim);
        else
            return rc;
        if (rc != KL_OK)
            return rc;
    }
    return kl__fail(KL_EBUSY, "the layout of the queue %s changes again and again; put the tasks later",
                    claim->call->queue->name);
}

/* --- Ending --- */

static bool same_ids(const struct claim *claim, const struct found *found)
{
    bool same = true;
    for (size_t i = 0; same && i < task_count(claim); i++) {
        kl_task_id id = found_id(found, i);
        same = kl_id_compare(&id, &claim->call->entries[claim->range.from + i].id) == 0;
    }
    return same;
}

/* Somebody who has taken the claim over with the same ids will find the tasks stored, so it is written for him. When
 * the window has ended meanwhile, there is nothing to write. */
static kl_rc finish(struct claim *claim)
{
    kl_rc rc = write(claim, claim->version, stored, claim->since_ms);
    for (int tries = 0; rc == KL_ECONFLICT && tries < CONFLICTS_MAX; tries++) {
        struct found found;
        rc = look(claim, &found);
        if (rc != KL_OK || found.version == 0 || found.stored || !same_ids(claim, &found))
            return rc;
        rc = write(claim, found.version, stored, claim->since_ms);
    }
    return rc == KL_ECONFLICT ? KL_OK : rc;
}

/* The next one need not wait, and takes the same ids. If this cannot be written he waits. The sentence stays. */
static kl_rc give_up(struct claim *claim, kl_rc rc)
{
    char why[512];
    snprintf(why, sizeof why, "%s", kl_error_text());
    (void)write(claim, claim->version, claimed, 0);
    return kl__fail(rc, "%s", why);
}

static kl_rc run(struct claim *claim)
{
    for (int tries = 0; tries < CONFLICTS_MAX; tries++) {
        bool held = false;
        kl_rc rc = hold(claim, &held);
        if (rc != KL_OK || !held)
            return rc;
        rc = put_held(claim);
        if (rc == KL_OK)
            return finish(claim);
        if (rc != KL_ECONFLICT)
            return give_up(claim, rc);
    }
    return kl__fail(KL_EBUSY, "many are putting the same %s just now; try again in a moment", claim->kind);
}

kl_rc kl__put_once(kl__put_call *call, kl__put_range range, const char *kind, kl_bytes bytes, const kl__put_made *made)
{
    struct claim claim;
    memset(&claim, 0, offsetof(struct claim, name_text));
    claim.call = call;
    claim.range = range;
    claim.kind = kind;
    claim.bytes = bytes;
    kl_rc rc = begin(&claim, made);
    if (rc == KL_OK)
        rc = run(&claim);
    kl_arena_free(&claim.arena);
    return rc;
}

kl_rc kl__put_forget(kl_queue *queue, kl_bytes token)
{
    char buffer[KL_RECORD_NAME_BYTES], hash[HASH_TEXT_BYTES];
    kl_arena arena = {0};
    kl_record record;
    hash_text(token, hash);
    kl_bytes name = kl__record_name(buffer, sizeof buffer, "token", queue->name, hash);
    kl_rc rc = kl__record_get(queue->store, name, &arena, &record);
    if (rc == KL_OK && record.version)
        rc = kl__record_remove(queue->store, name, record.version);
    kl_arena_free(&arena);
    return rc == KL_ENOTFOUND ? KL_OK : rc;
}
