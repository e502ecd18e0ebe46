/* progress.h - how far a long command is: a bar on a terminal, a line now and then elsewhere, on standard error. */
#ifndef KL_CLI_PROGRESS_H
#define KL_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct kl__progress {
    bool bar, lines;
    bool drawn;
    int64_t begun_ns, told_ns;
} kl__progress;

/* wish: -1 is not to be shown; else a bar on a terminal and lines elsewhere. */
void kl__progress_begin(kl__progress *progress, int64_t wish);

/* Shows it if it is time. `done` counts tasks; `part` of `whole` says how far it is, whole 0: not known. */
void kl__progress_tell(kl__progress *progress, uint64_t done, uint64_t part, uint64_t whole);

/* Takes the bar away, so that other lines may be printed. */
void kl__progress_clear(kl__progress *progress);

#endif
