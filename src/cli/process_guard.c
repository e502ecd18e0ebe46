/* process_guard.c - when a worker is killed, what its handlers have started is ended too. See process.h.
 *
 *      worker, handlers before they begin --- pipe ---> guard: the groups that run
 *                                                       at the pipe's end: kills those that are left
 *
 * The kernel kills a handler's first process when the worker dies, and no other: what that one has started would go on
 * while the task runs again elsewhere. So a small process watches. It has nothing to do but to read a pipe that only
 * the worker holds; that ends however the worker does. A group is struck out before its first process is waited for, so
 * no other process can have its number meanwhile. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "cli/process.h"

struct note {
    int32_t group;
    int32_t begins; /* 0: it has ended */
};

static int notes = -1; /* the worker's end of the pipe; -1: there is no guard */

struct groups {
    int32_t *items;
    size_t count, room;
};

static void add(struct groups *groups, int32_t group)
{
    if (groups->count == groups->room) {
        size_t room = groups->room ? 2 * groups->room : 64;
        int32_t *items = realloc(groups->items, room * sizeof *items);
        if (!items)
            return;
        groups->items = items;
        groups->room = room;
    }
    groups->items[groups->count++] = group;
}

static void strike_out(struct groups *groups, int32_t group)
{
    for (size_t i = 0; i < groups->count; i++)
        if (groups->items[i] == group)
            groups->items[i--] = groups->items[--groups->count];
}

_Noreturn static void guard(int from)
{
    struct groups groups = {0};
    struct note note;
    ssize_t got;
    while ((got = read(from, &note, sizeof note)) == sizeof note || (got < 0 && errno == EINTR)) {
        if (got < 0)
            continue;
        if (note.begins)
            add(&groups, note.group);
        else
            strike_out(&groups, note.group);
    }
    for (size_t i = 0; i < groups.count; i++)
        kill(-groups.items[i], SIGKILL);
    _exit(0);
}

/* Holds nothing open but its pipe, and hears no signal that is meant for the worker. */
_Noreturn static void become_guard(int from)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    setsid();
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    for (int i = 0; i < 3; i++)
        dup2(null, i);
    dup2(from, 3);
    close_range(4, ~0U, 0);
    prctl(PR_SET_NAME, "keyline-guard");
    guard(3);
}

void kl__guard_start(void)
{
    int ends[2];
    if (notes >= 0 || pipe2(ends, O_CLOEXEC) != 0)
        return;
    pid_t pid = fork();
    if (pid == 0)
        become_guard(ends[0]);
    close(ends[0]);
    if (pid > 0)
        notes = ends[1];
    else
        close(ends[1]);
}

void kl__guard_tell(pid_t group, bool begins)
{
    struct note note = {(int32_t)group, begins};
    while (notes >= 0 && write(notes, &note, sizeof note) < 0 && errno == EINTR)
        ;
}
