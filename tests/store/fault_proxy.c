/* fault_proxy.c - see fault_proxy.h. */
#include "store/fault_proxy.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/random.h"

enum { HEAD_MAX = 32768, CONNECTIONS_MAX = 512, SLOW_MS = 150 };

struct fault_proxy {
    int listener, port, target;
    unsigned percent;
    _Atomic(uint64_t) random, met;
    _Atomic(uint64_t) counts[FAULTS];
    _Atomic(uint64_t) dates;
    atomic_bool refuses; /* deletes */
    atomic_bool cut_off; /* from the server */
    atomic_bool skewed;  /* so the next request is told */
    _Atomic(uint64_t) refused, watched;
    atomic_int ahead_s;         /* of the server's clock */
    const char *watched_method; /* written before watched_part */
    _Atomic(const char *) watched_part;
    pthread_t thread;
    atomic_bool stopping;
    pthread_mutex_t mutex;
    pthread_cond_t ended, let_go;
    const char *held_method, *held_part; /* requests that wait; NULL: none */
    uint64_t held;
    int connections;                  /* whose threads run */
    int sockets[2 * CONNECTIONS_MAX]; /* open ones, to be shut when it stops; -1: free */
    enum fake fake;
};

struct connection {
    struct fault_proxy *proxy;
    int client, server;
};

/* --- Sockets --- */

static void note_socket(struct fault_proxy *proxy, int socket, bool open)
{
    pthread_mutex_lock(&proxy->mutex);
    for (int i = 0; i < 2 * CONNECTIONS_MAX; i++) {
        if (proxy->sockets[i] != (open ? -1 : socket))
            continue;
        proxy->sockets[i] = open ? socket : -1;
        break;
    }
    pthread_mutex_unlock(&proxy->mutex);
}

static void close_socket(struct fault_proxy *proxy, int *socket)
{
    if (*socket < 0)
        return;
    note_socket(proxy, *socket, false);
    close(*socket);
    *socket = -1;
}

static int connect_to(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1, made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (made >= 0 && connect(made, (struct sockaddr *)&address, sizeof address) != 0) {
        close(made);
        return -1;
    }
    setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return made;
}

static bool send_all(int to, const char *bytes, size_t len)
{
    for (ssize_t sent; len > 0; bytes += sent, len -= (size_t)sent)
        if ((sent = send(to, bytes, len, MSG_NOSIGNAL)) <= 0)
            return false;
    return true;
}

/* --- HTTP, as much as S3 and libcurl speak of it --- */

struct message {
    char head[HEAD_MAX];
    size_t head_len;
    char *body;
    size_t body_len;
};

static const char *header(const struct message *message, const char *name)
{
    size_t len = strlen(name);
    for (const char *at = message->head; (at = strstr(at, "\r\n")); at += 2)
        if (strncasecmp(at + 2, name, len) == 0 && at[2 + len] == ':')
            return at + 2 + len + 1;
    return NULL;
}

static bool read_head(int from, struct message *message)
{
    message->head_len = 0;
    while (message->head_len < HEAD_MAX - 1) {
        ssize_t got = recv(from, message->head + message->head_len, 1, 0);
        if (got <= 0)
            return false;
        message->head[++message->head_len] = '\0';
        if (message->head_len >= 4 && memcmp(message->head + message->head_len - 4, "\r\n\r\n", 4) == 0)
            return true;
    }
    return false;
}

static bool read_some(int from, struct message *message, size_t len)
{
    char *grown = realloc(message->body, message->body_len + len + 1);
    if (!grown)
        return false;
    message->body = grown;
    for (ssize_t got; len > 0; message->body_len += (size_t)got, len -= (size_t)got)
        if ((got = recv(from, message->body + message->body_len, len, 0)) <= 0)
            return false;
    return true;
}

/* Chunks are kept as they came. */
static bool read_chunks(int from, struct message *message)
{
    for (size_t size = 1; size > 0;) {
        size_t begin = message->body_len;
        do {
            if (!read_some(from, message, 1))
                return false;
        } while (message->body_len - begin < 2 || memcmp(message->body + message->body_len - 2, "\r\n", 2) != 0);
        message->body[message->body_len] = '\0';
        size = strtoul(message->body + begin, NULL, 16);
        if (!read_some(from, message, size + 2))
            return false;
    }
    return true;
}

