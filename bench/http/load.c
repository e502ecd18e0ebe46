/* load.c - one client for three servers: put, take, finish, again and again, over many connections from one thread.
 *
 *     bench-http-load keyline|beanstalkd|redis PORT CONNECTIONS BATCH SECONDS
 *     bench-http-load flood PORT IDLE SLOW SECONDS   so many connections that say nothing, or a letter of a head each second
 *     bench-http-load disk FILE 1 1 SECONDS          appends to a file and syncs it, as the least that a put can take
 *
 * Each connection puts BATCH tasks, takes as many, and finishes those; then it begins again. What a server offers for
 * batches is used: the list forms of the HTTP API; commands sent ahead (pipelining) for beanstalkd and redis, and
 * redis' own forms for many ids. Payloads have 200 bytes, and keys are 1,000; the others keep no order by key.
 *
 * Prints one line: tasks a second, and microseconds of a put's answer, p50 and p99. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PAYLOAD = 200, KEYS = 1000, CONNECTIONS_MAX = 256, BATCH_MAX = 1000, ID_MAX = 80, LATENCIES = 1 << 20 };

enum phase { PUT, TAKE, FINISH };

struct connection {
    int fd;
    enum phase phase;
    char *in, *out;
    size_t in_len, in_room, out_len, out_sent, out_room;
    size_t expected;        /* answers that are still to come in this phase */
    size_t taken, finished; /* in this round */
    char (*ids)[ID_MAX];    /* of what was taken and is not finished */
    size_t id_count;
    int64_t began_ns;
};

struct protocol {
    const char *name;
    void (*greet)(struct connection *); /* NULL: nothing to say first */
    void (*write)(struct connection *); /* the requests of its phase, and how many answers they get */
    /* Reads one answer at the beginning of in[0..len); returns its length, 0: not complete, -1: not understood. */
    long (*read)(struct connection *, const char *in, size_t len);
};

static size_t batch;
static uint64_t next_key, finished_total;
static bool ending;       /* rounds that have begun are completed: what is claimed would hold its keys */
static size_t busy_count; /* connections in a round */
static uint32_t latencies[LATENCIES];
static size_t latency_count;
static char payload[PAYLOAD + 1];

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "bench-http-load: %s\n", what);
    exit(1);
}

static char *room_for(struct connection *connection, size_t len)
{
    if (connection->out_len + len > connection->out_room) {
        connection->out_room = (connection->out_len + len) * 2;
        connection->out = realloc(connection->out, connection->out_room);
        if (!connection->out)
            die("out of memory");
    }
    return connection->out + connection->out_len;
}

__attribute__((format(printf, 2, 3))) static void say(struct connection *connection, const char *format, ...)
{
    va_list arguments;
    char *to = room_for(connection, 1024);
    va_start(arguments, format);
    connection->out_len += (size_t)vsnprintf(to, 1024, format, arguments);
    va_end(arguments);
}

static void say_bytes(struct connection *connection, const char *bytes, size_t len)
{
    memcpy(room_for(connection, len), bytes, len);
    connection->out_len += len;
}

static void keep_id(struct connection *connection, const char *id, size_t len)
{
    if (len >= ID_MAX || connection->id_count == BATCH_MAX)
        die("an id is too long, or there are too many");
    memcpy(connection->ids[connection->id_count], id, len);
    connection->ids[connection->id_count++][len] = 0;
}

/* ---- Keyline ---- */

static char body[BATCH_MAX * 512];

static void post(struct connection *connection, const char *route, size_t len)
{
    say(connection,
        "POST /v1/queues/bench/%s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        "Content-Length: %zu\r\n\r\n",
        route, len);
    say_bytes(connection, body, len);
    connection->expected = 1;
}

static size_t write_task(char *to)
{
    return (size_t)sprintf(to, "{\"key\":\"k%d\",\"payload\":\"%s\"}", (int)(next_key++ % KEYS), payload);
}

static void write_keyline(struct connection *connection)
{
    size_t len = 0;
    bool many = batch > 1;
    switch (connection->phase) {
    case PUT:
        len += (size_t)sprintf(body, "%s", many ? "{\"tasks\":[" : "");
        for (size_t i = 0; i < batch; i++) {
            len += (size_t)sprintf(body + len, "%s", i ? "," : "");
            len += write_task(body + len);
        }
        len += (size_t)sprintf(body + len, "%s", many ? "]}" : "");
        post(connection, "tasks", len);
        break;
    case TAKE:
        post(connection, "claim", (size_t)sprintf(body, "{\"max\":%zu,\"wait_ms\":1000}", batch - connection->taken));
        break;
    case FINISH:
        len += (size_t)sprintf(body, "%s", many ? "{\"items\":[" : "");
        for (size_t i = 0; i < connection->id_count; i++)
            len += (size_t)sprintf(body + len, "%s{\"token\":\"%s\"}", i ? "," : "", connection->ids[i]);
        len += (size_t)sprintf(body + len, "%s", many ? "]}" : "");
        post(connection, "finish", len);
        break;
    }
}

