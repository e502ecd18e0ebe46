/* check_rc.h - a call returns what it should; else what it said is printed. */
#ifndef CHECK_RC_H
#define CHECK_RC_H

#include "harness.h"
#include "keyline/error.h"

#define CHECK_RC(call, expected)                                                                                       \
    do {                                                                                                               \
        kl_rc expected_ = (expected), rc_ = (call);                                                                    \
        if (rc_ != expected_)                                                                                          \
            test_fail(__FILE__, __LINE__, "%s is %s (%s), expected %s", #call, kl_rc_name(rc_),                        \
                      rc_ == KL_OK ? "" : kl_error_text(), kl_rc_name(expected_));                                     \
    } while (0)

#define CHECK_OK(call) CHECK_RC(call, KL_OK)

#endif
