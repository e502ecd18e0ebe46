/* recording.c - runs a script once, and keeps what is needed to lose power at any operation of it later. */
#include "recording.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "store/disk/disk.h"

struct sim_store sim_store_on(kl__vfs *vfs) { return (struct sim_store){vfs, simsqlite_new(vfs)}; }

void sim_store_end(struct sim_store *store) { simsqlite_free(store->layer); }

kl_rc sim_store_open(void *ctx, const kl_store_opts *opts, kl_store **ret_store)
{
    struct sim_store *store = ctx;
    return kl__disk_open_on(store->vfs, RECORDING_PATH, opts, ret_store);
}

static void note_learned(struct recording *recording, const struct model *model, uint32_t number)
{
    const struct script_call *call = &recording->script->calls[number];
    for (uint32_t i = 0; call->kind == CALL_APPEND && i < call->count; i++)
        recording->positions[call->first + i] = model->tasks[call->first + i].position;
    for (uint32_t i = 0; call->kind == CALL_PUT && i < call->step_count; i++)
        recording->versions[number][i] = model->records[call->steps[i].record].version;
}

void recording_apply(const struct recording *recording, struct model *model, uint32_t number)
{
    const struct script_call *call = &recording->script->calls[number];
    model_begin(recording->script, model, call);
    model_call(recording->script, model, call);
    for (uint32_t i = 0; call->kind == CALL_APPEND && i < call->count; i++)
        model->tasks[call->first + i].position = recording->positions[call->first + i];
    for (uint32_t i = 0; call->kind == CALL_PUT && i < call->step_count; i++)
        model->records[call->steps[i].record].version = recording->versions[number][i];
}

/* Makes every call; each must go well. */
static void run_calls(struct recording *recording, struct subject *subject)
{
    struct model *before = calloc(1, sizeof *before), *after = calloc(1, sizeof *after);
    KL_ASSERT(before && after);
    for (uint32_t i = 0; i < recording->script->call_count && !recording->why[0]; i++) {
        const struct script_call *call = &recording->script->calls[i];
        char text[128];
        script_describe(recording->script, i, text, sizeof text);
        model_begin(recording->script, before, call);
        *after = *before;
        model_call(recording->script, after, call);
        recording->began[i] = simdisk_ops(recording->disk);
        kl_rc rc = subject_call(subject, before, after, call);
        recording->ended[i] = simdisk_ops(recording->disk);
        if (rc != KL_OK)
            snprintf(recording->why, sizeof recording->why, "%s: %s: %.400s", text, kl_rc_name(rc),
                     rc == KL_EINVAL ? subject->why : kl_error_text());
        note_learned(recording, after, i);
        *before = *after;
    }
    if (!recording->why[0] && subject_compare(subject, before, 1, recording->script->seed) != 0)
        snprintf(recording->why, sizeof recording->why, "at the end of the run: %.400s", subject->why);
    free(before);
    free(after);
}

struct recording *recording_make(uint64_t seed, uint32_t calls)
{
    struct recording *recording = calloc(1, sizeof *recording);
    KL_ASSERT(recording);
    recording->script = script_make(seed, calls);
    recording->disk = simdisk_new();
    simdisk_record(recording->disk);
    struct sim_store store = sim_store_on(simdisk_vfs(recording->disk));
    struct subject *subject = calloc(1, sizeof *subject);
    KL_ASSERT(subject);
    subject->script = recording->script;
    subject->open = sim_store_open;
    subject->ctx = &store;
    kl_rc rc = subject_open(subject);
    if (rc != KL_OK)
        snprintf(recording->why, sizeof recording->why, "open: %s: %.400s", kl_rc_name(rc), kl_error_text());
    else
        run_calls(recording, subject);
    subject_close(subject);
    sim_store_end(&store);
    free(subject);
    return recording;
}

void recording_free(struct recording *recording)
{
    if (!recording)
        return;
    script_free(recording->script);
    simdisk_free(recording->disk);
    free(recording);
}

/* ---- To a file and back ---- */

struct saved {
    uint64_t seed;
    uint32_t calls;
};

bool recording_save(const struct recording *r, const char *path)
{
    FILE *file = fopen(path, "wb");
    struct saved head = {r->script->seed, r->script->call_count};
    if (!file)
        return false;
    bool ok = fwrite(&head, sizeof head, 1, file) == 1 && fwrite(r->began, sizeof r->began, 1, file) == 1 &&
              fwrite(r->ended, sizeof r->ended, 1, file) == 1 &&
              fwrite(r->positions, sizeof r->positions, 1, file) == 1 &&
              fwrite(r->versions, sizeof r->versions, 1, file) == 1 && simdisk_save(r->disk, file);
    return fclose(file) == 0 && ok;
}

struct recording *recording_load(const char *path)
{
    FILE *file = fopen(path, "rb");
    struct saved head;
    if (!file)
        return NULL;
    struct recording *r = calloc(1, sizeof *r);
    KL_ASSERT(r);
    bool ok = fread(&head, sizeof head, 1, file) == 1 && fread(r->began, sizeof r->began, 1, file) == 1 &&
              fread(r->ended, sizeof r->ended, 1, file) == 1 &&
              fread(r->positions, sizeof r->positions, 1, file) == 1 &&
              fread(r->versions, sizeof r->versions, 1, file) == 1 && (r->disk = simdisk_load(file)) != NULL;
    fclose(file);
    if (ok)
        r->script = script_make(head.seed, head.calls);
    else {
        free(r);
        r = NULL;
    }
    return r;
}
