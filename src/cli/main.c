/* main.c - the program: finds the command, reads its words and its settings, runs it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "cli/cli.h"
#include "cli/config.h"

/* The first word from `at` on that is no option which all commands take, nor the value of one; argc when there is none.
 */
static int pass_common(int argc, char **argv, int at)
{
    bool value_follows;
    while (at < argc && argv[at][0] == '-' && kl__option_is_common(argv[at], &value_follows))
        at += value_follows ? 2 : 1;
    return at < argc ? at : argc;
}

static bool is_asking(const char *word)
{
    return kl__is_one_of(word, "--help", "-h") || kl__is_one_of(word, "--version", "-V");
}

/* Options that all commands take may stand in front of the command; they are moved behind it. False: something else
 * stands there, and it has complained. *ret_at: where the command is, argc when there is none. */
static bool find_word(int argc, char **argv, int *ret_at)
{
    int at = pass_common(argc, argv, 1);
    if (at < argc && argv[at][0] == '-' && !is_asking(argv[at])) {
        kl__complain("'%s' is no command, nor an option that all commands take; `keyline help` lists the commands",
                     argv[at]);
        return false;
    }
    *ret_at = at;
    return true;
}

/* The words with the command first, and behind it what it is told to do (`queue ls`), then the options that stood in
 * front; commands that read their words themselves and take no settings do not get those. NULL: out of memory. */
static char **put_first(int argc, char **argv, int at, kl_arena *arena, int *ret_count)
{
    const kl__command *command = kl__command_named(argv[at]);
    int second = command && command->subs ? pass_common(argc, argv, at + 1) : argc, to = 0;
    char **words = kl_arena_alloc(arena, (size_t)(argc + 1) * sizeof *words);
    if (!words)
        return NULL;
    words[to++] = argv[at];
    if (second < argc && argv[second][0] != '-')
        words[to++] = argv[second];
    else
        second = argc;
    for (int from = command && command->run_alone ? at : 1; from < argc; from++)
        if (from != at && from != second)
            words[to++] = argv[from];
    words[to] = NULL;
    *ret_count = to;
    return words;
}

/* Whether a word stands in front of `--`. */
static bool is_said(int argc, char **argv, const char *word, const char *other)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (kl__is_one_of(argv[i], word, other))
            return true;
    return false;
}

static int run_call(kl__call *call, int argc, char **argv)
{
    kl__config *config = kl_arena_alloc(&call->arena, sizeof *config);
    call->values = kl_arena_alloc(&call->arena, call->command->values_size + 1);
    if (!config || !call->values)
        return kl__fail_call(kl__fail_memory());
    *config = (kl__config){0};
    memset(call->values, 0, call->command->values_size + 1);
    call->config = config;
    if (!kl__call_parse(call, argc, argv))
        return KL_EXIT_USAGE;
    if (call->command->takes && !kl__config_complete(config, environ, &call->arena))
        return KL_EXIT_USAGE;
    return call->command->run(call);
}

/* words[0] is the command. */
static int run_command(int argc, char **words, kl_arena *arena)
{
    int taken;
    kl__call call = {0};
    call.command = kl__command_find(argc, words, &taken, arena, &call.name);
    if (!call.command)
        return KL_EXIT_USAGE;
    if (is_said(argc, words, "--help", "-h")) {
        kl__help_explain(call.command, call.name);
        return KL_EXIT_OK;
    }
    if (call.command->subs) {
        kl__help_need_sub(call.command);
        return KL_EXIT_USAGE;
    }
    if (call.command->run_alone)
        return call.command->run_alone(argc - taken + 1, words + taken - 1);
    int status = run_call(&call, argc - taken + 1, words + taken - 1);
    kl__call_close(&call);
    kl_arena_free(&call.arena);
    return status;
}

static int run(int argc, char **argv, kl_arena *arena)
{
    int at, count;
    kl__complain_in_json(is_said(argc, argv, "--json", "--json"));
    if (!find_word(argc, argv, &at))
        return KL_EXIT_USAGE;
    if (at == argc) {
        kl__help_list(stderr);
        return KL_EXIT_USAGE;
    }
    if (is_asking(argv[at]))
        argv[at] = kl__is_one_of(argv[at], "--help", "-h") ? "help" : "version";
    char **words = put_first(argc, argv, at, arena, &count);
    return words ? run_command(count, words, arena) : kl__fail_call(kl__fail_memory());
}

/* A descriptor that is closed would be the next file's, and a store's file be read as input or written as output. What
 * stands there instead can be neither. */
static void hold_descriptors(void)
{
    for (int i = STDIN_FILENO; i <= STDERR_FILENO; i++)
        if (fcntl(i, F_GETFD) < 0 && open("/dev/null", i == STDIN_FILENO ? O_WRONLY : O_RDONLY) != i)
            return; /* which the first use of it tells */
}

int main(int argc, char **argv)
{
    kl_arena arena = {0};
    hold_descriptors();
    int status = run(argc, argv, &arena);
    kl_arena_free(&arena);
    /* What could not be written was not said: a full disk must not look like success. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == KL_EXIT_OK)
        return kl__fail_call(kl__fail(KL_ESYSTEM, "the output could not be written (%s); make room or write elsewhere",
                                      strerror(errno)));
    return status;
}
