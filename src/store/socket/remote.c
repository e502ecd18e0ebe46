/* remote.c - http://HOST:PORT and https://: the store that a server has, by the protocol of wire.h over its port.
 *
 * From: store.c.  To: client.c, whose connections are made here.
 *
 * A connection is an HTTP request, GET /v1/store with Upgrade: keyline-store and the token, which the server answers
 * with 101; from then on both sides speak as over the socket of a data directory. So every command works on a server as
 * it does on a directory. libcurl makes the connection (names, TLS, certificates). A plain one is used as it is; for
 * TLS a thread carries the bytes between libcurl and a pair of sockets.
 *
 * Partition numbers are the store's and outlast a server: before it answers 101, a server gets to know those of all
 * queues, so that a client may go on after a restart. */
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "store/engines.h"
#include "store/socket/client.h"

enum { CONNECT_MS = 5000, HEAD_BYTES_MAX = 8192, URL_BYTES = 1024, TOKEN_BYTES = 256 };

struct carrier {
    struct carrier *next;
    pthread_t thread;
    CURL *curl;
    int fd;     /* our end of the pair */
    int socket; /* libcurl's */
    atomic_bool ended;
};

struct remote {
    char url[URL_BYTES]; /* without a slash behind */
    char host[256];      /* for Host */
    char token[TOKEN_BYTES];
    bool secure;
    pthread_mutex_t guard;
    struct carrier
        *carriers; /* under the guard; those that have ended are joined when one is added, and all at the end */
};

/* ---- Bytes between libcurl and a pair of sockets ---- */

/* All of it. False: the connection has ended, or whoever is at the other end of `ours` (-1: nobody) has gone. */
static bool send_all(CURL *curl, int socket, int ours, const char *bytes, size_t len)
{
    while (len > 0) {
        size_t sent = 0;
        CURLcode code = curl_easy_send(curl, bytes, len, &sent);
        if (code == CURLE_AGAIN) {
            struct pollfd wait[2] = {{.fd = socket, .events = POLLOUT}, {.fd = ours}};
            poll(wait, 2, CONNECT_MS);
            if (wait[1].revents)
                return false;
        } else if (code != CURLE_OK) {
            return false;
        }
        bytes += sent;
        len -= sent;
    }
    return true;
}

static bool write_all(int fd, const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t written = send(fd, bytes, len, MSG_NOSIGNAL);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        bytes += written;
        len -= (size_t)written;
    }
    return true;
}

/* TLS may hold bytes that poll does not know of, so it is read until it says AGAIN. */
static bool carry_in(struct carrier *carrier, char *buffer, size_t size)
{
    for (;;) {
        size_t len = 0;
        CURLcode code = curl_easy_recv(carrier->curl, buffer, size, &len);
        if (code == CURLE_AGAIN)
            return true;
        if (code != CURLE_OK || len == 0 || !write_all(carrier->fd, buffer, len))
            return false;
    }
}

static void *carry(void *context)
{
    struct carrier *carrier = context;
    static const size_t size = 65536;
    char *buffer = kl__alloc(size);
    bool goes_on = buffer && carry_in(carrier, buffer, size);
    while (goes_on) {
        struct pollfd ready[2] = {{.fd = carrier->socket, .events = POLLIN}, {.fd = carrier->fd, .events = POLLIN}};
        if (poll(ready, 2, -1) < 0 && errno != EINTR)
            break;
        if (ready[1].revents) {
            ssize_t len = recv(carrier->fd, buffer, size, 0);
            goes_on = len > 0 && send_all(carrier->curl, carrier->socket, carrier->fd, buffer, (size_t)len);
        }
        if (goes_on && ready[0].revents)
            goes_on = carry_in(carrier, buffer, size);
    }
    kl__free(buffer);
    shutdown(carrier->fd, SHUT_RDWR);
    close(carrier->fd);
    curl_easy_cleanup(carrier->curl);
    atomic_store(&carrier->ended, true);
    return NULL;
}

/* A carrier that still ran when the process ends would use OpenSSL while that is taken down: so each is waited for. */
static void join_carriers(struct remote *remote, bool all)
{
    for (struct carrier **at = &remote->carriers; *at;) {
        struct carrier *carrier = *at;
        if (!all && !atomic_load(&carrier->ended)) {
            at = &carrier->next;
            continue;
        }
        pthread_join(carrier->thread, NULL);
        *at = carrier->next;
        kl__free(carrier);
    }
}

static bool add_carrier(struct remote *remote, struct carrier *carrier)
{
    pthread_mutex_lock(&remote->guard);
    join_carriers(remote, false);
    bool ok = pthread_create(&carrier->thread, NULL, carry, carrier) == 0;
    if (ok) {
        carrier->next = remote->carriers;
        remote->carriers = carrier;
    }
    pthread_mutex_unlock(&remote->guard);
    return ok;
}

