/* doctor.c - examines a data directory; see doctor.h. doctor_plan.c and doctor_repair.c say how it is repaired.
 *
 * The directory is kept from being opened meanwhile, for what changes cannot be judged. Without repair that is done
 * without a change; a store that is open is refused.
 *
 * After a repair everything is examined again, and only what is whole then is called repaired. */
#include "store/disk/doctor.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "store/disk/doctor_inside.h"
#include "store/disk/history.h"

typedef unsigned long long ull;

const char *kl__finding_name(kl__finding_kind kind)
{
    static const char *const names[] = {
#define FINDING_NAME(name, text) text,
        KL_FINDINGS(FINDING_NAME)
#undef FINDING_NAME
    };
    return names[kind];
}

void kl__doctor_found(kl__doctor *doctor, kl__finding_kind kind, kl__severity severity, const char *file,
                      int64_t offset, const char *format, ...)
{
    char text[KL_DOCTOR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    doctor->totals.damages += severity == KL_FOUND_DAMAGE;
    doctor->totals.warnings += severity == KL_FOUND_WARNING;
    kl__finding finding = {kind, severity, file, offset, text};
    if (!doctor->is_quiet && doctor->opts->found)
        doctor->opts->found(doctor->opts->ctx, &finding);
}

void kl__case_name(uint64_t number, char ret_name[KL_NAME_BYTES])
{
    snprintf(ret_name, KL_NAME_BYTES, "journal/%016llx.seg", (ull)number);
}

void kl__case_path(const kl__doctor *doctor, uint64_t number, char ret_path[KL_PATH_BYTES])
{
    snprintf(ret_path, KL_PATH_BYTES, "%.4000s/%016llx.seg", doctor->journal_dir, (ull)number);
}

/* ---- The directory ---- */

struct listing {
    kl__doctor *doctor;
    bool tells_foreign;
};

/* The directory may be a whole file system, and a process that was killed leaves its sockets. */
static bool may_stand_there(const char *name)
{
    return strcmp(name, "lost+found") == 0 || strcmp(name, "socket") == 0 || strcmp(name, "http") == 0 ||
           strcmp(name, "reserve") == 0;
}

static void note_name(void *ctx, const char *name)
{
    struct listing *listing = ctx;
    kl__doctor *doctor = listing->doctor;
    struct {
        const char *name;
        bool *flag;
    } ours[] = {{"journal", &doctor->has_journal},       {"lock", &doctor->has_lock},
                {"history.db", &doctor->has_history},    {"history.db-wal", &doctor->has_wal},
                {"history.db-shm", &doctor->has_shm},    {"history.db-journal", &doctor->has_rollback},
                {"quarantine", &doctor->has_quarantine}, {"reached", &doctor->has_reached}};
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) {
        if (strcmp(name, ours[i].name) == 0) {
            *ours[i].flag = true;
            return;
        }
    }
    if (strncmp(name, "history-repair", 14) == 0) {
        doctor->has_leftover = true;
        doctor->has_repaired_history |= strcmp(name, "history-repaired.db") == 0;
        if (listing->tells_foreign)
            kl__doctor_found(doctor, KL_FOUND_UNFINISHED, KL_FOUND_WARNING, name, -1,
                             "An interrupted repair has left this; the next one uses or removes it.");
        return;
    }
    if (listing->tells_foreign && !may_stand_there(name))
        kl__doctor_found(doctor, KL_FOUND_FOREIGN_FILE, KL_FOUND_WARNING, name, -1,
                         "This is none of Keyline's; it does no harm.");
}

