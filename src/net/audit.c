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

struct kl__audit {
    pthread_rwlock_t lock; /* guards fd: lines are written under the shared one */
    int fd;
    _Atomic(bool) failing;
    char path[]; /* "-": standard error */
};

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
    *ret_audit = audit;
    return KL_OK;
}

void kl__audit_close(kl__audit *audit)
{
    if (!audit)
        return;
    close(audit->fd);
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

void kl__audit_note(kl__audit *audit, const kl__exchange *exchange, int status)
{
    if (audit)
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
