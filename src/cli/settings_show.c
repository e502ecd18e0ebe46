/* settings_show.c - `keyline config`: what is in force, where it was stated, and the documents about it.
 *
 * docs/configuration.md and the section of the manual page are printed by the hidden option --docs; tests/check-config
 * compares them with what stands there. */
#include <inttypes.h>
#include <string.h>

#include "base/cores.h"
#include "cli/config.h"
#include "cli/output.h"
#include "keyline/worker.h"

typedef struct config_opts {
    int64_t origin;
    const char *queue;
    int64_t docs;
} config_opts;

enum { DOCS_MARKDOWN = 1, DOCS_MAN };

static const kl__option config_options[] = {
    {"--origin", NULL, "say where each value was stated", offsetof(config_opts, origin), 0, 0},
    {"--queue", "QUEUE", "show what is in force for this queue, its table [queues.QUEUE] included",
     offsetof(config_opts, queue), 0, 0},
    {"--docs", "markdown|man", NULL, offsetof(config_opts, docs), 0, 0},
    {NULL, NULL, NULL, 0, 0, 0},
};

/* ---- What is in force ---- */

/* What holds where nothing is said and there is no default: a number of this machine's, or what the table says of it,
 * which machines are not told. */
static kl__cell otherwise_cell(const kl__call *call, const kl__setting *setting)
{
    if (setting == &kl__settings[KL_SET_WORKER_CONCURRENCY])
        return kl__cell_number(kl__cores() < KL_WORKER_THREADS_MAX ? kl__cores() : KL_WORKER_THREADS_MAX);
    return kl__call_json(call) ? kl__cell_none() : kl__cell_text(setting->otherwise);
}

static kl__cell value_cell(kl__call *call, const kl__setting *setting, const kl__value *value)
{
    if (!*value->text)
        return otherwise_cell(call, setting);
    if (kl__kind_of(&setting->option) == KL_NUMBER && strcmp(value->text, "none") != 0)
        return kl__cell_number(value->number);
    if (setting == &kl__settings[KL_SET_STORE])
        return kl__cell_bytes_or_none(kl_str(kl__shown_url(value->text, &call->arena)));
    return kl__cell_text(value->text);
}

static int show(kl__call *call, const config_opts *opts)
{
    static const kl__column with_origin[] = {
        {"setting", 0}, {"value", KL_COLUMN_WHOLE}, {"origin", KL_COLUMN_WHOLE}, {NULL, 0}};
    static const kl__column without[] = {
        {"setting", 0}, {"value", KL_COLUMN_WHOLE}, {"origin", KL_COLUMN_MACHINE}, {NULL, 0}};
    kl__out out;
    kl__out_begin(&out, call, opts->origin ? with_origin : without);
    for (int id = 0; id < KL_SETTINGS; id++) {
        kl__value value = kl__config_value(call->config, (kl__setting_id)id, opts->queue);
        kl__out_row(&out, (kl__cell[]){kl__cell_text(kl__settings[id].name),
                                       value_cell(call, &kl__settings[id], &value), kl__cell_text(value.origin)});
    }
    return kl__out_end(&out);
}

/* ---- Documents ---- */

static void print_range(const kl__option *option, const char *dash)
{
    char min[KL_DURATION_TEXT_BYTES], max[KL_DURATION_TEXT_BYTES];
    kl__kind kind = kl__kind_of(option);
    snprintf(min, sizeof min, "%" PRId64, option->min);
    snprintf(max, sizeof max, "%" PRId64, option->max);
    if (kind == KL_DURATION) {
        kl__duration_print(option->min, min);
        kl__duration_print(option->max, max);
    }
    if (option->min || option->max)
        printf("%s%s%s", min, dash, max);
}

/* A table's cell must not end at the bars of a choice. */
static void print_escaped(const char *text)
{
    for (; *text; text++)
        printf(*text == '|' ? "\\%c" : "%c", *text);
}

static void print_row(const kl__setting *setting)
{
    const char *key = strchr(setting->name, '.') ? strchr(setting->name, '.') + 1 : setting->name;
    printf("| `%s` | `%s` | `%s` | `", key, setting->variable, setting->option.name);
    print_escaped(setting->option.value_name);
    fputs("` ", stdout);
    print_range(&setting->option, " to ");
    printf(" | %s%s%s%s | %s |\n", *setting->standard ? "`" : "", setting->standard, *setting->standard ? "`" : "",
           setting->otherwise, setting->option.help);
}

