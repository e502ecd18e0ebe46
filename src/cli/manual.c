/* manual.c - the commands' section of the manual page, made from the table.
 *
 * `keyline help --man` prints it, and tests/check-config compares it with what stands in man/keyline.1. */
#include <ctype.h>
#include <string.h>

#include "cli/cli.h"

/* A line of text in which mdoc sees no request and no escape. In prose, each sentence begins a line. */
static void print_text(const char *line, size_t length, bool prose)
{
    bool starts = true;
    for (size_t i = 0; i < length; i++) {
        if (starts && (line[i] == '.' || line[i] == '\''))
            fputs("\\&", stdout);
        starts = false;
        if (line[i] == '\\') {
            fputs("\\e", stdout);
        } else if (prose && i > 0 && line[i] == ' ' && strchr(".?!", line[i - 1])) {
            putchar('\n');
            starts = true;
        } else {
            putchar(line[i]);
        }
    }
    putchar('\n');
}

/* Paragraphs are told apart by empty lines; indented lines are shown as they are. */
static void print_about(const char *about)
{
    bool literal = false, gap = false;
    while (*about) {
        size_t length = strcspn(about, "\n");
        bool indented = length && about[0] == ' ';
        if (indented && !literal)
            puts(".Bd -literal -offset indent");
        if (length && !indented && literal)
            puts(".Ed");
        if (length && !indented && (gap || literal))
            puts(".Pp");
        if (length)
            print_text(about + (indented ? 2 : 0), length - (indented ? 2 : 0), !indented);
        literal = length ? indented : literal;
        gap = length == 0 && !literal;
        about += length + (about[length] == '\n');
    }
    if (literal)
        puts(".Ed");
}

static void print_sentence(const char *clause)
{
    char first = (char)toupper((unsigned char)clause[0]);
    putchar(first);
    fputs(clause + 1, stdout);
    puts(".");
}

static void print_header(const kl__command *command, const char *name)
{
    printf(".It Cm %s", name);
    for (const kl__argument *argument = command->arguments; argument && argument->name; argument++) {
        switch (argument->need) {
        case KL_NEEDED:
            printf(" Ar %s", argument->name);
            break;
        case KL_OPTIONAL:
            printf(" Op Ar %s", argument->name);
            break;
        case KL_SEVERAL:
            printf(" Ar %s ...", argument->name);
            break;
        case KL_BEHIND:
            printf(" Fl - Ar %s ...", argument->name);
            break;
        }
    }
    putchar('\n');
}

static void print_options(const kl__command *command)
{
    bool begun = false;
    for (const kl__option *option = command->options; option && option->name; option++) {
        if (!option->help)
            continue;
        if (!begun)
            puts(".Bl -tag -width Ds");
        begun = true;
        printf(".It Fl %s", option->name + 1);
        if (option->value_name)
            printf(" Ar %s", option->value_name);
        putchar('\n');
        print_sentence(option->help);
    }
    if (begun)
        puts(".El");
}

static void print_command(const kl__command *command, const char *name)
{
    print_header(command, name);
    print_about(command->about);
    print_options(command);
    if (command->takes & KL_TAKES_QUEUE)
        puts("The settings of queues may be given as options too.");
    if (command->takes & KL_TAKES_WORK)
        puts("The settings of workers may be given as options too.");
    if (command->takes & KL_TAKES_SERVE)
        puts("The settings of servers may be given as options too.");
}

void kl__help_manual(void)
{
    char name[128];
    puts(".Bl -tag -width Ds");
    for (const kl__command *const *command = kl__commands; *command; command++) {
        if (!(*command)->subs)
            print_command(*command, (*command)->name);
        for (const kl__command *const *sub = (*command)->subs; sub && *sub; sub++) {
            snprintf(name, sizeof name, "%s %s", (*command)->name, (*sub)->name);
            print_command(*sub, name);
        }
    }
    puts(".El");
}