static bool read_message(int from, struct message *message)
{
    message->body_len = 0;
    if (!read_head(from, message))
        return false;
    const char *length = header(message, "Content-Length"), *coding = header(message, "Transfer-Encoding");
    bool bodiless = strncmp(message->head, "HTTP/1.1 204", 12) == 0 || strncmp(message->head, "HTTP/1.1 304", 12) == 0;
    if (bodiless)
        return true;
    if (length)
        return read_some(from, message, strtoul(length, NULL, 10));
    return !coding || read_chunks(from, message);
}

static bool send_message(int to, const struct message *message)
{
    return send_all(to, message->head, message->head_len) && send_all(to, message->body, message->body_len);
}

static bool send_status(int to, int status, const char *code)
{
    char text[512], body[200];
    int len = snprintf(body, sizeof body, "<Error><Code>%s</Code></Error>", code);
    int all = snprintf(text, sizeof text, "HTTP/1.1 %d Fault\r\nContent-Length: %d\r\n\r\n%s", status, len, body);
    return send_all(to, text, (size_t)all);
}

/* --- Faults --- */

static enum fault choose(struct fault_proxy *proxy)
{
    uint64_t state = atomic_fetch_add(&proxy->random, 0x9e3779b97f4a7c15u);
    enum fault fault = FAULT_NONE;
    if (atomic_load(&proxy->cut_off))
        fault = FAULT_REQUEST_LOST;
    else if (kl__random_below(&state, 100) < proxy->percent)
        fault = 1 + (enum fault)(atomic_fetch_add(&proxy->met, 1) % (FAULTS - 1)); /* when is random, which is not */
    atomic_fetch_add(&proxy->counts[fault], 1);
    return fault;
}

/* What the client gets of an answer that the server gave. False: the connection ends. */
static bool answer(int client, const struct message *reply, enum fault fault)
{
    struct timespec slow = {.tv_nsec = (long)SLOW_MS * 1000000};
    switch (fault) {
    case FAULT_REPLY_LOST:
        return false;
    case FAULT_500_DONE:
        return send_status(client, 500, "InternalError");
    case FAULT_CUT:
        send_all(client, reply->head, reply->head_len / 2);
        return false;
    case FAULT_SLOW:
        nanosleep(&slow, NULL);
        return send_message(client, reply);
    default:
        return send_message(client, reply);
    }
}

static bool send_date(const struct connection *connection)
{
    char text[128], date[64];
    bool wrong = atomic_fetch_add(&connection->proxy->dates, 1) % 4 == 3;
    time_t seconds = time(NULL) + (wrong ? 3600 : 0);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    int len = snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\nDate: %s\r\nContent-Length: 0\r\n\r\n", date);
    return send_all(connection->client, text, (size_t)len);
}

/* A server that is none: it keeps nothing. */
static bool pretend(const struct connection *connection, const struct message *request)
{
    static const char done[] = "HTTP/1.1 200 OK\r\nETag: \"0\"\r\nContent-Length: 0\r\n\r\n";
    bool conditional = header(request, "If-None-Match") || header(request, "If-Match");
    if (connection->proxy->fake == FAKE_DATES)
        return send_date(connection);
    const char *token = header(request, "x-amz-security-token");
    if (connection->proxy->fake == FAKE_EXPIRES && token && strncmp(token + strspn(token, " "), "old\r", 4) == 0)
        return send_status(connection->client, 403, "ExpiredToken");
    if (strncmp(request->head, "PUT", 3) != 0)
        return send_status(connection->client, 404, "NoSuchKey");
    if (conditional && connection->proxy->fake == FAKE_REFUSES)
        return send_status(connection->client, 501, "NotImplemented");
    return send_all(connection->client, done, sizeof done - 1);
}

static bool is_delete(const struct message *request)
{
    const char *end = strstr(request->head, "\r\n"), *query = strstr(request->head, "?delete");
    return strncmp(request->head, "POST ", 5) == 0 && query && query < end;
}

static bool refuse_delete(struct connection *connection)
{
    static const char body[] = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><DeleteResult><Error><Key>one</Key>"
                               "<Code>InternalError</Code><Message>try again</Message></Error></DeleteResult>";
    char text[512];
    int len = snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", sizeof body - 1, body);
    bool sent = send_all(connection->client, text, (size_t)len);
    atomic_fetch_add(&connection->proxy->refused, 1);
    return sent;
}

