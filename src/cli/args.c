/* args.c - the words of the command line, read by the tables of commands and settings.
 *
 * Rejected: getopt_long. Its complaints name the mistake and not the remedy, and its table knows neither ranges nor
 * help. */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/clock.h"
#include "cli/cli.h"
#include "cli/config.h"

/* The words while they are read. */
struct words {
    int argc;
    char **argv;
    int at;
    const char *command; /* for complaints */
    const kl__option *options;
    void *values;
    kl__call *call; /* NULL: a command that runs alone, with nothing but its options */
    int arguments;  /* read so far */
};

/* ---- Names ---- */

static const char sense_mark[] = "--[no-]";

bool kl__option_is(const kl__option *option, const char *word, int *ret_sense)
{
    size_t length = strcspn(word, "="), mark = sizeof sense_mark - 1;
    *ret_sense = 1;
    if (strncmp(option->name, sense_mark, mark) != 0)
        return strlen(option->name) == length && memcmp(option->name, word, length) == 0;
    const char *bare = option->name + mark;
    const char *said = strncmp(word, "--", 2) == 0 ? word + 2 : word;
    if (strncmp(said, "no-", 3) == 0) {
        *ret_sense = -1;
        said += 3;
    }
    return said != word && strlen(bare) == strcspn(said, "=") && strncmp(bare, said, strlen(bare)) == 0;
}

/* The name as it is said, for suggestions: "--[no-]progress" is --progress. */
static const char *spoken_name(const kl__option *option, char buffer[64])
{
    if (strncmp(option->name, sense_mark, sizeof sense_mark - 1) != 0)
        return option->name;
    snprintf(buffer, 64, "--%s", option->name + sizeof sense_mark - 1);
    return buffer;
}

void kl__options_visit(const kl__command *command, kl__option_fn *visit, void *ctx)
{
    for (const kl__option *option = command->options; option && option->name; option++)
        visit(ctx, option);
    for (int id = 0; id < KL_SETTINGS; id++)
        if (kl__settings[id].group & command->takes)
            visit(ctx, &kl__settings[id].option);
    for (const kl__option *option = kl__common_options; command->takes && option->name; option++)
        visit(ctx, option);
}

bool kl__option_is_common(const char *word, bool *ret_value_follows)
{
    int sense;
    const kl__option *found = NULL;
    for (const kl__option *option = kl__common_options; option->name; option++)
        found = kl__option_is(option, word, &sense) ? option : found;
    for (int id = 0; id < KL_SETTINGS; id++)
        if (kl__settings[id].group & (KL_TAKES_JSON | KL_TAKES_STORE) &&
            kl__option_is(&kl__settings[id].option, word, &sense))
            found = &kl__settings[id].option;
    *ret_value_follows = found && found->value_name && !strchr(word, '=');
    return found != NULL;
}

struct search {
    const char *word;
    char closest[64];
};

/* --concurrency, said where there is --queue-concurrency. */
static bool is_end_of(const char *word, const char *name)
{
    size_t word_length = strlen(word), length = strlen(name);
    return word_length > 4 && length > word_length && name[length - word_length + 1] == '-' &&
           strcmp(name + length - word_length + 2, word + 2) == 0;
}

static void compare(void *ctx, const kl__option *option)
{
    struct search *search = ctx;
    char buffer[64];
    const char *name = spoken_name(option, buffer);
    const char *before = search->closest[0] ? search->closest : NULL;
    if ((!before && is_end_of(search->word, name)) || kl__closer(search->word, before, name) == name)
        snprintf(search->closest, sizeof search->closest, "%s", name);
}

static bool refuse_option(const struct words *words, const char *word)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    struct search search = {.word = name};
    if (words->call)
        kl__options_visit(words->call->command, compare, &search);
    for (const kl__option *option = words->options; !words->call && option && option->name; option++)
        compare(&search, option);
    if (search.closest[0])
        kl__complain("%s has no option '%s'; did you mean %s? `keyline help %s` lists them", words->command, name,
                     search.closest, words->command);
    else
        kl__complain("%s has no option '%s'; `keyline help %s` lists those it has", words->command, name,
                     words->command);
    return false;
}

/* ---- Options ---- */

/* The word's value: behind its `=`, or the next word. NULL: there is none, and it has complained. */
static const char *take_value(struct words *words, const kl__option *option)
{
    const char *word = words->argv[words->at], *equals = strchr(word, '=');
    if (equals)
        return equals + 1;
    if (words->at + 1 < words->argc)
        return words->argv[++words->at];
    int64_t ignored;
    kl__kind kind = kl__kind_of(option);
    if (kind == KL_TEXT || kind == KL_TEXTS || kl__value_parse(option, option->name, "", 0, &ignored))
        kl__complain("%s needs a value: %s %s", option->name, option->name, option->value_name);
    return NULL;
}

static bool add_text(struct words *words, kl__texts *texts, const char *text)
{
    if (!texts->items)
        texts->items = kl_arena_alloc(&words->call->arena, (size_t)words->argc * sizeof *texts->items);
    if (!texts->items)
        return kl__fail_call(kl__fail_memory()) == KL_EXIT_OK;
    texts->items[texts->count++] = text;
    return true;
}

static bool take_flag(const kl__option *option, const char *word, int sense, void *values)
{
    const char *equals = strchr(word, '=');
    if (equals) {
        kl__complain("%s takes no value; leave out '%s'", option->name, equals);
        return false;
    }
    *(int64_t *)(void *)((char *)values + option->offset) = sense;
    return true;
}

