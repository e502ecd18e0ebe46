/* process.c - see process.h.
 *
 *      input --> [0]                     one poll for all: neither side ever waits for the other
 *                    command [1] --> out
 *                            [2] --> the last 4 KiB
 *                            [3] --> lines
 *
 * The first process is left as a zombie until its group has been dealt with: as long as it is there, no other process
 * can get its number, so a signal to the group cannot hit a stranger.
 *
 * Rejected: posix_spawn, which has no way to say that the child shall die with us. A worker that is killed would leave
 * handlers behind that go on while their tasks run again elsewhere. */
#include "cli/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "cli/cli.h"

enum {
    STREAMS = 4,       /* input, output, errors, lines */
    TICK_MS = 50,      /* how often it is asked whether it is still wanted */
    BLIND_TICK_MS = 5, /* the same where the kernel cannot tell us of a process's end */
    PIECE_BYTES = 65536
};

enum { IN, OUT, ERR, LINES, END }; /* END: the process itself */

struct run {
    const kl__command_line *line;
    kl__ended *ended;
    pid_t pid;
    struct pollfd ends[STREAMS + 1]; /* our ends; fd -1: closed */
    size_t fed, out_room;
    char tail[2 * KL_PROCESS_TAIL]; /* its last bytes, moved down when it is full */
    size_t tail_len;
    char text[KL_PROCESS_LINE]; /* a line that is not whole yet */
    size_t text_len;
    int64_t kill_ns; /* when the group is killed; KL_NEVER: it was not asked to end */
    bool killed;
    bool stolen; /* its end was taken by somebody else, and so its status is not known */
};

/* ---- Before ---- */

bool kl__process_prepare(void)
{
    int descriptor;
    do {
        descriptor = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (descriptor < 0) {
            kl__complain("/dev/null cannot be opened (%s); handlers cannot be run without it", strerror(errno));
            return false;
        }
    } while (descriptor < STREAMS);
    close(descriptor);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL); /* where it is ignored, which a parent may leave behind, processes end unseen */
    kl__guard_start();
    return true;
}

static bool can_execute(const char *directory, size_t length, const char *word)
{
    char path[PATH_MAX];
    int needed = length ? snprintf(path, sizeof path, "%.*s/%s", (int)length, directory, word)
                        : snprintf(path, sizeof path, "%s", word);
    struct stat status;
    return needed > 0 && needed < (int)sizeof path && access(path, X_OK) == 0 && stat(path, &status) == 0 &&
           S_ISREG(status.st_mode);
}

bool kl__process_finds(const char *word)
{
    const char *path = getenv("PATH");
    if (!*word || strchr(word, '/'))
        return *word && can_execute("", 0, word);
    for (path = path ? path : "/bin:/usr/bin"; path; path = strchr(path, ':') ? strchr(path, ':') + 1 : NULL)
        if (can_execute(path, strcspn(path, ":"), word))
            return true;
    return false;
}

/* ---- Starting ---- */

struct pipes {
    int ours[STREAMS], theirs[STREAMS];
};

static void close_all(int *descriptors)
{
    for (int i = 0; i < STREAMS; i++)
        if (descriptors[i] >= 0)
            close(descriptors[i]);
}

static kl_rc make_pipes(struct pipes *pipes)
{
    for (int i = 0; i < STREAMS; i++)
        pipes->ours[i] = pipes->theirs[i] = -1;
    for (int i = 0; i < STREAMS; i++) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0 || fcntl(ends[i == IN], F_SETFL, O_NONBLOCK) != 0) {
            int error = errno;
            close_all(pipes->ours);
            close_all(pipes->theirs);
            return kl__fail(KL_ESYSTEM, "no pipe can be had (%s); lower --concurrency, or raise `ulimit -n`",
                            strerror(error));
        }
        pipes->ours[i] = ends[i == IN];
        pipes->theirs[i] = ends[i != IN];
    }
    return KL_OK;
}