static long read_keyline(struct connection *connection, const char *in, size_t len)
{
    const char *end = memmem(in, len, "\r\n\r\n", 4), *length = end ? strcasestr(in, "\r\nContent-Length:") : NULL;
    if (!end)
        return 0;
    if (!length || length > end || strncmp(in, "HTTP/1.1 20", 11) != 0) {
        fprintf(stderr, "%.*s\n", (int)(len < 2000 ? len : 2000), in);
        return -1;
    }
    size_t whole = (size_t)(end + 4 - in) + strtoul(length + 17, NULL, 10);
    if (len < whole)
        return 0;
    if (connection->phase == TAKE)
        for (const char *at = end; (at = memmem(at, (size_t)(in + whole - at), "\"token\":\"", 9)) != NULL;) {
            at += 9;
            keep_id(connection, at, strcspn(at, "\""));
        }
    return (long)whole;
}

/* ---- beanstalkd ---- */

static void write_beanstalkd(struct connection *connection)
{
    size_t count = connection->phase == PUT    ? batch
                   : connection->phase == TAKE ? batch - connection->taken
                                               : connection->id_count;
    for (size_t i = 0; i < count; i++) {
        if (connection->phase == PUT)
            say(connection, "put 1024 0 60 %d\r\n%s\r\n", PAYLOAD, payload);
        else if (connection->phase == TAKE)
            say(connection, "reserve-with-timeout 1\r\n");
        else
            say(connection, "delete %s\r\n", connection->ids[i]);
    }
    connection->expected = count;
}

static long read_beanstalkd(struct connection *connection, const char *in, size_t len)
{
    const char *end = memmem(in, len, "\r\n", 2);
    if (!end)
        return 0;
    size_t line = (size_t)(end + 2 - in);
    if (strncmp(in, "RESERVED ", 9) == 0) {
        const char *id = in + 9, *size = strchr(id, ' ') + 1;
        size_t whole = line + strtoul(size, NULL, 10) + 2;
        if (len < whole)
            return 0;
        keep_id(connection, id, (size_t)(size - 1 - id));
        return (long)whole;
    }
    bool fine = strncmp(in, "INSERTED", 8) == 0 || strncmp(in, "DELETED", 7) == 0 || strncmp(in, "TIMED_OUT", 9) == 0;
    return fine ? (long)line : -1;
}

/* ---- redis streams ---- */

static void greet_redis(struct connection *connection)
{
    say(connection, "XGROUP CREATE bench workers $ MKSTREAM\r\n"); /* all but the first are told that it exists */
    connection->expected = 1;
}

static void write_ids(struct connection *connection, const char *start, size_t words)
{
    say(connection, "*%zu\r\n%s", words + connection->id_count, start);
    for (size_t i = 0; i < connection->id_count; i++)
        say(connection, "$%zu\r\n%s\r\n", strlen(connection->ids[i]), connection->ids[i]);
}

static void write_redis(struct connection *connection)
{
    switch (connection->phase) {
    case PUT:
        for (size_t i = 0; i < batch; i++)
            say(connection,
                "*7\r\n$4\r\nXADD\r\n$5\r\nbench\r\n$1\r\n*\r\n$1\r\nk\r\n$4\r\nk%03d\r\n$1\r\np\r\n$%d\r\n%s\r\n",
                (int)(next_key++ % KEYS), PAYLOAD, payload);
        connection->expected = batch;
        break;
    case TAKE:
        say(connection, "XREADGROUP GROUP workers c%d COUNT %zu BLOCK 1000 STREAMS bench >\r\n", connection->fd,
            batch - connection->taken);
        connection->expected = 1;
        break;
    case FINISH:
        write_ids(connection, "$4\r\nXACK\r\n$5\r\nbench\r\n$7\r\nworkers\r\n", 3);
        write_ids(connection, "$4\r\nXDEL\r\n$5\r\nbench\r\n", 2);
        connection->expected = 2;
        break;
    }
}

