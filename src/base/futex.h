/* futex.h - sleep until a word changes, and wake those who do: for the few places where a condition variable's mutex
 * would make a queue of everybody who wakes. */
#ifndef KL_FUTEX_H
#define KL_FUTEX_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Sleeps while *word is `seen`; may return early. */
static inline void kl__futex_wait(_Atomic(uint32_t) *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static inline void kl__futex_wake_one(_Atomic(uint32_t) *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static inline void kl__futex_wake_all(_Atomic(uint32_t) *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

#endif
