/* harness.c - runs the registered tests in order of registration and prints TAP. */
#include "harness.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/random.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

enum { SANITIZED_SLOWDOWN = 10, TEST_SECONDS_MAX = 300 };

static struct test *first_test;
static struct test **last_test = &first_test;
static atomic_int failures;
static atomic_bool seed_used;
static uint64_t seed;
static pthread_mutex_t print_mutex = PTHREAD_MUTEX_INITIALIZER;

void test_register(struct test *test)
{
    *last_test = test;
    last_test = &test->next;
}

void test_fail(const char *file, int line, const char *format, ...)
{
    enum { PRINTED_MAX = 10 };
    if (atomic_fetch_add(&failures, 1) >= PRINTED_MAX)
        return;
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&print_mutex);
    printf("# %s:%d: ", file, line);
    vprintf(format, arguments);
    printf("\n");
    fflush(stdout);
    pthread_mutex_unlock(&print_mutex);
    va_end(arguments);
}

bool test_failed(void) { return atomic_load(&failures) > 0; }

uint64_t test_seed(void)
{
    atomic_store(&seed_used, true);
    return seed;
}

uint64_t test_ops(uint64_t normal)
{
    const char *asked = getenv("KL_TEST_OPS");
    if (asked && *asked) {
        char *end;
        uint64_t ops = strtoull(asked, &end, 10);
        if (*end || ops == 0) {
            fprintf(stderr, "KL_TEST_OPS is '%s'; give it a number from 1\n", asked);
            exit(2);
        }
        return ops;
    }
    return SANITIZED ? normal / SANITIZED_SLOWDOWN : normal;
}

uint64_t test_rounds(uint64_t normal)
{
    const char *asked = getenv("KL_TEST_OPS");
    bool is_short = SANITIZED || (asked && *asked);
    return is_short && normal >= 10 ? normal / 10 : normal;
}

static bool selected(const struct test *test, char **names, int count)
{
    for (int i = 0; i < count; i++)
        if (strstr(test->name, names[i]))
            return true;
    return count == 0;
}

static bool run_test(const struct test *test, int number, const char *program)
{
    atomic_store(&failures, 0);
    atomic_store(&seed_used, false);
    alarm(TEST_SECONDS_MAX);
    test->run();
    alarm(0);
    bool ok = !test_failed();
    if (!ok && atomic_load(&seed_used))
        printf("# again with: %s --seed %" PRIu64 " %s\n", program, seed, test->name);
    printf("%s %d - %s\n", ok ? "ok" : "not ok", number, test->name);
    fflush(stdout);
    return ok;
}

/* KL_TEST_SEED is how the suite says the same twice; a program that is run by hand looks elsewhere each time. */
static uint64_t first_seed(void)
{
    const char *given = getenv("KL_TEST_SEED");
    return given && *given ? strtoull(given, NULL, 10) : kl__random_seed() >> 1;
}

int main(int argc, char **argv)
{
    int first_name = 1;
    seed = first_seed();
    if (argc > 2 && strcmp(argv[1], "--seed") == 0) {
        seed = strtoull(argv[2], NULL, 10);
        first_name = 3;
    } else if (argc > 1 && strcmp(argv[1], "--list") == 0) {
        for (struct test *test = first_test; test; test = test->next)
            puts(test->name);
        return 0;
    }
    int count = 0, failed = 0;
    printf("# seed %" PRIu64 "\n", seed);
    for (struct test *test = first_test; test; test = test->next)
        if (selected(test, argv + first_name, argc - first_name))
            failed += !run_test(test, ++count, argv[0]);
    printf("1..%d\n", count);
    return failed || !count;
}