static void print_table(const char *title, const char *about, unsigned groups)
{
    printf("\n## %s\n\n%s\n\n| key | environment | option | value | default | meaning |\n|---|---|---|---|---|---|\n",
           title, about);
    for (int id = 0; id < KL_SETTINGS; id++)
        if (kl__settings[id].group & groups)
            print_row(&kl__settings[id]);
}

static void print_markdown(void)
{
    puts("# Settings\n\n"
         "<!-- Made by `keyline config --docs markdown`; `tests/check-config --write` writes it anew. -->\n\n"
         "A setting may be stated in four places, and the first of these wins:\n\n"
         "1. an option of the command: `--lease 30s`\n"
         "2. the environment: `KEYLINE_LEASE=30s`\n"
         "3. `keyline.toml` in the current directory, or the file that `--config` or `KEYLINE_CONFIG` names:\n"
         "   `[queues.orders]` for that queue, then `[queue]` for all\n"
         "4. its default\n\n"
         "`keyline config` prints what is in force, and `keyline config --origin` where each value was stated. A key "
         "of\n"
         "the file or a `KEYLINE_` variable that does not exist is refused, with the name that was probably meant.");
    print_table("For all commands", "In the file, these stand before the first table.", KL_TAKES_JSON | KL_TAKES_STORE);
    print_table("Workers: `[worker]`", "`shards`, `shard_range` and `slice` exclude one another.", KL_TAKES_WORK);
    print_table("Servers: `[server]`", "`tls_cert` and `tls_key` belong together.", KL_TAKES_SERVE);
    print_table(
        "Queues: `[queue]`, and `[queues.NAME]` for one queue",
        "What a queue is like stands in the store. These settings say what a queue is made like when it does not\n"
        "exist yet. `partitions` and `shard_prefix_len` also say what is expected of one that does: another\n"
        "layout is refused with exit status 4, so that nobody writes where no worker looks. `keyline queue alter`\n"
        "changes a queue.",
        KL_TAKES_QUEUE);
    puts("\n## Other variables\n\n| variable | meaning |\n|---|---|");
    for (const kl__variable *variable = kl__variables; variable->name; variable++)
        printf("| `%s` | %s |\n", variable->name, variable->help);
    puts("| `NO_COLOR` | set and not empty: no colours where `color` is `auto` |\n\n"
         "## The file\n\n"
         "```toml\n"
         "store = \"disk:/var/lib/keyline\"\n\n"
         "[worker]\n"
         "concurrency = 8\n"
         "shards = [\"0\", \"1\", \"8-f\"]    # or \"0,1,8-f\"\n\n"
         "[queue]                         # every queue\n"
         "attempts = 5\n"
         "keep_done = \"1h\"\n\n"
         "[queues.orders]                 # this one\n"
         "shard_prefix_len = 2\n"
         "head_policy = \"halt\"\n"
         "```\n\n"
         "The file is written in a part of TOML: comments, `[table]` and `[table.sub]`, bare, quoted and dotted keys,\n"
         "`\"basic\"` and `'literal'` strings, decimal whole numbers, `true` and `false`, and arrays of strings, which "
         "may\n"
         "span lines. Multi-line strings, floating point, dates, inline tables, arrays of tables and other arrays are\n"
         "refused with file, line and column. Durations are strings: a number with `ms`, `s`, `m`, `h` or `d`.");
}

static void print_man_item(const kl__setting *setting)
{
    printf(".It Li %s Pq Fl %s , Ev %s\n", setting->name, setting->option.name + 1, setting->variable);
    printf("%c%s.\n", setting->option.help[0] - 'a' + 'A', setting->option.help + 1);
    printf("Value: %s", setting->option.value_name);
    if (setting->option.min || setting->option.max)
        fputs(", from ", stdout);
    print_range(&setting->option, " to ");
    printf(".\nDefault: %s.\n", *setting->standard ? setting->standard : setting->otherwise);
}

static void print_man(void)
{
    puts(".Bl -tag -width Ds");
    for (int id = 0; id < KL_SETTINGS; id++)
        print_man_item(&kl__settings[id]);
    puts(".El");
}

static int run_config(kl__call *call)
{
    const config_opts *opts = call->values;
    if (opts->docs == DOCS_MARKDOWN)
        print_markdown();
    else if (opts->docs == DOCS_MAN)
        print_man();
    else
        return show(call, opts);
    return KL_EXIT_OK;
}

const kl__command kl__config_command = {
    .name = "config",
    .summary = "print the settings in force, and where each was stated",
    .about = "Prints all settings as they are in force here. An option of the command line comes before\n"
             "the environment, that before keyline.toml, and that before the default.\n",
    .options = config_options,
    .values_size = sizeof(config_opts),
    .takes = KL_TAKES_ALL,
    .run = run_config,
};