/* Dates are all of one length. */
static void set_ahead(struct message *reply, int seconds)
{
    static const char format[] = "%a, %d %b %Y %H:%M:%S GMT";
    char *date = (char *)header(reply, "Date"), text[40];
    struct tm tm = {0};
    date += date ? strspn(date, " ") : 0;
    if (!date || !seconds || !strptime(date, format, &tm))
        return;
    time_t time = timegm(&tm) + seconds;
    gmtime_r(&time, &tm);
    memcpy(date, text, strftime(text, sizeof text, format, &tm));
}

static bool send_skewed(const struct connection *connection)
{
    static const char body[] = "<Error><Code>RequestTimeTooSkewed</Code></Error>";
    char text[300], date[64];
    time_t seconds = time(NULL) + atomic_load(&connection->proxy->ahead_s);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    int len = snprintf(text, sizeof text, "HTTP/1.1 403 Forbidden\r\nDate: %s\r\nContent-Length: %zu\r\n\r\n%s", date,
                       sizeof body - 1, body);
    return send_all(connection->client, text, (size_t)len);
}

static bool is_like(const struct message *request, const char *method, const char *part)
{
    const char *end = strstr(request->head, "\r\n"), *found = strstr(request->head, part);
    return found && found < end && strncmp(request->head, method, strlen(method)) == 0;
}

static void watch(struct fault_proxy *proxy, const struct message *request)
{
    const char *part = atomic_load(&proxy->watched_part);
    if (part && is_like(request, proxy->watched_method, part))
        atomic_fetch_add(&proxy->watched, 1);
}

static void hold(struct fault_proxy *proxy, const struct message *request)
{
    pthread_mutex_lock(&proxy->mutex);
    if (proxy->held_part && is_like(request, proxy->held_method, proxy->held_part)) {
        proxy->held++;
        while (proxy->held_part)
            pthread_cond_wait(&proxy->let_go, &proxy->mutex);
    }
    pthread_mutex_unlock(&proxy->mutex);
}

/* One request and its answer. False: the connection ends. */
static bool pass_on(struct connection *connection, struct message *request, struct message *reply)
{
    struct fault_proxy *proxy = connection->proxy;
    if (!read_message(connection->client, request))
        return false;
    if (proxy->fake)
        return pretend(connection, request);
    if (atomic_load(&proxy->refuses) && is_delete(request))
        return refuse_delete(connection);
    hold(proxy, request);
    if (atomic_exchange(&proxy->skewed, false))
        return send_skewed(connection);
    enum fault fault = choose(proxy);
    if (fault == FAULT_REQUEST_LOST)
        return false;
    if (fault == FAULT_500)
        return send_status(connection->client, 500, "InternalError");
    if (fault == FAULT_503)
        return send_status(connection->client, 503, "SlowDown");
    if (fault == FAULT_409)
        return send_status(connection->client, 409, "ConditionalRequestConflict");
    if (connection->server < 0) {
        if ((connection->server = connect_to(proxy->target)) < 0)
            return false;
        note_socket(proxy, connection->server, true);
    }
    if (!send_message(connection->server, request) || !read_message(connection->server, reply))
        return false;
    set_ahead(reply, atomic_load(&proxy->ahead_s));
    bool answered = answer(connection->client, reply, fault);
    watch(proxy, request);
    return answered;
}

static void *serve(void *ctx)
{
    struct connection *connection = ctx;
    struct message *messages = calloc(2, sizeof *messages);
    while (messages && !atomic_load(&connection->proxy->stopping) && pass_on(connection, &messages[0], &messages[1]))
        ;
    if (messages) {
        free(messages[0].body);
        free(messages[1].body);
    }
    free(messages);
    struct fault_proxy *proxy = connection->proxy;
    close_socket(proxy, &connection->client);
    close_socket(proxy, &connection->server);
    free(connection);
    pthread_mutex_lock(&proxy->mutex);
    proxy->connections--;
    pthread_cond_signal(&proxy->ended);
    pthread_mutex_unlock(&proxy->mutex);
    return NULL;
}

/* --- Start and stop --- */

static void *accept_all(void *ctx)
{
    struct fault_proxy *proxy = ctx;
    int one = 1;
    for (int client; (client = accept(proxy->listener, NULL, NULL)) >= 0;) {
        struct connection *connection = malloc(sizeof *connection);
        pthread_t thread;
        if (!connection || atomic_load(&proxy->stopping)) {
            close(client);
            free(connection);
            continue;
        }
        *connection = (struct connection){proxy, client, -1};
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        note_socket(proxy, client, true);
        pthread_mutex_lock(&proxy->mutex);
        proxy->connections++;
        pthread_mutex_unlock(&proxy->mutex);
        if (pthread_create(&thread, NULL, serve, connection) != 0)
            abort();
        pthread_detach(thread);
    }
    return NULL;
}

