/* events.c - see events.h.
 *
 * From: routes.c (notes), metrics.h (counts), the store (workers).  To: http.h's streams.
 *
 * One thread sends everything: it wakes once a second, and at once for a note. Nobody who notes something waits for
 * it. */
#include "net/events.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/wait.h"
#include "keyline/control.h"
#include "net/server.h"
#include "net/tokens.h"

enum {
    BATCH_MS = 1000,
    HEARTBEAT_MS = 15000,
    WORKERS_MS = 5000,       /* between two looks at who works */
    WORKER_QUEUES_MAX = 100, /* queues whose workers are looked at */
    WORKERS_MAX = 256,       /* of one queue */
    EVENT_BYTES = 640,       /* of one event: names are up to 64 bytes, workers' up to 128 */
};

/* Lies in its request's arena. */
struct client {
    struct client *next;
    kl__request *request;
    const char *queue; /* NULL: all */
    const char *scope, *who;
    bool greeted;
};

struct note {
    const char *what; /* a route's name: static */
    char queue[KL_QUEUE_NAME_MAX + 1];
};

/* "queue" and "worker" of those that were there at the last look, in order. */
struct workers {
    kl_arena arena;
    struct pair {
        const char *queue, *worker;
    } * pairs;
    size_t count, room;
};

struct kl__events {
    kl__metrics *metrics;
    _Atomic(kl_store *) store; /* NULL: nobody has come yet, as of these */
    _Atomic(const kl__access *) tokens;
    _Atomic(uint64_t) followers; /* clients, those that have just come included */
    pthread_t thread;
    bool joined;           /* whoever stops it owns this */
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t wake;
    struct client *fresh; /* have come, and are not the thread's yet */
    size_t client_count;
    struct note notes[KL_EVENTS_NOTES_MAX];
    size_t note_count;
    uint64_t dropped;
    bool stopping, recheck;
    /* the thread's own */
    struct client *clients;
    struct workers workers;
    bool workers_known;
};

/* ---- Sending ---- */

static bool hears(const struct client *client, const char *queue)
{
    if (!queue)
        return true;
    return kl__token_may(client->scope, queue) && (!client->queue || strcmp(client->queue, queue) == 0);
}

static void part(kl__events *events, struct client **at)
{
    struct client *client = *at;
    *at = client->next;
    kl__http_end(client->request); /* with which the client's memory goes */
    pthread_mutex_lock(&events->mutex);
    events->client_count--;
    pthread_mutex_unlock(&events->mutex);
    atomic_fetch_sub(&events->followers, 1);
}

