/* config.h - settings: what may be said on the command line, in the environment and in keyline.toml.
 *
 * One table (settings.c) makes the options, the variables, the keys of the file, `keyline config`,
 * docs/configuration.md and the manual page's section. The first of these that states a setting wins:
 *
 *     option          --lease 30s
 *     environment     KEYLINE_LEASE=30s
 *     keyline.toml    [queues.orders]  for that queue, then [queue]  for all
 *     the table       its default */
#ifndef KL_CLI_CONFIG_H
#define KL_CLI_CONFIG_H

#include "cli/cli.h"
#include "keyline/queue.h"

typedef enum kl__setting_id {
    KL_SET_STORE,
    KL_SET_COLOR,
    KL_SET_LOG,
    KL_SET_WORKER_CONCURRENCY,
    KL_SET_WORKER_PER_PARTITION,
    KL_SET_WORKER_SHARDS,
    KL_SET_WORKER_SHARD_RANGE,
    KL_SET_WORKER_SLICE,
    KL_SET_WORKER_WINDOW,
    KL_SET_WORKER_STOP,
    KL_SET_WORKER_GRACE,
    KL_SET_SERVER_LISTEN,
    KL_SET_SERVER_URL,
    KL_SET_SERVER_TOKENS,
    KL_SET_SERVER_HOSTS,
    KL_SET_SERVER_TLS_CERT,
    KL_SET_SERVER_TLS_KEY,
    KL_SET_SERVER_AUDIT,
    KL_SET_SERVER_LOG_FORMAT,
    KL_SET_SERVER_BODY_MAX,
    KL_SET_SERVER_STOP,
    KL_SET_PARTITIONS,
    KL_SET_SHARD_PREFIX_LEN,
    KL_SET_ATTEMPTS,
    KL_SET_BACKOFF,
    KL_SET_BACKOFF_MAX,
    KL_SET_TIMEOUT,
    KL_SET_LEASE,
    KL_SET_HEAD_POLICY,
    KL_SET_KEEP_DONE,
    KL_SET_KEEP_DEAD,
    KL_SET_RATE,
    KL_SET_BURST,
    KL_SET_QUEUE_CONCURRENCY,
    KL_SETTINGS,
} kl__setting_id;

typedef struct kl__setting {
    const char *name;     /* in keyline.toml: "worker.concurrency" */
    const char *variable; /* in the environment */
    kl__option
        option; /* its flag, type, range and help; offset: where it goes in kl_queue_opts, if it is one of those */
    const char *standard; /* the default as text; "" when there is none, and then `otherwise` says what that means */
    const char *otherwise;
    int64_t none;   /* what the word none stands for */
    unsigned group; /* KL_TAKES_*: commands that take these take it as an option */
} kl__setting;

extern const kl__setting kl__settings[KL_SETTINGS];

/* Variables that begin with KEYLINE_ and are not settings; a name that ends in '*' stands for all that begin so. */
typedef struct kl__variable {
    const char *name;
    const char *help;
} kl__variable;

extern const kl__variable kl__variables[]; /* ends with NULL */

typedef struct kl__value {
    const char *text;   /* as it was said; "" when it was not and has no default */
    int64_t number;     /* what it means, unless it is text */
    const char *origin; /* "flag --store", "KEYLINE_STORE", "keyline.toml:3", "default" */
    bool stated;        /* anywhere; false: the default */
} kl__value;

/* What [queues.NAME] states. */
typedef struct kl__queue_value {
    struct kl__queue_value *next;
    const char *queue;
    kl__setting_id id;
    kl__value value;
} kl__queue_value;

struct kl__config {
    int64_t json;     /* --json */
    const char *file; /* --config */
    kl__value values[KL_SETTINGS];
    bool beyond_file[KL_SETTINGS]; /* stated by an option or the environment: no line of the file counts */
    kl__queue_value *queues;
};

extern const kl__option kl__common_options[]; /* --json, --config; values in kl__config */

/* Takes an option's value. `said` is the word itself. False: it has complained. */
bool kl__config_set_flag(kl__config *config, kl__setting_id id, const char *said, const char *text, kl_arena *arena);

/* Fills in what was not said as an option: environment, keyline.toml, defaults. False: it has complained. */
bool kl__config_complete(kl__config *config, char *const *environment, kl_arena *arena);

/* What is in force for a queue; queue NULL: for a queue that has no table of its own. */
kl__value kl__config_value(const kl__config *config, kl__setting_id id, const char *queue);

/* What is stated for a queue, with its origin, in the form that opening one takes. Defaults stay zero: they are the
 * library's business. flags_only: only what was said on the command line (altering). KL_ENOMEM. */
kl_rc kl__config_queue_opts(const kl__config *config, const char *queue, bool flags_only, kl_arena *arena,
                            kl_queue_opts *ret_opts);

/* Opens a queue as stated; answers as kl__call_open (cli.h). */
int kl__call_open_as(kl__call *call, const char *name, const kl_queue_opts *stated, kl_queue **ret_queue);

/* Whether the standard output takes colours. */
bool kl__config_colour(const kl__config *config);

/* printf into the arena; NULL: out of memory, and it has complained. */
const char *kl__format(kl_arena *arena, const char *format, ...) KL_PRINTF(2, 3);
/* A URL without what may be secret in it: the password, and what stands behind a question mark. NULL: no memory. */
const char *kl__shown_url(const char *url, kl_arena *arena);

#endif
