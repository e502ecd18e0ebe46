/* test_crc32c.c - the checksum of everything on disk. */
#include "base/crc32c.h"

#include "base/random.h"
#include "harness.h"

TEST(crc32c_gives_the_published_values)
{
    uint8_t bytes[32];
    CHECK_INT(kl__crc32c(0, "123456789", 9), 0xe3069283);
    CHECK_INT(kl__crc32c(0, "", 0), 0);
    memset(bytes, 0, sizeof bytes); /* RFC 3720, B.4 */
    CHECK_INT(kl__crc32c(0, bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, sizeof bytes);
    CHECK_INT(kl__crc32c(0, bytes, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++)
        bytes[i] = (uint8_t)i;
    CHECK_INT(kl__crc32c(0, bytes, 32), 0x46dd794e);
    CHECK_INT(kl__crc32c_portable(0, bytes, 32), 0x46dd794e);
}

TEST(crc32c_is_the_same_by_instruction_by_table_and_in_pieces)
{
    static uint8_t bytes[5000];
    uint64_t random = test_seed();
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)kl__random_next(&random);
    for (int round = 0; round < 2000; round++) {
        size_t from = kl__random_below(&random, 2000), count = kl__random_below(&random, 3000);
        size_t cut = kl__random_below(&random, count + 1);
        uint32_t whole = kl__crc32c(0, bytes + from, count);
        CHECK_INT(whole, kl__crc32c_portable(0, bytes + from, count));
        CHECK_INT(whole, kl__crc32c(kl__crc32c(0, bytes + from, cut), bytes + from + cut, count - cut));
    }
}
