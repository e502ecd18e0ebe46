/* http_rig.c - a server with a few paths of its own, and clients that say exactly what they are told to. */
#include "http_rig.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "harness.h"

/* ---- Serving ---- */

static bool is_path(const kl__request *request, const char *path)
{
    return request->head.path.len == strlen(path) && memcmp(request->head.path.data, path, strlen(path)) == 0;
}

static void echo(kl__request *request)
{
    kl__answer answer = {.status = 200, .type = "application/octet-stream", .body = request->body};
    kl__http_answer(request, &answer);
}

static void answer_large(kl__request *request)
{
    char *bytes = kl_arena_alloc(request->arena, RIG_LARGE);
    kl__answer answer = {.status = bytes ? 200 : 503, .type = "text/plain"};
    for (size_t i = 0; bytes && i < RIG_LARGE; i++)
        bytes[i] = (char)('a' + i % 23);
    if (bytes)
        answer.body = (kl_bytes){bytes, RIG_LARGE};
    kl__http_answer(request, &answer);
}

static void answer_about(kl__request *request)
{
    char text[256];
    int len = snprintf(text, sizeof text, "%d %.*s %d %d %d", (int)request->head.method, (int)request->head.path.len,
                       (const char *)request->head.path.data, request->head.minor, request->local, request->secure);
    const kl__field fields[] = {{kl_str("X-Peer"), kl_str(request->peer)}, {kl_str("X-Sly"), kl_str("a\r\nX-Evil: b")}};
    kl__answer answer = {
        .status = 200, .type = "text/plain", .body = {text, (size_t)len}, .fields = fields, .field_count = 2};
    kl__http_answer(request, &answer);
}

static void note_gone(void *ctx)
{
    struct rig *rig = ctx;
    pthread_mutex_lock(&rig->mutex);
    rig->gone++;
    pthread_cond_broadcast(&rig->changed);
    pthread_mutex_unlock(&rig->mutex);
}

static void hold(struct rig *rig, kl__request *request)
{
    kl__http_on_gone(request, note_gone, rig);
    pthread_mutex_lock(&rig->mutex);
    if (rig->held_count < RIG_HELD_MAX)
        rig->held[rig->held_count++] = request;
    pthread_cond_broadcast(&rig->changed);
    pthread_mutex_unlock(&rig->mutex);
}

static void serve_later(struct rig *rig, kl__request *request)
{
    pthread_mutex_lock(&rig->mutex);
    request->serving = rig->later;
    rig->later = request;
    pthread_cond_broadcast(&rig->changed);
    pthread_mutex_unlock(&rig->mutex);
}

static void *run_worker(void *arg)
{
    struct rig *rig = arg;
    pthread_mutex_lock(&rig->mutex);
    while (rig->later || !rig->ending) {
        kl__request *request = rig->later;
        if (!request) {
            kl__cond_wait(&rig->changed, &rig->mutex, KL_NEVER);
            continue;
        }
        rig->later = request->serving;
        pthread_mutex_unlock(&rig->mutex);
        echo(request);
        pthread_mutex_lock(&rig->mutex);
    }
    pthread_mutex_unlock(&rig->mutex);
    return NULL;
}

static void *run_upgraded(void *arg)
{
    int fd = (int)(intptr_t)arg;
    char bytes[4096];
    for (ssize_t len; (len = recv(fd, bytes, sizeof bytes, 0)) > 0;)
        if (send(fd, bytes, (size_t)len, MSG_NOSIGNAL) != len)
            break;
    close(fd);
    return NULL;
}

static void take_over(void *ctx, int fd)
{
    struct rig *rig = ctx;
    if (fd < 0)
        rig->upgrades_broken++;
    else if (pthread_create(&rig->upgraded[rig->upgraded_count], NULL, run_upgraded, (void *)(intptr_t)fd) == 0)
        rig->upgraded_count++;
}

