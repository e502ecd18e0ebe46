/* client.c - a client's connections to whoever holds the data directory.
 *
 * From: client_calls.c.  To: the socket; or, when nobody listens any more, to `absent`, which makes this process the
 * holder.
 *
 * A call takes a link, and nobody else uses that until it is given back: a call that waits holds up no other. Links are
 * kept for later calls, up to LINKS_KEPT. One whose holder has ended, or has closed it to make room for others, notices
 * when it is used: sending fails at once, the call has not been made, and is made again on a new connection.
 *
 *      kl__link_call:  connected? --no--> connect, hello --nobody listens--> absent --it is ours--> KL_MOVED
 *                          |                   ^                               '--somebody has it--> pause, again
 *                        send ----failed-------|
 *                          |                   |
 *                       receive --"not made"---|
 *                          |-----lost: repeats-'  else, or after TRIES_MAX, KL_EBUSY
 *                        answer
 *
 * A call may take as long as it takes, for disks may be slow. But a holder that is stopped (SIGSTOP, a debugger, ^Z)
 * answers nobody: who finds it so for STOPPED_MS is told which process that is and what to do. */
#include "store/socket/client.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"

/* How long somebody may hold the directory without listening (it opens or closes it, or looks at it) before a call
 * gives up, and how long several may in turn, as short commands do; how long a holder may take for its hello, and to
 * take a request; how often one that does not answer is looked at, and for how long it may be found stopped; the pauses
 * between two tries; and on how many connections a call is tried, each of which was there and ended under it. */
enum {
    LISTEN_MS = 10000, /* opening takes a second for a million tasks */
    TURNS_MS = 60000,
    HELLO_MS = 5000,
    LOOK_MS = 1000,
    STOPPED_MS = 5000,
    PAUSE_MIN_MS = 1,
    PAUSE_MAX_MS = 32,
    LINKS_KEPT = 32,
    TRIES_MAX = 16
};

/* ---- A holder that is stopped ---- */

/* 0: not known, as where it runs in another container. */
static long holder_of(int fd)
{
    struct ucred who;
    socklen_t bytes = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 && who.pid > 0 ? (long)who.pid : 0;
}

/* Its state stands behind the name of its program, which may contain anything. */
static bool is_stopped(long pid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = pid > 0 ? fopen(path, "re") : NULL;
    if (!file)
        return false;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    const char *state = strrchr(text, ')');
    return state && (state[1] == ' ' && (state[2] == 'T' || state[2] == 't'));
}

static kl_rc fail_stopped(kl__client *client, long pid, bool made)
{
    atomic_store(&client->stopped, pid);
    return kl__fail(
        KL_EBUSY,
        "process %ld has %s open and is stopped, so nobody gets an answer%s; let it go on (kill -CONT %ld), or "
        "end it (kill -9 %ld: nothing acknowledged is lost), and try again",
        pid, client->dir, made ? ", and whether the call was made is not known" : "", pid, pid);
}

/* ---- Links ---- */

static void disconnect(kl__link *link)
{
    if (link->fd >= 0)
        close(link->fd);
    link->fd = -1;
}

static void free_link(kl__link *link)
{
    disconnect(link);
    kl__out_free(&link->request);
    kl__frame_free(&link->reply);
    kl__free(link);
}

kl_rc kl__link_take(kl__client *client, kl__wire_call call, kl__link **ret_link)
{
    if (atomic_load_explicit(&client->moved, memory_order_acquire))
        return KL_MOVED;
    pthread_mutex_lock(&client->mutex);
    kl__link *link = client->idle;
    if (link) {
        client->idle = link->next;
        client->idle_count--;
    }
    pthread_mutex_unlock(&client->mutex);
    if (!link) {
        link = kl__alloc_zeroed(1, sizeof *link);
        if (!link)
            return kl__fail_memory();
        link->fd = -1;
    }
    kl__out_request(&link->request, call, ++link->number);
    *ret_link = link;
    return KL_OK;
}

void kl__link_give(kl__client *client, kl__link *link)
{
    if (!link)
        return;
    pthread_mutex_lock(&client->mutex);
    bool keeps = client->idle_count < LINKS_KEPT && !atomic_load(&client->moved);
    if (keeps) {
        link->next = client->idle;
        client->idle = link;
        client->idle_count++;
    }
    pthread_mutex_unlock(&client->mutex);
    if (!keeps)
        free_link(link);
}

/* ---- Connecting ---- */

