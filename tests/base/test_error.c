/* test_error.c - codes, classes and sentences. */
#include <pthread.h>

#include "base/base.h"
#include "harness.h"

TEST(every_code_has_a_name_a_text_and_a_class)
{
#define ROW(code, value, text, class_)                                                                                 \
    CHECK_STR(kl_rc_name(code), #code);                                                                                \
    CHECK_STR(kl_rc_text(code), text);                                                                                 \
    CHECK_INT(kl_rc_class(code), class_);                                                                              \
    CHECK((code == KL_OK) == ((value) == 0) && (value) <= 0);
    KL_RC_TABLE(ROW)
#undef ROW
}

TEST(an_unknown_code_is_fatal)
{
    CHECK_STR(kl_rc_name((kl_rc)-9999), "unknown");
    CHECK_INT(kl_rc_class((kl_rc)-9999), KL_CLASS_FATAL);
}

static void *fail_elsewhere(void *ctx)
{
    CHECK_STR(kl_error_text(), "");
    CHECK_INT(kl__fail(KL_EBUSY, "there: %d", *(int *)ctx), KL_EBUSY);
    CHECK_STR(kl_error_text(), "there: 7");
    return NULL;
}

TEST(a_sentence_belongs_to_its_thread)
{
    int number = 7;
    pthread_t thread;
    CHECK_INT(kl__fail(KL_EINVAL, "here"), KL_EINVAL);
    REQUIRE(pthread_create(&thread, NULL, fail_elsewhere, &number) == 0);
    REQUIRE(pthread_join(thread, NULL) == 0);
    CHECK_STR(kl_error_text(), "here");
}
