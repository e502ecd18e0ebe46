/* audit.c - see audit.h.
 *
 *     {"time":"2026-11-15T18:00:00.123Z","who":"shop","peer":"10.0.0.7:40412","route":"cancel_task","queue":"orders",
 *      "target":"0a5c...","status":200}
 *
 * A line is one write to a file that is only added to, so lines of several threads, and of several processes, do not
 * mix. */
#include "net/audit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

/* A minute; more partitions than PARTITIONS_MAX are told by their numbers. */
#define STRANGERS_NS INT64_C(60000000000)
enum { PARTITIONS_MAX = 1 << 20 };

struct kl__audit {
    pthread_rwlock_t lock; /* guards fd: lines are written under the shared one */
    int fd;
    _Atomic(bool) failing;
    pthread_mutex_t mutex; /* guards all below */
    int64_t strangers_ns;  /* when the minute began in which the next two were counted */
    uint64_t strangers, left_out;
    char **partitions; /* names by number, as connections to the store have asked for them */
    size_t partition_room;
    char path[]; /* "-": standard error */
};

static void tell_left_out(kl__audit *audit);

static kl_rc open_file(const char *path, int *ret_fd)
{
    int fd = strcmp(path, "-") == 0 ? fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)
                                    : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0640);
    if (fd < 0)
        return kl__fail(KL_ESYSTEM, "the audit log %s cannot be written: %s", path, strerror(errno));
    *ret_fd = fd;
    return KL_OK;
}

kl_rc kl__audit_open(const char *path, kl__audit **ret_audit)
{
    int fd = -1;
    if (!path) {
        *ret_audit = NULL;
        return KL_OK;
    }
    kl_rc rc = open_file(path, &fd);
    if (rc != KL_OK)
        return rc;
    kl__audit *audit = kl__alloc_zeroed(1, sizeof *audit + strlen(path) + 1);
    if (!audit) {
        close(fd);
        return kl__fail_memory();
    }
    audit->fd = fd;
    memcpy(audit->path, path, strlen(path) + 1);
    pthread_rwlock_init(&audit->lock, NULL);
    pthread_mutex_init(&audit->mutex, NULL);
    *ret_audit = audit;
    return KL_OK;
}

void kl__audit_close(kl__audit *audit)
{
    if (!audit)
        return;
    tell_left_out(audit);
    for (size_t i = 0; i < audit->partition_room; i++)
        kl__free(audit->partitions[i]);
    kl__free(audit->partitions);
    close(audit->fd);
    pthread_mutex_destroy(&audit->mutex);
    pthread_rwlock_destroy(&audit->lock);
    kl__free(audit);
}

kl_rc kl__audit_reopen(kl__audit *audit)
{
    int fd = -1;
    if (!audit)
        return KL_OK;
    kl_rc rc = open_file(audit->path, &fd);
    if (rc != KL_OK)
        return rc;
    pthread_rwlock_wrlock(&audit->lock);
    int old = audit->fd;
    audit->fd = fd;
    pthread_rwlock_unlock(&audit->lock);
    close(old);
    return KL_OK;
}

/* ---- A line ---- */

static json_t *bytes_or_null(kl_bytes bytes) { return bytes.len ? kl__json_bytes_value(bytes) : json_null(); }

/* The queue that a body names, where the path does not: of create_queue. */
static json_t *queue_of_body(const kl__exchange *exchange)
{
    kl__json body;
    if (exchange->request->body.len == 0 ||
        kl__json_parse_given(exchange->request->body, KL_BODY_DEPTH_MAX, "the body", &body) != KL_OK)
        return json_null();
    json_t *name = json_object_get(body.object, "queue");
    json_t *queue = json_is_string(name) ? json_incref(name) : json_null();
    kl__json_free(&body);
    return queue;
}

static json_t *queue_of(const kl__exchange *exchange)
{
    bool admitted = exchange->role >= exchange->route->role; /* of others nothing was looked at */
    return kl__route_has_queue(exchange->route) || !admitted ? bytes_or_null(exchange->parts[0])
                                                             : queue_of_body(exchange);
}

