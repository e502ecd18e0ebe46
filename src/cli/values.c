/* values.c - what a word may say: whole numbers, durations, times, choices.
 *
 * From: args.c (options), config.c (settings from the environment and from keyline.toml).
 *
 * A duration needs its unit: a bare 5 would be seconds to one reader and milliseconds to the next. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"

static const struct {
    const char *name;
    int64_t ms;
} units[] = {{"d", 86400000}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};

enum { UNITS = sizeof units / sizeof units[0] };

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static bool is_named(const char *value_name, const char *name)
{
    size_t length = strlen(name);
    return strncmp(value_name, name, length) == 0 && (!value_name[length] || strcmp(value_name + length, "|none") == 0);
}

kl__kind kl__kind_of(const kl__option *option)
{
    const char *name = option->value_name;
    if (!name)
        return KL_FLAG;
    if (is_named(name, "N"))
        return KL_NUMBER;
    if (is_named(name, "DURATION"))
        return KL_DURATION;
    if (is_named(name, "TIME"))
        return KL_TIME;
    if (strchr(name, '|'))
        return KL_CHOICE;
    return ends_with(name, "...") ? KL_TEXTS : KL_TEXT;
}

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

/* ---- Choices ---- */

void kl__choice_name(const char *choices, int64_t number, char ret_name[KL_CHOICE_BYTES_MAX])
{
    for (; number > 1 && choices; number--) {
        choices = strchr(choices, '|');
        choices = choices ? choices + 1 : NULL;
    }
    size_t length = choices && number == 1 ? strcspn(choices, "|") : 0;
    length = length < KL_CHOICE_BYTES_MAX ? length : KL_CHOICE_BYTES_MAX - 1;
    if (length)
        memcpy(ret_name, choices, length);
    ret_name[length] = '\0';
}

static bool parse_choice(const kl__option *option, const char *said, const char *text, int64_t *ret_value)
{
    char name[KL_CHOICE_BYTES_MAX], closest[KL_CHOICE_BYTES_MAX] = "";
    for (int64_t number = 1;; number++) {
        kl__choice_name(option->value_name, number, name);
        if (!*name)
            break;
        if (strcmp(name, text) == 0) {
            *ret_value = number;
            return true;
        }
        if (kl__closer(text, *closest ? closest : NULL, name) == name)
            memcpy(closest, name, sizeof name);
    }
    if (*closest)
        kl__complain("%s is '%s'; did you mean %s? It is one of %s", said, text, closest, option->value_name);
    else
        kl__complain("%s is '%s'; give it one of %s", said, text, option->value_name);
    return false;
}

/* ---- All of them ---- */

static bool is_bounded(const kl__option *option) { return option->min != 0 || option->max != 0; }

static bool in_range(const kl__option *option, int64_t value)
{
    return !is_bounded(option) || (value >= option->min && value <= option->max);
}

static bool parse_number(const char *text, int64_t *ret_value)
{
    char *rest;
    errno = 0;
    long long number = strtoll(text, &rest, 10);
    if (rest == text || *rest || errno || isspace((unsigned char)text[0]))
        return false;
    *ret_value = number;
    return true;
}

static void complain_of_number(const kl__option *option, const char *said, const char *text)
{
    const char *none = ends_with(option->value_name, "|none") ? ", or none" : "";
    if (is_bounded(option))
        kl__complain("%s is '%s'; give it a whole number from %" PRId64 " to %" PRId64 "%s", said, text, option->min,
                     option->max, none);
    else
        kl__complain("%s is '%s'; give it a whole number%s", said, text, none);
}

static void complain_of_duration(const kl__option *option, const char *said, const char *text)
{
    const char *none = ends_with(option->value_name, "|none") ? ", or none" : "";
    char min[KL_DURATION_TEXT_BYTES], max[KL_DURATION_TEXT_BYTES];
    kl__duration_print(option->min, min);
    kl__duration_print(option->max, max);
    if (is_bounded(option))
        kl__complain("%s is '%s'; give it a duration from %s to %s, such as 250ms, 5s, 2m, 1h or 7d%s", said, text, min,
                     max, none);
    else
        kl__complain("%s is '%s'; give it a duration such as 250ms, 5s, 2m, 1h or 7d%s", said, text, none);
}

bool kl__value_parse(const kl__option *option, const char *said, const char *text, int64_t now_ms, int64_t *ret_value)
{
    int64_t value = 0;
    switch (kl__kind_of(option)) {
    case KL_NUMBER:
        if (parse_number(text, &value) && in_range(option, value))
            break;
        complain_of_number(option, said, text);
        return false;
    case KL_DURATION:
        if (kl__duration_parse(text, &value) && in_range(option, value))
            break;
        complain_of_duration(option, said, text);
        return false;
    case KL_TIME:
        if (kl__time_parse(text, now_ms, &value) && value > 0)
            break;
        kl__complain("%s is '%s'; give it a time such as 2026-11-15T18:00:00Z, or +5m or -5m from now", said, text);
        return false;
    case KL_CHOICE:
        if (parse_choice(option, said, text, &value))
            break;
        return false;
    default:
        return true;
    }
    *ret_value = value;
    return true;
}
