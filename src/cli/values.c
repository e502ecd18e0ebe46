/* values.c - what a word may say: whole numbers, durations, times, choices.
 *
 * From: args.c (options), config.c (settings from the environment and from keyline.toml).  To: base/times.h. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "keyline/id.h"

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
        if (kl__time_parse(text, now_ms, &value) && value > 0) {
            int64_t from_now;
            if (option->min == KL_TIME_AS_SAID && value > KL_ID_MS_MAX) {
                kl__complain("%s is '%s', which is after the year 2527; make it earlier", said, text);
                return false;
            }
            if (option->min == KL_TIME_AS_SAID && kl__time_from_now(text, &from_now))
                value = -from_now;
            break;
        }
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
