/* cli.h - what the commands share: exit statuses, options and arguments from tables, and sentences about mistakes.
 *
 * Reading order: main.c (finds the command) -> commands.c (the table) -> args.c (reads the words) -> values.c (what a
 * word may say) -> config.c (what was not said) -> the command's own file -> output.c (for people and for machines).
 *
 * A command is a row of the table in commands.c. Its options and arguments are tables too, and they make the parsing,
 * the help, the manual page and the shells' completion, so none of these can forget one. */
#ifndef KL_CLI_H
#define KL_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/suggest.h"
#include "base/times.h"
#include "keyline/arena.h"
#include "keyline/error.h"
#include "keyline/store.h"

/* What the program returns. kl__exit_of says which code of the library becomes which:
 *
 *     KL_OK                                          0
 *     KL_ENOTFOUND                                   3
 *     KL_ECONFLICT, KL_EMISMATCH                     4   somebody else was first; it is there with another layout
 *     KL_ETIMEDOUT, and all others of class RETRY   75   the same call may work later (KL_EBUSY, KL_EFULL, ...)
 *     everything else                                1
 *
 * A word or setting that is wrong in itself is 2, also where only the library notices (kl__fail_given). */
enum {
    KL_EXIT_OK = 0,
    KL_EXIT_FAILURE = 1,
    KL_EXIT_USAGE = 2,
    KL_EXIT_NOT_FOUND = 3,
    KL_EXIT_CONFLICT = 4,
    KL_EXIT_AGAIN = 75,
    KL_EXIT_SIGNAL = 128,
};

/* The value's name says what the value is, and so every help shows it:
 *
 *     NULL         a flag; "--[no-]name" may be said either way         int64_t: 0 not said, 1 yes, -1 no
 *     N            a whole number from min to max (both 0: any)         int64_t
 *     DURATION     250ms, 5s, 2m, 1h, 7d; min and max in milliseconds   int64_t, milliseconds
 *     TIME         RFC 3339, or +5m or -5m from now                     int64_t, milliseconds since 1970; with
 *                                                                       KL_TIME_AS_SAID as min, +5m is -300000
 *     a|b|c        one of these                                         int64_t: 1 for the first
 *     other        any text                                             const char *, lasting as long as the words
 *     other...     any text, any number of times                        kl__texts
 *
 * "N|none" and "DURATION|none" also take the word none; those are for settings (config.h). */
enum { KL_TIME_AS_SAID = -1 }; /* so that a call with +5m is the same one when it is made again */

typedef struct kl__option {
    const char *name; /* with its dashes; NULL ends a table */
    const char *value_name;
    const char *help; /* a clause that begins in lower case; NULL: not shown in helps */
    size_t offset;    /* of the value in the command's struct, in which zero means: not said */
    int64_t min, max;
} kl__option;

typedef struct kl__texts {
    const char **items;
    size_t count;
} kl__texts;

typedef enum kl__need {
    KL_NEEDED,   /* const char * */
    KL_OPTIONAL, /* const char *, NULL when it is not there */
    KL_SEVERAL,  /* kl__texts, at least one; the last of its table, or the last before KL_BEHIND */
    KL_BEHIND,   /* kl__texts: all words behind `--`; the last of its table */
} kl__need;

/* A word without a name. */
typedef struct kl__argument {
    const char *name; /* in capitals; NULL ends a table */
    size_t offset;
    kl__need need;
    const char *help;
} kl__argument;

enum { KL_CALL_QUEUES_MAX = 64 }; /* that one command has open: all of a worker */

typedef struct kl__command kl__command;
typedef struct kl__config kl__config;

/* A command that was called, with everything that was said. Owned by main.c. */
typedef struct kl__call {
    const kl__command *command;
    const char *name;   /* "queue create" */
    void *values;       /* the command's struct */
    kl__config *config; /* NULL: the command takes no settings */
    kl_arena arena;     /* lasts as long as the call */
    kl_store *store;    /* what kl__call_store opened; it and the queues are closed by kl__call_close */
    struct kl_queue *queues[KL_CALL_QUEUES_MAX];
} kl__call;

/* Which settings may be given as options (config.h); bits. */
enum {
    KL_TAKES_JSON = 1 << 0,
    KL_TAKES_STORE = 1 << 1,
    KL_TAKES_QUEUE = 1 << 2,
    KL_TAKES_WORK = 1 << 3,
    KL_TAKES_SERVE = 1 << 4,
    KL_TAKES_ALL = KL_TAKES_JSON | KL_TAKES_STORE | KL_TAKES_QUEUE | KL_TAKES_WORK | KL_TAKES_SERVE,
};

struct kl__command {
    const char *name;
    const char *summary; /* one line, for the list */
    const char *about;   /* paragraphs for the command's own help */
    const kl__argument *arguments;
    const kl__option *options;
    size_t values_size;                      /* of the command's struct */
    unsigned takes;                          /* KL_TAKES_* */
    int (*run)(kl__call *call);              /* returns the exit status */
    int (*run_alone)(int argc, char **argv); /* instead of run: reads its words itself; argv[0] is its name */
    const kl__command *const *subs;          /* instead of both: `keyline queue create`; ends with NULL */
};

extern const kl__command *const kl__commands[]; /* ends with NULL */

