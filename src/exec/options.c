/* options.c - settings: defaults, limits and the environment, from one table.
 *
 * A struct that a caller passes starts with its size: fields that an older caller does not know count as zero, and zero
 * means the default. */
#include "base/cores.h"
#include "base/text.h"
#include "base/times.h"
#include "exec/internal.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

enum { QUOTED_BYTES = 120 };

enum unit { COUNT, DURATION, WAIT }; /* WAIT: a duration, or none, or forever */

struct setting {
    const char *name; /* of the field; NAME of KEYLINE_EXEC_NAME is `variable` */
    const char *variable;
    size_t offset;
    enum unit unit;
    int64_t standard; /* the default; 0 is worked out */
    int64_t min, max;
};

#define FIELD(field) offsetof(kl_exec_opts, field)

static const struct setting settings[] = {
    {"shards", "SHARDS", FIELD(shards), COUNT, 4, 1, KL_EXEC_SHARDS_MAX},
    {"threads", "THREADS", FIELD(threads), COUNT, 0, 1, KL_EXEC_THREADS_MAX},
    {"shard_capacity", "SHARD_CAPACITY", FIELD(shard_capacity), COUNT, 128, 1, KL_EXEC_SHARD_CAPACITY_MAX},
    {"submit_timeout_ms", "SUBMIT_TIMEOUT", FIELD(submit_timeout_ms), WAIT, 100, 1, KL_EXEC_WAIT_MS_MAX},
    {"attempts_max", "ATTEMPTS_MAX", FIELD(attempts_max), COUNT, 8, 1, KL_EXEC_ATTEMPTS_MAX},
    {"backoff_base_ms", "BACKOFF_BASE", FIELD(backoff_base_ms), DURATION, 100, 1, KL_EXEC_WAIT_MS_MAX},
    {"backoff_max_ms", "BACKOFF_MAX", FIELD(backoff_max_ms), DURATION, 20000, 1, KL_EXEC_WAIT_MS_MAX},
};

enum { SETTINGS = sizeof settings / sizeof settings[0] };

static int64_t *value_of(kl_exec_opts *opts, const struct setting *setting)
{
    return (int64_t *)(void *)((char *)opts + setting->offset);
}

static int64_t usable_cores(void)
{
    int count = kl__cores();
    return count > KL_EXEC_THREADS_MAX ? KL_EXEC_THREADS_MAX : count;
}

static bool in_range(const struct setting *setting, int64_t value)
{
    if (setting->unit == WAIT && (value == KL_NO_WAIT || value == KL_FOREVER))
        return true;
    return value >= setting->min && value <= setting->max;
}

/* Copies as much of a caller's struct as both sides know. */
static kl_rc copy_sized(const char *what, void *to, size_t to_size, const void *from, size_t from_size)
{
    if (from_size < sizeof(size_t))
        return kl__fail(KL_EINVAL, "%s.size is %zu; start from {.size = sizeof(%s)}", what, from_size, what);
    if (from_size > to_size)
        return kl__fail(KL_EINVAL,
                        "%s.size is %zu and this library knows %zu bytes; it is older than its header: link the one "
                        "that belongs to it",
                        what, from_size, to_size);
    memset(to, 0, to_size);
    memcpy(to, from, from_size);
    return KL_OK;
}

kl_rc kl__exec_opts_complete(const kl_exec_opts *given, kl_exec_opts *ret_opts)
{
    kl_exec_opts opts = {.size = sizeof opts};
    if (given) {
        kl_rc rc = copy_sized("kl_exec_opts", &opts, sizeof opts, given, given->size);
        if (rc != KL_OK)
            return rc;
    }
    bool base_given = opts.backoff_base_ms != 0, max_given = opts.backoff_max_ms != 0;
    for (int i = 0; i < SETTINGS; i++) {
        int64_t *value = value_of(&opts, &settings[i]);
        if (*value == 0)
            *value = settings[i].standard ? settings[i].standard : usable_cores();
        else if (!in_range(&settings[i], *value))
            return kl__fail(KL_EINVAL, "%s is %lld; it must be from %lld to %lld%s", settings[i].name,
                            (long long)*value, (long long)settings[i].min, (long long)settings[i].max,
                            settings[i].unit == WAIT ? ", KL_NO_WAIT or KL_FOREVER" : "");
    }
    /* Who states only the one is not to hear of the other. */
    if (!max_given && opts.backoff_base_ms > opts.backoff_max_ms)
        opts.backoff_max_ms = opts.backoff_base_ms;
    if (!base_given && opts.backoff_base_ms > opts.backoff_max_ms)
        opts.backoff_base_ms = opts.backoff_max_ms;
    if (opts.backoff_base_ms > opts.backoff_max_ms)
        return kl__fail(KL_EINVAL,
                        "backoff_base_ms (%lld, KEYLINE_EXEC_BACKOFF_BASE) is above backoff_max_ms (%lld, "
                        "KEYLINE_EXEC_BACKOFF_MAX); "
                        "lower it or raise the other",
                        (long long)opts.backoff_base_ms, (long long)opts.backoff_max_ms);
    if (opts.shards * opts.shard_capacity > KL_EXEC_PLACES_MAX)
        return kl__fail(KL_EINVAL,
                        "shards (%lld, KEYLINE_EXEC_SHARDS) times shard_capacity (%lld, KEYLINE_EXEC_SHARD_CAPACITY) "
                        "may be %d at most; "
                        "lower one of them",
                        (long long)opts.shards, (long long)opts.shard_capacity, KL_EXEC_PLACES_MAX);
    *ret_opts = opts;
    return KL_OK;
}