/* The end of one value, or NULL: not complete. Ids of entries look like 1234-0. */
static const char *skip_value(struct connection *connection, const char *at, const char *end, bool collect)
{
    const char *line = memmem(at, (size_t)(end - at), "\r\n", 2);
    if (!line)
        return NULL;
    long number = strtol(at + 1, NULL, 10);
    const char *next = line + 2;
    if (*at == '*') {
        for (long i = 0; next && i < number; i++)
            next = skip_value(connection, next, end, collect);
        return next;
    }
    if (*at != '$' || number < 0)
        return next;
    if (end - next < number + 2)
        return NULL;
    if (collect && number > 10 && number < 40 && memchr(next, '-', (size_t)number) && next[0] >= '0' && next[0] <= '9')
        keep_id(connection, next, (size_t)number);
    return next + number + 2;
}

static long read_redis(struct connection *connection, const char *in, size_t len)
{
    const char *end = skip_value(connection, in, in + len, false);
    if (!end)
        return 0;
    if (*in == '-' && strncmp(in, "-BUSYGROUP", 10) != 0) {
        fprintf(stderr, "%.*s\n", (int)len, in);
        return -1;
    }
    if (connection->phase == TAKE)
        skip_value(connection, in, end, true);
    return end - in;
}

static const struct protocol protocols[] = {
    {"keyline", NULL, write_keyline, read_keyline},
    {"beanstalkd", NULL, write_beanstalkd, read_beanstalkd},
    {"redis", greet_redis, write_redis, read_redis},
};

/* ---- The round of a connection ---- */

static void note_latency(const struct connection *connection)
{
    int64_t us = (now_ns() - connection->began_ns) / 1000;
    if (latency_count < LATENCIES)
        latencies[latency_count++] = (uint32_t)us;
}

static void begin(const struct protocol *protocol, struct connection *connection, enum phase phase)
{
    connection->phase = phase;
    connection->began_ns = now_ns();
    protocol->write(connection);
}

/* All answers of the phase are there. */
static void go_on(const struct protocol *protocol, struct connection *connection)
{
    switch (connection->phase) {
    case PUT:
        note_latency(connection);
        connection->taken = connection->finished = 0;
        begin(protocol, connection, TAKE);
        break;
    case TAKE:
        connection->taken += connection->id_count;
        begin(protocol, connection, connection->id_count ? FINISH : TAKE);
        break;
    case FINISH:
        finished_total += connection->id_count;
        connection->id_count = 0;
        if (ending && connection->taken == batch)
            busy_count--;
        else
            begin(protocol, connection, connection->taken < batch ? TAKE : PUT);
        break;
    }
}

static void flush_out(struct connection *connection)
{
    while (connection->out_sent < connection->out_len) {
        ssize_t sent = send(connection->fd, connection->out + connection->out_sent,
                            connection->out_len - connection->out_sent, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            poll(&(struct pollfd){.fd = connection->fd, .events = POLLOUT}, 1, 1000);
            continue;
        }
        if (sent < 0)
            die(strerror(errno));
        connection->out_sent += (size_t)sent;
    }
    connection->out_len = connection->out_sent = 0;
}

static void read_answers(const struct protocol *protocol, struct connection *connection)
{
    size_t used = 0;
    while (connection->expected > 0 && used < connection->in_len) {
        long len = protocol->read(connection, connection->in + used, connection->in_len - used);
        if (len < 0)
            die("an answer that was not expected");
        if (len == 0)
            break;
        used += (size_t)len;
        connection->expected--;
    }
    memmove(connection->in, connection->in + used, connection->in_len - used);
    connection->in_len -= used;
    connection->in[connection->in_len] = 0;
    if (connection->expected == 0)
        go_on(protocol, connection);
}

