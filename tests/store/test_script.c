/* test_script.c - the scripted run and its model, against the reference engine: they must agree after every call. */
#include <stdlib.h>

#include "harness.h"
#include "script.h"

static kl_rc open_memory(void *ctx, const kl_store_opts *opts, kl_store **ret_store)
{
    (void)ctx;
    return kl_store_open("memory:", opts, ret_store);
}

struct run {
    struct script *script;
    struct subject subject;
    struct model before, after;
};

static struct run *begin(uint64_t seed, uint32_t calls)
{
    struct run *run = calloc(1, sizeof *run);
    run->script = script_make(seed, calls);
    run->subject.script = run->script;
    run->subject.open = open_memory;
    if (subject_open(&run->subject) != KL_OK)
        test_fail(__FILE__, __LINE__, "%s", kl_error_text());
    return run;
}

static void end(struct run *run)
{
    subject_close(&run->subject);
    script_free(run->script);
    free(run);
}

/* Makes the call and returns whether the store did what the model says. */
static bool step(struct run *run, uint32_t number)
{
    const struct script_call *call = &run->script->calls[number];
    char text[128];
    script_describe(run->script, number, text, sizeof text);
    model_begin(run->script, &run->before, call);
    run->after = run->before;
    model_call(run->script, &run->after, call);
    atomic_store(&run->subject.clock_ms, call->now_ms);
    kl_rc rc = call->kind == CALL_REOPEN ? KL_OK : subject_call(&run->subject, &run->before, &run->after, call);
    if (rc != KL_OK)
        test_fail(__FILE__, __LINE__, "%s: %s: %s", text, kl_rc_name(rc),
                  rc == KL_EINVAL ? run->subject.why : kl_error_text());
    else if (subject_compare(&run->subject, &run->after, 1, number) != 0)
        test_fail(__FILE__, __LINE__, "after %s: %s", text, run->subject.why);
    run->before = run->after;
    return !test_failed();
}

TEST(the_reference_engine_and_the_model_agree_after_every_call)
{
    uint64_t seed = test_seed();
    for (uint64_t i = 0; i < test_ops(10) + 1 && !test_failed(); i++) {
        struct run *run = begin(seed + i, 500);
        for (uint32_t call = 0; call < run->script->call_count && step(run, call);)
            call++;
        end(run);
    }
}

TEST(a_call_that_was_not_made_is_noticed)
{
    struct run *run = begin(test_seed(), 200);
    uint32_t noticed = 0, effects = 0;
    for (uint32_t i = 0; i < run->script->call_count && step(run, i); i++) {
        if (i + 1 == run->script->call_count)
            break;
        const struct script_call *next = &run->script->calls[i + 1];
        struct model later = run->after;
        model_begin(run->script, &later, next);
        model_call(run->script, &later, next);
        atomic_store(&run->subject.clock_ms, next->now_ms);
        if ((next->kind == CALL_APPEND && !next->repeat) || next->kind == CALL_PARTITION) {
            effects++;
            noticed += subject_compare(&run->subject, &later, 1, i) < 0;
        }
    }
    CHECK(effects > 20);
    CHECK_INT(noticed, effects);
    end(run);
}

TEST(the_same_seed_makes_the_same_script)
{
    uint64_t seed = test_seed();
    struct script *one = script_make(seed, 300), *two = script_make(seed, 300), *other = script_make(seed + 1, 300);
    CHECK_INT(one->call_count, 300);
    CHECK_INT(one->task_count, two->task_count);
    CHECK_INT(one->item_count, two->item_count);
    bool differs = false;
    for (uint32_t i = 0; i < one->call_count; i++) {
        CHECK_INT(one->calls[i].kind, two->calls[i].kind);
        CHECK_INT(one->calls[i].now_ms, two->calls[i].now_ms);
        differs |= one->calls[i].now_ms != other->calls[i].now_ms;
    }
    CHECK(differs);
    script_free(one);
    script_free(two);
    script_free(other);
}