static kl_rc list_directory(kl__doctor *doctor, bool tells_foreign)
{
    struct listing listing = {doctor, tells_foreign};
    int error = doctor->vfs->list(doctor->vfs, doctor->path, note_name, &listing);
    if (error == -ENOENT || error == -ENOTDIR)
        return kl__fail(KL_ENOTFOUND, "there is no directory %s; give the one that the store was opened with",
                        doctor->path);
    if (error)
        return kl__fail(KL_ESYSTEM, "%s could not be listed: %s", doctor->path, strerror(-error));
    if (!doctor->has_journal && !doctor->has_history)
        return kl__fail(KL_EINVAL,
                        "%s is not a data directory: it holds neither journal/ nor history.db; give the one that the "
                        "store was opened with",
                        doctor->path);
    return KL_OK;
}

/* In words; NULL: it is a regular file, or what else is wrong with it shows when it is read. */
static const char *name_stray(int error)
{
    if (error == -EISDIR)
        return "a directory";
    if (error == -ENOENT) /* it was listed */
        return "a link that leads nowhere";
    if (error == -ELOOP)
        return "a link that leads back to itself";
    return kl__vfs_is_no_file(error) ? "a device, a pipe or a socket" : NULL;
}

kl_rc kl__doctor_probe(kl__doctor *doctor, const char *name, bool *ret_is_file)
{
    char path[KL_PATH_BYTES];
    kl__file *file = NULL;
    snprintf(path, sizeof path, "%.3900s/%.180s", doctor->path, name);
    int error = doctor->vfs->open(doctor->vfs, path, KL_OPEN_READ, &file);
    const char *what = name_stray(error);
    doctor->vfs->close(doctor->vfs, file);
    if (error == -EACCES || error == -EPERM) /* which says nothing about the file */
        return kl__fail(KL_ESYSTEM, "%s could not be opened: %s; be the user that the store is run as", path,
                        strerror(-error));
    *ret_is_file = !what;
    if (!what)
        return KL_OK;
    kl__stray *strays = kl__grow(doctor->strays, doctor->stray_count, &doctor->stray_room, sizeof *doctor->strays);
    if (!strays)
        return kl__fail_memory();
    doctor->strays = strays;
    snprintf(doctor->strays[doctor->stray_count++].name, KL_NAME_BYTES, "%s", name);
    kl__doctor_found(doctor, KL_FOUND_NO_FILE, KL_FOUND_DAMAGE, name, -1,
                     "In place of the file there is %s: a repair moves it aside, and the file is missing.", what);
    return KL_OK;
}

static kl_rc probe_directory(kl__doctor *doctor)
{
    struct {
        const char *name;
        bool *flag;
    } files[] = {{"history.db", &doctor->has_history},
                 {"history.db-wal", &doctor->has_wal},
                 {"history.db-shm", &doctor->has_shm},
                 {"history.db-journal", &doctor->has_rollback},
                 {"reached", &doctor->has_reached}};
    kl_rc rc = KL_OK;
    for (size_t i = 0; i < sizeof files / sizeof files[0] && rc == KL_OK; i++)
        if (*files[i].flag)
            rc = kl__doctor_probe(doctor, files[i].name, files[i].flag);
    return rc;
}

static kl_rc take_hold(kl__doctor *doctor, kl__file **ret_lock)
{
    kl__vfs *vfs = doctor->vfs;
    int64_t pid = 0;
    int error = 0;
    if (doctor->opts->repair)
        error = vfs->lock(vfs, doctor->path, ret_lock, &pid);
    else if (doctor->has_lock && vfs->look)
        error = vfs->look(vfs, doctor->path, ret_lock, &pid);
    if (error == -EBUSY && pid)
        return kl__fail(KL_EBUSY,
                        "%s is open in process %lld, and what changes cannot be judged: stop that process first",
                        doctor->path, (long long)pid);
    if (error == -EBUSY)
        return kl__fail(KL_EBUSY, KL_DISK_HELD ", and what changes cannot be judged: stop that one first", doctor->path,
                        doctor->path);
    if (error && error != -ENOENT)
        return kl__fail(KL_ESYSTEM, "%s/lock could not be taken: %s; it must be a file that this user may write",
                        doctor->path, strerror(-error));
    return KL_OK;
}

