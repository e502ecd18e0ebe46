/* workers.c - forks, waits, and tells what the dead were doing. */
#include "workers.h"

#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

typedef char worker_text[WORKER_TEXT_BYTES];

static worker_text *doing; /* of each process */
static int self;

void *workers_share(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void workers_doing(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (doing)
        vsnprintf(doing[self], WORKER_TEXT_BYTES, format, arguments);
    va_end(arguments);
    if (doing)
        alarm(WORKER_SECONDS_MAX);
}

static void collect(pid_t child, int worker)
{
    int status = 0;
    CHECK_INT(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status))
        test_fail(__FILE__, __LINE__, "%s (signal %d): %s",
                  WTERMSIG(status) == SIGALRM ? "a process hangs" : "a process died", WTERMSIG(status), doing[worker]);
    else if (WEXITSTATUS(status) != 0)
        test_fail(__FILE__, __LINE__, "process %d found a failure (status %d): %s", worker, WEXITSTATUS(status),
                  doing[worker]);
}

void workers_run(void (*work)(void *ctx, int worker, int count), void *ctx)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    int count = processors < 1 ? 1 : processors > WORKERS_MAX ? WORKERS_MAX : (int)processors;
    pid_t children[WORKERS_MAX];
    REQUIRE((doing = workers_share(WORKERS_MAX * sizeof(worker_text))) != NULL);
    fflush(NULL);
    for (int i = 0; i < count; i++) {
        children[i] = fork();
        if (children[i] != 0)
            continue;
        self = i;
        work(ctx, i, count);
        fflush(NULL);
        _exit(test_failed() ? 1 : 0);
    }
    alarm(0); /* each process has a limit of its own */
    for (int i = 0; i < count; i++)
        collect(children[i], i);
    munmap(doing, WORKERS_MAX * sizeof(worker_text));
    doing = NULL;
}
