/* commands.c - the table of commands, and those that are about the program itself.
 *
 * To add a command, write it in a file of its own as a kl__command and add it to the list at the end. */
#include <string.h>

#include "cli/cli.h"

/* ---- help ---- */

static const kl__argument help_arguments[] = {
    {"COMMAND", 0, KL_OPTIONAL, "the command to explain"},
    {NULL, 0, 0, NULL},
};

static int explain(int argc, char **argv, kl_arena *arena)
{
    int taken;
    const char *name;
    const kl__command *command = kl__command_find(argc, argv, &taken, arena, &name);
    if (!command)
        return KL_EXIT_USAGE;
    if (taken < argc) {
        kl__complain("help explains one command at a time; call `keyline help %s`", name);
        return KL_EXIT_USAGE;
    }
    kl__help_explain(command, name);
    return KL_EXIT_OK;
}

static int run_help(int argc, char **argv)
{
    kl_arena arena = {0};
    int status = KL_EXIT_OK;
    if (argc == 2 && strcmp(argv[1], "--man") == 0)
        kl__help_manual();
    else if (argc == 1)
        kl__help_list(stdout);
    else if (argv[1][0] == '-')
        status = kl__options_parse(NULL, argc, argv, NULL) ? KL_EXIT_OK : KL_EXIT_USAGE;
    else
        status = explain(argc - 1, argv + 1, &arena);
    kl_arena_free(&arena);
    return status;
}

static const kl__command help_command = {
    .name = "help",
    .summary = "list the commands, or explain one",
    .about = "Lists the commands, or explains the one named: `keyline help push`, `keyline help queue create`.\n",
    .arguments = help_arguments,
    .run_alone = run_help,
};

/* ---- version ---- */

static int run_version(int argc, char **argv)
{
    bool as_json = argc == 2 && strcmp(argv[1], "--json") == 0;
    if (!as_json && !kl__options_parse(NULL, argc, argv, NULL))
        return KL_EXIT_USAGE;
    puts(as_json ? "{\"version\": \"" KEYLINE_VERSION "\"}" : "keyline " KEYLINE_VERSION);
    return KL_EXIT_OK;
}

static const kl__command version_command = {
    .name = "version",
    .summary = "print the version",
    .about = "Prints the program's name and version.\n",
    .run_alone = run_version,
};

/* ---- demo ---- */

static const kl__command demo_command = {
    .name = "demo",
    .summary = "watch 50 keys at work while one of them keeps failing",
    .about = kl__demo_about,
    .options = kl__demo_options,
    .run_alone = kl__demo_command,
};

const kl__command *const kl__commands[] = {
    /* tasks and queues */
    &kl__push_command,
    &kl__work_command,
    &kl__serve_command,
    &kl__token_command,
    &kl__ls_command,
    &kl__show_command,
    &kl__retry_command,
    &kl__cancel_command,
    &kl__move_command,
    &kl__purge_command,
    &kl__queue_command,
    &kl__key_command,
    &kl__dead_command,
    &kl__job_command,
    &kl__cron_command,
    &kl__top_command,
    /* the program */
    &demo_command,
    &kl__bench_command,
    &kl__doctor_command,
    &kl__migrate_command,
    &kl__config_command,
    &kl__completion_command,
    &help_command,
    &version_command,
    NULL,
};
