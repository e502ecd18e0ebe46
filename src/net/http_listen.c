/* http_listen.c - addresses, and the sockets that listen on them.
 *
 * From: http.c.  To: http_loop.c, which accepts.
 *
 *     "127.0.0.1:7420"   "[::1]:7420"   "localhost:7420"   "unix:/dir/http.sock"
 *
 * A Unix socket that nobody listens on is what a process that was killed has left: it is removed. One on which
 * somebody answers is in use. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "net/http_inside.h"

enum { BACKLOG = 4096, SOCKET_MODE = 0600, ADDRESS_BYTES = 300 };

static const char unix_prefix[] = "unix:";

/* ---- TCP ---- */

static kl_rc fail_address(const char *address)
{
    return kl__fail(KL_EINVAL, "%s is not an address; write 127.0.0.1:7420, [::1]:7420 or unix:/dir/http.sock",
                    address);
}

/* "[::1]:7420" into "::1" and "7420", both in `text`. */
static bool split(char *text, char **ret_host, char **ret_port)
{
    char *colon = strrchr(text, ':');
    if (!colon || !colon[1] || strspn(colon + 1, "0123456789") != strlen(colon + 1) || strlen(colon + 1) > 5)
        return false;
    *colon = '\0';
    size_t len = strlen(text);
    if (text[0] == '[' && len > 2 && text[len - 1] == ']') {
        text[len - 1] = '\0';
        text++;
    } else if (len == 0 || strchr(text, ':')) {
        return false;
    }
    *ret_host = text;
    *ret_port = colon + 1;
    return true;
}

static int port_of(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address = {.v6 = {0}};
    socklen_t len = sizeof address;
    if (getsockname(fd, &address.any, &len) != 0)
        return 0;
    return ntohs(address.any.sa_family == AF_INET6 ? address.v6.sin6_port : address.v4.sin_port);
}

/* Accepted sockets inherit TCP_NODELAY: an answer is one piece, and nothing is gained by holding its end back. */
static kl_rc listen_at(const char *text, const struct addrinfo *info, kl__listener *ret_listener)
{
    int on = 1;
    int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool listens = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                   setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0 &&
                   bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0;
    if (!listens) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        return kl__fail(KL_ESYSTEM, "%s cannot be listened on: %s%s", text, strerror(error),
                        error == EADDRINUSE ? "; stop what uses it, or choose another port" : "");
    }
    *ret_listener = (kl__listener){.fd = fd, .port = port_of(fd)};
    return KL_OK;
}

static kl_rc listen_tcp(const char *text, kl__listener *ret_listener)
{
    char copy[ADDRESS_BYTES], *host, *port;
    if ((size_t)snprintf(copy, sizeof copy, "%s", text) >= sizeof copy || !split(copy, &host, &port) ||
        strtol(port, NULL, 10) > UINT16_MAX)
        return fail_address(text);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
    int error = getaddrinfo(host, port, &hints, &found);
    if (error != 0)
        return kl__fail(KL_EINVAL, "%s cannot be listened on: %s; name an address of this machine", text,
                        gai_strerror(error));
    kl_rc rc = listen_at(text, found, ret_listener);
    freeaddrinfo(found);
    return rc;
}

/* ---- Unix ---- */

/* A path that is too long for an address is reached by its directory's descriptor, *ret_dir (else -1). */
static kl_rc unix_address(const char *path, struct sockaddr_un *ret_address, int *ret_dir)
{
    const char *slash = strrchr(path, '/');
    *ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    *ret_dir = -1;
    size_t room = sizeof ret_address->sun_path;
    if (path[0] != '/' || !slash[1])
        return kl__fail(KL_EINVAL, "unix:%s is not an absolute path of a socket", path);
    if ((size_t)snprintf(ret_address->sun_path, room, "%s", path) < room)
        return KL_OK;
    char dir[PATH_MAX];
    if ((size_t)snprintf(dir, sizeof dir, "%.*s", (int)(slash - path), path) >= sizeof dir)
        return kl__fail(KL_EINVAL, "unix:%s is too long", path);
    *ret_dir = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (*ret_dir < 0)
        return kl__fail(KL_ESYSTEM, "the directory %s could not be opened: %s", dir, strerror(errno));
    if ((size_t)snprintf(ret_address->sun_path, room, "/proc/self/fd/%d%s", *ret_dir, slash) >= room) {
        close(*ret_dir);
        return kl__fail(KL_EINVAL, "the name of the socket unix:%s is too long", path);
    }
    return KL_OK;
}

