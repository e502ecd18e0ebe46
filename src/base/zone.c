/* zone.c - time zones from TZif files (RFC 9636).
 *
 *     file    header | block of version 1 | header | block of version 2 | "\n" rule "\n"
 *     header  "TZif" version(1) reserved(15) isut(4) isstd(4) leap(4) time(4) type(4) char(4)     counts, big-endian
 *     block   time * at(8) | time * type(1) | type * (offset(4) dst(1) name(1)) | char | leap * 12 | isstd | isut
 *             (in the block of version 1 `at` has 4 bytes and a leap second 8; it is stepped over)
 *     rule    a POSIX TZ string, such as CET-1CEST,M3.5.0,M10.5.0/3: what holds after the last `at`
 *
 * localtime_r was rejected: it knows one zone per process, which takes setenv, and that is not safe beside threads.
 *
 * Z1  `at` strictly ascends, and every offset is below KL_ZONE_OFFSET_MAX either way.
 * Z2  Spans of one zone follow each other without gap or overlap, from INT64_MIN to INT64_MAX. */
#include "base/zone.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/layout.h"

#define ZONE_DIRECTORY "/usr/share/zoneinfo"

enum {
    HEADER_BYTES = 44,
    TYPE_BYTES = 6,
    DAY_S = 86400,
    RULE_HOURS_MAX = 167, /* of a rule's time of day */
};

#define TIME_MAX_S (INT64_C(1) << 44) /* beyond, the rules are those of its end */

enum rule_kind { RULE_JULIAN, RULE_DAY, RULE_WEEKDAY };

/* When daylight saving time begins or ends in a year. */
struct rule {
    enum rule_kind kind;
    int32_t month, week, day;
    int32_t time_s; /* of that day, which may be below 0 or beyond 24 h */
};

struct footer {
    bool set, dst;
    int32_t std_offset_s, dst_offset_s;
    struct rule begins, ends;
};

struct transition {
    int64_t at_s;
    int32_t offset_s; /* from then on */
};

struct kl__zone {
    struct footer footer;
    int32_t first_offset_s; /* before the first transition */
    size_t count;
    struct transition transitions[];
};

/* --- The calendar --- */

/* Years begin in March, so that the leap day is the last; 400 of them, an era, have 146,097 days. */
int64_t kl__date_to_days(kl__date date)
{
    int64_t year = date.month <= 2 ? date.year - 1 : date.year;
    int64_t era = kl__div_down(year, 400), year_of_era = year - era * 400;
    int64_t day_of_year = (153 * (date.month + (date.month > 2 ? -3 : 9)) + 2) / 5 + date.day - 1;
    return era * 146097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719468;
}

kl__date kl__date_of_days(int64_t days)
{
    days += 719468;
    int64_t era = kl__div_down(days, 146097), day_of_era = days - era * 146097;
    int64_t year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    int64_t month = (5 * day_of_year + 2) / 153;
    kl__date date = {.day = (int32_t)(day_of_year - (153 * month + 2) / 5 + 1),
                     .month = (int32_t)(month < 10 ? month + 3 : month - 9)};
    date.year = year_of_era + era * 400 + (date.month <= 2);
    return date;
}

/* --- The rule behind the table --- */

static bool is_leap(int64_t year) { return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0); }

/* Days since 1970 of the day that the rule names. */
static int64_t rule_days(const struct rule *rule, int64_t year)
{
    int64_t january = kl__date_to_days((kl__date){year, 1, 1});
    if (rule->kind == RULE_DAY)
        return january + rule->day;
    if (rule->kind == RULE_JULIAN) /* 1..365, February 29 never counted */
        return january + rule->day - 1 + (is_leap(year) && rule->day >= 60);
    int64_t first = kl__date_to_days((kl__date){year, rule->month, 1});
    int64_t next = kl__date_to_days((kl__date){rule->month == 12 ? year + 1 : year, rule->month % 12 + 1, 1});
    int64_t days = first + (rule->day - kl__weekday(first) + 7) % 7 + (int64_t)7 * (rule->week - 1);
    return days < next ? days : days - 7; /* week 5 is the last one */
}

