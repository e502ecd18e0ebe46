/* doctor.c - `keyline doctor`: examines a data directory, explains what it finds, and repairs it on request.
 *
 * From: main.c.  To: store/disk/doctor.h, which does the work and tells each finding as it is made.
 *
 * For people, findings are printed as they come, then what is there, then what to do. For machines (--json) one object
 * is printed at the end; its findings have been written into memory meanwhile. */
#include "cli/cli.h"
#include "cli/config.h"
#include "cli/output.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli/doctor_cost.h"
#include "queue/json.h"
#include "store/disk/doctor.h"

typedef struct doctor_opts {
    const char *directory;
    int64_t repair, cost;
} doctor_opts;

static const char about[] =
    "Examines the data directory of a disk store that is not open, and explains what it finds.\n"
    "Nothing is changed without --repair. With it, damaged files are copied or moved to\n"
    "DIR/quarantine/ and replaced by what is readable of them, so that the store opens again.\n"
    "\n"
    "With --cost, DIR is the URL of a store on S3: what its processes asked of the server in the\n"
    "last days is added up, per task and per hour, with Amazon's prices.\n"
    "\n"
    "Exits with 0 if the store is whole, or is again, with 1 if it is not, with 3 if there is no such\n"
    "directory, and with 75 if the store is open.\n";

static const kl__option options[] = {
    {"--repair", NULL, "repair what is damaged", offsetof(doctor_opts, repair), 0, 0},
    {"--cost", NULL, "what a store on S3 costs: DIR is its URL", offsetof(doctor_opts, cost), 0, 0},
    {0},
};

static const kl__argument arguments[] = {
    {"DIR", offsetof(doctor_opts, directory), KL_NEEDED,
     "the data directory, such as ./keyline-data or disk:./keyline-data"},
    {0},
};

static const char *const severity_names[] = {
    [KL_FOUND_NOTE] = "note",
    [KL_FOUND_WARNING] = "warning",
    [KL_FOUND_DAMAGE] = "damage",
    [KL_FOUND_REPAIRED] = "repaired",
};

static const char *const record_names[KL_RECORD_TYPES] = {
    [KL_RECORD_ENTRY] = "entry",         [KL_RECORD_SETTLE] = "settle", [KL_RECORD_FENCE] = "fence",
    [KL_RECORD_PARTITION] = "partition", [KL_RECORD_TOKEN] = "token",   [KL_RECORD_WRITE] = "write",
    [KL_RECORD_CLOSE] = "close",         [KL_RECORD_NOTE] = "note",
};

/* ---- For people ---- */

struct report {
    bool colour;
    FILE *json; /* the findings so far; NULL: for people */
    size_t count;
    bool failed; /* out of memory */
};

/* Names and SQLite's texts may hold any bytes. */
static void tell_harmless(const char *before, const char *text)
{
    kl_arena arena = {0};
    const char *shown = kl__out_harmless(kl_str(text), &arena);
    printf("%s%s", before, shown ? shown : "(out of memory)");
    kl_arena_free(&arena);
}

static void tell(const struct report *report, const kl__finding *finding)
{
    static const char *const colours[] = {[KL_FOUND_NOTE] = "\33[2m",
                                          [KL_FOUND_WARNING] = "\33[33m",
                                          [KL_FOUND_DAMAGE] = "\33[31m",
                                          [KL_FOUND_REPAIRED] = "\33[32m"};
    printf("%s%s%s", report->colour ? colours[finding->severity] : "", severity_names[finding->severity],
           report->colour ? "\33[0m" : "");
    if (*finding->file)
        tell_harmless(" ", finding->file);
    if (finding->offset >= 0)
        printf(", byte %" PRId64, finding->offset);
    tell_harmless(": ", finding->text);
    putchar('\n');
}

static void tell_bytes(const char *what, uint64_t bytes)
{
    if (bytes < 10240)
        printf("%s%" PRIu64 " bytes", what, bytes);
    else if (bytes < UINT64_C(10) << 20)
        printf("%s%.1f KiB", what, (double)bytes / 1024);
    else
        printf("%s%.1f MiB", what, (double)bytes / (1 << 20));
}

static void tell_journal(const kl__doctor_totals *totals)
{
    printf("\n  journal      %" PRIu64 " segment%s", totals->segments, kl__plural(totals->segments));
    tell_bytes(", ", totals->segment_bytes);
    printf("; %" PRIu64 " frame%s", totals->frames, kl__plural(totals->frames));
    tell_bytes(", of which ", totals->live_bytes);
    tell_bytes(" are needed and ", totals->dead_bytes);
    printf(" not\n  its end      %s\n", totals->frames == 0  ? "nothing was written yet"
                                        : totals->was_closed ? "closed in order"
                                        : totals->is_torn    ? "an incomplete write, which is passed over"
                                                             : "not closed in order, which is harmless");
    printf("  records     ");
    for (int type = 1; type < KL_RECORD_TYPES; type++)
        printf("%s %" PRIu64 " %s", type == 1 ? "" : ",", totals->records[type], record_names[type]);
    putchar('\n');
}

