/* clock.c - what time the server has; see clock.h. */
#include "store/s3/clock.h"

#include "base/clock.h"

enum {
    JUMP_MS = 5000,
    FORGET_MS = 60000, /* a greatest offset is forgotten after so long, or twice that */
};

static int64_t monotonic_ms(void) { return kl__monotonic_ns() / 1000000; }

static void set_offset(kl__s3_clock *clock, int64_t offset)
{
    clock->offset_ms = clock->newer_ms = offset;
    clock->newer_at_ms = monotonic_ms();
    clock->is_set = true;
}

/* Whether the next answer says so, too: one server among many with a wrong clock is not to set ours. */
static bool is_doubtful(kl__s3_clock *clock, int64_t offset)
{
    bool again = clock->doubted_ms && offset > clock->doubted_ms - JUMP_MS;
    clock->doubted_ms = again ? 0 : offset;
    return !again;
}

/* The first date is doubted, too, if it is far ahead of this machine's clock: that holds until a second one agrees. */
static void begin(kl__s3_clock *clock, int64_t offset)
{
    int64_t own = kl__wall_ms() - monotonic_ms();
    set_offset(clock, offset - own > JUMP_MS ? own : offset);
}

/* Dates are whole seconds, cut off: the greatest offset seen is the closest. It is forgotten after a while, for clocks
 * that drift or were wrong for a moment. */
void kl__s3_clock_learn(kl__s3_clock *clock, int64_t date_ms)
{
    int64_t offset = date_ms - monotonic_ms();
    if (!clock->is_set)
        begin(clock, offset);
    if (offset - clock->offset_ms > JUMP_MS) {
        clock->jumped_ns = kl__monotonic_ns();
        if (is_doubtful(clock, offset))
            return;
    } else {
        clock->doubted_ms = 0;
    }
    if (monotonic_ms() - clock->newer_at_ms > FORGET_MS) {
        clock->offset_ms = clock->newer_ms;
        clock->newer_ms = offset;
        clock->newer_at_ms = monotonic_ms();
    }
    if (offset > clock->newer_ms)
        clock->newer_ms = offset;
    if (offset > clock->offset_ms)
        clock->offset_ms = offset;
}

void kl__s3_clock_set(kl__s3_clock *clock, int64_t date_ms)
{
    set_offset(clock, date_ms - monotonic_ms());
    clock->jumped_ns = kl__monotonic_ns(); /* this machine may have stood still for long */
}

int64_t kl__s3_clock_shows(const kl__s3_clock *clock) { return monotonic_ms() + clock->offset_ms; }

int64_t kl__s3_clock_now(kl__s3_clock *clock)
{
    int64_t now_ms = clock->is_set ? kl__s3_clock_shows(clock) : 0;
    if (now_ms > clock->now_ms)
        clock->now_ms = now_ms;
    return clock->now_ms;
}