static int64_t rule_at(const struct rule *rule, int64_t year, int32_t offset_before_s)
{
    return rule_days(rule, year) * DAY_S + rule->time_s - offset_before_s;
}

/* Narrows the span to what begins or ends at a change. */
static void narrow(kl__zone_span *span, int64_t utc_s, int64_t at_s, int32_t offset_s)
{
    if (at_s <= utc_s && at_s >= span->from_s) {
        span->from_s = at_s;
        span->offset_s = offset_s;
    } else if (at_s > utc_s && at_s < span->until_s) {
        span->until_s = at_s;
    }
}

/* The changes of the years around it are enough to find those on both sides. Where one ends at the very moment that the
 * next begins, as with daylight saving time all year, the beginning counts, and so is looked at last. */
static kl__zone_span footer_at(const struct footer *footer, int64_t utc_s)
{
    kl__zone_span span = {INT64_MIN, INT64_MAX, footer->std_offset_s};
    if (!footer->dst)
        return span;
    int64_t year = kl__date_of_days(kl__div_down(utc_s, DAY_S)).year;
    for (int64_t y = year - 2; y <= year + 2; y++)
        narrow(&span, utc_s, rule_at(&footer->ends, y, footer->dst_offset_s), footer->std_offset_s);
    for (int64_t y = year - 2; y <= year + 2; y++)
        narrow(&span, utc_s, rule_at(&footer->begins, y, footer->std_offset_s), footer->dst_offset_s);
    return span;
}

/* --- Looking --- */

static int64_t clamp_time(int64_t utc_s)
{
    return utc_s > TIME_MAX_S ? TIME_MAX_S : utc_s < -TIME_MAX_S ? -TIME_MAX_S : utc_s;
}

