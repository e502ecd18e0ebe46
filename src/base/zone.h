/* zone.h - time zones: what the clocks on the wall showed, show and will show.
 *
 * Times are seconds since 1970: of UTC, or of the wall, where they count as if the wall's clock were UTC's. Rules come
 * from the system's TZif files (package tzdata; the directory TZDIR when that is set). Nothing here looks at the
 * process's own zone or changes it; everything is safe from any thread. */
#ifndef KL_ZONE_H
#define KL_ZONE_H

#include "base/base.h"

enum {
    KL_ZONE_NAME_MAX = 255,
    KL_ZONE_FILE_BYTES_MAX = 1 << 20, /* the largest that exists has some 4 KiB */
    KL_ZONE_OFFSET_MAX = 26 * 3600,   /* seconds that a wall may be ahead of UTC or behind it (RFC 9636 allows less) */
};

typedef struct kl__zone kl__zone;

/* The zone of this name, to be freed. "UTC" and "Etc/UTC" take no file. KL_EINVAL: not a name, or there is no such zone
 * (the sentence names it and the package). KL_EDAMAGED: its file is malformed. KL_ESYSTEM: it cannot be read.
 * KL_ENOMEM. */
KL_MUST_USE kl_rc kl__zone_load(const char *name, kl__zone **ret_zone);

/* The same from the bytes of a TZif file; name is for sentences. */
KL_MUST_USE kl_rc kl__zone_parse(const char *name, kl_bytes file, kl__zone **ret_zone);

void kl__zone_free(kl__zone *zone); /* NULL is fine */

/* A time during which the wall is ahead of UTC by the same offset. Neighbours may have the same offset. */
typedef struct kl__zone_span {
    int64_t from_s, until_s; /* UTC, [from, until); INT64_MIN and INT64_MAX: no end */
    int32_t offset_s;
} kl__zone_span;

kl__zone_span kl__zone_at(const kl__zone *zone, int64_t utc_s);

/* When a wall shows this time. */
typedef struct kl__zone_moment {
    bool gap;        /* never: it was stepped over, and first_s is the first moment after the step */
    bool twice;      /* first at first_s, then again at second_s */
    int64_t first_s; /* UTC */
    int64_t second_s;
} kl__zone_moment;

kl__zone_moment kl__zone_from_wall(const kl__zone *zone, int64_t wall_s);

/* ---- The calendar, of the wall or of UTC ---- */

typedef struct kl__date {
    int64_t year;
    int32_t month; /* 1..12 */
    int32_t day;   /* 1..31 */
} kl__date;

/* Days since 1970-01-01, and back. */
int64_t kl__date_to_days(kl__date date);
kl__date kl__date_of_days(int64_t days);

/* 0 = Sunday. */
static inline int32_t kl__weekday(int64_t days) { return (int32_t)(((days + 4) % 7 + 7) % 7); }

/* Rounded down, also below 0. */
static inline int64_t kl__div_down(int64_t value, int64_t by) { return value / by - (value % by < 0); }

#endif