static void serve(void *ctx, kl__request *request)
{
    struct rig *rig = ctx;
    kl__answer missing = {.status = 404};
    if (is_path(request, "/later"))
        serve_later(rig, request);
    else if (is_path(request, "/hold") || is_path(request, "/stream"))
        hold(rig, request);
    else if (is_path(request, "/large"))
        answer_large(request);
    else if (is_path(request, "/about"))
        answer_about(request);
    else if (is_path(request, "/upgrade"))
        kl__http_upgrade(request, "echo", take_over, rig);
    else if (is_path(request, "/missing"))
        kl__http_answer(request, &missing);
    else
        echo(request);
}

/* ---- The server ---- */

static bool start(struct rig *rig)
{
    static unsigned number;
    if (rig->on_unix)
        snprintf(rig->address, sizeof rig->address, "unix:/tmp/keyline-http-%d-%u", (int)getpid(), number++);
    else
        snprintf(rig->address, sizeof rig->address, "127.0.0.1:0");
    rig->addresses[0] = rig->address;
    rig->opts.listen = rig->addresses;
    rig->opts.listen_count = 1;
    rig->opts.serve = serve;
    rig->opts.ctx = rig;
    return kl__http_open(&rig->opts, &rig->http) == KL_OK;
}

bool rig_open(struct rig *rig)
{
    pthread_mutex_init(&rig->mutex, NULL);
    kl__cond_init(&rig->changed);
    bool started = start(rig);
    if (!started)
        test_fail(__FILE__, __LINE__, "no server: %s", kl_error_text());
    else if (pthread_create(&rig->worker, NULL, run_worker, rig) != 0)
        abort();
    return started;
}

void rig_close(struct rig *rig)
{
    while (rig->held_count > 0)
        rig_release(rig, 503);
    pthread_mutex_lock(&rig->mutex);
    rig->ending = true;
    pthread_cond_broadcast(&rig->changed);
    pthread_mutex_unlock(&rig->mutex);
    pthread_join(rig->worker, NULL);
    kl__http_close(rig->http);
    for (size_t i = 0; i < rig->upgraded_count; i++)
        pthread_join(rig->upgraded[i], NULL);
    pthread_cond_destroy(&rig->changed);
    pthread_mutex_destroy(&rig->mutex);
}

static bool await_size(struct rig *rig, const size_t *value, size_t count)
{
    int64_t until_ns = kl__deadline_ns(RIG_WAIT_MS);
    pthread_mutex_lock(&rig->mutex);
    while (*value < count && kl__cond_wait(&rig->changed, &rig->mutex, until_ns))
        continue;
    bool reached = *value >= count;
    pthread_mutex_unlock(&rig->mutex);
    if (!reached)
        test_fail(__FILE__, __LINE__, "waited in vain for %zu", count);
    return reached;
}

bool rig_await_held(struct rig *rig, size_t count) { return await_size(rig, &rig->held_count, count); }
bool rig_await_gone(struct rig *rig, size_t count) { return await_size(rig, &rig->gone, count); }

kl__request *rig_take(struct rig *rig)
{
    pthread_mutex_lock(&rig->mutex);
    kl__request *request = rig->held_count > 0 ? rig->held[0] : NULL;
    if (request)
        memmove(rig->held, rig->held + 1, --rig->held_count * sizeof rig->held[0]);
    pthread_mutex_unlock(&rig->mutex);
    return request;
}

void rig_release(struct rig *rig, int status)
{
    kl__request *request = rig_take(rig);
    kl__answer answer = {.status = status, .type = "text/plain", .body = kl_str("released")};
    if (!request)
        return;
    kl__http_on_gone(request, NULL, NULL);
    kl__http_answer(request, &answer);
}

/* There is nothing to wait on: it is asked again and again. */
bool rig_await_connections(struct rig *rig, uint64_t count)
{
    int64_t until_ns = kl__deadline_ns(RIG_WAIT_MS);
    while (kl__http_counted(rig->http).connections != count)
        if (kl__monotonic_ns() > until_ns || sched_yield() != 0)
            return false;
    return true;
}

bool rig_await_received(struct rig *rig, uint64_t bytes)
{
    int64_t until_ns = kl__deadline_ns(RIG_WAIT_MS);
    while (kl__http_counted(rig->http).bytes_in < bytes)
        if (kl__monotonic_ns() > until_ns || sched_yield() != 0)
            return false;
    return true;
}

/* ---- Clients ---- */

static int connect_unix(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0 ? fd : -1;
}

