/* args.c - options by table, and suggestions for slips.
 *
 * Rejected: getopt_long. Its complaints name the mistake and not the remedy, and its table knows neither ranges nor
 * help. */
#include "cli/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_MAX = 31 }; /* longer words get no suggestion */

void kl__complain(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("keyline: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* How many letters must be put in, left out, changed or swapped with their neighbour to make one word the other. */
static size_t distance(const char *a, const char *b)
{
    size_t cost[WORD_MAX + 1][WORD_MAX + 1], rows = strlen(a), columns = strlen(b);
    if (rows > WORD_MAX || columns > WORD_MAX)
        return SIZE_MAX;
    for (size_t i = 0; i <= rows; i++) {
        for (size_t j = 0; j <= columns; j++) {
            if (i == 0 || j == 0) {
                cost[i][j] = i + j;
                continue;
            }
            cost[i][j] = least(cost[i - 1][j - 1] + (a[i - 1] != b[j - 1]), least(cost[i - 1][j], cost[i][j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                cost[i][j] = least(cost[i][j], cost[i - 2][j - 2] + 1);
        }
    }
    return cost[rows][columns];
}

const char *kl__closer(const char *word, const char *best, const char *candidate)
{
    size_t far = 1 + strlen(candidate) / 3; /* two slips in `demo`, three in `version` */
    size_t candidate_distance = distance(word, candidate);
    if (candidate_distance > far || (best && distance(word, best) <= candidate_distance))
        return best;
    return candidate;
}

static void complain_unknown(const kl__option *options, const char *command, const char *word)
{
    const char *closest = NULL;
    for (const kl__option *option = options; option && option->name; option++)
        closest = kl__closer(word, closest, option->name);
    if (word[0] != '-')
        kl__complain("%s does not take '%s'; leave it out, or see `keyline help %s`", command, word, command);
    else if (closest)
        kl__complain("%s has no option '%s'; did you mean %s? `keyline help %s` lists them", command, word, closest,
                     command);
    else
        kl__complain("%s has no option '%s'; `keyline help %s` lists those it has", command, word, command);
}

/* The option whose name stands before the end of the word or its `=`. */
static const kl__option *find(const kl__option *options, const char *word)
{
    size_t length = strcspn(word, "=");
    for (const kl__option *option = options; option && option->name; option++)
        if (strlen(option->name) == length && memcmp(option->name, word, length) == 0)
            return option;
    return NULL;
}

static bool parse_number(const kl__option *option, const char *text, int64_t *ret_value)
{
    char *rest = NULL;
    errno = 0;
    long long number = text ? strtoll(text, &rest, 10) : 0;
    if (!text || rest == text || *rest || errno || number < option->min || number > option->max) {
        kl__complain("%s is '%s'; give it a whole number from %lld to %lld", option->name, text ? text : "",
                     (long long)option->min, (long long)option->max);
        return false;
    }
    *ret_value = number;
    return true;
}

bool kl__options_parse(const kl__option *options, int argc, char **argv, void *values)
{
    for (int i = 1; i < argc; i++) {
        const kl__option *option = find(options, argv[i]);
        const char *equals = strchr(argv[i], '=');
        if (!option) {
            complain_unknown(options, argv[0], argv[i]);
            return false;
        }
        int64_t *value = (int64_t *)(void *)((char *)values + option->offset);
        if (!option->value_name && equals) {
            kl__complain("%s takes no value; leave out '%s'", option->name, equals);
            return false;
        }
        if (!option->value_name) {
            *value = 1;
            continue;
        }
        const char *text = equals ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
        if (!parse_number(option, text, value))
            return false;
    }
    return true;
}