static json_t *make_line(const kl__exchange *exchange, int status)
{
    json_t *line = kl__json_object();
    const kl__route *route = exchange->route;
    kl_bytes target = kl__route_has_queue(route) ? exchange->parts[1] : (kl_bytes){0};
    if (kl__json_set(line, "time", kl__shape_time(kl__wall_ms())) && kl__json_set_text(line, "who", exchange->who) &&
        kl__json_set_text(line, "peer", exchange->request->peer) && kl__json_set_text(line, "route", route->name) &&
        kl__json_set(line, "queue", queue_of(exchange)) && kl__json_set(line, "target", bytes_or_null(target)) &&
        kl__json_set_int(line, "status", status))
        return line;
    json_decref(line);
    return NULL;
}

/* The newline takes the place of the zero byte behind the text. */
static bool write_line(kl__audit *audit, kl_bytes text)
{
    char *line = (char *)text.data;
    line[text.len] = '\n';
    pthread_rwlock_rdlock(&audit->lock);
    ssize_t put = write(audit->fd, line, text.len + 1);
    pthread_rwlock_unlock(&audit->lock);
    return put == (ssize_t)(text.len + 1);
}

/* Takes the line over. */
static void note(kl__audit *audit, json_t *line)
{
    kl_arena arena = {0};
    kl_bytes text;
    bool written = kl__json_print(line, &arena, &text) == KL_OK && write_line(audit, text);
    json_decref(line);
    kl_arena_free(&arena);
    if (!written && !atomic_exchange(&audit->failing, true))
        fprintf(stderr, "keyline: error: the audit log %s cannot be written: %s\n", audit->path, strerror(errno));
    else if (written)
        atomic_store(&audit->failing, false);
}

/* ---- Strangers ---- */

static void tell_left_out(kl__audit *audit)
{
    pthread_mutex_lock(&audit->mutex);
    uint64_t left_out = audit->left_out;
    audit->left_out = 0;
    pthread_mutex_unlock(&audit->mutex);
    json_t *line = left_out ? kl__json_object() : NULL;
    if (kl__json_set(line, "time", kl__shape_time(kl__wall_ms())) && kl__json_set_text(line, "who", "anyone") &&
        kl__json_set_text(line, "route", "left_out") && kl__json_set_int(line, "count", (int64_t)left_out) &&
        kl__json_set_int(line, "status", 401))
        note(audit, line);
    else
        json_decref(line);
}

/* Whether one more line of a stranger may be written. */
static bool admit_stranger(kl__audit *audit)
{
    kl__audit_tick(audit);
    pthread_mutex_lock(&audit->mutex);
    bool admitted = audit->strangers < KL_AUDIT_STRANGERS_MAX;
    *(admitted ? &audit->strangers : &audit->left_out) += 1;
    pthread_mutex_unlock(&audit->mutex);
    return admitted;
}

void kl__audit_tick(kl__audit *audit)
{
    if (!audit)
        return;
    int64_t now_ns = kl__monotonic_ns();
    pthread_mutex_lock(&audit->mutex);
    bool over = now_ns - audit->strangers_ns >= STRANGERS_NS;
    if (over) {
        audit->strangers_ns = now_ns;
        audit->strangers = 0;
    }
    pthread_mutex_unlock(&audit->mutex);
    if (over)
        tell_left_out(audit);
}

/* ---- What is noted ---- */

void kl__audit_note(kl__audit *audit, const kl__exchange *exchange, int status)
{
    if (audit && (status != 401 || admit_stranger(audit)))
        note(audit, make_line(exchange, status));
}

void kl__audit_note_left(kl__audit *audit, const char *who)
{
    json_t *line = audit ? kl__json_object() : NULL;
    bool made = kl__json_set(line, "time", kl__shape_time(kl__wall_ms())) && kl__json_set_text(line, "who", who) &&
                kl__json_set_text(line, "route", "store_closed");
    if (audit && made)
        note(audit, line);
    else
        json_decref(line);
}

