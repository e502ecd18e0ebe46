/* config.c - finds out which settings are in force, and where each of them was stated.
 *
 * From: args.c (options), the environment, toml.c (keyline.toml).  To: the commands, settings_show.c.
 *
 * Nothing is passed over in silence: an unknown key of the file or an unknown KEYLINE_ variable is a mistake of
 * somebody who believes to have set something. */
#include "cli/config.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "cli/toml.h"
#include "queue/inside.h"

static const char standard_file[] = "keyline.toml";

const char *kl__format(kl_arena *arena, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    char *text = length < 0 ? NULL : kl_arena_alloc(arena, (size_t)length + 1);
    if (text)
        vsnprintf(text, (size_t)length + 1, format, again);
    else
        kl__complain("out of memory; end other programs and call again");
    va_end(again);
    return text;
}

const char *kl__shown_url(const char *url, kl_arena *arena)
{
    const char *host = strstr(url, "://"), *at = host ? strchr(host, '@') : NULL;
    if (strncmp(url, "disk:", 5) == 0)
        return url;
    const char *colon = at ? memchr(host + 3, ':', (size_t)(at - host - 3)) : NULL;
    const char *rest = colon ? at : url;
    int length = (int)strcspn(rest, "?");
    return kl__format(arena, "%.*s%s%.*s%s", colon ? (int)(colon - url) : 0, url, colon ? ":..." : "", length, rest,
                      rest[length] ? "?..." : "");
}

/* ---- One value ---- */

static bool takes_none(const kl__option *option)
{
    const char *bar = option->value_name ? strrchr(option->value_name, '|') : NULL;
    return bar && strcmp(bar, "|none") == 0;
}

/* False: it has complained about what `said` names. */
static bool set_value(kl__value *value, kl__setting_id id, const char *said, const char *text, const char *origin)
{
    const kl__setting *setting = &kl__settings[id];
    int64_t number = 0;
    if (takes_none(&setting->option) && strcmp(text, "none") == 0)
        number = setting->none;
    else if (*text && !kl__value_parse(&setting->option, said, text, kl__wall_ms(), &number))
        return false;
    if (!*text && setting->standard[0]) {
        kl__complain("%s is empty; give it a value such as %s, or leave it out", said, setting->standard);
        return false;
    }
    *value = (kl__value){.text = text, .number = number, .origin = origin, .stated = true};
    return true;
}

bool kl__config_set_flag(kl__config *config, kl__setting_id id, const char *said, const char *text, kl_arena *arena)
{
    const char *origin = kl__format(arena, "flag %s", kl__settings[id].option.name);
    config->beyond_file[id] = true;
    return origin && set_value(&config->values[id], id, said, text, origin);
}

/* ---- The environment ---- */

static bool is_exempt(const char *name)
{
    for (const kl__variable *variable = kl__variables; variable->name; variable++) {
        size_t length = strlen(variable->name);
        if (variable->name[length - 1] == '*' ? strncmp(variable->name, name, length - 1) == 0
                                              : strcmp(variable->name, name) == 0)
            return true;
    }
    return false;
}

static bool refuse_variable(const char *name)
{
    const char *closest = kl__closer(name, NULL, "KEYLINE_CONFIG");
    for (int id = 0; id < KL_SETTINGS; id++)
        closest = kl__closer(name, closest, kl__settings[id].variable);
    if (closest)
        kl__complain("the environment has %s, which is no setting; did you mean %s? Else unset it", name, closest);
    else
        kl__complain(
            "the environment has %s, which is no setting; unset it. `keyline help config` names those there are", name);
    return false;
}

static bool take_variable(kl__config *config, const char *name, const char *text)
{
    for (int id = 0; id < KL_SETTINGS; id++) {
        if (strcmp(kl__settings[id].variable, name) != 0)
            continue;
        if (config->beyond_file[id])
            return true;
        config->beyond_file[id] = true;
        return set_value(&config->values[id], (kl__setting_id)id, name, text, kl__settings[id].variable);
    }
    return is_exempt(name) || refuse_variable(name);
}

static bool take_environment(kl__config *config, char *const *environment, kl_arena *arena)
{
    for (; environment && *environment; environment++) {
        const char *equals = strchr(*environment, '=');
        if (!equals || strncmp(*environment, "KEYLINE_", 8) != 0)
            continue;
        const char *name = kl__format(arena, "%.*s", (int)(equals - *environment), *environment);
        if (!name || !take_variable(config, name, equals + 1))
            return false;
    }
    return true;
}

/* ---- keyline.toml ---- */

struct file {
    const char *name; /* as it is told: without its directories when it was not named by anybody */
    kl__config *config;
    kl_arena *arena;
};

static const char *whole_key(const kl__toml_item *item, kl_arena *arena)
{
    const char *key = item->path[0];
    for (int i = 1; key && i < item->depth; i++)
        key = kl__format(arena, "%s.%s", key, item->path[i]);
    return key;
}

