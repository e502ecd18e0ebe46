/* cron_fields.c - when a schedule fires: five fields, and the next time that they name.
 *
 *     when    minute hour day-of-month month day-of-week | @hourly @daily @midnight @weekly @monthly @yearly @annually
 *     field   item {"," item}
 *     item    "*" ["/" step] | value ["-" value ["/" step]]
 *     value   a number, or jan..dec, sun..sat in any case; Sunday is 0 and 7
 *
 * As in Vixie's cron, a day must fit either of its two fields when both are restricted, and both when one begins with
 * an asterisk.
 *
 * Where the clocks are changed:
 *
 * F1  A schedule that leaves hours out fires once for each time on the wall: at the first moment when the wall shows
 *     it, or, when it is stepped over, at the first moment after the step. Times that one step leaves out fire once
 *     together.
 * F2  A schedule for all 24 hours (hour `*`, `*` with step 1, 0-23) follows the real clock: it fires whenever the wall
 *     shows such a minute, the second time too, and not for minutes that are stepped over. */
#include <string.h>

#include "base/layout.h"
#include "keyline/id.h"
#include "queue/cron.h"

enum {
    ALL_HOURS = (1 << 24) - 1,
    DAY_MINUTES = 24 * 60,
    DAY_S = DAY_MINUTES * 60,
    LOOK_DAYS = 8 * 366, /* February 29 is eight years from the next one around 2100 */
};

#define NONE INT64_MAX

/* --- Reading --- */

struct field {
    const char *name;
    int32_t min, max;
    const char *names; /* of the values from min up, three letters each; NULL: none */
    const char *allowed;
};

static const struct field fields_of[] = {
    {"minute", 0, 59, NULL, "0 to 59"},
    {"hour", 0, 23, NULL, "0 to 23"},
    {"day-of-month", 1, 31, NULL, "1 to 31"},
    {"month", 1, 12, "janfebmaraprmayjunjulaugsepoctnovdec", "1 to 12 or jan to dec"},
    {"day-of-week", 0, 7, "sunmontuewedthufrisat", "0 to 7 or sun to sat (0 and 7 are Sunday)"},
};

enum { MINUTE, HOUR, DAY, MONTH, WEEKDAY, FIELDS };

/* A field that is read. */
struct reader {
    const struct field *field;
    const char *from, *at, *end;
};

static kl_rc refuse(const struct reader *reader, const char *why)
{
    char quoted[KL_QUOTE_BYTES];
    return kl__fail(
        KL_EINVAL, "the %s field %s %s: write *, numbers from %s, ranges (a-b), steps (*/n, a-b/n), or a list",
        reader->field->name, kl__quote((kl_bytes){reader->from, (size_t)(reader->end - reader->from)}, quoted), why,
        reader->field->allowed);
}

