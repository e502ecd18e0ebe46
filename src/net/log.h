/* log.h - the server's log: one line per event on standard error, for people or for machines. Never payloads, keys or
 * tokens.
 *
 *     2026-11-15T18:00:00.123Z warn the store does not answer; tried again
 *     {"time":"2026-11-15T18:00:00.123Z","level":"warn","text":"the store does not answer; tried again"} */
#ifndef KL_NET_LOG_H
#define KL_NET_LOG_H

#include <stdbool.h>

#include "keyline/log.h"

/* The caller's, and outlives whoever it is given to. */
typedef struct kl__log {
    kl_log_level most; /* KL_LOG_WARN: errors and warnings */
    bool json;
    int fd; /* STDERR_FILENO */
} kl__log;

/* A kl_log_fn; ctx is a kl__log. Any thread: a line is one write. A text with line ends in it is still one line. */
void kl__log_line(void *ctx, kl_log_level level, const char *text);

#endif
