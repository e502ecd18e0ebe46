/* claims_give.c - from asks to tasks.
 *
 * From: net (asks).  To: pump.c (take, load); then net, with a token for each task.
 *
 * Asks stand in line in order of arrival. Whoever has something to give, the thread that asks or the claims' own, takes
 * as many tasks as all asks want together, loads them in one call of the store and shares them out by the line: one
 * does so at a time (`serving`), and asks that come meanwhile are served by its next round or by the claims' thread.
 * Whom a task is for is decided when its kind is known, inside the load; what nobody in line wants waits on its kind's
 * shelf.
 *
 * One ask that wants many has them loaded into its own arena; what is loaded for several is copied. */
#include <string.h>

#include "base/compare.h"
#include "work/claims_inside.h"

/* ROUNDS: in the thread of whoever asks. MANY: tasks for which copying is not worth it. LOOK_MS: a store that takes
 * longer keeps nobody waiting who did not want to. */
enum { ROUNDS = 4, MANY = 16, LOOK_MS = 2000 };

static _Thread_local int
    answering; /* inside an answer asks are left to the claims' thread, or it could go on for ever */

/* --- The line --- */

/* As many as it asked for, or as many bytes as one answer may have. */
static bool is_full(const kl__claim_ask *ask)
{
    return ask->count + ask->reserved >= ask->max || ask->bytes >= KL_CLAIM_BYTES_MAX;
}

static bool wants_more(const kl__claim_ask *ask) { return !is_full(ask) && !ask->withdrawn && ask->rc == KL_OK; }

/* Whoever serves has it in hand, and answers it. */
static bool is_served(const kl__claims *claims, const kl__claim_ask *ask)
{
    return ask->reserved > 0 || claims->batch.only == ask;
}

static bool wants_kind(const kl__claim_ask *ask, kl_bytes kind)
{
    for (size_t i = 0; i < ask->kind_count; i++)
        if (kl__bytes_equal(ask->kinds[i], kind))
            return true;
    return ask->kind_count == 0;
}

static void join_line(kl__claims *claims, kl__claim_ask *ask)
{
    ask->next = NULL;
    ask->previous = claims->last;
    *(claims->last ? &claims->last->next : &claims->first) = ask;
    claims->last = ask;
    ask->waits = true;
    claims->ask_count++;
    claims->hasty += ask->wait_ms == 0;
    claims->wanted += ask->max;
    if (ask->until_ns < claims->ask_until_ns)
        claims->ask_until_ns = ask->until_ns;
}

static void leave_line(kl__claims *claims, kl__claim_ask *ask)
{
    if (claims->batch.next == ask)
        claims->batch.next = ask->next;
    *(ask->previous ? &ask->previous->next : &claims->first) = ask->next;
    *(ask->next ? &ask->next->previous : &claims->last) = ask->previous;
    ask->waits = false;
    claims->ask_count--;
    claims->hasty -= ask->wait_ms == 0;
    claims->wanted -= ask->max - ask->count;
    claims->touched -= ask->touched;
    claims->busy_ns = kl__monotonic_ns();
}

static void touch(kl__claims *claims, kl__claim_ask *ask)
{
    claims->touched += !ask->touched;
    ask->touched = true;
}

/* Out of line, and onto the list of those to be answered. */
static kl__claim_ask **collect(kl__claims *claims, kl__claim_ask *ask, kl__claim_ask **link)
{
    leave_line(claims, ask);
    ask->next = NULL;
    *link = ask;
    return &ask->next;
}

/* Leaves the mutex. */
static void answer(kl__claims *claims, kl__claim_ask *list)
{
    kl__claim_ask *next;
    if (!list)
        return;
    pthread_mutex_unlock(&claims->worker->mutex);
    answering++;
    for (; list; list = next) {
        next = list->next;
        list->answer(list, list->count ? KL_OK : list->rc, list->tasks, list->count);
    }
    answering--;
    pthread_mutex_lock(&claims->worker->mutex);
}

/* --- Kinds --- */

/* Brings tasks of one kind back that had to wait, as many as are wanted. */
static void fetch(kl__claims *claims, kl__shelf *shelf, size_t max, int64_t now_ns)
{
    shelf->asked_ns = now_ns;
    if (shelf->count == 0 && shelf->over)
        shelf->over = kl__pump_serve(claims->pump, shelf->hash, KL_SHELF_MAX) == KL_SHELF_MAX;
    kl__room_unshelve(shelf, max);
}

