/* main.c - the program: finds the command, reads its words and its settings, runs it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "cli/cli.h"
#include "cli/config.h"

/* Options that all commands take may stand in front of the command; they are moved behind it. False: something else
 * stands there, and it has complained. *ret_at: where the command is, argc when there is none. */
static bool find_word(int argc, char **argv, int *ret_at)
{
    int at = 1;
    while (at < argc && argv[at][0] == '-') {
        bool value_follows;
        if (kl__is_one_of(argv[at], "--help", "-h") || kl__is_one_of(argv[at], "--version", "-V"))
            break;
        if (!kl__option_is_common(argv[at], &value_follows)) {
            kl__complain("'%s' is no command, nor an option that all commands take; `keyline help` lists the commands",
                         argv[at]);
            return false;
        }
        at += value_follows ? 2 : 1;
    }
    *ret_at = at < argc ? at : argc;
    return true;
}

static char **put_first(int argc, char **argv, int at, kl_arena *arena)
{
    char **words = kl_arena_alloc(arena, (size_t)(argc + 1) * sizeof *words);
    if (!words)
        return NULL;
    words[0] = argv[0];
    words[1] = argv[at];
    for (int from = 1, to = 2; from < argc; from++)
        if (from != at)
            words[to++] = argv[from];
    words[argc] = NULL;
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
    int at;
    kl__complain_in_json(is_said(argc, argv, "--json", "--json"));
    if (!find_word(argc, argv, &at))
        return KL_EXIT_USAGE;
    if (at == argc) {
        kl__help_list(stderr);
        return KL_EXIT_USAGE;
    }
    char **words = put_first(argc, argv, at, arena);
    if (!words)
        return kl__fail_call(kl__fail_memory());
    if (kl__is_one_of(words[1], "--help", "-h"))
        words[1] = "help";
    else if (kl__is_one_of(words[1], "--version", "-V"))
        words[1] = "version";
    return run_command(argc - 1, words + 1, arena);
}

int main(int argc, char **argv)
{
    kl_arena arena = {0};
    int status = run(argc, argv, &arena);
    kl_arena_free(&arena);
    /* What could not be written was not said: a full disk must not look like success. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == KL_EXIT_OK) {
        kl__complain("the output could not be written (%s); make room or write elsewhere", strerror(errno));
        return KL_EXIT_FAILURE;
    }
    return status;
}
