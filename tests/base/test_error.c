/* test_error.c - codes, classes and sentences. */
#include <pthread.h>
#include <stdio.h>

#include "base/base.h"
#include "base/text.h"
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

static int said;

static void say_number(const void *facts, char *text, size_t bytes)
{
    said++;
    snprintf(text, bytes, "it was %d", *(const int *)facts);
}

TEST(a_sentence_can_be_made_when_it_is_asked_for_from_what_was_true_when_the_call_failed)
{
    *(int *)kl__fail_facts(say_number) = 7;
    CHECK_INT(said, 0);
    CHECK_STR(kl_error_text(), "it was 7");
    CHECK_STR(kl_error_text(), "it was 7");
    CHECK_INT(said, 1);
    *(int *)kl__fail_facts(say_number) = 8;
    CHECK_INT(kl__fail(KL_EBUSY, "something else"), KL_EBUSY);
    CHECK_STR(kl_error_text(), "something else");
    CHECK_INT(said, 1);
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

TEST(bytes_in_a_sentence_are_escaped_and_cut_visibly)
{
    static const struct {
        kl_bytes bytes;
        const char *text;
    } cases[] = {
        {{"", 0}, ""},
        {{"customer-7", 10}, "customer-7"},
        {{"a\0b\n\x1b", 5}, "a\\x00b\\x0a\\x1b"},
        {{"back\\slash", 10}, "back\\x5cslash"},
        {{"sch\xc3\xb6n \xc2\x9b \xff", 11}, "sch\xc3\xb6n \\xc2\\x9b \\xff"},
        {{"exactly thirty-nine characters fit here", 39}, "exactly thirty-nine characters fit here"},
        {{"but with one more of them it is too long", 40}, "but wit... (40 bytes)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char buffer[KL_QUOTE_MIN];
        CHECK_STR(kl__text_quote(cases[i].bytes, buffer, sizeof buffer), cases[i].text);
    }
}