static void tell_totals(const kl__doctor_totals *totals)
{
    tell_journal(totals);
    printf("  waiting      %" PRIu64 " task%s in %" PRIu64 " partition%s\n", totals->waiting,
           kl__plural(totals->waiting), totals->partitions, kl__plural(totals->partitions));
    printf("  finished     %" PRIu64 " task%s on the way to history.db; ", totals->settled,
           kl__plural(totals->settled));
    if (totals->history_is_damaged)
        printf("it is damaged, and counts %" PRIu64 " in it\n", totals->history_tasks);
    else if (totals->history_was_checked)
        printf("%" PRIu64 " in it, settled up to number %" PRIu64 "\n", totals->history_tasks,
               totals->history_position);
    else
        puts(totals->has_history ? "it was not looked into" : "it is not there");
    printf("  values       %" PRIu64 " record%s by name\n\n", totals->values, kl__plural(totals->values));
}

/* Without those that the journal still has, which nobody has looked for yet. */
static void tell_lost_finished(const kl__doctor_totals *totals)
{
    if (totals->may_lack_finished)
        printf(" How many finished tasks are lost cannot be told.");
    if (!totals->lost_finished && !totals->lacking_errors)
        return;
    printf(" Of the finished tasks,");
    if (totals->lost_finished)
        printf(" %" PRIu64 " %s lost", totals->lost_finished, totals->lost_finished == 1 ? "is" : "are");
    if (totals->lacking_errors)
        printf("%s %" PRIu64 " %s lost %" PRIu64 " error%s", totals->lost_finished ? " and" : "",
               totals->lacking_errors, totals->lacking_errors == 1 ? "has" : "have", totals->lost_errors,
               kl__plural(totals->lost_errors));
    printf("%s.", totals->settled
                      ? ", but for those that the journal still has: they come back when the store is opened"
                      : "");
}

static void tell_repaired(const char *path, const kl__doctor_totals *totals)
{
    printf("%s is whole again; ", path);
    if (totals->lost_frames || totals->left_out_records || !totals->may_have_lost_more)
        printf("%" PRIu64 " frame%s and %" PRIu64 " other record%s are lost to it%s", totals->lost_frames,
               kl__plural(totals->lost_frames), totals->left_out_records, kl__plural(totals->left_out_records),
               totals->may_have_lost_more ? ", and " : ".");
    if (totals->may_have_lost_more)
        printf("what is missing may have held more: how much cannot be told.");
    tell_lost_finished(totals);
    puts(totals->quarantined ? " Copies of what was damaged are in its quarantine/." : "");
}

static void tell_verdict(const char *path, const kl__doctor_totals *totals, const doctor_opts *opts)
{
    if (totals->damages == 0)
        printf("%s is whole.\n", path);
    else if (opts->repair)
        tell_repaired(path, totals);
    else
        printf("%s is damaged in %" PRIu64 " place%s, listed above. Make a copy of it, then run `keyline doctor "
               "--repair %s`.\n",
               path, totals->damages, kl__plural(totals->damages), path);
}

/* ---- For machines ---- */

/* False: out of memory. */
static bool put_string(FILE *out, const char *text)
{
    json_t *value = kl__json_bytes_value(kl_str(text));
    bool put = value && (json_dumpf(value, out, JSON_COMPACT | JSON_ENCODE_ANY) == 0 || ferror(out));
    json_decref(value);
    return put;
}

static void note_json(struct report *report, const kl__finding *finding)
{
    fprintf(report->json, "%s{\"severity\":\"%s\",\"what\":\"%s\",\"file\":", report->count++ ? "," : "",
            severity_names[finding->severity], kl__finding_name(finding->kind));
    report->failed |= !put_string(report->json, finding->file);
    if (finding->offset >= 0)
        fprintf(report->json, ",\"offset\":%" PRId64, finding->offset);
    fputs(",\"text\":", report->json);
    report->failed |= !put_string(report->json, finding->text);
    putc('}', report->json);
}

static void put_number(const char *name, uint64_t number) { printf(",\"%s\":%" PRIu64, name, number); }

static void put_flag(const char *name, bool flag) { printf(",\"%s\":%s", name, flag ? "true" : "false"); }