/* ---- errors.c: complaints and exit statuses ---- */

/* `keyline: ` and the sentence, on standard error; as a JSON object once kl__complain_in_json was called. */
void kl__complain(const char *format, ...) KL_PRINTF(1, 2);
void kl__complain_in_json(bool json);

/* The same about a failed call that ends the program with this status. */
void kl__complain_of(kl_rc rc, int status, const char *sentence);

int kl__exit_of(kl_rc rc);

/* Complains with the thread's sentence and returns kl__exit_of(rc); with _given KL_EINVAL is the user's mistake, 2. */
int kl__fail_call(kl_rc rc);
int kl__fail_given(kl_rc rc);

/* ---- values.c: what a word may say ---- */

typedef enum kl__kind { KL_FLAG, KL_NUMBER, KL_DURATION, KL_TIME, KL_CHOICE, KL_TEXT, KL_TEXTS } kl__kind;

kl__kind kl__kind_of(const kl__option *option);

/* Reads a value of one word. `said` is what the user calls it ("--seconds", "KEYLINE_STORE"), for the complaint;
 * `now_ms` is what times count from. False: it has complained. KL_TEXT and KL_TEXTS take anything and set nothing. */
bool kl__value_parse(const kl__option *option, const char *said, const char *text, int64_t now_ms, int64_t *ret_value);

enum { KL_CHOICE_BYTES_MAX = 32 };

/* The choice of this number, from 1, or "" when there is none. Walk "a|b|c" with it. */
void kl__choice_name(const char *choices, int64_t number, char ret_name[KL_CHOICE_BYTES_MAX]);

/* ---- args.c: the words of the command line ---- */

/* Fills `values` from `--name value`, `--name=value` and flags. False: it has complained, and the caller should exit
 * with KL_EXIT_USAGE. Nothing but options is accepted. For commands that run alone. */
bool kl__options_parse(const kl__option *options, int argc, char **argv, void *values);

/* Fills call->values, and the settings that were given as options. argv[0] is passed over. Same answer. */
bool kl__call_parse(kl__call *call, int argc, char **argv);

/* Whether the options that every command takes include this word, and whether its value is the next one. */
bool kl__option_is_common(const char *word, bool *ret_value_follows);

/* Whether a word is this option: "--name", "--name=...", "--no-name"; sets which (1, -1). */
bool kl__option_is(const kl__option *option, const char *word, int *ret_sense);

/* Calls `visit` with every option that the command takes: its own, those of its settings, the common ones. */
typedef void kl__option_fn(void *ctx, const kl__option *option);
void kl__options_visit(const kl__command *command, kl__option_fn *visit, void *ctx);

/* Whether `word` is the first or the second. */
static inline bool kl__is_one_of(const char *word, const char *first, const char *second)
{
    return strcmp(word, first) == 0 || strcmp(word, second) == 0;
}

/* ---- help.c ---- */

void kl__help_list(FILE *out);
void kl__help_explain(const kl__command *command, const char *name);
void kl__help_usage(FILE *out, const kl__command *command, const char *name);

/* The command that the words name, and how many words that took. NULL: there is none, and it has complained. */
const kl__command *kl__command_find(int argc, char **argv, int *ret_taken, kl_arena *arena, const char **ret_name);

/* The command of this name, NULL when there is none. */
const kl__command *kl__command_named(const char *name);

/* Complains that a command with subs was called without one. */
void kl__help_need_sub(const kl__command *command);

/* The commands' section of the manual page, in mdoc. */
void kl__help_manual(void);

/* ---- open.c: what commands open ---- */

/* Opens call->store as the settings say, once; KL_EXIT_NOT_FOUND where it would have to be made. The other makes it.
 * KL_EXIT_OK, or it has complained. */
int kl__call_store(kl__call *call);
int kl__call_make_store(kl__call *call);

/* Opens a queue: one that exists, or one that is made as the settings say when it does not, and its store with it. Same
 * answers; KL_EXIT_CONFLICT when it exists with another layout than is stated. */
int kl__call_find(kl__call *call, const char *name, struct kl_queue **ret_queue);
int kl__call_open(kl__call *call, const char *name, struct kl_queue **ret_queue);

/* Finds a queue by its name, or by that of one of its partitions, which is returned then; else that is NULL. */
int kl__call_find_partition(kl__call *call, const char *name, struct kl_queue **ret_queue, const char **ret_partition);

/* A kl_log_fn that prints on standard error what --log asks for; ctx is the kl__config. */
void kl__log_print(void *ctx, kl_log_level level, const char *text);

/* Closes what was opened. */
void kl__call_close(kl__call *call);

/* ---- The commands' own functions and tables ---- */

int kl__demo_command(int argc, char **argv);
extern const kl__option kl__demo_options[];
extern const char kl__demo_about[];

extern const kl__command kl__config_command, kl__completion_command, kl__doctor_command, kl__migrate_command;
extern const kl__command kl__queue_command, kl__push_command, kl__ls_command, kl__show_command, kl__dead_command;
extern const kl__command kl__job_command, kl__cron_command, kl__work_command, kl__key_command, kl__cancel_command;
extern const kl__command kl__serve_command, kl__token_command, kl__retry_command, kl__move_command, kl__purge_command,
    kl__top_command, kl__bench_command;

#endif
