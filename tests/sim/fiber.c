/* fiber.c - fibers on ucontext, which makes them, and on setjmp, which changes between them: that asks nothing of the
 * system, where swapcontext makes a call each time. Sanitizers are told of every change of stack. */
#include "sim/fiber.h"

#include <setjmp.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#endif

#ifdef SANITIZED
#include <sanitizer/common_interface_defs.h>
enum { STACK_BYTES = 2 << 20 };
#else
enum { STACK_BYTES = 512 << 10 };
#endif

struct fiber {
    ucontext_t context; /* until it has begun */
    jmp_buf paused;     /* from then on */
    fiber_fn *run;
    void *ctx;
    void *stack;
    void *fake; /* the sanitizer's second stack */
    bool begun, ended;
};

/* Of a stack that is not in use: the next one. */
struct spare {
    struct spare *next;
};

static struct fiber *current;
static jmp_buf outside;
static void *outside_fake;
static const void *outside_stack;
static size_t outside_bytes;
static struct spare *spares;

/* --- Changes of stack --- */

static void leave_for(void **fake, const void *stack, size_t bytes)
{
#ifdef SANITIZED
    __sanitizer_start_switch_fiber(fake, stack, bytes);
#else
    (void)fake, (void)stack, (void)bytes;
#endif
}

static void arrive(void *fake, const void **from, size_t *bytes)
{
#ifdef SANITIZED
    __sanitizer_finish_switch_fiber(fake, from, bytes);
#else
    (void)fake, (void)from, (void)bytes;
#endif
}

static void begin(void)
{
    struct fiber *fiber = current;
    arrive(NULL, &outside_stack, &outside_bytes);
    fiber->run(fiber->ctx);
    fiber->ended = true;
    leave_for(NULL, outside_stack, outside_bytes);
    _longjmp(outside, 1);
}

static _Noreturn void go_to(struct fiber *fiber)
{
    if (fiber->begun)
        _longjmp(fiber->paused, 1);
    fiber->begun = true;
    setcontext(&fiber->context);
    abort(); /* it does not return */
}

bool fiber_resume(struct fiber *fiber)
{
    current = fiber;
    leave_for(&outside_fake, fiber->stack, STACK_BYTES);
    if (_setjmp(outside) == 0)
        go_to(fiber);
    arrive(outside_fake, NULL, NULL);
    current = NULL;
    return !fiber->ended;
}

void fiber_pause(void)
{
    struct fiber *fiber = current;
    leave_for(&fiber->fake, outside_stack, outside_bytes);
    if (_setjmp(fiber->paused) == 0)
        _longjmp(outside, 1);
    arrive(fiber->fake, &outside_stack, &outside_bytes);
}

struct fiber *fiber_current(void) { return current; }

/* --- Making and freeing --- */

static void *take_stack(void)
{
    struct spare *spare = spares;
    if (spare) {
        spares = spare->next;
        return spare;
    }
    void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return stack == MAP_FAILED ? NULL : stack;
}

/* On its own, because getcontext may return twice for all that the compiler knows. */
static void set_context(ucontext_t *context, void *stack)
{
    getcontext(context); /* fails for bad pointers only */
    context->uc_stack.ss_sp = stack;
    context->uc_stack.ss_size = STACK_BYTES;
    makecontext(context, begin, 0);
}

struct fiber *fiber_new(fiber_fn *run, void *ctx)
{
    struct fiber *fiber = calloc(1, sizeof *fiber);
    void *stack = fiber ? take_stack() : NULL;
    if (!stack) {
        free(fiber);
        return NULL;
    }
    fiber->run = run;
    fiber->ctx = ctx;
    fiber->stack = stack;
    set_context(&fiber->context, stack);
    return fiber;
}

void fiber_free(struct fiber *fiber)
{
    if (!fiber)
        return;
    struct spare *spare = fiber->stack;
    spare->next = spares;
    spares = spare;
    free(fiber);
}

void fiber_free_stacks(void)
{
    while (spares) {
        struct spare *spare = spares;
        spares = spare->next;
        munmap(spare, STACK_BYTES);
    }
}