static bool refuse_key(const struct file *file, const kl__toml_item *item, const char *key, const char *prefix)
{
    const char *closest = NULL;
    for (int id = 0; id < KL_SETTINGS; id++)
        closest = kl__closer(key, closest, kl__settings[id].name);
    const char *shown = closest && *prefix ? closest + strlen("queue.") : closest;
    if (closest && (!*prefix || strncmp(closest, "queue.", 6) == 0))
        kl__complain("%s:%d:%d: there is no setting %s; did you mean %s%s?", file->name, item->line, item->column,
                     whole_key(item, file->arena), prefix, shown);
    else
        kl__complain("%s:%d:%d: there is no setting %s; `keyline config` lists those there are", file->name, item->line,
                     item->column, whole_key(item, file->arena));
    return false;
}

/* What the value would be as a word, or NULL: it has complained. */
static const char *text_of(const struct file *file, const kl__toml_item *item, const kl__setting *setting)
{
    kl__kind kind = kl__kind_of(&setting->option);
    bool is_shards = setting == &kl__settings[KL_SET_WORKER_SHARDS];
    if (item->kind == KL_TOML_NUMBER && kind == KL_NUMBER)
        return kl__format(file->arena, "%" PRId64, item->number);
    if (item->kind == KL_TOML_STRING && (kind != KL_NUMBER || strcmp(item->string, "none") == 0))
        return item->string;
    if (item->kind == KL_TOML_LIST && is_shards && item->count > 0) {
        const char *text = item->list[0];
        for (size_t i = 1; text && i < item->count; i++)
            text = kl__format(file->arena, "%s,%s", text, item->list[i]);
        return text;
    }
    const char *form = is_shards            ? "a string, or an array of strings that is not empty"
                       : kind != KL_NUMBER  ? "a string in quotes"
                       : setting->none != 0 ? "a whole number without quotes, or \"none\""
                                            : "a whole number without quotes";
    kl__complain("%s:%d:%d: %s is %s; for example %s", file->name, item->line, item->value_column, setting->name, form,
                 kind == KL_NUMBER     ? "8"
                 : kind == KL_DURATION ? "\"5s\""
                                       : "\"...\"");
    return NULL;
}

/* Sets a value of the file; `queue` is whose table it stands in, or NULL. */
static bool take_setting(const struct file *file, const kl__toml_item *item, kl__setting_id id, const char *queue)
{
    const char *text = text_of(file, item, &kl__settings[id]);
    const char *said =
        kl__format(file->arena, "%s:%d:%d: %s", file->name, item->line, item->value_column, kl__settings[id].name);
    const char *origin = kl__format(file->arena, "%s:%d", file->name, item->line);
    kl__value value;
    if (!text || !said || !origin || !set_value(&value, id, said, text, origin))
        return false;
    if (!queue) {
        if (!file->config->beyond_file[id])
            file->config->values[id] = value;
        return true;
    }
    kl__queue_value *entry = kl_arena_alloc(file->arena, sizeof *entry);
    if (!entry)
        return kl__fail_call(kl__fail_memory()) == KL_EXIT_OK;
    *entry = (kl__queue_value){.next = file->config->queues, .queue = queue, .id = id, .value = value};
    file->config->queues = entry;
    return true;
}

static bool check_queue(const struct file *file, const kl__toml_item *item)
{
    if (kl__queue_check_name(item->path[1]) == KL_OK)
        return true;
    kl__complain("%s:%d:%d: %s", file->name, item->line, item->column, kl_error_text());
    return false;
}

static bool take_item(const struct file *file, const kl__toml_item *item)
{
    bool of_queue = item->depth == 3 && strcmp(item->path[0], "queues") == 0;
    if (of_queue && !check_queue(file, item))
        return false;
    const char *key = of_queue ? kl__format(file->arena, "queue.%s", item->path[2]) : whole_key(item, file->arena);
    if (!key)
        return false;
    for (int id = 0; id < KL_SETTINGS; id++)
        if (strcmp(kl__settings[id].name, key) == 0)
            return take_setting(file, item, (kl__setting_id)id, of_queue ? item->path[1] : NULL);
    const char *prefix = of_queue ? kl__format(file->arena, "queues.%s.", item->path[1]) : "";
    return prefix && refuse_key(file, item, key, prefix);
}

/* Reads up to KL_TOML_BYTES_MAX + 1 bytes of the file; more is for the parser to refuse. -1: errno says why. */
static ssize_t read_all(int descriptor, char *buffer)
{
    size_t length = 0;
    while (length <= KL_TOML_BYTES_MAX) {
        ssize_t got = read(descriptor, buffer + length, KL_TOML_BYTES_MAX + 1 - length);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        length += (size_t)got;
    }
    return (ssize_t)length;
}

static bool take_text(const struct file *file, kl_bytes text)
{
    kl__toml_item *items;
    kl_rc rc = kl__toml_parse(text, file->name, file->arena, &items);
    if (rc != KL_OK)
        return kl__fail_given(rc) == KL_EXIT_OK;
    for (; items; items = items->next)
        if (!take_item(file, items))
            return false;
    return true;
}

