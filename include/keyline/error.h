/* error.h - what calls return, and what the caller should do about it.
 *
 * Every fallible call returns a kl_rc: KL_OK (0) or a negative code. The table below is the only list of codes: it
 * makes the enum, the names, the texts and the classes. A class answers the caller's question "what now?", for what the
 * code nearly always means: a wait that timed out may be made again, though a task that did is over, and what is busy
 * because the call comes from inside a task stays so as long as that runs. */
#ifndef KEYLINE_ERROR_H
#define KEYLINE_ERROR_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KL_API                                  __attribute__((visibility("default")))
#define KL_MUST_USE                             __attribute__((warn_unused_result))
#define KL_PRINTF(format_index, first_argument) __attribute__((format(printf, format_index, first_argument)))
#else
#define KL_API
#define KL_MUST_USE
#define KL_PRINTF(format_index, first_argument)
#endif

typedef enum kl_class {
    KL_CLASS_OK,    /* it worked */
    KL_CLASS_RETRY, /* nothing is wrong with the call: make it again later */
    KL_CLASS_DROP,  /* this one item is over; others go on */
    KL_CLASS_FIX,   /* the call or its input is wrong: the same call will fail again */
    KL_CLASS_FATAL, /* the handle is of no more use: close it */
} kl_class;

/*        code           value  text                                               class */
#define KL_RC_TABLE(X)                                                                                                 \
    X(KL_OK, 0, "ok", KL_CLASS_OK)                                                                                     \
    X(KL_EINVAL, -1, "the call or its input is not valid", KL_CLASS_FIX)                                               \
    X(KL_ENOMEM, -2, "out of memory", KL_CLASS_RETRY)                                                                  \
    X(KL_EFULL, -3, "full: there is no room for more", KL_CLASS_RETRY)                                                 \
    X(KL_ECLOSED, -4, "closed: nothing more is accepted", KL_CLASS_FATAL)                                              \
    X(KL_ECANCELLED, -5, "cancelled", KL_CLASS_DROP)                                                                   \
    X(KL_ETIMEDOUT, -6, "timed out", KL_CLASS_DROP)                                                                    \
    X(KL_ENOTFOUND, -7, "not found: it has ended or never was", KL_CLASS_DROP)                                         \
    X(KL_EBUSY, -8, "it is running", KL_CLASS_RETRY)                                                                   \
    X(KL_EDEAD, -9, "failed for good", KL_CLASS_DROP)                                                                  \
    X(KL_ESYSTEM, -10, "the operating system refused", KL_CLASS_FATAL)                                                 \
    X(KL_ESTALE, -11, "fenced off: another owner has taken the shard over", KL_CLASS_DROP)                             \
    X(KL_ECONFLICT, -12, "somebody else changed it first", KL_CLASS_RETRY)                                             \
    X(KL_EDAMAGED, -13, "what is stored is damaged", KL_CLASS_DROP)                                                    \
    X(KL_ESEALED, -14, "sealed: the queue has a newer layout", KL_CLASS_RETRY)                                         \
    X(KL_EMISMATCH, -15, "it is there already, and is something else", KL_CLASS_FIX)

typedef enum kl_rc {
#define KL_RC_ENUM(code, value, text, class_) code = (value),
    KL_RC_TABLE(KL_RC_ENUM)
#undef KL_RC_ENUM
} kl_rc;

/* The code's name ("KL_EFULL"), its text, and its class. Any int is accepted; an unknown one is named so and is FATAL.
 * The strings are static. Safe from any thread. */
KL_API const char *kl_rc_name(kl_rc rc);
KL_API const char *kl_rc_text(kl_rc rc);
KL_API kl_class kl_rc_class(kl_rc rc);

/* A sentence about this thread's most recent failed call: what was wrong and what to do. Never NULL; empty before the
 * first failure. The string belongs to the thread and lasts until its next failed call. Successful calls leave it. */
KL_API const char *kl_error_text(void);

#ifdef __cplusplus
}
#endif
#endif