/* A new connection. 0 or a negative errno. */
static int dial_socket(const struct sockaddr_un *address, int *ret_fd)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    struct timeval limit = {.tv_sec = HELLO_MS / 1000};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit); /* for connect too, when the queue is full */
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    int result;
    do
        result = connect(fd, (const struct sockaddr *)address, sizeof *address);
    while (result < 0 && errno == EINTR);
    if (result < 0) {
        int error = errno;
        close(fd);
        return -error;
    }
    *ret_fd = fd;
    return 0;
}

uint64_t kl__client_identity(const kl__client *client) { return atomic_load(&client->identity); }

kl_rc kl__client_recognise(kl__client *client, uint64_t identity, uint32_t partitions)
{
    uint64_t first = 0;
    if (!atomic_compare_exchange_strong(&client->identity, &first, identity) && first != identity)
        return kl__fail(KL_ESYSTEM,
                        "another store stands in %s now than the one that was opened; put back what was there, or "
                        "close the store and open it again",
                        client->dir);
    if (partitions < atomic_load(&client->partitions))
        return kl__fail(KL_ESYSTEM,
                        "an older copy of the store stands in %s now, which lacks partitions; put back what was there, "
                        "or close the store and open it again",
                        client->dir);
    return KL_OK;
}

static kl_rc read_hello(kl__client *client, const kl__frame *reply)
{
    kl__answer answer;
    if (kl__frame_version(reply) != KL_WIRE_VERSION)
        return kl__fail(KL_EINVAL,
                        "the process that has %s open speaks version %u of the socket's protocol, and this one version "
                        "%d; run the same release of Keyline for both",
                        client->dir, kl__frame_version(reply), KL_WIRE_VERSION);
    if (!kl__frame_answer(reply, &answer) || kl__frame_call(reply) != KL_WIRE_HELLO)
        return kl__fail(KL_ESYSTEM, "what listens in %s is no store", client->dir);
    if (answer.state == KL_ANSWER_NOT)
        return KL_EBUSY;
    if (answer.state != KL_ANSWERED)
        return kl__fail(answer.rc, "%.*s", (int)answer.sentence.len, (const char *)answer.sentence.data);
    uint32_t can = kl__in_u32(&answer.body);
    kl__in_u32(&answer.body);
    uint32_t batch_max = kl__in_u32(&answer.body), batch_bytes_max = kl__in_u32(&answer.body);
    uint64_t identity = kl__in_u64(&answer.body);
    if (!kl__in_done(&answer.body) || batch_max != KL_BATCH_MAX || batch_bytes_max != KL_BATCH_BYTES_MAX)
        return kl__fail(KL_EINVAL, "the process that has %s open has other limits; run the same release of Keyline",
                        client->dir);
    atomic_store(&client->can, can);
    return kl__client_recognise(client, identity, UINT32_MAX); /* it refuses partitions that it does not know itself */
}

static kl_rc fail_silent(kl__client *client, int fd)
{
    long pid = holder_of(fd);
    char who[32] = "the process";
    if (is_stopped(pid))
        return fail_stopped(client, pid, false);
    if (pid > 0 && kill((pid_t)pid, 0) < 0 && errno == ESRCH)
        return kl__fail(KL_EBUSY,
                        "process %ld, which had %s open, has ended, and a child that it forked keeps it open; end that "
                        "one (`fuser %s/lock` finds it), and try again",
                        pid, client->dir, client->dir);
    if (pid > 0)
        snprintf(who, sizeof who, "process %ld", pid);
    return kl__fail(KL_EBUSY, "%s, which has %s open, does not answer, or has all of its %d connections; try again",
                    who, client->dir, KL_CONNECTIONS_MAX);
}

/* KL_EBUSY: it went away meanwhile, or does not answer. The link's request is not touched: it is yet to be sent. */
static kl_rc say_hello(kl__client *client, kl__link *link)
{
    kl__out hello = {0};
    kl__out_request(&hello, KL_WIRE_HELLO, 0);
    kl__out_u32(&hello, KL_WIRE_MAGIC);
    int error = kl__frame_send(link->fd, &hello);
    kl__out_free(&hello);
    if (!error)
        error = kl__frame_receive(link->fd, &link->reply);
    if (error == -ENOMEM)
        return kl__fail_memory();
    if (error == -EAGAIN)
        return fail_silent(client, link->fd);
    return error ? kl__fail(KL_EBUSY, "the process that had %s open has ended; try again", client->dir)
                 : read_hello(client, &link->reply);
}

/* From here on a call waits for its answer, and looks at the holder now and then. Over a network there is no holder to
 * look at, and no limit. */
static void wait_without_limit(const kl__client *client, int fd)
{
    struct timeval none = {0}, look = {.tv_sec = LOOK_MS / 1000};
    if (client->dial)
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof none);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, client->dial ? &none : &look, sizeof look);
}