static void fetch_for(kl__claims *claims, const kl__claim_ask *ask, int64_t now_ns)
{
    kl__pump *pump = claims->pump;
    size_t max = ask->max - ask->count;
    for (size_t i = 0; i < ask->kind_count; i++) {
        kl__shelf *shelf = kl__room_shelf(pump->room, ask->kinds[i], false);
        if (shelf)
            fetch(claims, shelf, max, now_ns);
    }
    for (kl__shelf *shelf = ask->kind_count ? NULL : kl__room_shelves(pump->room); shelf; shelf = shelf->next)
        fetch(claims, shelf, max, now_ns);
}

/* What waits by its kind and is wanted goes before all others. Costs nothing where all want every kind. */
static void fetch_all(kl__claims *claims)
{
    kl__pump *pump = claims->pump;
    if (!kl__room_shelves(pump->room) && !pump->strays)
        return;
    int64_t now_ns = kl__monotonic_ns();
    if (pump->strays) {
        pump->strays = false;
        kl__pump_serve(pump, 0, SIZE_MAX);
    }
    size_t seen = 0;
    for (kl__claim_ask *ask = claims->first; ask && seen < KL_LOAD_MAX; ask = ask->next, seen++)
        if (wants_more(ask))
            fetch_for(claims, ask, now_ns);
}

void kl__claims_sweep(kl__claims *claims, int64_t now_ns)
{
    if (now_ns - claims->swept_ns < claims->kind_ms * 100000) /* a tenth of that */
        return;
    claims->swept_ns = now_ns;
    for (kl__shelf *shelf = kl__room_shelves(claims->pump->room); shelf; shelf = shelf->next) {
        if (shelf->asked_ns == 0)
            shelf->asked_ns = now_ns;
        if (shelf->count && now_ns - shelf->asked_ns > claims->kind_ms * 1000000)
            kl__pump_unserve(claims->pump, shelf);
    }
}

/* --- One batch --- */

bool kl__claims_wanted(void *context, kl__held *held, kl_bytes kind)
{
    kl__claims *claims = context;
    kl__batch *batch = &claims->batch;
    while (batch->next && !batch->only && !wants_more(batch->next))
        batch->next = batch->next->next;
    kl__claim_ask *ask = batch->only ? batch->only : batch->next;
    while (ask && !(wants_more(ask) && wants_kind(ask, kind)))
        ask = batch->only ? NULL : ask->next;
    if (!ask)
        return false;
    ask->reserved++;
    touch(claims, ask);
    batch->giving[batch->wanted++] = (kl__giving){.ask = ask, .held = held};
    return true;
}

/* A name that lasts: there are few of them. NULL: no memory. */
struct kl__claims_name {
    struct kl__claims_name *next;
    char name[KL_PARTITION_NAME_BYTES];
};

static const char *keep_name(kl__claims *claims, const char *name)
{
    struct kl__claims_name *each = claims->names;
    while (each && strcmp(each->name, name) != 0)
        each = each->next;
    if (each || !(each = kl__alloc_zeroed(1, sizeof *each)))
        return each ? each->name : NULL;
    memcpy(each->name, name, strlen(name) + 1);
    each->next = claims->names;
    claims->names = each;
    return each->name;
}

void kl__claims_free_names(kl__claims *claims)
{
    while (claims->names) {
        struct kl__claims_name *name = claims->names;
        claims->names = name->next;
        kl__free(name);
    }
}

static void set_times(kl__claims *claims, kl__claim *claim, const kl_task_extra *extra, int64_t lease_ms,
                      int64_t now_ns)
{
    claim->timeout_ms = extra->timeout_ms ? extra->timeout_ms : claims->pump->descriptor->settings.timeout_ms;
    claim->deadline_ns =
        claim->timeout_ms > KL_EXEC_WAIT_MS_MAX ? KL_NEVER : kl__claims_until_ns(now_ns, claim->timeout_ms);
    claim->lease_ms = lease_ms ? lease_ms : KL_CLAIM_LEASE_MS;
    kl__claim_lease(claims, claim, kl__claims_until_ns(now_ns, claim->lease_ms));
}