/* Takes the handle over, also on failure. */
static kl_rc start_carrier(struct remote *remote, CURL *curl, int socket, int *ret_fd)
{
    int pair[2] = {-1, -1};
    struct carrier *carrier = kl__alloc(sizeof *carrier);
    bool ok = carrier && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0;
    if (ok) {
        *carrier = (struct carrier){.curl = curl, .fd = pair[0], .socket = socket};
        ok = add_carrier(remote, carrier);
    }
    if (ok) {
        *ret_fd = pair[1];
        return KL_OK;
    }
    if (pair[0] >= 0) {
        close(pair[0]);
        close(pair[1]);
    }
    kl__free(carrier);
    curl_easy_cleanup(curl);
    return kl__fail(KL_ESYSTEM, "no thread could be started for a connection with TLS; see ulimit -u");
}

/* ---- Connecting ---- */

/* Up to the blank line, byte by byte behind the status: what follows is the store's. */
static int read_head(CURL *curl, int socket, char head[HEAD_BYTES_MAX])
{
    size_t used = 0;
    while (used + 1 < HEAD_BYTES_MAX && (used < 4 || memcmp(head + used - 4, "\r\n\r\n", 4) != 0)) {
        size_t len = 0;
        CURLcode code = curl_easy_recv(curl, head + used, 1, &len);
        if (code == CURLE_AGAIN && poll(&(struct pollfd){.fd = socket, .events = POLLIN}, 1, CONNECT_MS) > 0)
            continue;
        if (code != CURLE_OK || len == 0)
            return -1;
        used += len;
    }
    head[used] = 0;
    return strncmp(head, "HTTP/1.1 ", 9) == 0 ? atoi(head + 9) : 0;
}

static kl_rc refuse(const struct remote *remote, int status)
{
    switch (status) {
    case 401:
        return kl__fail(KL_EINVAL, "%s asks for a token; set KEYLINE_TOKEN to one with the role admin", remote->url);
    case 403:
        return kl__fail(KL_EINVAL,
                        "%s does not let this token use its store: that takes the role admin, for all queues",
                        remote->url);
    case 404:
        return kl__fail(KL_EINVAL, "%s is no Keyline server, or an older one", remote->url);
    case -1: /* closed without an answer, as a port with TLS does */
        return kl__fail(KL_EBUSY, "%s closed the connection: the server is stopping (try again in a moment)%s",
                        remote->url,
                        strncmp(remote->url, "http://", 7) == 0 ? ", or speaks TLS there (write https://)" : "");
    case 503:
        return kl__fail(KL_EBUSY, "the server at %s is stopping; try again in a moment", remote->url);
    default:
        return kl__fail(KL_EBUSY, "%s answered %d when it was asked for its store", remote->url, status);
    }
}

static kl_rc ask_for_store(const struct remote *remote, CURL *curl, int socket)
{
    char head[HEAD_BYTES_MAX];
    int len = snprintf(
        head, sizeof head,
        "GET /v1/store HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: keyline-store\r\n%s%s%s\r\n",
        remote->host, *remote->token ? "Authorization: Bearer " : "", remote->token, *remote->token ? "\r\n" : "");
    int status = send_all(curl, socket, -1, head, (size_t)len) ? read_head(curl, socket, head) : -1;
    return status == 101 ? KL_OK : refuse(remote, status);
}

static CURL *make_handle(const struct remote *remote)
{
    CURL *curl = curl_easy_init();
    if (!curl)
        return NULL;
    curl_easy_setopt(curl, CURLOPT_URL, remote->url);
    curl_easy_setopt(curl, CURLOPT_CONNECT_ONLY, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_PROXY, "");
    curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    if (getenv("KEYLINE_CA"))
        curl_easy_setopt(curl, CURLOPT_CAINFO, getenv("KEYLINE_CA"));
    return curl;
}

/* The descriptor outlives libcurl's handle, which closes its own. */
static kl_rc keep_socket(CURL *curl, int socket, int *ret_fd)
{
    int fd = fcntl(socket, F_DUPFD_CLOEXEC, 0);
    curl_easy_cleanup(curl);
    if (fd < 0 || fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) != 0) {
        if (fd >= 0)
            close(fd);
        return kl__fail(KL_ESYSTEM, "no more file descriptors: %s; see ulimit -n", strerror(errno));
    }
    *ret_fd = fd;
    return KL_OK;
}

static kl_rc fail_to_connect(const struct remote *remote, CURLcode code)
{
    if (code == CURLE_PEER_FAILED_VERIFICATION)
        return kl__fail(
            KL_EINVAL,
            "the certificate of %s is not trusted, or is for another name; set KEYLINE_CA to the file of the "
            "certificate that signed it",
            remote->url);
    if (code == CURLE_SSL_CACERT_BADFILE)
        return kl__fail(KL_EINVAL, "KEYLINE_CA names no file of certificates (PEM) that can be read");
    return kl__fail(KL_EBUSY, "%s cannot be reached: %s; is `keyline serve` running there?", remote->url,
                    curl_easy_strerror(code));
}

