/* process.h - runs a command as a process group of its own: bytes in, bytes out, ended whole when it takes too long. */
#ifndef KL_CLI_PROCESS_H
#define KL_CLI_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "keyline/bytes.h"
#include "keyline/error.h"

enum { KL_PROCESS_TAIL = 4096, KL_PROCESS_LINE = 256 };

/* What to run. Everything is the caller's and must last for the call. */
typedef struct kl__command_line {
    char *const *words; /* ends with NULL; the first is found on PATH when it has no slash */
    char *const *environment;
    kl_bytes input;                            /* its standard input; what it does not read is passed over */
    size_t out_max;                            /* bytes of its standard output that are kept */
    int64_t grace_ms;                          /* between being asked to end and being killed */
    bool (*unwanted)(void *ctx);               /* asked several times a second: true: end it. NULL: never */
    void (*told)(void *ctx, const char *line); /* a line that it wrote to descriptor 3, without its end. NULL: nobody */
    void *ctx;
} kl__command_line;

/* What came of it. */
typedef struct kl__ended {
    int status;     /* as waitpid gives it */
    bool was_ended; /* because it was unwanted, before it had ended by itself */
    char *out;      /* from malloc, the caller frees it; NULL: nothing was written */
    size_t out_len;
    bool out_cut;                   /* there was more than out_max */
    char tail[KL_PROCESS_TAIL + 1]; /* the end of what it wrote to its standard error, beginning with a character */
    size_t tail_len;
} kl__ended;

/* Runs it and waits until its first process has ended; what that left behind in the background goes on, unheard, unless
 * it was ended. The processes of the group are asked to end by SIGTERM, and killed when the first of them has ended or
 * grace_ms have passed. When this process dies, however that is, the processes of the group are killed.
 *
 * A command that cannot be executed ends with status 127, or 126 when it may not be, and says so on its standard error,
 * as in a shell. SIGPIPE must be ignored in this process, and descriptors 0 to 3 must be in use (kl__process_prepare).
 * Safe from any thread. KL_ESYSTEM: no process or pipe can be had now; KL_ENOMEM. */
KL_MUST_USE kl_rc kl__process_run(const kl__command_line *line, kl__ended *ret_ended);

/* To be called once, before other files are opened. False: it has complained. */
bool kl__process_prepare(void);

/* process_guard.c. Starts the guard, a process that kills the groups which run when this one dies; where none can be
 * had, only their first processes are. Before there are threads. Tell notes a group that begins or has ended; safe from
 * any thread, and between fork and exec. */
void kl__guard_start(void);
void kl__guard_tell(pid_t group, bool begins);

/* Whether `word` names something that can be executed, as a shell would find it on PATH. */
bool kl__process_finds(const char *word);

#endif