static void receive(const struct protocol *protocol, struct connection *connection)
{
    if (connection->in_room - connection->in_len < 65537) {
        connection->in_room = connection->in_room * 2 + 131072;
        connection->in = realloc(connection->in, connection->in_room);
        if (!connection->in)
            die("out of memory");
    }
    ssize_t len = recv(connection->fd, connection->in + connection->in_len,
                       connection->in_room - connection->in_len - 1, MSG_DONTWAIT);
    if (len < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (len <= 0)
        die("the server closed a connection");
    connection->in_len += (size_t)len;
    connection->in[connection->in_len] = 0;
    read_answers(protocol, connection);
    flush_out(connection);
}

/* From an address of this process's own, where it makes so many connections that the ports of one would run out. */
static int dial_from(int port, uint32_t from)
{
    struct sockaddr_in source = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(from)};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || (from && bind(fd, (struct sockaddr *)&source, sizeof source) != 0) ||
        connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        die("the server cannot be reached");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static int dial(int port) { return dial_from(port, 0); }

static int compare(const void *a, const void *b)
{
    uint32_t first = *(const uint32_t *)a, second = *(const uint32_t *)b;
    return (first > second) - (first < second);
}

static void report(double seconds)
{
    qsort(latencies, latency_count, sizeof *latencies, compare);
    printf("%.0f %u %u\n", (double)finished_total / seconds, latency_count ? latencies[latency_count / 2] : 0,
           latency_count ? latencies[latency_count * 99 / 100] : 0);
}

/* What a put of one client has below it: a bare append and fdatasync. */
static void sync_file(const char *path, double seconds)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int64_t began_ns = now_ns();
    if (fd < 0)
        die(strerror(errno));
    while (now_ns() - began_ns < (int64_t)(seconds * 1e9)) {
        struct connection timed = {.began_ns = now_ns()};
        if (write(fd, payload, PAYLOAD) != PAYLOAD || fdatasync(fd) != 0)
            die(strerror(errno));
        note_latency(&timed);
        finished_total++;
    }
    close(fd);
    report(seconds);
}

/* Connections that only hold on, until it is killed or the time is over. */
static void flood(int port, int idle, int slow, double seconds)
{
    int *fds = calloc((size_t)idle + (size_t)slow, sizeof *fds);
    struct rlimit limit = {16384, 16384};
    int64_t until_ns = now_ns() + (int64_t)(seconds * 1e9);
    uint32_t from = 0x7f010000u | ((uint32_t)getpid() & 0xffff); /* 127.1.x.y */
    setrlimit(RLIMIT_NOFILE, &limit);
    for (int i = 0; fds && i < idle + slow; i++)
        fds[i] = dial_from(port, from);
    puts("holding on");
    fflush(stdout);
    for (size_t letter = 0; fds && now_ns() < until_ns; letter++) {
        static const char head[] = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ";
        const char *byte = letter < sizeof head - 1 ? &head[letter] : "x";
        for (int i = 0; i < slow; i++)
            if (send(fds[idle + i], byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
                close(fds[idle + i]); /* its time was over: the next one */
                fds[idle + i] = dial_from(port, from);
            }
        sleep(1);
    }
    free(fds);
}

int main(int argc, char **argv)
{
    static struct connection connections[CONNECTIONS_MAX];
    const struct protocol *protocol = NULL;
    for (size_t i = 0; argc == 6 && i < sizeof protocols / sizeof *protocols; i++)
        if (strcmp(argv[1], protocols[i].name) == 0)
            protocol = &protocols[i];
    memset(payload, 'x', PAYLOAD);
    if (argc == 6 && strcmp(argv[1], "disk") == 0) {
        sync_file(argv[2], strtod(argv[5], NULL));
        return 0;
    }
    if (argc == 6 && strcmp(argv[1], "flood") == 0) {
        flood(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), strtod(argv[5], NULL));
        return 0;
    }
    int count = protocol ? atoi(argv[3]) : 0;
    batch = protocol ? strtoul(argv[4], NULL, 10) : 0;
    if (!protocol || count < 1 || count > CONNECTIONS_MAX || batch < 1 || batch > BATCH_MAX)
        die("usage: bench-http-load keyline|beanstalkd|redis PORT CONNECTIONS BATCH SECONDS");
    int poller = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < count; i++) {
        struct connection *connection = &connections[i];
        connection->fd = dial(atoi(argv[2]));
        connection->ids = calloc(BATCH_MAX, ID_MAX);
        epoll_ctl(poller, EPOLL_CTL_ADD, connection->fd,
                  &(struct epoll_event){.events = EPOLLIN, .data.ptr = connection});
        connection->phase = FINISH; /* after the greeting, as after a round */
        connection->taken = batch;
        if (protocol->greet)
            protocol->greet(connection);
        else
            begin(protocol, connection, PUT);
        flush_out(connection);
    }
    int64_t began_ns = now_ns(), until_ns = began_ns + (int64_t)(strtod(argv[5], NULL) * 1e9);
    busy_count = (size_t)count;
    while (busy_count > 0) {
        struct epoll_event events[64];
        int ready = epoll_wait(poller, events, 64, 100);
        ending = now_ns() >= until_ns;
        for (int i = 0; i < ready; i++)
            receive(protocol, events[i].data.ptr);
    }
    report((double)(now_ns() - began_ns) / 1e9);
    return 0;
}
