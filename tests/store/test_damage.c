/* test_damage.c - bits are flipped, files cut off and pages lost, in every kind of file: that is harmless or noticed,
 * and never believed.
 *
 * A run's directory is damaged in one place and opened. Either everything is there; or it does not open, with
 * KL_EDAMAGED; or it does, and whatever it shows is right, and what it does not show is refused with KL_EDAMAGED.
 * When the run did not end in order, the last frame of the journal may be taken for a torn write: then the last call
 * of the run has not happened.
 *
 * KL_TEST_OPS says how many damages to make. What fails is printed with the line that repeats it:
 *
 *     KL_DAMAGE="SEED N" test-damage */
#include <errno.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/random.h"
#include "harness.h"
#include "recording.h"
#include "store/disk/format.h"
#include "store/disk/history.h"
#include "store/disk/reach.h"
#include "store/disk/segments.h"
#include "workers.h"

enum { CALLS = 250, DAMAGES = 2000, FILES_MAX = 256, PATH_BYTES = 128, FAILURES_MAX = 5, RANGE_BYTES = 4096 };

struct damaged {
    struct recording *recording;
    simdisk *ended, *cut_off; /* the disk after an orderly end, and after the process was killed behind the last call */
    struct model models[2];   /* the end, and before the last call */
    char files[FILES_MAX][PATH_BYTES];
    size_t file_count;
    int failures;
};

/* ---- Files ---- */

struct listing {
    struct damaged *damaged;
    const char *directory;
    simdisk *disk;
};

static void list_files(struct damaged *damaged, simdisk *disk, const char *directory);

static void note_file(void *ctx, const char *name)
{
    struct listing *listing = ctx;
    struct damaged *damaged = listing->damaged;
    char path[PATH_BYTES];
    kl__file *file;
    kl__vfs *vfs = simdisk_vfs(listing->disk);
    KL_ASSERT((size_t)snprintf(path, sizeof path, "%s/%s", listing->directory, name) < sizeof path);
    int rc = vfs->open(vfs, path, KL_OPEN_READ, &file);
    if (rc == -EISDIR) {
        list_files(damaged, listing->disk, path);
        return;
    }
    vfs->close(vfs, file);
    KL_ASSERT(rc == 0 && damaged->file_count < FILES_MAX);
    strcpy(damaged->files[damaged->file_count++], path);
}

static void list_files(struct damaged *damaged, simdisk *disk, const char *directory)
{
    struct listing listing = {damaged, directory, disk};
    simdisk_vfs(disk)->list(simdisk_vfs(disk), directory, note_file, &listing);
}

/* ---- One damage ---- */

enum damage_kind { FLIPPED, CUT_OFF, ZEROED, NOISE };

struct damage {
    simdisk *disk;
    bool in_order; /* the run ended so */
    const char *path;
    enum damage_kind kind;
    uint64_t at;    /* the byte, or the new size */
    uint64_t bytes; /* that are overwritten */
    char text[PATH_BYTES + 100];
};

/* Is the segment the last in use, or the one that is prepared to come next? */
static bool is_one_of_the_last(const struct damaged *damaged, const char *path)
{
    int later = 0;
    for (size_t i = 0; i < damaged->file_count; i++)
        later += strstr(damaged->files[i], ".seg") && strcmp(damaged->files[i], path) > 0;
    return later < 2;
}

/* Whole frames that are lost at the end of the journal look as if they had never been written, when nobody has written
 * down that they were (reach.h). That is done in an orderly end, and some time after a segment came into use. */
static bool is_at_end(const struct damaged *damaged, const struct damage *damage)
{
    const char *name = strrchr(damage->path, '/') + 1;
    kl__vfs *vfs = simdisk_vfs(damage->disk);
    kl__segment_header header;
    kl__reach reach;
    kl__file *file;
    uint64_t number;
    size_t got;
    if (damage->in_order || !kl__segments_parse(name, &number) || !is_one_of_the_last(damaged, damage->path))
        return false;
    KL_ASSERT(vfs->open(vfs, damage->path, KL_OPEN_READ, &file) == 0);
    KL_ASSERT(kl__vfs_read(vfs, file, &header, sizeof header, 0, &got) == 0);
    vfs->close(vfs, file);
    KL_ASSERT(kl__reach_read(vfs, RECORDING_PATH, header.journal, &reach) == 0);
    return number >= reach.segment;
}

static enum damage_kind choose_kind(uint64_t *random)
{
    static const enum damage_kind kinds[] = {FLIPPED, FLIPPED, FLIPPED, FLIPPED, FLIPPED,
                                             CUT_OFF, CUT_OFF, ZEROED,  NOISE};
    return kinds[kl__random_below(random, sizeof kinds / sizeof kinds[0])];
}

