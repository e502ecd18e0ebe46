/* help.c - finds commands by their words, lists them, and explains one; all from the table. */
#include <string.h>

#include "cli/cli.h"
#include "cli/config.h"

/* ---- Finding ---- */

static const kl__command *find_in(const kl__command *const *commands, const char *name)
{
    for (; *commands; commands++)
        if (strcmp((*commands)->name, name) == 0)
            return *commands;
    return NULL;
}

static const char *closest_in(const kl__command *const *commands, const char *name)
{
    const char *closest = NULL;
    for (; *commands; commands++)
        closest = kl__closer(name, closest, (*commands)->name);
    return closest;
}

static void complain_unknown(const char *name)
{
    const char *closest = closest_in(kl__commands, name);
    if (closest)
        kl__complain("there is no command '%s'; did you mean `keyline %s`? `keyline help` lists the commands", name,
                     closest);
    else
        kl__complain("there is no command '%s'; `keyline help` lists those there are", name);
}

static void complain_unknown_sub(const kl__command *command, const char *name)
{
    const char *closest = name ? closest_in(command->subs, name) : NULL;
    if (!name)
        kl__complain("%s needs to be told what to do; `keyline help %s` lists what there is", command->name,
                     command->name);
    else if (closest)
        kl__complain("%s cannot '%s'; did you mean `keyline %s %s`? `keyline help %s` lists what it can", command->name,
                     name, command->name, closest, command->name);
    else
        kl__complain("%s cannot '%s'; `keyline help %s` lists what it can", command->name, name, command->name);
}

const kl__command *kl__command_named(const char *name) { return find_in(kl__commands, name); }

const kl__command *kl__command_find(int argc, char **argv, int *ret_taken, kl_arena *arena, const char **ret_name)
{
    const kl__command *command = kl__command_named(argv[0]);
    if (!command) {
        complain_unknown(argv[0]);
        return NULL;
    }
    *ret_taken = 1;
    *ret_name = command->name;
    if (!command->subs || argc < 2)
        return command;
    const kl__command *sub = find_in(command->subs, argv[1]);
    if (!sub && argv[1][0] == '-')
        return command;
    if (!sub) {
        complain_unknown_sub(command, argv[1]);
        return NULL;
    }
    *ret_taken = 2;
    *ret_name = kl__format(arena, "%s %s", command->name, sub->name);
    return *ret_name ? sub : NULL;
}

void kl__help_need_sub(const kl__command *command) { complain_unknown_sub(command, NULL); }

/* ---- Listing ---- */

void kl__help_list(FILE *out)
{
    fputs("Keyline runs tasks in order per key, in parallel across keys.\n\n"
          "usage: keyline COMMAND [OPTION...]\n\n",
          out);
    for (const kl__command *const *command = kl__commands; *command; command++)
        fprintf(out, "  %-11s %s\n", (*command)->name, (*command)->summary);
    fputs("\n`keyline help COMMAND` explains one. Start with `keyline demo`.\n", out);
}

static bool has_options(const kl__command *command)
{
    return command->takes || (command->options && command->options->name);
}

void kl__help_usage(FILE *out, const kl__command *command, const char *name)
{
    fprintf(out, "keyline %s%s", name, command->subs ? " COMMAND" : "");
    if (has_options(command))
        fputs(" [OPTION...]", out);
    for (const kl__argument *argument = command->arguments; argument && argument->name; argument++) {
        switch (argument->need) {
        case KL_NEEDED:
            fprintf(out, " %s", argument->name);
            break;
        case KL_OPTIONAL:
            fprintf(out, " [%s]", argument->name);
            break;
        case KL_SEVERAL:
            fprintf(out, " %s...", argument->name);
            break;
        case KL_BEHIND:
            fprintf(out, " [-- %s...]", argument->name);
            break;
        }
    }
}

/* ---- Explaining ---- */

enum { INDENT = 26, WIDTH = 90 };

/* A clause, broken into lines behind the column of names. */
static void print_clause(const char *clause)
{
    int column = INDENT;
    while (*clause) {
        int length = (int)strcspn(clause, " ");
        if (column > INDENT && column + 1 + length > WIDTH) {
            printf("\n%*s", INDENT, "");
            column = INDENT;
        } else if (column > INDENT) {
            putchar(' ');
            column++;
        }
        printf("%.*s", length, clause);
        column += length;
        clause += length;
        clause += strspn(clause, " ");
    }
    putchar('\n');
}

static void print_option(void *ctx, const kl__option *option)
{
    bool *first = ctx;
    char usage[96];
    if (!option->help)
        return;
    if (*first)
        putchar('\n');
    *first = false;
    snprintf(usage, sizeof usage, "%s%s%s", option->name, option->value_name ? " " : "",
             option->value_name ? option->value_name : "");
    printf("  %-*s", INDENT - 2, usage);
    if (strlen(usage) > INDENT - 3)
        printf("\n%*s", INDENT, "");
    print_clause(option->help);
}

static void explain_subs(const kl__command *command)
{
    putchar('\n');
    for (const kl__command *const *sub = command->subs; *sub; sub++)
        printf("  %-11s %s\n", (*sub)->name, (*sub)->summary);
    printf("\n`keyline help %s COMMAND` explains one.\n", command->name);
}

static void explain_arguments(const kl__command *command)
{
    const kl__argument *argument = command->arguments;
    for (bool first = true; argument && argument->name; argument++, first = false) {
        printf("%s  %-*s", first ? "\n" : "", INDENT - 2, argument->name);
        print_clause(argument->help);
    }
}

void kl__help_explain(const kl__command *command, const char *name)
{
    bool first = true;
    fputs("usage: ", stdout);
    kl__help_usage(stdout, command, name);
    printf("\n\n%s", command->about);
    if (command->subs) {
        explain_subs(command);
        return;
    }
    explain_arguments(command);
    kl__options_visit(command, print_option, &first);
}