static int connect_tcp(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

bool client_open(struct rig *rig, struct client *client)
{
    const struct timeval patience = {.tv_sec = RIG_WAIT_MS / 1000};
    client->len = 0;
    client->fd = rig->on_unix ? connect_unix(rig->address + 5) : connect_tcp(kl__http_port(rig->http, 0));
    if (client->fd < 0) {
        test_fail(__FILE__, __LINE__, "no connection");
        return false;
    }
    setsockopt(client->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(client->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    return true;
}

void client_close(struct client *client)
{
    if (client->fd >= 0)
        close(client->fd);
    client->fd = -1;
}

bool client_say(struct client *client, const void *bytes, size_t len)
{
    const char *from = bytes;
    while (len > 0) {
        ssize_t sent = send(client->fd, from, len, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        from += sent;
        len -= (size_t)sent;
    }
    return true;
}

bool client_say_text(struct client *client, const char *text) { return client_say(client, text, strlen(text)); }

/* More bytes. False: the end, or an error. */
static bool receive(struct client *client)
{
    if (client->len == sizeof client->bytes)
        return false;
    ssize_t len = recv(client->fd, client->bytes + client->len, sizeof client->bytes - client->len, 0);
    client->len += len > 0 ? (size_t)len : 0;
    return len > 0;
}

static void take(struct client *client, void *to, size_t len)
{
    memcpy(to, client->bytes, len);
    client->len -= len;
    memmove(client->bytes, client->bytes + len, client->len);
}

static bool hear_head(struct client *client, struct reply *reply)
{
    char *end;
    while (!(end = memmem(client->bytes, client->len, "\r\n\r\n", 4)))
        if (!receive(client))
            return false;
    size_t len = (size_t)(end + 4 - client->bytes);
    if (len >= sizeof reply->head)
        return false;
    take(client, reply->head, len);
    reply->head[len] = '\0';
    return sscanf(reply->head, "HTTP/1.1 %d ", &reply->status) == 1;
}

bool client_hear(struct client *client, bool is_head, struct reply *ret_reply)
{
    struct reply reply = {0};
    if (!hear_head(client, &reply))
        return false;
    const char *length = strstr(reply.head, "\r\nContent-Length: ");
    reply.body_len = length && !is_head ? strtoul(length + 18, NULL, 10) : 0;
    reply.body = calloc(1, reply.body_len + 1);
    for (size_t have = 0; have < reply.body_len;) {
        if (client->len == 0 && !receive(client)) {
            free(reply.body);
            return false;
        }
        size_t some = client->len < reply.body_len - have ? client->len : reply.body_len - have;
        take(client, reply.body + have, some);
        have += some;
    }
    *ret_reply = reply;
    return true;
}

void reply_free(struct reply *reply) { free(reply->body); }

bool client_hear_end(struct client *client) { return client->len == 0 && !receive(client); }

size_t client_hear_all(struct client *client)
{
    size_t heard = client->len;
    for (char bytes[4096];;) {
        ssize_t len = recv(client->fd, bytes, sizeof bytes, 0);
        if (len <= 0)
            return heard;
        size_t room = sizeof client->bytes - client->len, kept = (size_t)len < room ? (size_t)len : room;
        memcpy(client->bytes + client->len, bytes, kept);
        client->len += kept;
        heard += (size_t)len;
    }
}

bool client_hear_bytes(struct client *client, const char *text)
{
    size_t len = strlen(text);
    while (client->len < len)
        if (!receive(client))
            return false;
    bool same = memcmp(client->bytes, text, len) == 0;
    client->len -= len;
    memmove(client->bytes, client->bytes + len, client->len);
    return same;
}

void check_ask(struct rig *rig, const char *text, int status, const char *body)
{
    static _Thread_local struct client client;
    struct reply reply;
    if (!client_open(rig, &client))
        return;
    if (!client_say_text(&client, text) || !client_hear(&client, false, &reply)) {
        test_fail(__FILE__, __LINE__, "no answer to %.40s", text);
    } else {
        CHECK_INT(reply.status, status);
        if (body)
            CHECK_STR(reply.body, body);
        reply_free(&reply);
    }
    client_close(&client);
}
