/* times.c - see times.h. */
#include "base/times.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct {
    const char *name;
    int64_t ms;
} units[] = {{"d", 86400000}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};

enum { UNITS = sizeof units / sizeof units[0] };

/* ---- Durations ---- */

bool kl__duration_parse(const char *text, int64_t *ret_ms)
{
    if (!isdigit((unsigned char)text[0]))
        return false;
    char *rest;
    errno = 0;
    long long number = strtoll(text, &rest, 10);
    for (int i = 0; i < UNITS && !errno; i++)
        if (strcmp(rest, units[i].name) == 0)
            return !__builtin_mul_overflow((int64_t)number, units[i].ms, ret_ms);
    return false;
}

void kl__duration_print(int64_t ms, char ret_text[KL_DURATION_TEXT_BYTES])
{
    int unit = UNITS - 1;
    for (int i = 0; i < UNITS && ms != 0; i++) {
        if (ms % units[i].ms == 0) {
            unit = i;
            break;
        }
    }
    if (ms == 0)
        snprintf(ret_text, KL_DURATION_TEXT_BYTES, "0s");
    else
        snprintf(ret_text, KL_DURATION_TEXT_BYTES, "%" PRId64 "%s", ms / units[unit].ms, units[unit].name);
}

/* ---- Times ---- */

/* Reads exactly `digits` digits and the sign behind them (0: none asked). */
static bool take_digits(const char **at, int digits, char behind, int *ret_number)
{
    int number = 0;
    for (int i = 0; i < digits; i++, (*at)++) {
        if (!isdigit((unsigned char)**at))
            return false;
        number = number * 10 + (**at - '0');
    }
    *ret_number = number;
    if (behind && *(*at)++ != behind)
        return false;
    return true;
}

/* Fractions of a second, down to milliseconds; further digits are passed over. */
static bool take_fraction(const char **at, int *ret_ms)
{
    *ret_ms = 0;
    if (**at != '.')
        return true;
    (*at)++;
    if (!isdigit((unsigned char)**at))
        return false;
    for (int weight = 100; isdigit((unsigned char)**at); (*at)++, weight /= 10)
        *ret_ms += (**at - '0') * weight;
    return true;
}

/* `Z`, or hours and minutes from UTC. */
static bool take_offset(const char *at, int *ret_minutes)
{
    int hours, minutes, sense = *at == '-' ? -1 : 1;
    if ((*at == 'Z' || *at == 'z') && !at[1]) {
        *ret_minutes = 0;
        return true;
    }
    if (*at != '+' && *at != '-')
        return false;
    at++;
    if (!take_digits(&at, 2, ':', &hours) || !take_digits(&at, 2, 0, &minutes) || *at || hours > 23 || minutes > 59)
        return false;
    *ret_minutes = sense * (hours * 60 + minutes);
    return true;
}

/* The moment of a calendar date and time in UTC; false when there is no such date. */
static bool moment_of(const struct tm *given, int64_t *ret_seconds)
{
    struct tm date = *given;
    time_t seconds = timegm(&date);
    if (date.tm_mday != given->tm_mday || date.tm_mon != given->tm_mon || date.tm_hour != given->tm_hour ||
        date.tm_min != given->tm_min || date.tm_sec != given->tm_sec)
        return false;
    *ret_seconds = seconds;
    return true;
}

static bool parse_rfc3339(const char *at, int64_t *ret_ms)
{
    struct tm date = {0};
    int ms, minutes;
    int64_t seconds;
    if (!take_digits(&at, 4, '-', &date.tm_year) || !take_digits(&at, 2, '-', &date.tm_mon) ||
        !take_digits(&at, 2, 0, &date.tm_mday) || (*at != 'T' && *at != 't' && *at != ' '))
        return false;
    at++;
    if (!take_digits(&at, 2, ':', &date.tm_hour) || !take_digits(&at, 2, ':', &date.tm_min) ||
        !take_digits(&at, 2, 0, &date.tm_sec) || !take_fraction(&at, &ms) || !take_offset(at, &minutes))
        return false;
    date.tm_year -= 1900;
    date.tm_mon -= 1;
    if (!moment_of(&date, &seconds))
        return false;
    *ret_ms = (seconds - (int64_t)minutes * 60) * 1000 + ms;
    return true;
}

/* A century: with any clock it is a time that can be stored. */
#define FROM_NOW_MS_MAX (INT64_C(86400000) * 36525)

bool kl__time_from_now(const char *text, int64_t *ret_ms)
{
    int64_t distance;
    if (text[0] != '+' || !kl__duration_parse(text + 1, &distance) || distance > FROM_NOW_MS_MAX)
        return false;
    *ret_ms = distance > 0 ? distance : 1;
    return true;
}

bool kl__time_parse(const char *text, int64_t now_ms, int64_t *ret_ms)
{
    int64_t distance;
    if (text[0] != '+' && text[0] != '-')
        return parse_rfc3339(text, ret_ms);
    if (!kl__duration_parse(text + 1, &distance))
        return false;
    return !(text[0] == '+' ? __builtin_add_overflow(now_ms, distance, ret_ms)
                            : __builtin_sub_overflow(now_ms, distance, ret_ms));
}

void kl__time_print(int64_t ms, char ret_text[KL_TIME_TEXT_BYTES])
{
    int64_t rest = ms % 1000 < 0 ? ms % 1000 + 1000 : ms % 1000;
    time_t seconds = (time_t)((ms - rest) / 1000);
    struct tm date;
    if (!gmtime_r(&seconds, &date)) {
        snprintf(ret_text, KL_TIME_TEXT_BYTES, "%" PRId64 "ms", ms);
        return;
    }
    size_t length = strftime(ret_text, KL_TIME_TEXT_BYTES, "%Y-%m-%dT%H:%M:%S", &date);
    snprintf(ret_text + length, KL_TIME_TEXT_BYTES - length, rest ? ".%03" PRId64 "Z" : "Z", rest);
}