/* A loaded task becomes a claim. */
static kl_rc claim_one(kl__claims *claims, kl__giving *giving, const kl_task_extra *extra, int64_t now_ns)
{
    kl__claim *claim;
    kl__held *held = giving->held;
    giving->partition = keep_name(claims, held->window->partition->plain);
    giving->partition_index = held->window->partition->index;
    kl_rc rc = giving->partition ? kl__claim_new(claims, &claim) : kl__fail_memory();
    if (rc != KL_OK)
        return rc;
    claim->held = held;
    claim->attempts_max = extra->attempts_max;
    claim->keep_ms = extra->keep_ms;
    set_times(claims, claim, extra, giving->ask->lease_ms, now_ns);
    giving->token = (kl__token){claim->index, claim->serial, (uint16_t)giving->partition_index, {0}};
    memcpy(giving->token.random, claim->random, sizeof claim->random);
    giving->attempt = held->lane.mark.attempts + (held->marked ? 0u : 1u);
    giving->lease_ms = (claim->until_ns - now_ns) / 1000000;
    giving->lease_until_ms = kl__wall_ms() + giving->lease_ms;
    return KL_OK;
}

static size_t bytes_of(const kl_entry *entry)
{
    return entry->key.len + entry->kind.len + entry->headers.len + entry->payload.len;
}

/* Of what was wanted, that which may be run is claimed; the rest goes back into line. */
static void claim_loaded(kl__claims *claims, size_t run)
{
    kl__batch *batch = &claims->batch;
    int64_t now_ns = kl__monotonic_ns();
    size_t loaded = 0, bytes = 0;
    for (size_t i = 0; i < run; i++)
        bytes += bytes_of(&batch->tasks[i].entry);
    batch->task_bytes = run ? bytes / run : 0;
    for (size_t i = 0; i < batch->wanted; i++) {
        kl__giving *giving = &batch->giving[i];
        if (loaded == run || batch->held[loaded] != giving->held) {
            giving->held = NULL; /* it was lost meanwhile; the others keep their order */
            continue;
        }
        giving->from = loaded++;
        bool may = giving->ask->bytes < KL_CLAIM_BYTES_MAX && !giving->ask->withdrawn && !claims->ending &&
                   kl__pump_may_start(giving->held, now_ns / 1000000);
        kl_rc rc = may ? claim_one(claims, giving, &batch->extras[giving->from], now_ns) : KL_OK;
        if (may && rc == KL_OK) {
            giving->ask->bytes += bytes_of(&batch->tasks[giving->from].entry);
            continue;
        }
        giving->ask->rc = rc;
        kl__pump_untake(claims->pump, giving->held);
        giving->held = NULL;
    }
}

/* --- Handing over: the mutex is not held, and only this thread looks at the asks --- */

static void copy_bytes(kl_bytes *bytes, char **at)
{
    if (bytes->len)
        memcpy(*at, bytes->data, bytes->len);
    bytes->data = *at;
    *at += bytes->len;
}

/* A task out of the batch's arena. */
static kl_rc copy_task(const kl_task *from, kl_arena *arena, kl_task *to, kl_task_extra *extra)
{
    *to = *from;
    kl_entry *entry = &to->entry;
    char *at = kl_arena_alloc(arena, bytes_of(entry) + 1);
    if (!at)
        return kl__fail_memory();
    copy_bytes(&entry->key, &at);
    copy_bytes(&entry->kind, &at);
    copy_bytes(&entry->headers, &at);
    copy_bytes(&entry->payload, &at);
    to->error = to->result = (kl_bytes){0};
    return kl__envelope_decode(entry->headers, arena, extra);
}

/* Room for one more answer. */
static kl_rc make_room(kl__claim_ask *ask, size_t more)
{
    if (ask->count < ask->room)
        return KL_OK;
    size_t room = ask->count + more < ask->room * 2 ? ask->room * 2 : ask->count + more;
    room = room < ask->max ? room : ask->max;
    kl__claimed *tasks = kl_arena_alloc(ask->arena, room * sizeof *tasks);
    if (!tasks)
        return kl__fail_memory();
    if (ask->count)
        memcpy(tasks, ask->tasks, ask->count * sizeof *tasks);
    ask->tasks = tasks;
    ask->room = room;
    return KL_OK;
}