/* What the child says when it cannot become the command: only what is allowed between fork and exec. */
_Noreturn static void give_up(const char *word, int error)
{
    static const char before[] = "keyline: cannot execute ", behind[] = ": ", end[] = "\n";
    const char *why = strerrordesc_np(error);
    const char *const pieces[] = {before, word, behind, why ? why : "unknown", end};
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++)
        if (write(STDERR_FILENO, pieces[i], strlen(pieces[i])) < 0)
            break;
    _exit(error == ENOENT ? 127 : 126);
}

_Noreturn static void become(const kl__command_line *line, const struct pipes *pipes, pid_t parent)
{
    sigset_t none;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127); /* it has died meanwhile */
    kl__guard_tell(getpid(), true);
    for (int i = 0; i < STREAMS; i++)
        dup2(pipes->theirs[i], i);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvpe(line->words[0], line->words, line->environment);
    give_up(line->words[0], errno);
}

static kl_rc start(struct run *run)
{
    struct pipes pipes;
    pid_t parent = getpid();
    kl_rc rc = make_pipes(&pipes);
    if (rc != KL_OK)
        return rc;
    run->pid = fork();
    if (run->pid == 0)
        become(run->line, &pipes, parent);
    int error = errno;
    close_all(pipes.theirs);
    if (run->pid < 0) {
        close_all(pipes.ours);
        return kl__fail(KL_ESYSTEM, "no process can be had (%s); lower --concurrency, or raise `ulimit -u`",
                        strerror(error));
    }
    setpgid(run->pid, run->pid); /* whoever is first: the group must be there before it is signalled */
    for (int i = 0; i < STREAMS; i++)
        run->ends[i] = (struct pollfd){.fd = pipes.ours[i], .events = i == IN ? POLLOUT : POLLIN};
    run->ends[END] = (struct pollfd){.fd = pidfd_open(run->pid, 0), .events = POLLIN};
    return KL_OK;
}

/* ---- Bytes ---- */

static void close_end(struct run *run, int which)
{
    if (run->ends[which].fd >= 0)
        close(run->ends[which].fd);
    run->ends[which].fd = -1;
}

static void feed(struct run *run)
{
    kl_bytes input = run->line->input;
    while (run->fed < input.len) {
        ssize_t put = write(run->ends[IN].fd, (const char *)input.data + run->fed, input.len - run->fed);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0 && errno == EAGAIN)
            return;
        if (put < 0)
            break; /* nobody reads any more */
        run->fed += (size_t)put;
    }
    close_end(run, IN);
}

static bool keep_out(struct run *run, const char *bytes, size_t length)
{
    kl__ended *ended = run->ended;
    size_t left = run->line->out_max - ended->out_len;
    ended->out_cut |= length > left;
    length = length < left ? length : left;
    if (ended->out_len + length > run->out_room) {
        size_t room = 2 * run->out_room > ended->out_len + length ? 2 * run->out_room : ended->out_len + length;
        char *out = realloc(ended->out, room);
        if (!out)
            return false;
        ended->out = out;
        run->out_room = room;
    }
    if (length)
        memcpy(ended->out + ended->out_len, bytes, length);
    ended->out_len += length;
    return true;
}

static void keep_tail(struct run *run, const char *bytes, size_t length)
{
    if (length > KL_PROCESS_TAIL) {
        bytes += length - KL_PROCESS_TAIL;
        length = KL_PROCESS_TAIL;
    }
    if (run->tail_len + length > sizeof run->tail) {
        size_t kept = KL_PROCESS_TAIL - length;
        memmove(run->tail, run->tail + run->tail_len - kept, kept);
        run->tail_len = kept;
    }
    memcpy(run->tail + run->tail_len, bytes, length);
    run->tail_len += length;
}

static void keep_lines(struct run *run, const char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] != '\n') {
            if (run->text_len < sizeof run->text - 1)
                run->text[run->text_len++] = bytes[i];
            continue;
        }
        run->text[run->text_len] = '\0';
        run->text_len = 0;
        if (run->line->told)
            run->line->told(run->line->ctx, run->text);
    }
}

/* Reads a piece of what is there now: at most as much as a pipe holds, so that one who writes without end can still be
 * ended. False: out of memory. */