/* named: somebody asked for this file, so it must be there. */
static bool take_file(const struct file *file, bool named)
{
    int descriptor = open(file->name, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0 && errno == ENOENT && !named)
        return true;
    char *buffer = descriptor < 0 ? NULL : kl_arena_alloc(file->arena, KL_TOML_BYTES_MAX + 1);
    ssize_t length = buffer ? read_all(descriptor, buffer) : -1;
    int error = errno;
    if (descriptor >= 0)
        close(descriptor);
    if (length < 0) {
        kl__complain("the settings in %s cannot be read (%s); name another file with --config, or mend it", file->name,
                     descriptor >= 0 && !buffer ? "out of memory" : strerror(error));
        return false;
    }
    return take_text(file, (kl_bytes){buffer, (size_t)length});
}

static const char *variable_of(char *const *environment, const char *name)
{
    size_t length = strlen(name);
    for (; environment && *environment; environment++)
        if (strncmp(*environment, name, length) == 0 && (*environment)[length] == '=')
            return *environment + length + 1;
    return NULL;
}

/* ---- All of it ---- */

/* `disk:` alone is the usual directory, and from here on has its name. */
static void name_store(kl__config *config)
{
    kl__value *store = &config->values[KL_SET_STORE];
    if (strcmp(store->text, "disk:") == 0)
        store->text = kl__settings[KL_SET_STORE].standard;
}

/* Settings that exclude one another. */
static bool check_together(const kl__config *config)
{
    static const kl__setting_id ways[] = {KL_SET_WORKER_SHARDS, KL_SET_WORKER_SHARD_RANGE, KL_SET_WORKER_SLICE};
    const kl__value *first = NULL;
    const char *name = NULL;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        const kl__value *value = &config->values[ways[i]];
        if (!value->stated || !*value->text)
            continue;
        if (first) {
            kl__complain("%s (%s) and %s (%s) both say which shards to take; keep one of the two", name, first->origin,
                         kl__settings[ways[i]].name, value->origin);
            return false;
        }
        first = value;
        name = kl__settings[ways[i]].name;
    }
    return true;
}

bool kl__config_complete(kl__config *config, char *const *environment, kl_arena *arena)
{
    const char *from_environment = variable_of(environment, "KEYLINE_CONFIG");
    const char *named = config->file ? config->file : from_environment;
    struct file file = {named ? named : standard_file, config, arena};
    if (!take_environment(config, environment, arena))
        return false;
    if ((!named || *named) && !take_file(&file, named != NULL))
        return false;
    for (int id = 0; id < KL_SETTINGS; id++) {
        const kl__setting *setting = &kl__settings[id];
        if (config->values[id].stated)
            continue;
        if (!set_value(&config->values[id], (kl__setting_id)id, setting->name, setting->standard, "default"))
            return false;
        config->values[id].stated = false;
    }
    name_store(config);
    return check_together(config);
}

kl__value kl__config_value(const kl__config *config, kl__setting_id id, const char *queue)
{
    const kl__queue_value *entry = queue && !config->beyond_file[id] ? config->queues : NULL;
    for (; entry; entry = entry->next)
        if (entry->id == id && strcmp(entry->queue, queue) == 0)
            return entry->value;
    return config->values[id];
}

static kl_rc add_origin(kl_queue_opts *opts, const char *origin, kl_arena *arena)
{
    if (strncmp(origin, "flag ", 5) == 0)
        origin += 5;
    if (!opts->origin) {
        opts->origin = origin;
        return KL_OK;
    }
    if (strcmp(opts->origin, origin) == 0)
        return KL_OK;
    opts->origin = kl__format(arena, "%s and %s", opts->origin, origin);
    return opts->origin ? KL_OK : kl__fail_memory();
}

kl_rc kl__config_queue_opts(const kl__config *config, const char *queue, bool flags_only, kl_arena *arena,
                            kl_queue_opts *ret_opts)
{
    kl_queue_opts opts = {.size = sizeof opts};
    for (int id = KL_SET_PARTITIONS; id <= KL_SET_QUEUE_CONCURRENCY; id++) {
        kl__value value = kl__config_value(config, (kl__setting_id)id, queue);
        bool is_flag = strncmp(value.origin, "flag ", 5) == 0;
        if (!value.stated || !*value.text || (flags_only && !is_flag))
            continue;
        char *field = (char *)&opts + kl__settings[id].option.offset;
        if (id == KL_SET_HEAD_POLICY)
            *(kl_head_policy *)(void *)field = (kl_head_policy)value.number;
        else
            *(int64_t *)(void *)field = value.number;
        bool is_layout = id == KL_SET_PARTITIONS || id == KL_SET_SHARD_PREFIX_LEN;
        kl_rc rc = is_layout ? add_origin(&opts, value.origin, arena) : KL_OK;
        if (rc != KL_OK)
            return rc;
    }
    *ret_opts = opts;
    return KL_OK;
}

bool kl__config_colour(const kl__config *config)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    int64_t choice = config ? config->values[KL_SET_COLOR].number : 1;
    if (choice != 1)
        return choice == 2;
    return isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb") != 0 && (!no_color || !*no_color);
}
