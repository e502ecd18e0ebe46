/* notify.c - see notify.h. */
#include "net/notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"

/* The address in NOTIFY_SOCKET; 0: there is none that can be used. A name that begins with @ is abstract. */
static socklen_t find_address(struct sockaddr_un *ret_address)
{
    const char *name = getenv("NOTIFY_SOCKET");
    size_t len = name ? strlen(name) : 0;
    if (len < 2 || len >= sizeof ret_address->sun_path || (*name != '/' && *name != '@'))
        return 0;
    memset(ret_address, 0, sizeof *ret_address);
    ret_address->sun_family = AF_UNIX;
    memcpy(ret_address->sun_path, name, len);
    if (*name == '@')
        ret_address->sun_path[0] = 0;
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + (*name == '/'));
}

void kl__notify(const char *state)
{
    struct sockaddr_un address;
    char text[128];
    socklen_t len = find_address(&address);
    if (len == 0)
        return;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (strcmp(state, "RELOADING=1") == 0)
        snprintf(text, sizeof text, "%s\nMONOTONIC_USEC=%lld", state, (long long)(kl__monotonic_ns() / 1000));
    else
        snprintf(text, sizeof text, "%s", state);
    ssize_t sent;
    do
        sent = sendto(fd, text, strlen(text), MSG_NOSIGNAL, (const struct sockaddr *)&address, len);
    while (sent < 0 && errno == EINTR);
    close(fd);
}

/* A number of digits alone, or 0. */
static int64_t number_of(const char *name)
{
    const char *text = getenv(name);
    char *end;
    if (!text || *text < '0' || *text > '9')
        return 0;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    return errno || *end ? 0 : number;
}

int64_t kl__notify_watchdog_ms(void)
{
    int64_t usec = number_of("WATCHDOG_USEC");
    if (getenv("WATCHDOG_PID") && number_of("WATCHDOG_PID") != getpid())
        return 0;
    return usec > 0 && usec < 2000 ? 1 : usec / 2000;
}
