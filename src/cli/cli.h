/* cli.h - what the commands share: exit statuses, options from a table, and sentences about mistakes.
 *
 * A command is a row of the table in main.c. Its options are a table too, and that table makes both the parsing and the
 * help, so neither can forget one. */
#ifndef KL_CLI_H
#define KL_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "keyline/error.h"

enum { KL_EXIT_OK = 0, KL_EXIT_FAILURE = 1, KL_EXIT_USAGE = 2, KL_EXIT_SIGNAL = 128 };

/* Every value is an int64_t at `offset` in the command's struct; an option without value_name is a flag and sets 1. */
typedef struct kl__option {
    const char *name; /* with its dashes; NULL ends a table */
    const char *value_name;
    const char *help;
    size_t offset;
    int64_t min, max;
} kl__option;

typedef struct kl__command {
    const char *name;
    const char *summary;               /* one line, for the list */
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns the exit status */
    const char *arguments;             /* what may stand after the options, for the usage line */
    const char *about;                 /* a paragraph for the command's own help */
    const kl__option *options;         /* NULL: none */
} kl__command;

/* `keyline: ` and the sentence, on standard error. */
void kl__complain(const char *format, ...) KL_PRINTF(1, 2);

/* Of two names the one more like `word`, where NULL and everything too far away to be a slip count as unlike. Fold a
 * list with it to find a suggestion. */
const char *kl__closer(const char *word, const char *best, const char *candidate);

/* Fills `values` from `--name value`, `--name=value` and flags. False: it has complained, and the caller should exit
 * with KL_EXIT_USAGE. Nothing but options is accepted. */
bool kl__options_parse(const kl__option *options, int argc, char **argv, void *values);

/* The commands' own functions and tables. */
int kl__demo_command(int argc, char **argv);
extern const kl__option kl__demo_options[];
extern const char kl__demo_about[];

int kl__doctor_command(int argc, char **argv);
extern const kl__option kl__doctor_options[];
extern const char kl__doctor_about[];

#endif