static kl_rc hand_over(kl__claims *claims, const kl__giving *giving)
{
    kl__batch *batch = &claims->batch;
    kl__claim_ask *ask = giving->ask;
    const kl_task *task = &batch->tasks[giving->from];
    const kl_task_extra *extra = &batch->extras[giving->from];
    kl_rc rc = make_room(ask, ask->reserved);
    if (rc == KL_OK && !batch->only) {
        struct {
            kl_task task;
            kl_task_extra extra;
        } *copy = kl_arena_alloc(ask->arena, sizeof *copy);
        rc = copy ? copy_task(task, ask->arena, &copy->task, &copy->extra) : kl__fail_memory();
        task = rc == KL_OK ? &copy->task : NULL;
        extra = rc == KL_OK ? &copy->extra : NULL;
    }
    if (rc != KL_OK)
        return rc;
    kl__claimed *claimed = &ask->tasks[ask->count++];
    *claimed = (kl__claimed){.task = task,
                             .extra = extra,
                             .attempt = giving->attempt,
                             .lease_until_ms = giving->lease_until_ms,
                             .lease_ms = giving->lease_ms,
                             .partition = giving->partition,
                             .partition_index = giving->partition_index};
    kl__token_write(claims->server, &giving->token, claimed->token);
    return KL_OK;
}

static void hand_over_all(kl__claims *claims)
{
    kl__batch *batch = &claims->batch;
    pthread_mutex_unlock(&claims->worker->mutex);
    for (size_t i = 0; i < batch->wanted; i++)
        if (batch->giving[i].held)
            batch->giving[i].rc = hand_over(claims, &batch->giving[i]);
    pthread_mutex_lock(&claims->worker->mutex);
    for (size_t i = 0; i < batch->wanted; i++) {
        kl__giving *giving = &batch->giving[i];
        giving->ask->reserved--;
        if (giving->held && giving->rc == KL_OK) {
            giving->ask->fresh = true;
            claims->wanted--;
            claims->given++;
        } else if (giving->held) {
            kl__claim *claim = kl__claim_find(claims, &giving->token);
            giving->ask->rc = giving->rc;
            if (claim)
                kl__claim_give_back(claims, claim);
        }
    }
}

/* --- Rounds --- */

/* For how many, and for whom. */
static size_t plan(kl__claims *claims)
{
    kl__batch *batch = &claims->batch;
    uint64_t ready = kl__pump_ready(claims->pump), count = claims->wanted;
    kl__claim_ask *ask = claims->first;
    while (ask && !wants_more(ask))
        ask = ask->next;
    if (!ask || ready == 0)
        return 0;
    batch->next = ask;
    batch->wanted = 0;
    bool alone = claims->ask_count == 1 || (ask->kind_count == 0 && ask->max - ask->count >= MANY);
    batch->only = alone ? ask : NULL;
    count = alone ? ask->max - ask->count : count;
    count = batch->dry ? KL_LOAD_MAX : count; /* nobody wanted what came last: other kinds may stand behind */
    count = count < ready ? count : ready;
    uint64_t room = claims->running_max - claims->running;
    count = count < room ? count : room;
    uint64_t fit = KL_CLAIM_BYTES_MAX / (batch->task_bytes + 1) + 1; /* large ones are not loaded in vain */
    count = count < fit ? count : fit;
    return count < KL_LOAD_MAX ? (size_t)count : KL_LOAD_MAX;
}

static kl_rc load(kl__claims *claims, size_t count, size_t *ret_run)
{
    kl__batch *batch = &claims->batch;
    kl_arena *arena = batch->only ? batch->only->arena : &batch->arena;
    kl_arena_reset(&batch->arena);
    batch->tasks = kl_arena_alloc(arena, count * sizeof *batch->tasks);
    batch->extras = kl_arena_alloc(arena, count * sizeof *batch->extras);
    if (batch->tasks && batch->extras)
        return kl__pump_load(claims->pump, batch->held, count, arena, batch->tasks, batch->extras, batch->handlers,
                             ret_run);
    for (size_t i = count; i-- > 0;)
        kl__pump_untake(claims->pump, batch->held[i]);
    return kl__fail_memory();
}

/* The store failed. Those for whom it was are told so; the others wait. */
static void fail(kl__claims *claims, kl_rc rc)
{
    kl__batch *batch = &claims->batch;
    kl__worker_failed(claims->worker, KL_DOING_LOAD, rc);
    claims->rest_until_ns = kl__claims_until_ns(kl__monotonic_ns(), KL_RETRY_MS);
    for (size_t i = 0; i < batch->wanted; i++) {
        batch->giving[i].ask->reserved--;
        batch->giving[i].ask->rc = rc;
    }
    kl__claim_ask *first = batch->only ? batch->only : batch->next;
    if (batch->wanted == 0 && first) {
        touch(claims, first);
        first->rc = rc;
    }
}