/* A page, or all from there on. */
static uint64_t choose_range(uint64_t size, uint64_t *at, uint64_t *random)
{
    if (kl__random_below(random, 2)) {
        *at -= *at % RANGE_BYTES;
        return size - *at < RANGE_BYTES ? size - *at : RANGE_BYTES;
    }
    if (kl__random_below(random, 2) && size > KL_SEGMENT_HEADER)
        *at = KL_SEGMENT_HEADER;
    return size - *at;
}

static void overwrite(kl__vfs *vfs, kl__file *file, const struct damage *damage, uint64_t *random)
{
    uint8_t piece[RANGE_BYTES] = {0};
    for (uint64_t done = 0; done < damage->bytes;) {
        size_t len = damage->bytes - done < sizeof piece ? (size_t)(damage->bytes - done) : sizeof piece;
        for (size_t i = 0; damage->kind == NOISE && i < len; i++)
            piece[i] = (uint8_t)kl__random_below(random, 256);
        KL_ASSERT(kl__vfs_write(vfs, file, piece, len, damage->at + done) == 0);
        done += len;
    }
}

static void flip(kl__vfs *vfs, kl__file *file, uint64_t at, uint64_t *random)
{
    uint8_t byte;
    size_t got;
    KL_ASSERT(kl__vfs_read(vfs, file, &byte, 1, at, &got) == 0 && got == 1);
    byte ^= (uint8_t)(1u << kl__random_below(random, 8));
    KL_ASSERT(kl__vfs_write(vfs, file, &byte, 1, at) == 0);
}

/* Makes it. False: the file is empty, and there is nothing to damage. */
static bool make_damage(const struct damaged *damaged, struct damage *damage, uint64_t *random)
{
    static const char *const names[] = {"flipped at", "cut off at", "zeroed from", "noise from"};
    kl__vfs *vfs = simdisk_vfs(damage->disk);
    kl__file *file;
    uint64_t size = 0;
    KL_ASSERT(vfs->open(vfs, damage->path, KL_OPEN_WRITE, &file) == 0 && vfs->size(vfs, file, &size) == 0);
    if (size > 0) {
        /* Half of them near the front, where what matters stands. */
        uint64_t reach = kl__random_below(random, 2) && size > 8192 ? 8192 : size;
        damage->kind = choose_kind(random);
        if (damage->kind >= ZEROED && is_at_end(damaged, damage))
            damage->kind = FLIPPED;
        damage->at = kl__random_below(random, reach);
        if (damage->kind == FLIPPED) {
            flip(vfs, file, damage->at, random);
        } else if (damage->kind == CUT_OFF) {
            KL_ASSERT(vfs->truncate(vfs, file, damage->at) == 0);
        } else {
            damage->bytes = choose_range(size, &damage->at, random);
            overwrite(vfs, file, damage, random);
        }
        KL_ASSERT(vfs->sync(vfs, file) == 0);
    }
    vfs->close(vfs, file);
    snprintf(damage->text, sizeof damage->text, "%s %s %s %" PRIu64 " (%" PRIu64 " bytes) of %" PRIu64, damage->path,
             names[damage->kind], damage->in_order ? "(closed)" : "(killed)", damage->at, damage->bytes, size);
    return size > 0;
}

/* SQLite's own check finds what cannot be noticed while reading: a row that an index no longer leads to. */
static bool doctor_finds_it(struct sim_store *store)
{
    kl__history *history = NULL;
    kl_rc rc = kl__history_open(RECORDING_PATH "/history.db", store->vfs->sqlite_vfs, SCRIPT_HISTORY_ROWS, INT64_MAX,
                                &history);
    if (rc == KL_OK)
        rc = kl__history_check(history);
    kl__history_close(history);
    return rc == KL_EDAMAGED;
}

/* NULL: as it should be. */
static const char *judge_open(struct damaged *damaged, struct damage *damage, struct subject *subject,
                              struct sim_store *store)
{
    static char text[SCRIPT_WHY_BYTES + 100];
    struct inspection found;
    int candidates = damage->in_order ? 1 : 2;
    if (subject_compare(subject, damaged->models, candidates, 1) >= 0)
        return NULL;
    if (!subject_inspect(subject, &damaged->models[0], &found)) {
        snprintf(text, sizeof text, "%s", subject->why);
        return text;
    }
    /* Of the journal each task and record is held back by itself; what history cannot read may hide others. */
    if (found.missing == 0 || (found.refused > 0 && strstr(damage->path, "history")))
        return NULL;
    subject_close(subject);
    if (strstr(damage->path, "history") && doctor_finds_it(store))
        return NULL;
    snprintf(text, sizeof text, "%" PRIu64 " tasks and records are missing, and nobody says so", found.missing);
    return text;
}

