/* fetch.h - tell the processor to fetch a line of memory that will be needed soon. */
#ifndef KL_FETCH_H
#define KL_FETCH_H

/* The empty statement keeps what calls this: gcc takes a function that only prefetches for one without effect, and
 * leaves out every call of it that it does not put in line. */
static inline void kl__fetch(const void *line)
{
    __builtin_prefetch(line);
    __asm__ volatile("");
}

/* Fetches a line that will be written, without sharing it first: that would take two trips to the other core. The
 * compiler has this instruction only for newer processors; older ones pass over it. */
static inline void kl__fetch_to_write(const void *line)
{
#ifdef __x86_64__
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
    __asm__ volatile("");
#endif
}

#endif