/* ---- Through the store itself ---- */

/* With the mutex held. */
static bool room_for(kl__audit *audit, uint32_t partition)
{
    size_t room = audit->partition_room ? audit->partition_room : 64;
    while (room <= partition)
        room *= 2;
    if (room == audit->partition_room)
        return true;
    char **names = partition < PARTITIONS_MAX ? kl__alloc_zeroed(room, sizeof *names) : NULL;
    if (!names)
        return false;
    if (audit->partition_room)
        memcpy(names, audit->partitions, audit->partition_room * sizeof *names);
    kl__free(audit->partitions);
    audit->partitions = names;
    audit->partition_room = room;
    return true;
}

static void keep_name(kl__audit *audit, uint32_t partition, kl_bytes name)
{
    pthread_mutex_lock(&audit->mutex);
    if (room_for(audit, partition) && !audit->partitions[partition]) {
        char *copy = kl__alloc(name.len + 1);
        if (copy) {
            memcpy(copy, name.data, name.len);
            copy[name.len] = 0;
        }
        audit->partitions[partition] = copy;
    }
    pthread_mutex_unlock(&audit->mutex);
}

/* Names stay where they are until the end. */
static const char *name_of(kl__audit *audit, uint32_t partition, char number[16])
{
    pthread_mutex_lock(&audit->mutex);
    const char *name = partition < audit->partition_room ? audit->partitions[partition] : NULL;
    pthread_mutex_unlock(&audit->mutex);
    snprintf(number, 16, "%u", partition);
    return name ? name : number;
}

/* Records that say that a worker or server lives, and those of a put, which is told of itself. */
static bool is_own(kl_bytes record)
{
    static const char *const kinds[] = {"owners/", "server/", "token/", "unique/", "idempotency/"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (record.len > strlen(kinds[i]) && memcmp(record.data, kinds[i], strlen(kinds[i])) == 0)
            return true;
    return false;
}

static bool changed_nothing(const kl__made *made)
{
    bool refused = made->rc == KL_EINVAL || made->rc == KL_ECONFLICT || made->rc == KL_ESTALE ||
                   made->rc == KL_ESEALED || made->rc == KL_EFULL;
    return refused || made->call == KL_MADE_PARTITION || (made->call == KL_MADE_RECORD && is_own(made->name));
}

static bool set_made(json_t *line, kl__audit *audit, const char *who, const kl__made *made)
{
    static const char *const routes[] = {[KL_MADE_APPEND] = "store_append",
                                         [KL_MADE_SETTLE] = "store_settle",
                                         [KL_MADE_FENCE] = "store_fence",
                                         [KL_MADE_FORGET] = "store_forget",
                                         [KL_MADE_RECORD] = "store_record"};
    char number[16];
    bool removed = made->call == KL_MADE_RECORD && made->count == 0;
    json_t *target =
        made->call == KL_MADE_RECORD ? bytes_or_null(made->name) : json_string(name_of(audit, made->partition, number));
    return kl__json_set(line, "target", target) && kl__json_set(line, "time", kl__shape_time(kl__wall_ms())) &&
           kl__json_set_text(line, "who", who) &&
           kl__json_set_text(line, "route", removed ? "store_record_removed" : routes[made->call]) &&
           (made->call == KL_MADE_RECORD || kl__json_set_int(line, "count", (int64_t)made->count)) &&
           kl__json_set_int(line, "status", made->rc == KL_OK ? 200 : 500);
}

void kl__audit_note_made(kl__audit *audit, const char *who, const kl__made *made)
{
    if (audit && made->call == KL_MADE_PARTITION && made->rc == KL_OK)
        keep_name(audit, made->partition, made->name);
    json_t *line = audit && !changed_nothing(made) ? kl__json_object() : NULL;
    if (line && set_made(line, audit, who, made))
        note(audit, line);
    else
        json_decref(line);
}
