/* tasks_in.h - tasks that come in: from options of the command line, and from lines of JSON.
 *
 * The fields of a line (queue/task_json.h) are named like the options, and what a line does not say the options do. */
#ifndef KL_CLI_TASKS_IN_H
#define KL_CLI_TASKS_IN_H

#include "cli/cli.h"
#include "queue/task_json.h"

/* Zero: not said. */
typedef struct kl__task_opts {
    const char *key, *kind, *group, *unique, *traceparent, *partition;
    int64_t priority, in_ms, at_ms, attempts, timeout_ms, unique_ms;
    kl__texts headers, tags;
} kl__task_opts;

#define KL__TASK_OPTION(type, name, value, help, member, min, max)                                                     \
    {                                                                                                                  \
        name, value, help, offsetof(type, task.member), min, max                                                       \
    }

/* Rows of a command's table of options; its struct has a kl__task_opts called task. */
#define KL__TASK_OPTIONS(type)                                                                                         \
    KL__TASK_OPTION(type, "--key", "KEY", "tasks of one key run one at a time, in order", key, 0, 0),                  \
        KL__TASK_OPTION(type, "--kind", "KIND", "what sort of task it is: chooses its handler", kind, 0, 0),           \
        KL__TASK_OPTION(type, "--priority", "N", "lower runs first: from -16 to 15 (0)", priority, KL_PRIORITY_MIN,    \
                        KL_PRIORITY_MAX),                                                                              \
        KL__TASK_OPTION(type, "--attempts", "N", "how often it is started before it is dead (the queue's)", attempts,  \
                        1, KL_ATTEMPTS_MAX),                                                                           \
        KL__TASK_OPTION(type, "--timeout", "DURATION", "how long one attempt may run (the queue's)", timeout_ms, 1,    \
                        INT64_C(2592000000)),                                                                          \
        KL__TASK_OPTION(type, "--group", "GROUP", "whom it is for: groups get equal shares of the workers", group, 0,  \
                        0),                                                                                            \
        KL__TASK_OPTION(type, "--header", "NAME=VALUE...", "a header; may be repeated", headers, 0, 0),                \
        KL__TASK_OPTION(type, "--tag", "TAG...", "a tag; may be repeated", tags, 0, 0),                                \
        KL__TASK_OPTION(type, "--traceparent", "TEXT", "kept with the task and handed to its handler", traceparent, 0, \
                        0)

/* Rows for commands that put tasks now. */
#define KL__TASK_TIME_OPTIONS(type)                                                                                    \
    KL__TASK_OPTION(type, "--in", "DURATION", "not before so long from now", in_ms, 1, INT64_C(315360000000)),         \
        KL__TASK_OPTION(type, "--at", "TIME", "not before this time", at_ms, KL_TIME_AS_SAID, 0),                      \
        KL__TASK_OPTION(type, "--unique", "TEXT", "no second task with the same of these for a while", unique, 0, 0),  \
        KL__TASK_OPTION(type, "--unique-for", "DURATION", "for so long (1h)", unique_ms, 1, INT64_C(31536000000)),     \
        KL__TASK_OPTION(type, "--partition", "NAME", "put it into this partition, whatever its key says", partition,   \
                        0, 0)

/* A task as the options say, without payload. Memory is the arena's and the options'. False: it has complained. */
bool kl__task_fill(const kl__task_opts *opts, kl_arena *arena, kl_put *ret_task);

/* Lines of a file, "-" being the standard input. */
typedef struct kl__lines {
    int file;
    const char *name;
    char *buffer; /* from malloc: it grows to the longest line that may be */
    size_t room, from, to;
    size_t searched; /* there is no end of a line from `from` up to this */
    bool ended;      /* nothing comes behind `to`, */
    int error;       /* because of this errno; 0: it is the end of the file */
    bool skips;      /* the line that was read last is too long, and its rest is to be passed over */
    uint64_t number; /* of the line that was read last, from 1 */
    uint64_t bytes;  /* of lines read so far */
    uint64_t size;   /* of the file; 0: not known */
} kl__lines;

/* False: it has complained. */
bool kl__lines_open(kl__lines *lines, const char *name);
/* The next line that is not blank, without its end, and without its rest when it has more than KL_LINE_BYTES_MAX bytes;
 * valid until the next call of any of these. 1: there is one, 0: the end, -1: the file cannot be read, and it has
 * complained. */
int kl__lines_next(kl__lines *lines, kl_bytes *ret_line);
/* Whether the next call need not wait for the other end of a pipe; waits so long for that. */
bool kl__lines_at_hand(kl__lines *lines, int64_t wait_ms);
void kl__lines_close(kl__lines *lines);

/* All of the standard input, in the arena, up to a payload's size. False: it has complained. */
bool kl__payload_read(kl_arena *arena, kl_bytes *ret_payload);

#endif