static bool take_option(struct words *words, const kl__option *option, int sense, void *values)
{
    void *place = (char *)values + option->offset;
    kl__kind kind = kl__kind_of(option);
    if (kind == KL_FLAG)
        return take_flag(option, words->argv[words->at], sense, values);
    const char *text = take_value(words, option);
    if (!text)
        return false;
    if (kind == KL_TEXTS)
        return add_text(words, place, text);
    if (kind == KL_TEXT && !*text) {
        kl__complain("%s is empty, and so says nothing; give it a value, or leave it out", option->name);
        return false;
    }
    if (kind == KL_TEXT) {
        memcpy(place, &text, sizeof text);
        return true;
    }
    return kl__value_parse(option, option->name, text, kl__wall_ms(), place);
}

/* An option of the command's own; -1: it is none of those. */
static int take_own(struct words *words)
{
    int sense;
    for (const kl__option *option = words->options; option && option->name; option++)
        if (kl__option_is(option, words->argv[words->at], &sense))
            return take_option(words, option, sense, words->values);
    return -1;
}

/* A setting, or an option that all commands take; -1: none of those. */
static int take_setting(struct words *words)
{
    int sense;
    const char *word = words->argv[words->at];
    kl__call *call = words->call;
    if (!call || !call->command->takes)
        return -1;
    for (const kl__option *option = kl__common_options; option->name; option++)
        if (kl__option_is(option, word, &sense))
            return take_option(words, option, sense, call->config);
    for (int id = 0; id < KL_SETTINGS; id++) {
        const kl__option *option = &kl__settings[id].option;
        if (!(kl__settings[id].group & call->command->takes) || !kl__option_is(option, word, &sense))
            continue;
        const char *text = take_value(words, option);
        return text && kl__config_set_flag(call->config, (kl__setting_id)id, option->name, text, &call->arena);
    }
    return -1;
}

static bool take_named(struct words *words)
{
    int taken = take_own(words);
    if (taken < 0)
        taken = take_setting(words);
    return taken < 0 ? refuse_option(words, words->argv[words->at]) : taken;
}

bool kl__options_parse(const kl__option *options, int argc, char **argv, void *values)
{
    struct words words = {.argc = argc, .argv = argv, .command = argv[0], .options = options, .values = values};
    for (words.at = 1; words.at < argc; words.at++) {
        if (argv[words.at][0] != '-') {
            kl__complain("%s does not take '%s'; leave it out, or see `keyline help %s`", argv[0], argv[words.at],
                         argv[0]);
            return false;
        }
        if (!take_named(&words))
            return false;
    }
    return true;
}

/* ---- Arguments ---- */

static bool take_argument(struct words *words, bool behind)
{
    const kl__argument *argument = words->call->command->arguments;
    const char *word = words->argv[words->at];
    for (int i = 0; argument && argument->name && i < words->arguments; i++)
        argument++;
    if (!argument || !argument->name || (argument->need == KL_BEHIND && !behind)) {
        kl__complain("%s does not take '%s'; leave it out, or see `keyline help %s`", words->command, word,
                     words->command);
        return false;
    }
    void *place = (char *)words->values + argument->offset;
    if (argument->need == KL_SEVERAL || argument->need == KL_BEHIND)
        return add_text(words, place, word);
    memcpy(place, &word, sizeof word);
    words->arguments++;
    return true;
}

/* Words behind `--` belong to the argument that asks for them, else they are taken like others. */
static void go_behind(struct words *words)
{
    const kl__argument *argument = words->call->command->arguments;
    for (int i = 0; argument && argument->name; argument++, i++)
        if (argument->need == KL_BEHIND)
            words->arguments = i;
}

/* The call with every word that it needs, up to the one that is missing. */
static bool complain_missing(const struct words *words, const kl__argument *missing)
{
    char call[160] = "";
    for (const kl__argument *argument = words->call->command->arguments; argument <= missing; argument++)
        snprintf(call + strlen(call), sizeof call - strlen(call), " %s", argument->name);
    kl__complain("%s needs %s: `keyline %s%s`; see `keyline help %s`", words->command, missing->help, words->command,
                 call, words->command);
    return false;
}

static bool check_arguments(const struct words *words)
{
    const kl__argument *argument = words->call->command->arguments;
    for (; argument && argument->name; argument++) {
        const void *place = (const char *)words->values + argument->offset;
        bool several = argument->need == KL_SEVERAL || argument->need == KL_BEHIND;
        bool given = several ? ((const kl__texts *)place)->count > 0 : *(const char *const *)place != NULL;
        if (given || argument->need == KL_OPTIONAL || argument->need == KL_BEHIND)
            continue;
        return complain_missing(words, argument);
    }
    return true;
}

bool kl__call_parse(kl__call *call, int argc, char **argv)
{
    struct words words = {.argc = argc,
                          .argv = argv,
                          .command = call->name,
                          .options = call->command->options,
                          .values = call->values,
                          .call = call};
    bool behind = false;
    for (words.at = 1; words.at < argc; words.at++) {
        const char *word = argv[words.at];
        if (!behind && strcmp(word, "--") == 0) {
            behind = true;
            go_behind(&words);
        } else if (behind || word[0] != '-' || !word[1]) {
            if (!take_argument(&words, behind))
                return false;
        } else if (!take_named(&words)) {
            return false;
        }
    }
    return check_arguments(&words);
}
