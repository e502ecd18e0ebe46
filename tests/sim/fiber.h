/* fiber.h - functions that can stop in the middle: each has a stack of its own, and one runs at a time.
 *
 * The simulator's threads. Which one goes on is decided by whoever resumes them, so a run can be repeated exactly. */
#ifndef TESTS_SIM_FIBER_H
#define TESTS_SIM_FIBER_H

#include <stdbool.h>

struct fiber;

typedef void fiber_fn(void *ctx);

struct fiber *fiber_new(fiber_fn *run, void *ctx); /* NULL: no memory */
void fiber_free(struct fiber *fiber);              /* has ended, or was never resumed; NULL is fine */

/* From outside of all fibers: lets it run until it pauses or ends. False: it has ended. */
bool fiber_resume(struct fiber *fiber);

/* From inside of one: back to whoever resumed it. */
void fiber_pause(void);

/* The one that runs; NULL: none. */
struct fiber *fiber_current(void);

/* Stacks are kept for the next fibers; this frees those that are not in use. */
void fiber_free_stacks(void);

#endif