/* To everybody who may hear of the queue; NULL: everybody. Drops who does not read (E1). */
KL_PRINTF(3, 4) static void send(kl__events *events, const char *queue, const char *format, ...)
{
    char text[EVENT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int len = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    kl_bytes piece = {text, len < (int)sizeof text ? (size_t)len : sizeof text - 1};
    for (struct client **at = &events->clients; *at;) {
        if (hears(*at, queue) && !kl__http_send((*at)->request, piece, KL_EVENTS_UNSENT_MAX))
            part(events, at);
        else
            at = &(*at)->next;
    }
}

/* ---- Counts ---- */

static void send_counts(void *context, const char *queue, const kl__queue_totals *more)
{
    send(context, queue,
         "event: tasks\ndata: {\"queue\":\"%s\",\"put\":%llu,\"claimed\":%llu,\"done\":%llu,\"retried\":%llu,"
         "\"dead\":%llu,\"cancelled\":%llu,\"expired\":%llu,\"stale\":%llu}\n\n",
         queue, (unsigned long long)more->put, (unsigned long long)more->claimed, (unsigned long long)more->done,
         (unsigned long long)more->retried, (unsigned long long)more->dead, (unsigned long long)more->cancelled,
         (unsigned long long)more->expired, (unsigned long long)more->stale);
}

static void pass_over(void *context, const char *queue, const kl__queue_totals *more)
{
    (void)context, (void)queue, (void)more;
}

/* ---- Workers ---- */

static bool keep_pair(struct workers *workers, const char *queue, const char *worker)
{
    kl_bytes copy;
    if (workers->count == workers->room) {
        size_t room = workers->room ? workers->room * 2 : 64;
        struct pair *pairs = kl_arena_alloc(&workers->arena, room * sizeof *pairs);
        if (!pairs)
            return false;
        if (workers->count)
            memcpy(pairs, workers->pairs, workers->count * sizeof *pairs);
        workers->pairs = pairs;
        workers->room = room;
    }
    if (!kl_arena_copy(&workers->arena, kl_str(worker), &copy))
        return false;
    workers->pairs[workers->count++] = (struct pair){queue, copy.data};
    return true;
}

static bool look_at_queue(kl_store *store, const char *name, struct workers *workers)
{
    kl_worker_status status[WORKERS_MAX];
    size_t count = 0;
    kl_queue *queue;
    if (kl_queue_find(store, name, &queue) != KL_OK)
        return false;
    bool ok = kl_queue_workers(queue, WORKERS_MAX, &workers->arena, status, &count) == KL_OK;
    kl_queue_close(queue);
    for (size_t i = 0; ok && i < count; i++)
        ok = keep_pair(workers, name, status[i].name);
    return ok;
}

static int compare_pairs(const void *a, const void *b)
{
    const struct pair *one = a, *other = b;
    int order = strcmp(one->queue, other->queue);
    return order ? order : strcmp(one->worker, other->worker);
}

/* False: somebody could not be asked, and nothing is concluded. */
static bool look_at_workers(kl_store *store, struct workers *workers)
{
    const char *names[WORKER_QUEUES_MAX];
    size_t count;
    if (kl_queue_list(store, NULL, WORKER_QUEUES_MAX, &workers->arena, names, &count) != KL_OK)
        return false;
    for (size_t i = 0; i < count; i++)
        if (!look_at_queue(store, names[i], workers))
            return false;
    if (workers->count)
        qsort(workers->pairs, workers->count, sizeof *workers->pairs, compare_pairs);
    return true;
}

/* A worker's name as it may stand between quotes in JSON. */
static const char *quotable(const char *name, char *buffer, size_t size)
{
    size_t len = 0;
    for (; name[len] && len + 1 < size; len++) {
        bool harmless = name[len] >= ' ' && name[len] != '"' && name[len] != '\\' && name[len] != 127;
        buffer[len] = name[len];
        if (!harmless)
            buffer[len] = '_';
    }
    buffer[len] = 0;
    return buffer;
}

static void send_worker(kl__events *events, const char *kind, const struct pair *pair)
{
    char name[128];
    send(events, pair->queue, "event: %s\ndata: {\"queue\":\"%s\",\"worker\":\"%s\"}\n\n", kind, pair->queue,
         quotable(pair->worker, name, sizeof name));
}

/* Both in order: what is only in one of them has come or gone. */
static void send_difference(kl__events *events, const struct workers *before, const struct workers *now)
{
    size_t i = 0, j = 0;
    while (i < before->count || j < now->count) {
        int order = i == before->count ? 1 : j == now->count ? -1 : compare_pairs(&before->pairs[i], &now->pairs[j]);
        if (order < 0)
            send_worker(events, "worker-left", &before->pairs[i++]);
        else if (order > 0)
            send_worker(events, "worker-joined", &now->pairs[j++]);
        else
            i++, j++;
    }
}

static void watch_workers(kl__events *events)
{
    struct workers now = {0};
    if (!look_at_workers(atomic_load(&events->store), &now)) {
        kl_arena_free(&now.arena);
        return;
    }
    if (events->workers_known)
        send_difference(events, &events->workers, &now);
    kl_arena_free(&events->workers.arena);
    events->workers = now;
    events->workers_known = true;
}

/* ---- The thread ---- */

static void take_clients(kl__events *events)
{
    while (events->fresh) {
        struct client *client = events->fresh;
        events->fresh = client->next;
        client->next = events->clients;
        events->clients = client;
    }
}

/* Only now: whoever has read the greeting hears of all that is noted from then on. */
static void greet(kl__events *events)
{
    static const char hello[] = ": keyline\nretry: 3000\n\n";
    for (struct client **at = &events->clients; *at;) {
        struct client *client = *at;
        bool was_greeted = client->greeted;
        client->greeted = true;
        if (was_greeted || kl__http_send(client->request, (kl_bytes){hello, sizeof hello - 1}, KL_EVENTS_UNSENT_MAX))
            at = &client->next;
        else
            part(events, at);
    }
}

/* Takes over what was noted. *ret_dropped: notes for which there was no room. */
static size_t take_notes(kl__events *events, struct note notes[KL_EVENTS_NOTES_MAX], uint64_t *ret_dropped)
{
    size_t count = events->note_count;
    memcpy(notes, events->notes, count * sizeof *notes);
    *ret_dropped = events->dropped;
    events->note_count = 0;
    events->dropped = 0;
    return count;
}

static void send_notes(kl__events *events, const struct note *notes, size_t count, uint64_t dropped)
{
    for (size_t i = 0; i < count; i++)
        if (notes[i].queue[0])
            send(events, notes[i].queue, "event: changed\ndata: {\"what\":\"%s\",\"queue\":\"%s\"}\n\n", notes[i].what,
                 notes[i].queue);
        else
            send(events, NULL, "event: changed\ndata: {\"what\":\"%s\",\"queue\":null}\n\n", notes[i].what);
    if (dropped)
        send(events, NULL, "event: dropped\ndata: {\"changes\":%llu}\n\n", (unsigned long long)dropped);
}

/* What is due on the clock; moves each time on. */
struct times {
    int64_t batch_ns, heartbeat_ns, workers_ns;
};

static bool is_due(int64_t *at_ns, int64_t every_ms)
{
    if (kl__monotonic_ns() < *at_ns)
        return false;
    *at_ns = kl__deadline_ns(every_ms);
    return true;
}

static void send_due(kl__events *events, struct times *times)
{
    bool batch = is_due(&times->batch_ns, BATCH_MS);
    if (batch)
        kl__metrics_refresh(events->metrics);
    if (batch)
        kl__metrics_changes(events->metrics, send_counts, events);
    if (is_due(&times->workers_ns, WORKERS_MS))
        watch_workers(events);
    if (is_due(&times->heartbeat_ns, HEARTBEAT_MS))
        send(events, NULL, ":\n\n");
}

/* Nobody was there: what was counted meanwhile is nobody's news. */
static void begin_anew(kl__events *events, struct times *times)
{
    kl__metrics_refresh(events->metrics);
    kl__metrics_changes(events->metrics, pass_over, NULL);
    kl_arena_free(&events->workers.arena);
    events->workers = (struct workers){0};
    events->workers_known = false;
    *times = (struct times){kl__deadline_ns(BATCH_MS), kl__deadline_ns(HEARTBEAT_MS), 0};
}

/* E4. */
static void part_from_revoked(kl__events *events)
{
    for (struct client **at = &events->clients; *at;)
        if (kl__access_holds(atomic_load(&events->tokens), (*at)->who))
            at = &(*at)->next;
        else
            part(events, at);
}

static void *run(void *context)
{
    kl__events *events = context;
    struct note *notes = kl__alloc(KL_EVENTS_NOTES_MAX * sizeof *notes);
    struct times times = {0};
    uint64_t dropped;
    pthread_mutex_lock(&events->mutex);
    while (notes && !events->stopping) {
        bool anew = !events->clients && events->fresh;
        size_t count = take_notes(events, notes, &dropped);
        take_clients(events);
        bool recheck = events->recheck;
        events->recheck = false;
        pthread_mutex_unlock(&events->mutex);
        if (recheck)
            part_from_revoked(events);
        if (anew)
            begin_anew(events, &times);
        greet(events);
        send_notes(events, notes, count, dropped);
        if (events->clients)
            send_due(events, &times);
        pthread_mutex_lock(&events->mutex);
        if (!events->stopping && !events->fresh && !events->recheck && events->note_count == 0)
            kl__cond_wait(&events->wake, &events->mutex, events->clients ? times.batch_ns : KL_NEVER);
    }
    events->stopping = true; /* also when there was no memory to begin with */
    take_clients(events);
    pthread_mutex_unlock(&events->mutex);
    while (events->clients)
        part(events, &events->clients);
    kl_arena_free(&events->workers.arena);
    kl__free(notes);
    return NULL;
}

/* ---- From outside ---- */

kl_rc kl__events_open(kl__metrics *metrics, kl__events **ret_events)
{
    kl__events *events = kl__alloc_zeroed(1, sizeof *events);
    if (!events)
        return kl__fail_memory();
    events->metrics = metrics;
    pthread_mutex_init(&events->mutex, NULL);
    kl__cond_init(&events->wake);
    if (pthread_create(&events->thread, NULL, run, events) == 0) {
        *ret_events = events;
        return KL_OK;
    }
    pthread_cond_destroy(&events->wake);
    pthread_mutex_destroy(&events->mutex);
    kl__free(events);
    return kl__fail(KL_ESYSTEM, "no thread for live events could be started; see ulimit -u");
}

void kl__events_stop(kl__events *events)
{
    if (!events || events->joined)
        return;
    pthread_mutex_lock(&events->mutex);
    events->stopping = true;
    pthread_cond_signal(&events->wake);
    pthread_mutex_unlock(&events->mutex);
    pthread_join(events->thread, NULL);
    events->joined = true;
}

void kl__events_close(kl__events *events)
{
    if (!events)
        return;
    kl__events_stop(events);
    pthread_cond_destroy(&events->wake);
    pthread_mutex_destroy(&events->mutex);
    kl__free(events);
}

/* A place among the clients, to be entered or given back. False: it has answered. */
static bool take_place(kl__events *events, kl__exchange *exchange)
{
    pthread_mutex_lock(&events->mutex);
    bool stopping = events->stopping, room = !stopping && events->client_count < KL_EVENTS_CLIENTS_MAX;
    events->client_count += room;
    pthread_mutex_unlock(&events->mutex);
    if (stopping)
        kl__reply_problem(exchange, 503, "stopping",
                          "the server is stopping; follow another one, or this one again soon");
    else if (!room)
        kl__reply_problem(exchange, 503, "too-many-streams",
                          "%d streams are open, which is as many as there may be; close one, or try again in a moment",
                          KL_EVENTS_CLIENTS_MAX);
    return room;
}

static void give_place(kl__events *events)
{
    pthread_mutex_lock(&events->mutex);
    events->client_count--;
    pthread_mutex_unlock(&events->mutex);
}

/* False: the server stops. */
static bool enter(kl__events *events, struct client *client)
{
    pthread_mutex_lock(&events->mutex);
    bool stopping = events->stopping;
    if (!stopping) {
        atomic_fetch_add(&events->followers, 1);
        client->next = events->fresh;
        events->fresh = client;
        pthread_cond_signal(&events->wake);
    }
    pthread_mutex_unlock(&events->mutex);
    return !stopping;
}

void kl__events_follow(kl__events *events, kl__exchange *exchange, const char *queue)
{
    const kl__access *tokens = exchange->api->tokens;
    kl__request *request = exchange->request;
    const char *who = exchange->who;
    struct client *client = kl_arena_alloc(exchange->arena, sizeof *client);
    if (!client) {
        kl__reply_rc(exchange, kl__fail_memory());
        return;
    }
    if (!take_place(events, exchange))
        return;
    *client = (struct client){.request = request, .queue = queue, .scope = exchange->scope, .who = who};
    atomic_store(&events->store, exchange->store);
    atomic_store(&events->tokens, tokens);
    kl__exchange_over(exchange, 200);
    if (!kl__http_stream(request, "text/event-stream") || !enter(events, client)) {
        give_place(events);
        kl__http_end(request);
    }
    if (!kl__access_holds(tokens, who)) /* they were read again before it was among the clients */
        kl__events_recheck(events);
}

void kl__events_recheck(kl__events *events)
{
    pthread_mutex_lock(&events->mutex);
    events->recheck = true;
    pthread_cond_signal(&events->wake);
    pthread_mutex_unlock(&events->mutex);
}

void kl__events_note(kl__events *events, const char *what, const char *queue)
{
    if (!events || atomic_load_explicit(&events->followers, memory_order_relaxed) == 0)
        return;
    pthread_mutex_lock(&events->mutex);
    if (events->note_count < KL_EVENTS_NOTES_MAX) {
        struct note *note = &events->notes[events->note_count++];
        note->what = what;
        snprintf(note->queue, sizeof note->queue, "%s", queue ? queue : "");
    } else {
        events->dropped++;
    }
    pthread_cond_signal(&events->wake);
    pthread_mutex_unlock(&events->mutex);
}