static kl_rc check_range(const char *name, int64_t value, int64_t min, int64_t max)
{
    if (value >= min && value <= max)
        return KL_OK;
    return kl__fail(KL_EINVAL, "the task's %s is %lld; it must be from %lld to %lld", name, (long long)value,
                    (long long)min, (long long)max);
}

static kl_rc check_submit_timeout(int64_t value)
{
    if (value == KL_NO_WAIT || value == KL_FOREVER || (value >= 0 && value <= KL_EXEC_WAIT_MS_MAX))
        return KL_OK;
    return kl__fail(KL_EINVAL,
                    "the task's submit_timeout_ms is %lld; it must be from 0 to %lld, KL_NO_WAIT or KL_FOREVER",
                    (long long)value, (long long)KL_EXEC_WAIT_MS_MAX);
}

kl_rc kl__exec_task_opts_check(const kl_exec_task_opts *given, kl_exec_task_opts *ret_opts)
{
    kl_exec_task_opts opts;
    kl_rc rc = copy_sized("kl_exec_task_opts", &opts, sizeof opts, given, given->size);
    if (rc == KL_OK)
        rc = check_range("priority", opts.priority, KL_PRIORITY_MIN, KL_PRIORITY_MAX);
    if (rc == KL_OK)
        rc = check_range("attempts_max", opts.attempts_max, 0, KL_EXEC_ATTEMPTS_MAX);
    if (rc == KL_OK)
        rc = check_range("delay_ms", opts.delay_ms, 0, KL_EXEC_WAIT_MS_MAX);
    if (rc == KL_OK)
        rc = check_range("deadline_ms", opts.deadline_ms, 0, KL_EXEC_WAIT_MS_MAX);
    if (rc == KL_OK)
        rc = check_submit_timeout(opts.submit_timeout_ms);
    if (rc == KL_OK)
        *ret_opts = opts;
    return rc;
}

kl_rc kl__exec_check_wait(const char *call, int64_t wait_ms)
{
    if (wait_ms >= 0)
        return KL_OK;
    return kl__fail(KL_EINVAL,
                    "%s: wait_ms is %lld; it must be 0 (do not wait), a number of milliseconds or KL_FOREVER", call,
                    (long long)wait_ms);
}

/* --- The environment --- */

static const char *form_of(enum unit unit)
{
    switch (unit) {
    case COUNT:
        return "a whole number";
    case DURATION:
        return "a duration such as 250ms, 5s or 2m";
    default:
        return "none, forever, or a duration such as 250ms or 5s";
    }
}

static bool parse_number(const char *text, int64_t *ret_value)
{
    if (!isdigit((unsigned char)text[0]))
        return false;
    char *rest;
    errno = 0;
    long long number = strtoll(text, &rest, 10);
    *ret_value = number;
    return !errno && *rest == '\0';
}

/* A number alone is milliseconds. None of them means KL_FOREVER, which is above all. */
static bool parse_value(const char *text, enum unit unit, int64_t *ret_value)
{
    if (unit == WAIT && strcmp(text, "none") == 0) {
        *ret_value = KL_NO_WAIT;
        return true;
    }
    if (unit == WAIT && strcmp(text, "forever") == 0) {
        *ret_value = KL_FOREVER;
        return true;
    }
    bool parsed = parse_number(text, ret_value) || (unit != COUNT && kl__duration_parse(text, ret_value));
    return parsed && *ret_value != KL_FOREVER;
}

static const struct setting *find_setting(const char *variable, size_t length)
{
    for (int i = 0; i < SETTINGS; i++)
        if (strlen(settings[i].variable) == length && memcmp(settings[i].variable, variable, length) == 0)
            return &settings[i];
    return NULL;
}

static kl_rc fail_unknown(const char *variable, size_t length)
{
    char name[QUOTED_BYTES];
    return kl__fail(KL_EINVAL,
                    "%s is not a setting of the executor; there are KEYLINE_EXEC_ SHARDS, THREADS, SHARD_CAPACITY, "
                    "SUBMIT_TIMEOUT, ATTEMPTS_MAX, BACKOFF_BASE and BACKOFF_MAX",
                    kl__text_quote((kl_bytes){variable, length}, name, sizeof name));
}

kl_rc kl_exec_opts_from_env(kl_exec_opts *opts)
{
    static const char prefix[] = "KEYLINE_EXEC_";
    kl_exec_opts filled;
    if (!opts)
        return kl__exec_fail_null("kl_exec_opts_from_env", "opts");
    kl_rc rc = copy_sized("kl_exec_opts", &filled, sizeof filled, opts, opts->size);
    if (rc != KL_OK)
        return rc;
    for (char **entry = environ; entry && *entry; entry++) {
        const char *equals = strchr(*entry, '=');
        if (!equals || strncmp(*entry, prefix, sizeof prefix - 1) != 0)
            continue;
        const char *variable = *entry + sizeof prefix - 1, *text = equals + 1;
        const struct setting *setting = find_setting(variable, (size_t)(equals - variable));
        int64_t value;
        if (!setting)
            return fail_unknown(*entry, (size_t)(equals - *entry));
        char shown[QUOTED_BYTES];
        kl__text_quote(kl_str(text), shown, sizeof shown);
        if (!parse_value(text, setting->unit, &value) || !in_range(setting, value))
            return kl__fail(KL_EINVAL, "%s%s is '%s'; it must be %s, from %lld to %lld%s", prefix, setting->variable,
                            shown, form_of(setting->unit), (long long)setting->min, (long long)setting->max,
                            setting->unit == COUNT ? "" : " ms");
        *value_of(&filled, setting) = value;
    }
    memcpy(opts, &filled, opts->size);
    return KL_OK;
}