static bool take(struct reader *reader, char c)
{
    if (reader->at == reader->end || *reader->at != c)
        return false;
    reader->at++;
    return true;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool take_number(struct reader *reader, int32_t *ret_number)
{
    int32_t number = 0;
    const char *from = reader->at;
    while (reader->at < reader->end && is_digit(*reader->at) && number < 1000)
        number = number * 10 + (*reader->at++ - '0');
    *ret_number = number;
    return reader->at > from;
}

static bool same_letters(const char *text, const char *name)
{
    for (int i = 0; i < 3; i++)
        if ((text[i] | 0x20) != name[i])
            return false;
    return true;
}

static bool take_name(struct reader *reader, int32_t *ret_number)
{
    if (!reader->field->names || reader->end - reader->at < 3)
        return false;
    const char *name = reader->field->names;
    for (int32_t value = reader->field->min; *name; value++, name += 3) {
        if (same_letters(reader->at, name)) {
            reader->at += 3;
            *ret_number = value;
            return true;
        }
    }
    return false;
}

static kl_rc take_value(struct reader *reader, int32_t *ret_value)
{
    int32_t value;
    if (!take_number(reader, &value) && !take_name(reader, &value))
        return refuse(reader, "is not understood");
    if (value < reader->field->min || value > reader->field->max)
        return refuse(reader, "is out of range");
    *ret_value = value;
    return KL_OK;
}

/* The range of one item, without its step. */
static kl_rc take_range(struct reader *reader, int32_t *ret_first, int32_t *ret_last, bool *ret_ranges)
{
    *ret_ranges = true;
    if (take(reader, '*')) {
        *ret_first = reader->field->min;
        *ret_last = reader->field->max;
        return KL_OK;
    }
    kl_rc rc = take_value(reader, ret_first);
    if (rc != KL_OK)
        return rc;
    *ret_last = *ret_first;
    *ret_ranges = take(reader, '-');
    if (!*ret_ranges)
        return KL_OK;
    rc = take_value(reader, ret_last);
    if (rc == KL_OK && *ret_last < *ret_first)
        return refuse(reader, "has a range that ends before it begins");
    return rc;
}

static kl_rc take_item(struct reader *reader, uint64_t *bits)
{
    int32_t first = 0, last = 0, step = 1;
    bool ranges = false;
    kl_rc rc = take_range(reader, &first, &last, &ranges);
    if (rc != KL_OK)
        return rc;
    if (take(reader, '/')) {
        if (!ranges)
            return refuse(reader, "has a step behind a single value");
        if (!take_number(reader, &step))
            return refuse(reader, "has no number behind its slash");
        if (step < 1 || step > reader->field->max)
            return refuse(reader, "has a step that is 0 or larger than the field");
    }
    for (int32_t value = first; value <= last; value += step)
        *bits |= UINT64_C(1) << value;
    return KL_OK;
}

static kl_rc read_field(int number, const char *text, size_t length, uint64_t *ret_bits)
{
    struct reader reader = {&fields_of[number], text, text, text + length};
    uint64_t bits = 0;
    do {
        kl_rc rc = take_item(&reader, &bits);
        if (rc != KL_OK)
            return rc;
    } while (take(&reader, ','));
    if (reader.at < reader.end)
        return refuse(&reader, "is not understood");
    *ret_bits = bits;
    return KL_OK;
}

/* What a word that begins with @ stands for; NULL: no such word. */
static const char *expand(const char *word)
{
    static const char *const words[][2] = {
        {"@hourly", "0 * * * *"},  {"@daily", "0 0 * * *"},  {"@midnight", "0 0 * * *"}, {"@weekly", "0 0 * * 0"},
        {"@monthly", "0 0 1 * *"}, {"@yearly", "0 0 1 1 *"}, {"@annually", "0 0 1 1 *"},
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(word, words[i][0]) == 0)
            return words[i][1];
    return NULL;
}

/* Bounds of the fields in the text. False: there are not five. */
static bool split(const char *when, const char *ret_from[FIELDS], size_t ret_length[FIELDS])
{
    static const char blanks[] = " \t";
    int count = 0;
    for (when += strspn(when, blanks); *when; when += strspn(when, blanks)) {
        size_t length = strcspn(when, blanks);
        if (count == FIELDS)
            return false;
        ret_from[count] = when;
        ret_length[count++] = length;
        when += length;
    }
    return count == FIELDS;
}

kl_rc kl__cron_parse(const char *when, kl__cron_fields *ret_fields)
{
    char quoted[KL_QUOTE_BYTES];
    const char *text = when && when[0] == '@' ? expand(when) : when, *from[FIELDS];
    size_t length[FIELDS];
    uint64_t bits[FIELDS];
    if (!text || strlen(text) > KL_CRON_WHEN_MAX || !split(text, from, length))
        return kl__fail(
            KL_EINVAL,
            "%s is no schedule: write five fields (minute hour day-of-month month day-of-week, such as \"30 "
            "3 * * mon-fri\"; at most %d bytes), or @hourly, @daily, @weekly, @monthly or @yearly",
            kl__quote(kl_str(when), quoted), KL_CRON_WHEN_MAX);
    for (int i = 0; i < FIELDS; i++) {
        kl_rc rc = read_field(i, from[i], length[i], &bits[i]);
        if (rc != KL_OK)
            return rc;
    }
    *ret_fields = (kl__cron_fields){
        .minutes = bits[MINUTE],
        .hours = (uint32_t)bits[HOUR],
        .days = (uint32_t)bits[DAY],
        .months = (uint32_t)bits[MONTH],
        .weekdays = (uint32_t)((bits[WEEKDAY] | bits[WEEKDAY] >> 7) & 0x7f),
        .day_any = from[DAY][0] == '*',
        .weekday_any = from[WEEKDAY][0] == '*',
    };
    return KL_OK;
}

/* --- Looking ahead --- */

static bool has_bit(uint64_t bits, int32_t bit) { return bits >> bit & 1; }

/* The first set bit from this one on, or 64. */
static int32_t bit_from(uint64_t bits, int32_t bit)
{
    uint64_t rest = bit < 64 ? bits >> bit << bit : 0;
    return rest ? __builtin_ctzll(rest) : 64;
}

static bool day_fits(const kl__cron_fields *fields, int64_t days)
{
    kl__date date = kl__date_of_days(days);
    if (!has_bit(fields->months, date.month))
        return false;
    bool day = has_bit(fields->days, date.day), weekday = has_bit(fields->weekdays, kl__weekday(days));
    return fields->day_any || fields->weekday_any ? day && weekday : day || weekday;
}

/* The first minute on the wall from this one on that the fields name, counted from 1970; NONE: not until that day ends.
 * */
static int64_t minute_from(const kl__cron_fields *fields, int64_t minute, int64_t last_day)
{
    int64_t day = kl__div_down(minute, DAY_MINUTES);
    int32_t first = (int32_t)(minute - day * DAY_MINUTES);
    for (; day <= last_day; day++, first = 0) {
        if (!day_fits(fields, day))
            continue;
        for (int32_t hour = bit_from(fields->hours, first / 60); hour < 24; hour = bit_from(fields->hours, hour + 1)) {
            int32_t found = bit_from(fields->minutes, hour == first / 60 ? first % 60 : 0);
            if (found < 60)
                return day * DAY_MINUTES + (int64_t)hour * 60 + found;
        }
    }
    return NONE;
}

/* F1. Whatever is not behind what the wall shows now was first shown now or before. */
static int64_t next_of_wall(const kl__cron_fields *fields, const kl__zone *zone, int64_t after_s, int64_t last_day)
{
    int64_t minute = kl__div_down(after_s + kl__zone_at(zone, after_s).offset_s, 60);
    for (;;) {
        minute = minute_from(fields, minute + 1, last_day);
        if (minute == NONE)
            return NONE;
        int64_t first_s = kl__zone_from_wall(zone, minute * 60).first_s;
        if (first_s > after_s)
            return first_s;
    }
}

/* F2. */
static int64_t next_of_clock(const kl__cron_fields *fields, const kl__zone *zone, int64_t after_s, int64_t last_day)
{
    for (int64_t from_s = after_s + 1;;) {
        kl__zone_span span = kl__zone_at(zone, from_s);
        int64_t minute = minute_from(fields, kl__div_down(from_s + span.offset_s + 59, 60), last_day);
        if (minute == NONE)
            return NONE;
        if (minute * 60 - span.offset_s < span.until_s)
            return minute * 60 - span.offset_s;
        from_s = span.until_s;
    }
}

int64_t kl__cron_next(const kl__cron_fields *fields, const kl__zone *zone, int64_t after_ms)
{
    KL_ASSERT(after_ms >= 0);
    int64_t after_s = after_ms / 1000, last_day = after_s / DAY_S + LOOK_DAYS;
    int64_t next_s = fields->hours == ALL_HOURS ? next_of_clock(fields, zone, after_s, last_day)
                                                : next_of_wall(fields, zone, after_s, last_day);
    return next_s <= KL_ID_MS_MAX / 1000 ? next_s * 1000 : 0;
}

/* For all x before the last one there is a time after x and up to the end, for none from it on: halving finds it. */
int64_t kl__cron_last(const kl__cron_fields *fields, const kl__zone *zone, int64_t after_ms, int64_t until_ms)
{
    int64_t last_ms = 0, low_ms = after_ms, high_ms = until_ms; /* nothing is in (high, until] */
    while (low_ms < high_ms) {
        int64_t middle_ms = low_ms + (high_ms - low_ms) / 2;
        int64_t next_ms = kl__cron_next(fields, zone, middle_ms);
        if (next_ms != 0 && next_ms <= until_ms) {
            last_ms = next_ms;
            low_ms = next_ms;
        } else {
            high_ms = middle_ms;
        }
    }
    return last_ms;
}

kl_rc kl_cron_next(const char *when, const char *zone_name, int64_t after_ms, int64_t *ret_ms)
{
    kl__cron_fields fields;
    kl__zone *zone;
    if (!ret_ms)
        return kl__fail(KL_EINVAL, "ret_ms is NULL; pass room for the time");
    if (after_ms < 0 || after_ms > KL_ID_MS_MAX)
        return kl__fail(KL_EINVAL, "after_ms is %lld: it must be from 0 (1970) to %lld (2527)", (long long)after_ms,
                        (long long)KL_ID_MS_MAX);
    kl_rc rc = kl__cron_parse(when, &fields);
    if (rc == KL_OK)
        rc = kl__zone_load(zone_name ? zone_name : "UTC", &zone);
    if (rc != KL_OK)
        return rc;
    *ret_ms = kl__cron_next(&fields, zone, after_ms);
    kl__zone_free(zone);
    return KL_OK;
}