/* How many transitions are at or before this time. */
static size_t passed(const kl__zone *zone, int64_t utc_s)
{
    size_t low = 0, high = zone->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (zone->transitions[middle].at_s <= utc_s)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

kl__zone_span kl__zone_at(const kl__zone *zone, int64_t utc_s)
{
    size_t index = passed(zone, utc_s);
    int64_t from_s = index > 0 ? zone->transitions[index - 1].at_s : INT64_MIN;
    if (index == zone->count && zone->footer.set) {
        kl__zone_span span = footer_at(&zone->footer, clamp_time(utc_s));
        if (span.from_s < from_s)
            span.from_s = from_s;
        return span;
    }
    return (kl__zone_span){
        .from_s = from_s,
        .until_s = index < zone->count ? zone->transitions[index].at_s : INT64_MAX,
        .offset_s = index > 0 ? zone->transitions[index - 1].offset_s : zone->first_offset_s,
    };
}

/* Looks through all spans that can show this time. */
kl__zone_moment kl__zone_from_wall(const kl__zone *zone, int64_t wall_s)
{
    kl__zone_moment moment = {.gap = true};
    bool stepped = false;
    wall_s = clamp_time(wall_s);
    int64_t end_s = wall_s + KL_ZONE_OFFSET_MAX;
    kl__zone_span span = kl__zone_at(zone, wall_s - KL_ZONE_OFFSET_MAX);
    for (;;) {
        int64_t utc_s = wall_s - span.offset_s;
        if (utc_s >= span.from_s && utc_s < span.until_s) {
            *(moment.gap ? &moment.first_s : &moment.second_s) = utc_s;
            moment.twice = !moment.gap;
            moment.gap = false;
        }
        if (moment.twice || span.until_s > end_s)
            break;
        kl__zone_span next = kl__zone_at(zone, span.until_s);
        bool steps_over = utc_s >= span.until_s && wall_s - next.offset_s < span.until_s;
        if (moment.gap && steps_over && !stepped) {
            moment.first_s = span.until_s;
            stepped = true;
        }
        span = next;
    }
    KL_ASSERT(!moment.gap || stepped); /* Z2: what is never shown was stepped over */
    return moment;
}

/* --- Reading a rule --- */

struct reader {
    const char *at, *end;
};

static bool take(struct reader *reader, char c)
{
    if (reader->at == reader->end || *reader->at != c)
        return false;
    reader->at++;
    return true;
}

static bool take_number(struct reader *reader, int32_t least, int32_t most, int32_t *ret_number)
{
    int32_t number = 0, digits = 0;
    for (; reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9' && digits < 4; digits++)
        number = number * 10 + (*reader->at++ - '0');
    if (digits == 0 || number < least || number > most)
        return false;
    *ret_number = number;
    return true;
}

/* "CET", or "<+03>". */
static bool take_name(struct reader *reader)
{
    bool quoted = take(reader, '<');
    const char *from = reader->at;
    for (; reader->at < reader->end; reader->at++) {
        char c = *reader->at;
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(quoted && (c == '+' || c == '-' || (c >= '0' && c <= '9'))))
            break;
    }
    return reader->at - from >= 3 && (!quoted || take(reader, '>'));
}

/* [+-]hh[:mm[:ss]] */
static bool take_time(struct reader *reader, int32_t hours_max, int32_t *ret_seconds)
{
    int32_t hours, minutes = 0, seconds = 0;
    bool negative = take(reader, '-');
    if (!negative)
        (void)take(reader, '+');
    if (!take_number(reader, 0, hours_max, &hours))
        return false;
    if (take(reader, ':')) {
        if (!take_number(reader, 0, 59, &minutes))
            return false;
        if (take(reader, ':') && !take_number(reader, 0, 59, &seconds))
            return false;
    }
    int32_t total = hours * 3600 + minutes * 60 + seconds;
    *ret_seconds = negative ? -total : total;
    return true;
}

/* ,Mm.w.d or ,Jn or ,n, and perhaps /time */
static bool take_rule(struct reader *reader, struct rule *ret_rule)
{
    struct rule rule = {.kind = RULE_DAY, .time_s = 2 * 3600};
    if (!take(reader, ','))
        return false;
    bool taken;
    if (take(reader, 'M')) {
        rule.kind = RULE_WEEKDAY;
        taken = take_number(reader, 1, 12, &rule.month) && take(reader, '.') && take_number(reader, 1, 5, &rule.week) &&
                take(reader, '.') && take_number(reader, 0, 6, &rule.day);
    } else if (take(reader, 'J')) {
        rule.kind = RULE_JULIAN;
        taken = take_number(reader, 1, 365, &rule.day);
    } else {
        taken = take_number(reader, 0, 365, &rule.day);
    }
    if (!taken || (take(reader, '/') && !take_time(reader, RULE_HOURS_MAX, &rule.time_s)))
        return false;
    *ret_rule = rule;
    return true;
}

static bool starts_time(const struct reader *reader)
{
    return reader->at < reader->end &&
           (*reader->at == '+' || *reader->at == '-' || (*reader->at >= '0' && *reader->at <= '9'));
}

/* In a rule, west is positive. */
static bool parse_footer(kl_bytes text, struct footer *ret_footer)
{
    struct reader reader = {text.data, (const char *)text.data + text.len};
    struct footer footer = {.set = true};
    int32_t west_s;
    if (!take_name(&reader) || !take_time(&reader, 24, &west_s))
        return false;
    footer.std_offset_s = -west_s;
    if (reader.at < reader.end) {
        footer.dst = true;
        if (!take_name(&reader))
            return false;
        footer.dst_offset_s = footer.std_offset_s + 3600;
        if (starts_time(&reader)) {
            if (!take_time(&reader, 24, &west_s))
                return false;
            footer.dst_offset_s = -west_s;
        }
        if (!take_rule(&reader, &footer.begins) || !take_rule(&reader, &footer.ends) || reader.at != reader.end)
            return false;
    }
    *ret_footer = footer;
    return true;
}

/* --- Reading a file --- */

struct block {
    uint8_t version;
    uint32_t isut, isstd, leap, time, type, chars;
    const uint8_t *data; /* behind the header */
    size_t bytes;        /* of the data */
};

static uint32_t load32(const uint8_t *bytes)
{
    uint32_t value;
    memcpy(&value, bytes, sizeof value);
    return be32toh(value);
}

static int64_t load64(const uint8_t *bytes)
{
    uint64_t value;
    memcpy(&value, bytes, sizeof value);
    return (int64_t)be64toh(value);
}

/* A header and the block behind it, whose times have so many bytes. */
static bool read_block(kl_bytes file, size_t from, size_t time_bytes, struct block *ret_block)
{
    const uint8_t *header = (const uint8_t *)file.data + from;
    if (file.len - from < HEADER_BYTES || memcmp(header, "TZif", 4) != 0)
        return false;
    struct block block = {.version = header[4], .isut = load32(header + 20), .isstd = load32(header + 24)};
    block.leap = load32(header + 28);
    block.time = load32(header + 32);
    block.type = load32(header + 36);
    block.chars = load32(header + 40);
    /* 32-bit counts of small things: 64 bits cannot overflow. */
    uint64_t bytes = (uint64_t)block.time * (time_bytes + 1) + (uint64_t)block.type * TYPE_BYTES + block.chars +
                     (uint64_t)block.leap * (time_bytes + 4) + block.isstd + block.isut;
    if (bytes > file.len - from - HEADER_BYTES)
        return false;
    block.data = header + HEADER_BYTES;
    block.bytes = (size_t)bytes;
    *ret_block = block;
    return true;
}

/* NULL, or what is wrong. */
static const char *check_types(const struct block *block, const uint8_t *types)
{
    if (block->type == 0 || block->type > 256)
        return "it has no types of time";
    for (uint32_t i = 0; i < block->type; i++) {
        const uint8_t *type = types + (size_t)i * TYPE_BYTES;
        int32_t offset_s = (int32_t)load32(type);
        if (offset_s <= -KL_ZONE_OFFSET_MAX || offset_s >= KL_ZONE_OFFSET_MAX)
            return "an offset from UTC is out of range";
        if (type[4] > 1 || type[5] >= block->chars)
            return "a type of time is out of range";
    }
    return NULL;
}

static const char *fill(const struct block *block, kl__zone *zone)
{
    const uint8_t *indexes = block->data + (size_t)block->time * 8, *types = indexes + block->time;
    const char *wrong = check_types(block, types);
    if (wrong)
        return wrong;
    zone->first_offset_s = (int32_t)load32(types);
    zone->count = block->time;
    for (uint32_t i = 0; i < block->time; i++) {
        int64_t at_s = load64(block->data + (size_t)i * 8);
        if (i > 0 && at_s <= zone->transitions[i - 1].at_s)
            return "its times do not ascend";
        if (indexes[i] >= block->type)
            return "a time is of an unknown type";
        zone->transitions[i] = (struct transition){at_s, (int32_t)load32(types + (size_t)indexes[i] * TYPE_BYTES)};
    }
    return NULL;
}

static const char *read_footer(kl_bytes rest, struct footer *ret_footer)
{
    const char *text = rest.data;
    const char *end = rest.len > 1 && text[0] == '\n' ? memchr(text + 1, '\n', rest.len - 1) : NULL;
    if (!end)
        return "its last line is missing";
    kl_bytes rule = {text + 1, (size_t)(end - text - 1)};
    if (rule.len > 0 && !parse_footer(rule, ret_footer))
        return "the rule in its last line is malformed";
    return NULL;
}

static kl_rc refuse(const char *name, const char *why)
{
    char quoted[KL_QUOTE_BYTES];
    return kl__fail(KL_EDAMAGED, "the file of the time zone %s cannot be used: %s; reinstall the package tzdata",
                    kl__quote(kl_str(name), quoted), why);
}

kl_rc kl__zone_parse(const char *name, kl_bytes file, kl__zone **ret_zone)
{
    struct block old, block;
    if (file.len > KL_ZONE_FILE_BYTES_MAX)
        return refuse(name, "it is larger than 1 MiB");
    if (!read_block(file, 0, 4, &old))
        return refuse(name, "it is no TZif file, or cut short");
    if (old.version < '2')
        return refuse(name, "it is of version 1, which does not know what holds after 2037");
    if (!read_block(file, HEADER_BYTES + old.bytes, 8, &block))
        return refuse(name, "its second part is malformed or cut short");
    if (block.leap > 0)
        return refuse(name, "it counts leap seconds, and the system's clock does not");
    kl__zone *zone = kl__alloc_zeroed(1, sizeof *zone + block.time * sizeof zone->transitions[0]);
    if (!zone)
        return kl__fail_memory();
    size_t used = HEADER_BYTES + old.bytes + HEADER_BYTES + block.bytes;
    const char *wrong = fill(&block, zone);
    if (!wrong)
        wrong = read_footer((kl_bytes){(const char *)file.data + used, file.len - used}, &zone->footer);
    if (wrong) {
        kl__zone_free(zone);
        return refuse(name, wrong);
    }
    *ret_zone = zone;
    return KL_OK;
}

/* --- Finding the file --- */

/* No zone has a dot in its name, so no name leads out of the directory. */
static bool name_valid(const char *name)
{
    size_t len = strlen(name);
    if (len == 0 || len > KL_ZONE_NAME_MAX || name[0] == '/' || name[len - 1] == '/' || strstr(name, "//"))
        return false;
    return strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+-/") == len;
}

static kl_rc fail_open(const char *name, const char *directory)
{
    char quoted[KL_QUOTE_BYTES];
    kl__quote(kl_str(name), quoted);
    if (errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG)
        return kl__fail(KL_EINVAL,
                        "there is no time zone %s in %s: write a name such as \"Europe/Zurich\" or \"UTC\", or install "
                        "the package tzdata",
                        quoted, directory);
    return kl__fail(KL_ESYSTEM, "the file of the time zone %s in %s cannot be read: %s", quoted, directory,
                    strerror(errno));
}

static ssize_t read_whole(int fd, uint8_t *bytes, size_t size)
{
    size_t got = 0;
    while (got < size) {
        ssize_t count = read(fd, bytes + got, size - got);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return -1;
        if (count == 0)
            break;
        got += (size_t)count;
    }
    return (ssize_t)got;
}

static kl_rc load_open(const char *name, const char *directory, int fd, kl__zone **ret_zone)
{
    struct stat stat;
    if (fstat(fd, &stat) != 0)
        return fail_open(name, directory);
    if (!S_ISREG(stat.st_mode)) {
        errno = ENOENT; /* "Europe" is a directory, and no zone */
        return fail_open(name, directory);
    }
    if (stat.st_size > KL_ZONE_FILE_BYTES_MAX)
        return refuse(name, "it is larger than 1 MiB");
    size_t size = (size_t)stat.st_size;
    uint8_t *bytes = kl__alloc(size + 1);
    if (!bytes)
        return kl__fail_memory();
    ssize_t got = read_whole(fd, bytes, size);
    kl_rc rc = got < 0 ? fail_open(name, directory) : kl__zone_parse(name, (kl_bytes){bytes, (size_t)got}, ret_zone);
    kl__free(bytes);
    return rc;
}

static kl_rc make_utc(kl__zone **ret_zone)
{
    kl__zone *zone = kl__alloc_zeroed(1, sizeof *zone);
    if (!zone)
        return kl__fail_memory();
    *ret_zone = zone;
    return KL_OK;
}

kl_rc kl__zone_load(const char *name, kl__zone **ret_zone)
{
    char path[4096], quoted[KL_QUOTE_BYTES];
    if (strcmp(name, "UTC") == 0 || strcmp(name, "Etc/UTC") == 0)
        return make_utc(ret_zone);
    if (!name_valid(name))
        return kl__fail(KL_EINVAL, "%s is no name of a time zone: write one such as \"Europe/Zurich\" or \"UTC\"",
                        kl__quote(kl_str(name), quoted));
    const char *directory = secure_getenv("TZDIR");
    if (!directory || !*directory)
        directory = ZONE_DIRECTORY;
    int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    if (length < 0 || (size_t)length >= sizeof path)
        return kl__fail(KL_EINVAL, "TZDIR is too long for a path: unset it to use " ZONE_DIRECTORY);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fail_open(name, directory);
    kl_rc rc = load_open(name, directory, fd, ret_zone);
    close(fd);
    return rc;
}

void kl__zone_free(kl__zone *zone) { kl__free(zone); }
