/* doctor_plan.c - what has to become of each segment so that the journal opens again with everything that is readable.
 *
 * A segment with damage is rewritten under its own number. Its readable frames stay as they are, byte for byte; where
 * frames are lost, empty ones with their numbers take their place, so that neither the frames behind them nor the
 * segments behind this one have to change. Missing segments are made anew in the same way. The first frame of each
 * rewritten segment names all partitions and has the note about history, as that of every segment must.
 *
 * Files without anything readable that stand before the first segment, or behind a gap at the end, are no part of the
 * journal and are taken out. Where the end of the journal is lost, a new end is written: it keeps the numbers of
 * partitions that only history knows, and passes over sequence numbers that may have been given. So it is where the
 * first segments are lost, for its note says which one is the first now. */
#include <string.h>

#include "store/disk/doctor_inside.h"

#define NUMBER_MAX (UINT64_C(1) << 48) /* of a segment; whatever has a higher one was not made by us */

/* The segments that are part of the journal: from the first to the last that has something readable, and those that
 * follow the last without a gap. */
static void bound(const kl__doctor *doctor, size_t *ret_first, size_t *ret_end)
{
    size_t first = 0, end = doctor->case_count;
    while (first < end && (!doctor->cases[first].is_usable || doctor->cases[first].number > NUMBER_MAX))
        first++;
    *ret_first = first;
    *ret_end = first;
    for (size_t i = first; i < end && doctor->cases[i].number <= NUMBER_MAX; i++)
        if (doctor->cases[i].is_usable || (*ret_end == i && doctor->cases[i].number == doctor->cases[i - 1].number + 1))
            *ret_end = i + 1;
}

/* Could frames have stood behind the last one that is readable? */
static bool has_lost_end(const kl__doctor *doctor, size_t first, size_t end)
{
    if (first == end)
        return doctor->case_count > 0;
    for (size_t i = end; i-- > first;) {
        const kl__case *its = &doctor->cases[i];
        if (its->is_cut || !its->is_usable)
            return true;
        if (its->frames)
            return false;
    }
    return false;
}

/* Where the end is lost, what stands behind the last readable frame is not the rest of a write that nobody was told of:
 * it may be a part of what is lost, and is kept aside with its segment. So are those that follow, in which none is
 * readable. */
static void mark_end(kl__doctor *doctor)
{
    for (size_t i = doctor->case_count; i-- > 0;) {
        doctor->cases[i].is_damaged = true;
        if (doctor->cases[i].frames)
            return;
    }
}

static size_t count_plan(const kl__doctor *doctor, size_t first, size_t end)
{
    size_t count = end - first;
    for (size_t i = first + 1; i < end; i++) {
        uint64_t missing = doctor->cases[i].number - doctor->cases[i - 1].number - 1;
        if (missing > KL_MISSING_MAX)
            return 0;
        count += (size_t)missing;
    }
    return count;
}

/* Puts segments and the missing ones between them in a row. */
static void line_up(kl__doctor *doctor, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        const kl__case *its = &doctor->cases[i];
        while (i > first && doctor->plan[doctor->plan_count - 1].number + 1 < its->number) {
            const kl__case *last = &doctor->plan[doctor->plan_count - 1];
            doctor->plan[doctor->plan_count++] = (kl__case){
                .number = last->number + 1, .before = last->last, .last = last->last, .action = KL_ACT_REWRITE};
        }
        doctor->plan[doctor->plan_count] = *its;
        doctor->plan[doctor->plan_count++].action = its->is_damaged ? KL_ACT_REWRITE : KL_ACT_KEEP;
    }
}

/* Frames that are missing before a segment's first are filled in at the end of the one before. */
static uint64_t fill_gaps(kl__doctor *doctor)
{
    uint64_t filled = doctor->totals.lost_frames;
    for (size_t i = 1; i < doctor->plan_count; i++) {
        const kl__case *its = &doctor->plan[i];
        if (!its->lost_from)
            continue;
        doctor->plan[i - 1].fill_from = its->lost_from;
        doctor->plan[i - 1].fill_to = its->lost_to;
        doctor->plan[i - 1].action = KL_ACT_REWRITE;
    }
    return filled;
}

static void plan_end(kl__doctor *doctor)
{
    doctor->totals.may_have_lost_more = true;
    if (doctor->plan_count == 0) {
        uint64_t last = doctor->case_count ? doctor->cases[doctor->case_count - 1].number : 0;
        doctor->plan[doctor->plan_count++] = (kl__case){.number = last < NUMBER_MAX ? last + 1 : 1};
    }
    /* Behind a segment without a frame there is none with. */
    size_t at = doctor->plan_count - 1;
    while (at > 0 && !doctor->plan[at].frames && !doctor->plan[at - 1].frames)
        at--;
    doctor->plan[at].action = KL_ACT_REWRITE;
    doctor->plan[at].has_end = true;
}

static const char *find_hindrance(const kl__doctor *doctor)
{
    bool fails = doctor->history_fails;
    for (size_t i = 0; i < doctor->case_count; i++)
        fails |= doctor->cases[i].disk_fails;
    if (fails)
        return "the disk fails to read part of it; copy it to a healthy disk with a tool that passes over what "
               "cannot be read, and repair the copy";
    return NULL;
}

kl_rc kl__doctor_plan(kl__doctor *doctor)
{
    size_t first, end;
    if (doctor->wants_end)
        mark_end(doctor);
    bound(doctor, &first, &end);
    size_t count = count_plan(doctor, first, end);
    doctor->plan = kl__alloc_zeroed(count + 1, sizeof(*doctor->plan));
    if (!doctor->plan)
        return kl__fail_memory();
    for (size_t i = 0; i < doctor->case_count; i++)
        if (i < first || i >= end)
            doctor->cases[i].action = KL_ACT_REMOVE;
    doctor->hindrance = find_hindrance(doctor);
    if (end > first && count == 0)
        doctor->hindrance = "too many segments are missing between those that are there";
    else
        line_up(doctor, first, end);
    if (fill_gaps(doctor) > KL_FILLED_MAX)
        doctor->hindrance = "the frames' numbers are too far apart for one journal";
    bool lacks_first = doctor->plan_count && doctor->first_noted && doctor->plan[0].number > doctor->first_noted;
    if (doctor->wants_end || lacks_first || has_lost_end(doctor, first, end))
        plan_end(doctor);
    if (doctor->plan_count && doctor->plan[0].number > doctor->first_noted)
        doctor->first_noted = doctor->plan[0].number;
    return KL_OK;
}