/* ---- History ---- */

static void note_history_partition(void *ctx, uint32_t number, const char *name)
{
    kl__doctor *doctor = ctx;
    if (number > KL_DISK_PARTITIONS_MAX)
        return;
    snprintf(doctor->known[number].history_name, sizeof doctor->known[number].history_name, "%.*s",
             KL_PARTITION_BYTES_MAX, name);
    if (number > doctor->known_count)
        doctor->known_count = number;
}

static void history_path(const kl__doctor *doctor, char ret_path[KL_PATH_BYTES])
{
    snprintf(ret_path, KL_PATH_BYTES, "%.4000s/history.db", doctor->path);
}

/* SQLite was stopped while it made the file, and has to take that back, which changes it. */
static kl_rc roll_back(kl__doctor *doctor)
{
    char path[KL_PATH_BYTES];
    kl__history *history = NULL;
    if (!doctor->opts->repair) {
        doctor->history_can_wait = true;
        kl__doctor_found(doctor, KL_FOUND_HISTORY_UNCHECKED, KL_FOUND_NOTE, "history.db", -1,
                         "Not checked: SQLite has to take back an interrupted write first, as it does when the store "
                         "is opened or repaired.");
        return KL_OK;
    }
    history_path(doctor, path);
    kl_rc rc = kl__history_open(path, doctor->vfs->sqlite_vfs, 0, 0, &history);
    kl__history_close(history);
    return rc == KL_EDAMAGED ? KL_OK : rc; /* that is looked at next */
}

static void tell_history(kl__doctor *doctor, const kl__history_report *report)
{
    kl__doctor_totals *totals = &doctor->totals;
    totals->history_was_checked = true;
    totals->history_position = report->position;
    doctor->history_commits = report->commits;
    totals->history_tasks = report->tasks;
    doctor->history_tasks_known = report->tasks_known;
    totals->history_is_damaged = report->health != KL_HISTORY_WHOLE;
    if (report->health == KL_HISTORY_NEWER) {
        doctor->is_newer = true;
        kl__doctor_found(doctor, KL_FOUND_NEWER, KL_FOUND_DAMAGE, "history.db", -1, "%s.", report->text);
    } else if (report->health == KL_HISTORY_DAMAGED) {
        doctor->history_is_damaged = true;
        kl__doctor_found(doctor, KL_FOUND_HISTORY_DAMAGED, KL_FOUND_DAMAGE, "history.db", -1,
                         "%s. Waiting tasks are not in this file; of the finished ones that were kept, those are lost "
                         "that cannot be read.",
                         report->text);
        /* Names are not believed. */
        doctor->known_count = 0;
        memset(doctor->known, 0, sizeof doctor->known);
    }
}

static kl_rc read_history(kl__doctor *doctor)
{
    char path[KL_PATH_BYTES];
    kl__history_report report;
    kl_rc rc = doctor->has_history && doctor->has_rollback ? roll_back(doctor) : KL_OK;
    doctor->totals.has_history = doctor->has_history;
    if (rc != KL_OK || !doctor->has_history || doctor->history_can_wait)
        return rc;
    history_path(doctor, path);
    rc = kl__history_examine(path, doctor->vfs->sqlite_vfs, doctor->has_wal, note_history_partition, doctor, &report);
    if (rc == KL_ESYSTEM) {
        doctor->history_fails = true;
        kl__doctor_found(doctor, KL_FOUND_UNREADABLE_DISK, KL_FOUND_DAMAGE, "history.db", -1, "%s.", kl_error_text());
        return KL_OK;
    }
    if (rc == KL_OK)
        tell_history(doctor, &report);
    return rc;
}

/* A damaged log of SQLite's looks like a shorter one. The journal has noted how long it was, and what it has noted
 * nothing of it has itself. Opening judges in the same way (check_history in disk.c). */
