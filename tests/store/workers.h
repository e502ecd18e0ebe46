/* workers.h - a test's work in several processes, so that the death of one is a finding and not the end. */
#ifndef TESTS_WORKERS_H
#define TESTS_WORKERS_H

#include <stddef.h>

enum { WORKERS_MAX = 8, WORKER_TEXT_BYTES = 256, WORKER_SECONDS_MAX = 60 };

/* Zeroed memory that the processes share. NULL: there is none. */
void *workers_share(size_t size);

/* Runs `work` in a process for each processor, up to WORKERS_MAX, and waits for them. Failures count as the test's own.
 * A process that dies, or does not call workers_doing for WORKER_SECONDS_MAX, is a failure too. */
void workers_run(void (*work)(void *ctx, int worker, int count), void *ctx);

/* What this process is about to do, for the case that it dies of it. */
void workers_doing(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