static void check_damage(struct damaged *damaged, struct damage *damage, uint64_t number)
{
    struct sim_store store = sim_store_on(simdisk_vfs(damage->disk));
    struct subject *subject = calloc(1, sizeof *subject);
    KL_ASSERT(subject);
    const char *why = NULL;
    subject->script = damaged->recording->script;
    subject->open = sim_store_open;
    subject->ctx = &store;
    atomic_store(&subject->clock_ms, damaged->models[0].now_ms);
    memcpy(subject->partitions, damaged->models[0].partitions, sizeof subject->partitions);
    kl_rc rc = subject_open(subject);
    if (rc == KL_OK)
        why = judge_open(damaged, damage, subject, &store);
    else if (rc != KL_EDAMAGED)
        why = kl_error_text();
    damaged->failures += why != NULL;
    if (why)
        test_fail(__FILE__, __LINE__, "%s: %s; again with: KL_DAMAGE=\"%" PRIu64 " %" PRIu64 "\" test-faults damage",
                  damage->text, why, damaged->recording->script->seed, number);
    subject_close(subject);
    sim_store_end(&store);
    free(subject);
}

/* Everything about damage `number` comes from the seed and its number, but for what the engine's threads did in the
 * run. */
static void damage_once(struct damaged *damaged, uint64_t number)
{
    uint64_t random = damaged->recording->script->seed ^ (number * 0x9e3779b97f4a7c15u);
    struct damage damage = {.in_order = kl__random_below(&random, 2)};
    damage.disk = simdisk_clone(damage.in_order ? damaged->ended : damaged->cut_off);
    damaged->file_count = 0;
    list_files(damaged, damage.disk, RECORDING_PATH);
    damage.path = damaged->files[number % damaged->file_count];
    if (make_damage(damaged, &damage, &random)) {
        workers_doing("KL_DAMAGE=\"%" PRIu64 " %" PRIu64 "\": %s", damaged->recording->script->seed, number,
                      damage.text);
        check_damage(damaged, &damage, number);
    }
    simdisk_free(damage.disk);
}

/* ---- All of them ---- */

/* The script up to its last append, so that the last frame of the journal is the last call's. */
static bool make_run(struct damaged *damaged, uint64_t seed)
{
    struct recording *recording = damaged->recording = recording_make(seed, CALLS);
    struct script *script = recording->script;
    if (recording->why[0]) {
        test_fail(__FILE__, __LINE__, "the run itself fails: %s", recording->why);
        return false;
    }
    uint32_t last = script->call_count - 1;
    while (script->calls[last].kind != CALL_APPEND || script->calls[last].repeat)
        last--;
    for (uint32_t i = 0; i < last; i++)
        recording_apply(recording, &damaged->models[1], i);
    damaged->models[0] = damaged->models[1];
    recording_apply(recording, &damaged->models[0], last);
    model_begin(script, &damaged->models[1], &script->calls[last]); /* the clock goes on, whatever became of the call */
    simdisk *disk = simdisk_new();
    simdisk_forward(disk, recording->disk, recording->ended[last]);
    damaged->cut_off = simdisk_image(disk, SIM_ALL, 1);
    simdisk_free(disk);
    return true;
}

/* Opens and closes what was cut off: an orderly end of the same state. */
static bool end_in_order(struct damaged *damaged)
{
    damaged->ended = simdisk_clone(damaged->cut_off);
    struct sim_store store = sim_store_on(simdisk_vfs(damaged->ended));
    struct subject subject = {.script = damaged->recording->script, .open = sim_store_open, .ctx = &store};
    atomic_store(&subject.clock_ms, damaged->models[0].now_ms);
    memcpy(subject.partitions, damaged->models[0].partitions, sizeof subject.partitions);
    kl_rc rc = subject_open(&subject);
    if (rc != KL_OK || subject_compare(&subject, damaged->models, 1, 1) != 0)
        test_fail(__FILE__, __LINE__, "without damage: %s", rc == KL_OK ? subject.why : kl_error_text());
    subject_close(&subject);
    sim_store_end(&store);
    return !test_failed();
}

struct plan {
    uint64_t seed, damages, only; /* only 0: all */
};

static void work(void *ctx, int worker, int workers)
{
    const struct plan *plan = ctx;
    struct damaged *damaged = calloc(1, sizeof *damaged);
    KL_ASSERT(damaged);
    workers_doing("seed %" PRIu64 ", the run itself", plan->seed);
    if (make_run(damaged, plan->seed) && end_in_order(damaged)) {
        if (plan->only)
            damage_once(damaged, plan->only);
        for (uint64_t i = 1 + (uint64_t)worker; !plan->only && i <= plan->damages && damaged->failures < FAILURES_MAX;
             i += (uint64_t)workers)
            damage_once(damaged, i);
    }
    recording_free(damaged->recording);
    simdisk_free(damaged->ended);
    simdisk_free(damaged->cut_off);
    free(damaged);
}

TEST(damage_is_harmless_or_noticed_and_never_believed)
{
    const char *line = getenv("KL_DAMAGE");
    struct plan plan = {test_seed(), test_ops(DAMAGES), 0};
    if (line && *line) {
        REQUIRE(sscanf(line, "%" SCNu64 " %" SCNu64, &plan.seed, &plan.only) == 2);
        work(&plan, 0, 1);
        return;
    }
    workers_run(work, &plan);
    printf("# %" PRIu64 " damages\n", plan.damages);
}
