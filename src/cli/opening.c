/* opening.c - see opening.h. */
#include "cli/opening.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static void *let_through(void *ctx)
{
    const kl__opening *opening = ctx;
    char byte;
    pthread_sigmask(SIG_UNBLOCK, &opening->signals, NULL);
    while (read(opening->ends[0], &byte, 1) < 0 && errno == EINTR)
        ;
    return NULL;
}

static void close_ends(const kl__opening *opening)
{
    close(opening->ends[0]);
    close(opening->ends[1]);
}

/* Where no thread is to be had, opening says so soon. */
void kl__opening_begin(kl__opening *opening, const sigset_t *signals)
{
    *opening = (kl__opening){.signals = *signals};
    if (pipe2(opening->ends, O_CLOEXEC) != 0)
        return;
    opening->runs = pthread_create(&opening->thread, NULL, let_through, opening) == 0;
    if (!opening->runs)
        close_ends(opening);
}

void kl__opening_end(kl__opening *opening)
{
    if (!opening->runs)
        return;
    close(opening->ends[1]);
    pthread_join(opening->thread, NULL);
    close(opening->ends[0]);
}
