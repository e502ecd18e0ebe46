/* times.h - durations and moments as people write them: 250ms, 5s, 2m, 1h, 7d; RFC 3339, or +5m or -5m from now.
 *
 * A duration needs its unit: a bare 5 would be seconds to one reader and milliseconds to the next. */
#ifndef KL_TIMES_H
#define KL_TIMES_H

#include <stdbool.h>
#include <stdint.h>

enum { KL_DURATION_TEXT_BYTES = 32, KL_TIME_TEXT_BYTES = 40 };

/* False: it is none, or out of range. */
bool kl__duration_parse(const char *text, int64_t *ret_ms);
bool kl__time_parse(const char *text, int64_t now_ms, int64_t *ret_ms);

/* How long from now a time is that was written as +5m, at least 1. False: it is no such time, or no sensible one. */
bool kl__time_from_now(const char *text, int64_t *ret_ms);

/* In the largest unit that leaves no rest; and RFC 3339 in UTC. */
void kl__duration_print(int64_t ms, char ret_text[KL_DURATION_TEXT_BYTES]);
void kl__time_print(int64_t ms, char ret_text[KL_TIME_TEXT_BYTES]);

#endif