static struct fault_proxy *start(int port, uint64_t seed, unsigned percent, enum fake fake)
{
    struct fault_proxy *proxy = calloc(1, sizeof *proxy);
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t len = sizeof address;
    if (!proxy)
        return NULL;
    proxy->target = port;
    proxy->percent = percent;
    proxy->fake = fake;
    pthread_cond_init(&proxy->ended, NULL);
    pthread_cond_init(&proxy->let_go, NULL);
    atomic_store(&proxy->random, seed);
    pthread_mutex_init(&proxy->mutex, NULL);
    for (int i = 0; i < 2 * CONNECTIONS_MAX; i++)
        proxy->sockets[i] = -1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    proxy->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (proxy->listener < 0 || bind(proxy->listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(proxy->listener, 128) != 0 || getsockname(proxy->listener, (struct sockaddr *)&address, &len) != 0 ||
        pthread_create(&proxy->thread, NULL, accept_all, proxy) != 0) {
        free(proxy);
        return NULL;
    }
    proxy->port = ntohs(address.sin_port);
    return proxy;
}

struct fault_proxy *fault_proxy_start(int port, uint64_t seed, unsigned percent)
{
    return start(port, seed, percent, FAKE_NONE);
}

struct fault_proxy *fault_proxy_fake(enum fake fake) { return start(0, 1, 0, fake); }

int fault_proxy_port(const struct fault_proxy *proxy) { return proxy->port; }

void fault_proxy_refuse_deletes(struct fault_proxy *proxy) { atomic_store(&proxy->refuses, true); }

uint64_t fault_proxy_refused(const struct fault_proxy *proxy) { return atomic_load(&proxy->refused); }

void fault_proxy_cut_off(struct fault_proxy *proxy, bool cut) { atomic_store(&proxy->cut_off, cut); }

void fault_proxy_jump(struct fault_proxy *proxy, int seconds) { atomic_store(&proxy->ahead_s, seconds); }

void fault_proxy_skew(struct fault_proxy *proxy, int seconds)
{
    atomic_store(&proxy->ahead_s, seconds);
    atomic_store(&proxy->skewed, true);
}

void fault_proxy_watch(struct fault_proxy *proxy, const char *method, const char *part)
{
    proxy->watched_method = method;
    atomic_store(&proxy->watched_part, part);
}

uint64_t fault_proxy_watched(const struct fault_proxy *proxy) { return atomic_load(&proxy->watched); }

void fault_proxy_hold(struct fault_proxy *proxy, const char *method, const char *part)
{
    pthread_mutex_lock(&proxy->mutex);
    proxy->held_method = method;
    proxy->held_part = part;
    proxy->held = 0;
    pthread_mutex_unlock(&proxy->mutex);
}

uint64_t fault_proxy_held(struct fault_proxy *proxy)
{
    pthread_mutex_lock(&proxy->mutex);
    uint64_t held = proxy->held;
    pthread_mutex_unlock(&proxy->mutex);
    return held;
}

void fault_proxy_let_go(struct fault_proxy *proxy)
{
    pthread_mutex_lock(&proxy->mutex);
    proxy->held_part = NULL;
    pthread_cond_broadcast(&proxy->let_go);
    pthread_mutex_unlock(&proxy->mutex);
}

uint64_t fault_proxy_count(const struct fault_proxy *proxy, enum fault fault)
{
    return atomic_load(&proxy->counts[fault]);
}

void fault_proxy_stop(struct fault_proxy *proxy)
{
    if (!proxy)
        return;
    atomic_store(&proxy->stopping, true);
    fault_proxy_let_go(proxy);
    shutdown(proxy->listener, SHUT_RDWR);
    pthread_join(proxy->thread, NULL);
    close(proxy->listener);
    pthread_mutex_lock(&proxy->mutex);
    for (int i = 0; i < 2 * CONNECTIONS_MAX; i++)
        if (proxy->sockets[i] >= 0)
            shutdown(proxy->sockets[i], SHUT_RDWR);
    while (proxy->connections > 0)
        pthread_cond_wait(&proxy->ended, &proxy->mutex);
    pthread_mutex_unlock(&proxy->mutex);
    pthread_mutex_destroy(&proxy->mutex);
    pthread_cond_destroy(&proxy->ended);
    pthread_cond_destroy(&proxy->let_go);
    free(proxy);
}