static kl_rc dial(void *context, int *ret_fd)
{
    struct remote *remote = context;
    curl_socket_t socket = CURL_SOCKET_BAD;
    CURL *curl = make_handle(remote);
    if (!curl)
        return kl__fail_memory();
    CURLcode code = curl_easy_perform(curl);
    kl_rc rc = code == CURLE_OK ? KL_OK : fail_to_connect(remote, code);
    if (rc == KL_OK && curl_easy_getinfo(curl, CURLINFO_ACTIVESOCKET, &socket) != CURLE_OK)
        rc = kl__fail(KL_ESYSTEM, "libcurl does not hand out the connection to %s", remote->url);
    if (rc == KL_OK)
        rc = ask_for_store(remote, curl, socket);
    if (rc != KL_OK) {
        curl_easy_cleanup(curl);
        return rc;
    }
    kl__socket_notice_silence(socket);
    return remote->secure ? start_carrier(remote, curl, socket, ret_fd) : keep_socket(curl, socket, ret_fd);
}

/* ---- Open and close ---- */

static void close_remote(void *self)
{
    kl__client *client = self;
    struct remote *remote = client->dial_ctx;
    kl__client_close(client);
    join_carriers(remote, true);
    pthread_mutex_destroy(&remote->guard);
    kl__free(remote);
}

/* `where` is what follows "http:": //HOST:PORT, perhaps with a slash behind. */
static kl_rc read_url(struct remote *remote, const char *where, bool secure)
{
    const char *token = getenv("KEYLINE_TOKEN");
    size_t len = strlen(where);
    if (len > 0 && where[len - 1] == '/' && len > 2)
        len--;
    if (strncmp(where, "//", 2) != 0 || len < 3 || len >= sizeof remote->host || memchr(where + 2, '/', len - 2) ||
        strpbrk(where, "?#@ \r\n"))
        return kl__fail(KL_EINVAL, "%s:%s is no server's address; write http://HOST:PORT", secure ? "https" : "http",
                        where);
    if (token && (strlen(token) >= TOKEN_BYTES || strpbrk(token, " \r\n")))
        return kl__fail(KL_EINVAL, "KEYLINE_TOKEN is no token; `keyline token add` makes one");
    snprintf(remote->host, sizeof remote->host, "%.*s", (int)(len - 2), where + 2);
    snprintf(remote->url, sizeof remote->url, "%s://%s", secure ? "https" : "http", remote->host);
    snprintf(remote->token, sizeof remote->token, "%s", token ? token : "");
    remote->secure = secure;
    return KL_OK;
}

/* The engine's self is the client, whose connections are made by the remote. */
static kl_rc open_remote(const char *where, bool secure, void **ret_self)
{
    kl__client *client;
    struct remote *remote = kl__alloc_zeroed(1, sizeof *remote);
    if (!remote)
        return kl__fail_memory();
    pthread_mutex_init(&remote->guard, NULL);
    kl_rc rc = read_url(remote, where, secure);
    if (rc == KL_OK)
        rc = kl__client_open(remote->url, NULL, NULL, &client);
    if (rc != KL_OK) {
        pthread_mutex_destroy(&remote->guard);
        kl__free(remote);
        return rc;
    }
    kl__client_dial(client, dial, remote);
    rc = kl__client_connect(client);
    if (rc == KL_OK)
        *ret_self = client;
    else
        close_remote(client);
    return rc;
}

static kl_rc open_plain(const char *where, const kl_store_opts *opts, void **ret_self)
{
    (void)opts;
    return open_remote(where, false, ret_self);
}

static kl_rc open_secure(const char *where, const kl_store_opts *opts, void **ret_self)
{
    (void)opts;
    return open_remote(where, true, ret_self);
}

uint32_t kl__remote_can(const void *self)
{
    return (kl__client_can(self) | KL_STORE_SHARED) & ~(uint32_t)(KL_STORE_ASYNC | KL_STORE_INBOX);
}

uint64_t kl__remote_identity(const void *self) { return kl__client_identity(self); }

#define REMOTE_ENGINE(its_scheme, its_usage, its_open)                                                                 \
    {                                                                                                                  \
        .size = sizeof(kl_engine), .scheme = (its_scheme), .usage = (its_usage),                                       \
        .can = KL_STORE_DURABLE | KL_STORE_WAIT | KL_STORE_ORDERED | KL_STORE_SHARED, .open = (its_open),              \
        .close = close_remote, .now = kl__client_now, .partition = kl__client_partition, .append = kl__client_append,  \
        .scan = kl__client_scan, .read = kl__client_read, .settle = kl__client_settle, .fence = kl__client_fence,      \
        .counts = kl__client_counts, .wait = kl__client_wait, .results = kl__client_results, .find = kl__client_find,  \
        .forget = kl__client_forget, .get = kl__client_get, .put = kl__client_put, .list = kl__client_list,            \
    }

const kl_engine kl__engine_http = REMOTE_ENGINE("http", "http://HOST:PORT", open_plain);
const kl_engine kl__engine_https = REMOTE_ENGINE("https", "https://HOST:PORT", open_secure);