static bool is_left_over(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    bool refused = connect(fd, (const struct sockaddr *)address, sizeof *address) != 0 && errno == ECONNREFUSED;
    close(fd);
    return refused;
}

/* Who listens there, as the kernel knows it; 0: nobody, or it is not to be had. */
static int holder_of(const struct sockaddr_un *address)
{
    struct ucred peer = {0};
    socklen_t len = sizeof peer;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool known = fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 &&
                 getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0;
    if (fd >= 0)
        close(fd);
    return known ? peer.pid : 0;
}

static kl_rc fail_unix(const char *path, const struct sockaddr_un *address)
{
    int error = errno, pid = error == EADDRINUSE ? holder_of(address) : 0;
    if (pid)
        return kl__fail(KL_ESYSTEM,
                        "the process %d serves this data directory already (%s); use that one (--store http://...), or "
                        "stop it first",
                        pid, path);
    return kl__fail(KL_ESYSTEM, "no socket could be made at %s: %s; see that the directory can be written to", path,
                    strerror(error));
}

/* The mode is set before the name is there, so that nobody can slip in between. */
static bool bind_unix(int fd, const struct sockaddr_un *address)
{
    if (fd < 0 || fchmod(fd, SOCKET_MODE) != 0)
        return false;
    if (bind(fd, (const struct sockaddr *)address, sizeof *address) == 0)
        return listen(fd, BACKLOG) == 0;
    int error = errno;
    if (error != EADDRINUSE || !is_left_over(address)) {
        errno = error;
        return false;
    }
    unlink(address->sun_path);
    return bind(fd, (const struct sockaddr *)address, sizeof *address) == 0 && listen(fd, BACKLOG) == 0;
}

static kl_rc listen_unix(const char *path, kl__listener *ret_listener)
{
    struct sockaddr_un address;
    int dir;
    kl_rc rc = unix_address(path, &address, &dir);
    if (rc != KL_OK)
        return rc;
    char *copy = kl__alloc(strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct stat made = {0};
    if (!copy)
        rc = kl__fail_memory();
    else if (!bind_unix(fd, &address) || stat(address.sun_path, &made) != 0)
        rc = fail_unix(path, &address);
    if (dir >= 0)
        close(dir);
    if (rc == KL_OK) {
        memcpy(copy, path, strlen(path) + 1);
        *ret_listener = (kl__listener){.fd = fd, .path = copy, .device = made.st_dev, .inode = made.st_ino};
        return KL_OK;
    }
    kl__free(copy);
    if (fd >= 0)
        close(fd);
    return rc;
}

/* ---- Both ---- */

kl_rc kl__listener_open(const char *address, kl__listener *ret_listener)
{
    if (!address)
        return fail_address("NULL");
    size_t prefix = strlen(unix_prefix);
    if (strncmp(address, unix_prefix, prefix) == 0)
        return listen_unix(address + prefix, ret_listener);
    return listen_tcp(address, ret_listener);
}

void kl__listener_close(kl__listener *listener)
{
    struct stat now;
    if (listener->fd >= 0)
        close(listener->fd);
    listener->fd = -1;
    if (listener->path && stat(listener->path, &now) == 0 && now.st_dev == listener->device &&
        now.st_ino == listener->inode)
        unlink(listener->path);
    kl__free(listener->path);
    listener->path = NULL;
}
