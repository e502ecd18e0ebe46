/* main.c - the program: a table of commands, and help made from it.
 *
 * To add a command, write its function in a file of its own and add a row below. Exit statuses: 0 it worked, 1 it
 * failed, 2 it was called in a way that it does not understand, 128 + n it was ended by signal n. */
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int help_command(int argc, char **argv);
static int version_command(int argc, char **argv);

static const kl__command commands[] = {
    {"demo", "watch 50 keys at work while one of them keeps failing", kl__demo_command, "", kl__demo_about,
     kl__demo_options},
    {"doctor", "examine the data directory of a store, and repair it", kl__doctor_command, " DIR", kl__doctor_about,
     kl__doctor_options},
    {"help", "list the commands, or explain one", help_command, " [COMMAND]",
     "Lists the commands, or explains the one named.\n", NULL},
    {"version", "print the version", version_command, "", "Prints the program's name and version.\n", NULL},
};

enum { COMMANDS = sizeof commands / sizeof commands[0] };

static bool is_one_of(const char *word, const char *first, const char *second)
{
    return strcmp(word, first) == 0 || strcmp(word, second) == 0;
}

/* NULL: there is none, and it has complained. */
static const kl__command *find_command(const char *name)
{
    const char *closest = NULL;
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
        closest = kl__closer(name, closest, commands[i].name);
    }
    if (closest)
        kl__complain("there is no command '%s'; did you mean `keyline %s`? `keyline help` lists the commands", name,
                     closest);
    else
        kl__complain("there is no command '%s'; `keyline help` lists those there are", name);
    return NULL;
}

static void list_commands(FILE *out)
{
    fputs("Keyline runs tasks in order per key, in parallel across keys.\n\n"
          "usage: keyline COMMAND [OPTION...]\n\n",
          out);
    for (int i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].summary);
    fputs("\n`keyline help COMMAND` explains one. Start with `keyline demo`.\n", out);
}

static void explain(const kl__command *command)
{
    printf("usage: keyline %s%s%s\n\n%s", command->name, command->options ? " [OPTION...]" : "", command->arguments,
           command->about);
    for (const kl__option *option = command->options; option && option->name; option++) {
        char usage[32];
        snprintf(usage, sizeof usage, "%s %s", option->name, option->value_name ? option->value_name : "");
        printf("%s  %-13s %s\n", option == command->options ? "\n" : "", usage, option->help);
    }
}

static int help_command(int argc, char **argv)
{
    if (argc > 2) {
        kl__complain("help explains one command at a time; call `keyline help %s`", argv[1]);
        return KL_EXIT_USAGE;
    }
    if (argc == 1) {
        list_commands(stdout);
        return KL_EXIT_OK;
    }
    const kl__command *command = find_command(argv[1]);
    if (!command)
        return KL_EXIT_USAGE;
    explain(command);
    return KL_EXIT_OK;
}

static int version_command(int argc, char **argv)
{
    if (!kl__options_parse(NULL, argc, argv, NULL))
        return KL_EXIT_USAGE;
    puts("keyline " KEYLINE_VERSION);
    return KL_EXIT_OK;
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        list_commands(stderr);
        return KL_EXIT_USAGE;
    }
    if (is_one_of(argv[1], "--help", "-h"))
        argv[1] = "help";
    else if (is_one_of(argv[1], "--version", "-V"))
        argv[1] = "version";
    const kl__command *command = find_command(argv[1]);
    if (!command)
        return KL_EXIT_USAGE;
    for (int i = 2; i < argc; i++) {
        if (is_one_of(argv[i], "--help", "-h")) {
            explain(command);
            return KL_EXIT_OK;
        }
    }
    return command->run(argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    int status = run(argc, argv);
    /* What could not be written was not said: a full disk must not look like success. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == KL_EXIT_OK) {
        kl__complain("the output could not be written (%s); make room or write elsewhere", strerror(errno));
        return KL_EXIT_FAILURE;
    }
    return status;
}
