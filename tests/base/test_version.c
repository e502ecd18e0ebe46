#include "harness.h"

#include <stdio.h>

#include "keyline/version.h"

TEST(the_headers_and_the_library_are_of_one_version)
{
    char numbers[32];
    snprintf(numbers, sizeof numbers, "%d.%d.%d", KL_VERSION_MAJOR, KL_VERSION_MINOR, KL_VERSION_PATCH);
    CHECK_STR(KL_VERSION, numbers);
    CHECK_STR(KL_VERSION, KEYLINE_VERSION); /* what the build says */
    CHECK_INT(KL_VERSION_NUMBER, KL_VERSION_MAJOR * 1000000 + KL_VERSION_MINOR * 1000 + KL_VERSION_PATCH);
}