/* How many tasks were taken; 0: there is nothing to give. */
static size_t serve_once(kl__claims *claims)
{
    kl__batch *batch = &claims->batch;
    size_t run = 0;
    fetch_all(claims);
    size_t count = plan(claims);
    if (count > 0)
        count = kl__pump_take(claims->pump, batch->held, count);
    if (count == 0)
        return 0;
    kl_rc rc = load(claims, count, &run);
    if (rc != KL_OK) {
        fail(claims, rc);
        return 0;
    }
    kl__worker_worked(claims->worker, KL_DOING_LOAD);
    batch->dry = batch->wanted == 0;
    claim_loaded(claims, run);
    hand_over_all(claims);
    return count;
}

/* Whether an ask that has tasks, or failed, is to be answered now. */
static bool is_done(kl__claims *claims, kl__claim_ask *ask, bool more)
{
    bool fresh = ask->fresh;
    ask->fresh = false;
    if (ask->withdrawn || ask->rc != KL_OK)
        return true;
    if (ask->count > 0)
        return is_full(ask) || !more || !fresh;
    ask->touched = false; /* what it was to get could not be started after all */
    claims->touched--;
    return false;
}

/* Those that are done leave the line. */
static kl__claim_ask *collect_done(kl__claims *claims, bool more)
{
    kl__claim_ask *list = NULL, **link = &list, *next;
    more &= kl__pump_ready(claims->pump) > 0;
    for (kl__claim_ask *ask = claims->first; ask && claims->touched; ask = next) {
        next = ask->next;
        if (ask->touched && !is_served(claims, ask) && is_done(claims, ask, more))
            link = collect(claims, ask, link);
    }
    return list;
}

bool kl__claims_serve(kl__claims *claims)
{
    bool any = false;
    for (int round = 0; round < ROUNDS && claims->first && !claims->serving && !claims->ending; round++) {
        if (claims->rest_until_ns && kl__monotonic_ns() < claims->rest_until_ns)
            break;
        claims->serving = true;
        claims->rest_until_ns = 0;
        size_t count = serve_once(claims);
        claims->serving = false;
        claims->batch.next = claims->batch.only = NULL;
        any |= count > 0;
        if (claims->ending)
            pthread_cond_broadcast(&claims->worker->changed);
        answer(claims, collect_done(claims, count > 0));
        if (count == 0)
            break;
    }
    return any;
}

/* --- Asking --- */

void kl__claims_look(kl__claims *claims)
{
    kl__pump *pump = claims->pump;
    uint64_t ready = 0;
    if (claims->hasty == 0 || claims->serving || kl__pump_ready(pump) || !kl__pump_wants_look(pump))
        return;
    kl_rc rc = kl__pump_look(pump, &ready);
    if (rc != KL_OK)
        kl__worker_failed(claims->worker, KL_DOING_LOOK, rc);
}

/* Shards are still to come: so the first one who asks is not told that there is nothing. */
static bool is_new(const kl__claims *claims, int64_t now_ns)
{
    return kl__pump_shards(claims->pump) == 0 && now_ns < kl__claims_until_ns(claims->began_ns, LOOK_MS);
}

/* The first look at a shard reads its retries, and only the next one the tasks that are ready. */
static uint64_t looks_needed(const kl__pump *pump)
{
    for (const kl__partition *partition = pump->partitions; partition; partition = partition->next)
        for (const kl__window *window = partition->windows; window; window = window->next)
            if (!window->retry_read && !window->leaving && !window->lost && !kl__gate_shut(partition->gate))
                return 2;
    return 1;
}

/* It would wait for nothing: what was in the store when it asked has been looked at. */
static bool has_looked(kl__claims *claims, kl__claim_ask *ask, int64_t now_ns)
{
    kl__pump *pump = claims->pump;
    if (ask->early) { /* a look that has begun since may have found no shards */
        ask->early = is_new(claims, now_ns);
        ask->looks = pump->counts.looks + 2;
        return false;
    }
    return ask->wait_ms == 0 && !claims->serving && !pump->looking &&
           (pump->counts.looks >= ask->looks || !kl__pump_wants_look(pump)) && kl__pump_ready(pump) == 0;
}