static void compare_history(kl__doctor *doctor)
{
    if (doctor->history_commits >= doctor->history_noted)
        return;
    doctor->history_is_damaged = true;
    doctor->history_tasks_known = false; /* of those that it had */
    if (doctor->history_commits == 0)
        kl__doctor_found(
            doctor, KL_FOUND_HISTORY_DAMAGED, KL_FOUND_DAMAGE, "history.db", -1,
            "The file is new, and the journal knows of %llu transactions in an earlier one: finished tasks "
            "that were kept are not in it. If there is a copy elsewhere, restore that.",
            (ull)doctor->history_noted);
    else
        kl__doctor_found(
            doctor, KL_FOUND_HISTORY_DAMAGED, KL_FOUND_DAMAGE, "history.db", -1,
            "The file has lost its last %llu transactions, and finished tasks with them: its log is damaged, "
            "or it is an older copy.",
            (ull)doctor->history_noted - doctor->history_commits);
}

static void miss_history(kl__doctor *doctor)
{
    if (doctor->history_noted)
        kl__doctor_found(doctor, KL_FOUND_NO_HISTORY, KL_FOUND_DAMAGE, "history.db", -1,
                         "The file is missing: finished tasks that were kept are lost, unless there is a copy of it "
                         "elsewhere.");
    else
        kl__doctor_found(
            doctor, KL_FOUND_NO_HISTORY, KL_FOUND_WARNING, "history.db", -1,
            "The file is missing; what was in it the journal has still. A new one is made when the store is "
            "opened.");
}

/* What history knows came from the journal, after it was durable there; and it is made before the first segment. */
static void compare(kl__doctor *doctor)
{
    if (!doctor->has_history && doctor->case_count)
        miss_history(doctor);
    if (doctor->totals.history_was_checked && !doctor->history_is_damaged)
        compare_history(doctor);
    if (doctor->case_count == 0 && doctor->history_commits > 0) {
        doctor->wants_end = true;
        if (doctor->has_journal)
            kl__doctor_found(doctor, KL_FOUND_NO_JOURNAL, KL_FOUND_DAMAGE, "journal", -1,
                             "All segments are missing, and with them all waiting tasks and records: history.db is not "
                             "new, and it is made together with the first.");
    }
    if (doctor->totals.history_position <= doctor->last_sequence)
        return;
    doctor->wants_end = true;
    kl__doctor_found(doctor, KL_FOUND_LOST_END, KL_FOUND_DAMAGE, "journal", -1,
                     "history.db has what was settled up to number %llu, and the journal ends at %llu: its end is "
                     "missing, as when an older copy was put back. Tasks appended since may be missing.",
                     (ull)doctor->totals.history_position, (ull)doctor->last_sequence);
}

/* ---- The order of things ---- */

static kl_rc examine(kl__doctor *doctor)
{
    kl_rc rc = list_directory(doctor, true);
    if (rc == KL_OK)
        rc = probe_directory(doctor);
    if (rc == KL_OK)
        rc = read_history(doctor);
    if (rc != KL_OK || doctor->is_newer)
        return rc;
    if (!doctor->has_journal)
        kl__doctor_found(doctor, KL_FOUND_NO_JOURNAL, KL_FOUND_DAMAGE, "journal", -1,
                         "The directory is missing, and with it all waiting tasks and records.");
    rc = kl__doctor_read_journal(doctor);
    if (rc != KL_OK || doctor->is_newer)
        return rc;
    compare(doctor);
    return kl__doctor_plan(doctor);
}

static kl__doctor *make(const kl__doctor_opts *opts, bool is_quiet)
{
    kl__doctor *doctor = kl__alloc_zeroed(1, sizeof *doctor);
    if (!doctor)
        return NULL;
    doctor->opts = opts;
    doctor->vfs = opts->vfs;
    doctor->is_quiet = is_quiet;
    snprintf(doctor->path, sizeof doctor->path, "%.4000s", opts->path);
    snprintf(doctor->journal_dir, sizeof doctor->journal_dir, "%.4000s/journal", opts->path);
    snprintf(doctor->quarantine_dir, sizeof doctor->quarantine_dir, "%.4000s/quarantine", opts->path);
    return doctor;
}