static void put_totals(const kl__doctor_totals *totals)
{
    printf("\"totals\":{\"segments\":%" PRIu64, totals->segments);
    put_number("segment_bytes", totals->segment_bytes);
    put_number("frames", totals->frames);
    put_number("last_frame", totals->last_frame);
    put_number("last_sequence", totals->last_sequence);
    put_number("live_bytes", totals->live_bytes);
    put_number("dead_bytes", totals->dead_bytes);
    put_number("partitions", totals->partitions);
    put_number("waiting", totals->waiting);
    put_number("settled", totals->settled);
    put_number("values", totals->values);
    put_flag("was_closed", totals->was_closed);
    put_flag("is_torn", totals->is_torn);
    put_flag("has_history", totals->has_history);
    put_flag("history_was_checked", totals->history_was_checked);
    put_number("history_tasks", totals->history_tasks);
    put_number("history_position", totals->history_position);
    put_number("damages", totals->damages);
    put_number("warnings", totals->warnings);
    put_number("lost_frames", totals->lost_frames);
    put_flag("may_have_lost_more", totals->may_have_lost_more);
    put_number("left_out_records", totals->left_out_records);
    put_number("quarantined", totals->quarantined);
    put_number("lost_finished", totals->lost_finished);
    put_flag("may_lack_finished", totals->may_lack_finished);
    put_number("lacking_errors", totals->lacking_errors);
    put_number("lost_errors", totals->lost_errors);
    put_flag("may_lack_errors", totals->may_lack_errors);
    fputs(",\"records\":{", stdout);
    for (int type = 1; type < KL_RECORD_TYPES; type++)
        printf("%s\"%s\":%" PRIu64, type == 1 ? "" : ",", record_names[type], totals->records[type]);
    fputs("}}", stdout);
}

static bool put_json(const char *path, kl_rc rc, const char *findings, const kl__doctor_totals *totals)
{
    fputs("{\"directory\":", stdout);
    bool put = put_string(stdout, path);
    if (rc == KL_OK || rc == KL_EDAMAGED)
        put_flag("healthy", rc == KL_OK);
    else
        fputs(",\"healthy\":null", stdout); /* nobody knows */
    if (rc != KL_OK) {
        printf(",\"error\":\"%s\",\"text\":", kl_rc_name(rc));
        put &= put_string(stdout, kl_error_text());
    }
    printf(",\"findings\":[%s],", findings);
    put_totals(totals);
    puts("}");
    return put;
}

/* ---- The command ---- */

static void found(void *ctx, const kl__finding *finding)
{
    struct report *report = ctx;
    if (report->json)
        note_json(report, finding);
    else
        tell(report, finding);
}

static int examine_for_machines(const char *path, const doctor_opts *opts)
{
    char *findings = NULL;
    size_t size = 0;
    struct report report = {.json = open_memstream(&findings, &size)};
    kl__doctor_totals totals;
    if (!report.json)
        return kl__fail_call(kl__fail_memory());
    kl__doctor_opts asked = {&kl__vfs_system, path, opts->repair, found, &report};
    kl_rc rc = kl__doctor_see(&asked, &totals);
    bool is_written = !ferror(report.json) && !report.failed;
    is_written &= fclose(report.json) == 0;
    is_written = is_written && put_json(path, rc, findings, &totals);
    free(findings);
    return is_written ? kl__exit_of(rc) : kl__fail_call(kl__fail_memory());
}

static int examine_for_people(const char *path, const doctor_opts *opts, bool colour)
{
    struct report report = {.colour = colour};
    kl__doctor_totals totals;
    kl__doctor_opts asked = {&kl__vfs_system, path, opts->repair, found, &report};
    kl_rc rc = kl__doctor_see(&asked, &totals);
    bool is_told = rc == KL_OK || (rc == KL_EDAMAGED && !opts->repair);
    if (is_told) {
        tell_totals(&totals);
        tell_verdict(path, &totals, opts);
    } else {
        fflush(stdout);
        kl__complain("%s", kl_error_text());
    }
    return kl__exit_of(rc);
}

/* The directory of a disk store may be given as its URL. */
static const char *directory_of(const char *given)
{
    const char *rest = strncmp(given, "disk:", 5) == 0 ? given + 5 : given;
    return *rest || rest == given ? rest : "./keyline-data";
}

static int run_doctor(kl__call *call)
{
    const doctor_opts *opts = call->values;
    const char *path = directory_of(opts->directory);
    if (opts->cost)
        return kl__doctor_cost(opts->directory, kl__call_json(call));
    if (strstr(opts->directory, "://"))
        return kl__fail_given(
            kl__fail(KL_EINVAL,
                     "doctor examines directories of disk stores, and %s is none; `doctor --cost URL` "
                     "says what a store on S3 costs",
                     opts->directory));
    if (kl__call_json(call))
        return examine_for_machines(path, opts);
    return examine_for_people(path, opts, kl__config_colour(call->config));
}

const kl__command kl__doctor_command = {
    .name = "doctor",
    .summary = "examine the data directory of a store, and repair it",
    .about = about,
    .arguments = arguments,
    .options = options,
    .values_size = sizeof(doctor_opts),
    .takes = KL_TAKES_JSON,
    .run = run_doctor,
};