static bool hear(struct run *run, int which)
{
    char bytes[PIECE_BYTES];
    ssize_t got = read(run->ends[which].fd, bytes, sizeof bytes);
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return true;
    if (got <= 0)
        close_end(run, which);
    else if (which == ERR)
        keep_tail(run, bytes, (size_t)got);
    else if (which == LINES)
        keep_lines(run, bytes, (size_t)got);
    else
        return keep_out(run, bytes, (size_t)got);
    return true;
}

static bool exchange(struct run *run)
{
    bool heard = true;
    if (run->ends[IN].fd >= 0 && run->ends[IN].revents)
        feed(run);
    for (int which = OUT; which <= LINES; which++)
        if (run->ends[which].fd >= 0 && run->ends[which].revents)
            heard = hear(run, which) && heard;
    return heard;
}

/* ---- The end ---- */

static bool has_ended(struct run *run)
{
    siginfo_t info = {0};
    if (waitid(P_PID, (id_t)run->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0)
        return info.si_pid == run->pid;
    run->stolen = errno == ECHILD;
    return run->stolen;
}

static void ask_to_end(struct run *run)
{
    kill(-run->pid, SIGTERM);
    kill(-run->pid, SIGCONT); /* one that is stopped would not hear it */
    run->ended->was_ended = true;
    run->kill_ns = kl__deadline_ns(run->line->grace_ms);
}

static void watch(struct run *run)
{
    const kl__command_line *line = run->line;
    if (run->kill_ns == KL_NEVER && line->unwanted && line->unwanted(line->ctx))
        ask_to_end(run);
    if (run->kill_ns != KL_NEVER && !run->killed && kl__monotonic_ns() >= run->kill_ns) {
        kill(-run->pid, SIGKILL);
        run->killed = true;
    }
}

static void keep_whole_characters(struct run *run)
{
    kl__ended *ended = run->ended;
    size_t from = run->tail_len > KL_PROCESS_TAIL ? run->tail_len - KL_PROCESS_TAIL : 0;
    for (size_t limit = from + 3; from > 0 && from < limit && from < run->tail_len; from++)
        if (((unsigned char)run->tail[from] & 0xc0) != 0x80)
            break;
    ended->tail_len = run->tail_len - from;
    memcpy(ended->tail, run->tail + from, ended->tail_len);
    ended->tail[ended->tail_len] = '\0';
}

/* The status of a process whose end nobody saw must not be taken for success. */
static void finish_stolen(struct run *run)
{
    static const char text[] = "keyline: how it ended is not known, for something else waited for it\n";
    run->ended->status = W_EXITCODE(255, 0);
    keep_tail(run, text, sizeof text - 1);
}

static void finish(struct run *run)
{
    if (run->kill_ns != KL_NEVER && !run->stolen)
        kill(-run->pid, SIGKILL); /* what is left of the group */
    kl__guard_tell(run->pid, false);
    while (!run->stolen && waitpid(run->pid, &run->ended->status, 0) < 0)
        run->stolen = errno != EINTR;
    if (run->stolen)
        finish_stolen(run);
    for (int i = 0; i <= END; i++)
        close_end(run, i);
    keep_whole_characters(run);
}

kl_rc kl__process_run(const kl__command_line *line, kl__ended *ret_ended)
{
    struct run run = {.line = line, .ended = ret_ended, .kill_ns = KL_NEVER};
    kl_rc rc;
    bool heard = true;
    *ret_ended = (kl__ended){0};
    if ((rc = start(&run)) != KL_OK)
        return rc;
    if (line->input.len == 0)
        close_end(&run, IN);
    while (heard && !has_ended(&run)) {
        poll(run.ends, STREAMS + 1, run.ends[END].fd < 0 ? BLIND_TICK_MS : TICK_MS);
        heard = exchange(&run);
        watch(&run);
    }
    for (int which = OUT; heard && which <= LINES; which++)
        heard = run.ends[which].fd < 0 || hear(&run, which); /* written before it ended */
    if (!heard)
        ask_to_end(&run);
    finish(&run);
    if (heard)
        return KL_OK;
    free(ret_ended->out);
    ret_ended->out = NULL;
    return kl__fail_memory();
}