static void discard(kl__doctor *doctor)
{
    if (!doctor)
        return;
    kl__free(doctor->strays);
    kl__free(doctor->cases);
    kl__free(doctor->fences);
    kl__free(doctor->plan);
    kl__free(doctor);
}

static kl_rc repair(kl__doctor *doctor)
{
    if (doctor->is_newer)
        return kl__fail(KL_EDAMAGED, "%s is not repaired, as a newer version of Keyline wrote it: use that one",
                        doctor->path);
    if (doctor->hindrance)
        return kl__fail(KL_EDAMAGED, "%s is not repaired: %s", doctor->path, doctor->hindrance);
    kl_rc rc = kl__doctor_move_strays(doctor);
    if (rc == KL_OK)
        rc = kl__doctor_repair_journal(doctor);
    if (rc == KL_OK && (doctor->history_is_damaged || !doctor->has_history))
        rc = kl__doctor_repair_history(doctor);
    return rc == KL_OK ? kl__doctor_drop_leftovers(doctor) : rc;
}

/* Is it whole now? What is there now becomes the totals, beside what was found at first. */
static kl_rc examine_again(kl__doctor *doctor)
{
    const kl__doctor_totals *first = &doctor->totals;
    kl__doctor *again = make(doctor->opts, true);
    kl_rc rc = again ? examine(again) : kl__fail_memory();
    if (rc == KL_OK && again->totals.damages)
        rc = kl__fail(KL_EDAMAGED, "%s is not whole yet: examine it again", doctor->path);
    if (rc == KL_OK) {
        again->totals.damages = first->damages;
        again->totals.warnings = first->warnings;
        again->totals.lost_frames = first->lost_frames;
        again->totals.may_have_lost_more = first->may_have_lost_more;
        again->totals.quarantined = first->quarantined;
        again->totals.left_out_records = first->left_out_records;
        again->totals.lost_finished = first->lost_finished;
        again->totals.may_lack_finished = first->may_lack_finished;
        again->totals.lacking_errors = first->lacking_errors;
        again->totals.lost_errors = first->lost_errors;
        again->totals.may_lack_errors = first->may_lack_errors;
        doctor->totals = again->totals;
    }
    discard(again);
    return rc;
}

static kl_rc treat(kl__doctor *doctor)
{
    kl_rc rc = examine(doctor);
    if (rc != KL_OK || (doctor->totals.damages == 0 && !doctor->has_leftover))
        return rc;
    if (!doctor->opts->repair)
        return doctor->totals.damages ? kl__fail(KL_EDAMAGED, "%s is damaged", doctor->path) : KL_OK;
    rc = repair(doctor);
    return rc == KL_OK ? examine_again(doctor) : rc;
}

kl_rc kl__doctor_see(const kl__doctor_opts *opts, kl__doctor_totals *ret_totals)
{
    kl__file *lock = NULL;
    memset(ret_totals, 0, sizeof *ret_totals);
    if (strlen(opts->path) > KL_PATH_BYTES - 256)
        return kl__fail(KL_EINVAL, "the path of the data directory has %zu bytes; %d is the most", strlen(opts->path),
                        KL_PATH_BYTES - 256);
    kl__doctor *doctor = make(opts, false);
    if (!doctor)
        return kl__fail_memory();
    kl_rc rc = list_directory(doctor, false);
    if (rc == KL_OK)
        rc = take_hold(doctor, &lock);
    if (rc == KL_OK)
        rc = treat(doctor);
    doctor->vfs->unlock(doctor->vfs, lock);
    *ret_totals = doctor->totals;
    discard(doctor);
    return rc;
}