/* By the socket in the directory. *ret_listens: somebody does. */
static kl_rc reach_socket(kl__client *client, kl__link *link, bool *ret_listens)
{
    struct sockaddr_un address;
    int dir_fd;
    kl_rc rc = kl__socket_address(client->dir, &address, &dir_fd);
    *ret_listens = false;
    if (rc != KL_OK)
        return KL_EBUSY; /* there is no directory: whoever opens it makes it */
    int error = dial_socket(&address, &link->fd);
    if (dir_fd >= 0)
        close(dir_fd);
    *ret_listens = error != -ECONNREFUSED && error != -ENOENT && error != -ENOTDIR;
    if (error == -ECONNREFUSED || error == -ENOENT || error == -ENOTDIR)
        return kl__fail(KL_EBUSY, "nobody listens in %s", client->dir);
    if (error == -EAGAIN)
        return kl__fail(KL_EBUSY,
                        "whoever has %s open takes no more connections; try again, and look whether it is stopped "
                        "(its number is in %s/lock)",
                        client->dir, client->dir);
    if (error == -EACCES)
        return kl__fail(KL_ESYSTEM, "%s belongs to another user; run this as that user, or name another store",
                        client->dir);
    if (error)
        return kl__fail(KL_ESYSTEM, "the socket in %s could not be reached: %s", client->dir, strerror(-error));
    return KL_OK;
}

/* One try. *ret_listens: somebody does. */
static kl_rc try_to_connect(kl__client *client, kl__link *link, bool *ret_listens)
{
    *ret_listens = true;
    long stopped = atomic_load(&client->stopped);
    if (is_stopped(stopped)) /* who was told once need not wait, nor fill up the holder's connections */
        return fail_stopped(client, stopped, false);
    atomic_store(&client->stopped, 0);
    kl_rc rc = client->dial ? client->dial(client->dial_ctx, &link->fd) : reach_socket(client, link, ret_listens);
    if (rc != KL_OK)
        return rc;
    rc = say_hello(client, link);
    if (rc == KL_OK)
        wait_without_limit(client, link->fd);
    else
        disconnect(link);
    return rc;
}

/* Nobody listens: is it ours? */
static kl_rc ask_absent(kl__client *client)
{
    if (!client->absent)
        return kl__fail(KL_EBUSY, "nobody listens in %s", client->dir);
    pthread_mutex_lock(&client->absent_mutex);
    kl_rc rc = KL_OK;
    if (!atomic_load(&client->moved) && (rc = client->absent(client->absent_ctx)) == KL_OK)
        atomic_store_explicit(&client->moved, true, memory_order_release);
    pthread_mutex_unlock(&client->absent_mutex);
    return rc == KL_OK ? KL_MOVED : rc;
}

/* Whose number stands in the directory; 0: nobody's. */
static long named_holder(const kl__client *client)
{
    char path[PATH_MAX], text[32] = "";
    if (client->dial || (size_t)snprintf(path, sizeof path, "%s/lock", client->dir) >= sizeof path)
        return 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    long pid = fgets(text, sizeof text, file) ? strtol(text, NULL, 10) : 0;
    fclose(file);
    return pid;
}

/* Each holder has its time: whoever waits may be passed by many that come later, and are gone soon. */
struct turns {
    long holder;
    int64_t until_ns, end_ns;
};

static bool is_late(struct turns *turns, long holder)
{
    if (holder != turns->holder) {
        turns->holder = holder;
        turns->until_ns = kl__deadline_ns(LISTEN_MS);
    }
    int64_t now_ns = kl__monotonic_ns();
    return now_ns > turns->until_ns || now_ns > turns->end_ns;
}

static kl_rc connect_link(kl__client *client, kl__link *link)
{
    struct turns turns = {0, kl__deadline_ns(LISTEN_MS), kl__deadline_ns(TURNS_MS)};
    for (int pause_ms = PAUSE_MIN_MS;; pause_ms = pause_ms < PAUSE_MAX_MS ? 2 * pause_ms : PAUSE_MAX_MS) {
        bool listens;
        kl_rc rc = try_to_connect(client, link, &listens);
        if (rc == KL_EBUSY && !listens)
            rc = ask_absent(client);
        if (rc != KL_EBUSY || atomic_load(&client->stopped) || is_late(&turns, named_holder(client)))
            return rc;
        poll(NULL, 0, pause_ms);
    }
}

/* ---- Calling ---- */