void kl__claims_time_out(kl__claims *claims, int64_t now_ns)
{
    kl__claim_ask *list = NULL, **link = &list, *next;
    if (now_ns < claims->ask_until_ns && claims->hasty == 0)
        return;
    claims->ask_until_ns = KL_NEVER;
    for (kl__claim_ask *ask = claims->first; ask; ask = next) {
        next = ask->next;
        if (!is_served(claims, ask) && (ask->until_ns <= now_ns || has_looked(claims, ask, now_ns)))
            link = collect(claims, ask, link);
        else if (ask->until_ns < claims->ask_until_ns)
            claims->ask_until_ns = ask->until_ns;
    }
    answer(claims, list);
}

void kl__claims_answer_all(kl__claims *claims, kl_rc rc)
{
    kl__claim_ask *list = NULL, **link = &list, *next;
    for (kl__claim_ask *ask = claims->first; ask; ask = next) {
        next = ask->next;
        ask->withdrawn = true;
        ask->rc = rc;
        if (!is_served(claims, ask))
            link = collect(claims, ask, link);
        else
            touch(claims, ask);
    }
    answer(claims, list);
}

static kl_rc check(const kl__claim_ask *ask)
{
    if (ask->max < 1 || ask->max > KL_CLAIM_MAX)
        return kl__fail(KL_EINVAL, "%zu tasks were asked for; ask for 1 to %d", ask->max, KL_CLAIM_MAX);
    if (ask->kind_count > KL_CLAIM_KINDS_MAX)
        return kl__fail(KL_EINVAL, "%zu kinds were named; name up to %d", ask->kind_count, KL_CLAIM_KINDS_MAX);
    if (ask->wait_ms < 0 || ask->wait_ms > KL_CLAIM_WAIT_MS_MAX)
        return kl__fail(KL_EINVAL, "a wait of %lld ms was asked for; ask for 0 to %d", (long long)ask->wait_ms,
                        KL_CLAIM_WAIT_MS_MAX);
    if (ask->lease_ms < 0 || ask->lease_ms > KL_CLAIM_LEASE_MS_MAX)
        return kl__fail(KL_EINVAL, "a lease of %lld ms was asked for; ask for up to %d", (long long)ask->lease_ms,
                        KL_CLAIM_LEASE_MS_MAX);
    return KL_OK;
}

static void begin(kl__claims *claims, kl__claim_ask *ask)
{
    int64_t now_ns = kl__monotonic_ns();
    ask->until_ns = kl__claims_until_ns(now_ns, ask->wait_ms ? ask->wait_ms : LOOK_MS);
    ask->looks = claims->pump->counts.looks + (ask->wait_ms ? 1 : looks_needed(claims->pump));
    ask->tasks = NULL;
    ask->count = ask->room = ask->reserved = ask->bytes = 0;
    ask->rc = KL_OK;
    ask->touched = ask->fresh = false;
    ask->early = is_new(claims, now_ns);
    join_line(claims, ask);
}

void kl__claims_ask(kl__claims *claims, kl__claim_ask *ask)
{
    kl_worker *worker = claims->worker;
    kl_rc rc = check(ask);
    pthread_mutex_lock(&worker->mutex);
    bool ends = claims->ending;
    if (rc == KL_OK && claims->closed)
        rc = kl__fail(KL_ECLOSED, "the queue's claims are closed; ask again");
    if (rc != KL_OK || ends || ask->withdrawn) {
        pthread_mutex_unlock(&worker->mutex);
        ask->answer(ask, rc, NULL, 0);
        return;
    }
    begin(claims, ask); /* from here on it may be answered and gone whenever the mutex is left */
    if (!claims->far && answering == 0) {
        kl__claims_serve(claims);
        if (claims->hasty) {
            kl__claims_look(claims);
            kl__claims_serve(claims);
            kl__claims_time_out(claims, kl__monotonic_ns());
        }
    }
    if (claims->first && (worker->idle == 0 || claims->ask_until_ns < claims->wait_until_ns || claims->hasty ||
                          kl__pump_ready(claims->pump)))
        pthread_cond_signal(&worker->ready);
    pthread_mutex_unlock(&worker->mutex);
}

void kl__claims_withdraw(kl__claims *claims, kl__claim_ask *ask)
{
    kl__claim_ask *list = NULL;
    pthread_mutex_lock(&claims->worker->mutex);
    ask->withdrawn = true;
    if (ask->waits) {
        if (is_served(claims, ask))
            touch(claims, ask);
        else
            collect(claims, ask, &list);
    }
    answer(claims, list);
    pthread_mutex_unlock(&claims->worker->mutex);
}
