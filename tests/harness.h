/* harness.h - the test harness: tests register themselves, failures are counted from any thread, TAP comes out.
 *
 *     TEST(a_blocked_key_blocks_nobody_else) { CHECK(...); }
 *
 * A program made of such files is run as `test-x [--seed N] [--list] [PART-OF-NAME ...]`. Each random test asks
 * test_seed() and so prints its seed when it fails; --seed gives it back. */
#ifndef TESTS_HARNESS_H
#define TESTS_HARNESS_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct test {
    const char *name;
    void (*run)(void);
    struct test *next;
};

void test_register(struct test *test);
void test_fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
bool test_failed(void);

/* The seed of the running test: fresh each run, or what --seed or KL_TEST_SEED said. */
uint64_t test_seed(void);

/* How much a random test should do: `normal`, divided under sanitizers, or KL_TEST_OPS when that is set. */
uint64_t test_ops(uint64_t normal);

/* How often a slow thing should be done: `normal`; a tenth under sanitizers, or when KL_TEST_OPS asks for anything. */
uint64_t test_rounds(uint64_t normal);

#define TEST(name)                                                                                                     \
    static void name(void);                                                                                            \
    static struct test test_##name = {#name, name, NULL};                                                              \
    __attribute__((constructor)) static void register_##name(void) { test_register(&test_##name); }                    \
    static void name(void)

/* Records a failure and goes on. */
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            test_fail(__FILE__, __LINE__, "%s", #condition);                                                           \
    } while (0)

/* Records a failure and leaves the test function. */
#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            test_fail(__FILE__, __LINE__, "%s", #condition);                                                           \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

#define CHECK_INT(actual, expected)                                                                                    \
    do {                                                                                                               \
        int64_t actual_ = (int64_t)(actual), expected_ = (int64_t)(expected);                                          \
        if (actual_ != expected_)                                                                                      \
            test_fail(__FILE__, __LINE__, "%s is %" PRId64 ", expected %" PRId64, #actual, actual_, expected_);        \
    } while (0)

#define CHECK_STR(actual, expected)                                                                                    \
    do {                                                                                                               \
        const char *actual_ = (actual), *expected_ = (expected);                                                       \
        if (strcmp(actual_, expected_) != 0)                                                                           \
            test_fail(__FILE__, __LINE__, "%s is \"%s\", expected \"%s\"", #actual, actual_, expected_);               \
    } while (0)

#define CHECK_CONTAINS(text, part)                                                                                     \
    do {                                                                                                               \
        const char *text_ = (text), *part_ = (part);                                                                   \
        if (!strstr(text_, part_))                                                                                     \
            test_fail(__FILE__, __LINE__, "%s is \"%s\", which does not contain \"%s\"", #text, text_, part_);         \
    } while (0)

#endif