static kl_rc fail_lost(const kl__client *client)
{
    return kl__fail(KL_EBUSY,
                    "the process that had %s open has ended during the call, and whether it was made is not known; "
                    "make it again",
                    client->dir);
}

/* Nothing was done on any of the connections. */
static kl_rc fail_unmade(const kl__client *client)
{
    return kl__fail(KL_EBUSY, "the process that has %s open ended %d connections before a call was made; make it again",
                    client->dir, TRIES_MAX);
}

kl_rc kl__link_refuse(kl__client *client, kl__link *link)
{
    disconnect(link);
    return kl__fail(
        KL_ESYSTEM,
        "the answer of the process that has %s open cannot be read; run the same release of Keyline for both",
        client->dir);
}

/* Is this the answer to the request that was sent? */
static bool matches(const kl__link *link, kl__answer *ret_answer)
{
    const kl__frame *reply = &link->reply;
    return kl__frame_version(reply) == KL_WIRE_VERSION && kl__frame_call(reply) == link->request.bytes[5] &&
           kl__frame_number(reply) == link->number && kl__frame_answer(reply, ret_answer);
}

/* Once over a connection that stands. *ret_made: it was, or may have been. A negative errno: it has ended; -EAGAIN: the
 * holder is stopped. */
static int exchange(kl__link *link, bool *ret_made)
{
    *ret_made = false;
    int error = kl__frame_send(link->fd, &link->request);
    if (error)
        return error;
    *ret_made = true;
    error = kl__frame_receive(link->fd, &link->reply);
    for (int stopped_ms = 0; error == -EAGAIN && stopped_ms < STOPPED_MS;) {
        stopped_ms = is_stopped(holder_of(link->fd)) ? stopped_ms + LOOK_MS : 0;
        error = kl__frame_receive_more(link->fd, &link->reply);
    }
    return error;
}

kl_rc kl__link_call(kl__client *client, kl__link *link, bool repeats, kl__in *ret_in, bool *ret_answered)
{
    bool lost = false; /* it was made, or may have been, and its answer did not come */
    *ret_answered = false;
    if (link->request.failed)
        return kl__fail_memory();
    for (int tries = 0; tries < TRIES_MAX; tries++) {
        bool made;
        kl__answer answer;
        kl_rc rc = link->fd < 0 ? connect_link(client, link) : KL_OK;
        if (rc != KL_OK)
            return rc;
        int error = exchange(link, &made);
        if (!error && !matches(link, &answer))
            return kl__link_refuse(client, link);
        if (!error && answer.state != KL_ANSWER_NOT) {
            *ret_answered = answer.state == KL_ANSWERED;
            *ret_in = answer.body;
            return answer.rc == KL_OK
                       ? KL_OK
                       : kl__fail(answer.rc, "%.*s", (int)answer.sentence.len, (const char *)answer.sentence.data);
        }
        long holder = error == -EAGAIN ? holder_of(link->fd) : 0;
        disconnect(link);
        if (error == -ENOMEM)
            return kl__fail_memory();
        if (holder && is_stopped(holder))
            return fail_stopped(client, holder, made);
        lost |= error && made;
        if (lost && !repeats)
            return fail_lost(client);
    }
    return lost ? fail_lost(client) : fail_unmade(client);
}

/* ---- Open and close ---- */

kl_rc kl__client_open(const char *dir, kl__absent_fn *absent, void *ctx, kl__client **ret_client)
{
    kl__client *client = kl__alloc_zeroed(1, sizeof *client);
    if (!client)
        return kl__fail_memory();
    client->dir = dir;
    client->absent = absent;
    client->absent_ctx = ctx;
    pthread_mutex_init(&client->absent_mutex, NULL);
    pthread_mutex_init(&client->mutex, NULL);
    *ret_client = client;
    return KL_OK;
}

void kl__client_dial(kl__client *client, kl__dial_fn *dial, void *ctx)
{
    client->dial = dial;
    client->dial_ctx = ctx;
}

void kl__client_close(kl__client *client)
{
    if (!client)
        return;
    while (client->idle) {
        kl__link *link = client->idle;
        client->idle = link->next;
        free_link(link);
    }
    pthread_mutex_destroy(&client->absent_mutex);
    pthread_mutex_destroy(&client->mutex);
    kl__free(client);
}

kl_rc kl__client_connect(kl__client *client)
{
    kl__link *link = NULL;
    kl_rc rc = kl__link_take(client, KL_WIRE_HELLO, &link);
    if (rc == KL_OK && link->fd < 0)
        rc = connect_link(client, link);
    kl__link_give(client, link);
    return rc;
}

uint32_t kl__client_can(const kl__client *client) { return atomic_load(&client->can); }
