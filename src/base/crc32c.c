/* crc32c.c - CRC-32C: eight bytes at a time by table, or by the instruction of x86-64 (SSE 4.2) and ARMv8.
 *
 * The instruction takes three cycles but a new one can start in each, so long inputs are cut into three streams that
 * are checksummed side by side and joined by a table that moves a checksum over STREAM zero bytes. */
#include "base/crc32c.h"

#include <pthread.h>
#include <string.h>

#include "base/base.h"

enum { POLYNOMIAL = 0x82f63b78, SLICES = 8 };

#define STREAM ((size_t)256)

static uint32_t slices[SLICES][256];  /* slices[n][b]: byte b followed by n zero bytes */
static uint32_t stream_shift[4][256]; /* a checksum's byte, moved over STREAM zero bytes */
static pthread_once_t tables_made = PTHREAD_ONCE_INIT;

static uint32_t over_zeros(uint32_t crc, size_t count)
{
    while (count--)
        crc = (crc >> 8) ^ slices[0][crc & 0xff];
    return crc;
}

static void make_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? (uint32_t)POLYNOMIAL : 0);
        slices[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        for (int n = 1; n < SLICES; n++)
            slices[n][byte] = over_zeros(slices[n - 1][byte], 1);
        for (int n = 0; n < 4; n++)
            stream_shift[n][byte] = over_zeros(byte << (8 * n), STREAM);
    }
}

uint32_t kl__crc32c_portable(uint32_t crc, const void *bytes, size_t count)
{
    pthread_once(&tables_made, make_tables);
    const uint8_t *at = bytes;
    crc = ~crc;
    for (; count >= 8; at += 8, count -= 8) {
        crc ^= (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc = slices[7][crc & 0xff] ^ slices[6][(crc >> 8) & 0xff] ^ slices[5][(crc >> 16) & 0xff] ^
              slices[4][crc >> 24] ^ slices[3][at[4]] ^ slices[2][at[5]] ^ slices[1][at[6]] ^ slices[0][at[7]];
    }
    for (; count; at++, count--)
        crc = (crc >> 8) ^ slices[0][(crc ^ *at) & 0xff];
    return ~crc;
}

#if defined(__x86_64__) || (defined(__aarch64__) && defined(__linux__))

#if defined(__x86_64__)
#include <nmmintrin.h>
#define WITH_CRC      __attribute__((target("sse4.2")))
#define STEP8(crc, x) _mm_crc32_u64(crc, x)
#define STEP1(crc, x) _mm_crc32_u8((uint32_t)(crc), x)
static bool has_instruction(void) { return __builtin_cpu_supports("sse4.2"); }
#else
#include <arm_acle.h>
#include <sys/auxv.h>
#define WITH_CRC      __attribute__((target("+crc")))
#define STEP8(crc, x) __crc32cd((uint32_t)(crc), x)
#define STEP1(crc, x) __crc32cb((uint32_t)(crc), x)
static bool has_instruction(void) { return getauxval(AT_HWCAP) & (1 << 7); } /* HWCAP_CRC32 */
#endif

static uint64_t load8(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

static uint64_t shift_stream(uint64_t crc)
{
    return stream_shift[0][crc & 0xff] ^ stream_shift[1][(crc >> 8) & 0xff] ^ stream_shift[2][(crc >> 16) & 0xff] ^
           stream_shift[3][(crc >> 24) & 0xff];
}

WITH_CRC static uint32_t by_instruction(uint32_t start, const uint8_t *at, size_t count)
{
    uint64_t crc = ~start;
    for (; count >= 3 * STREAM; at += 3 * STREAM, count -= 3 * STREAM) {
        uint64_t second = 0, third = 0;
        for (size_t i = 0; i < STREAM; i += 8) {
            crc = STEP8(crc, load8(at + i));
            second = STEP8(second, load8(at + STREAM + i));
            third = STEP8(third, load8(at + 2 * STREAM + i));
        }
        crc = shift_stream(shift_stream(crc) ^ second) ^ third;
    }
    for (; count >= 8; at += 8, count -= 8)
        crc = STEP8(crc, load8(at));
    for (; count; at++, count--)
        crc = STEP1(crc, *at);
    return ~(uint32_t)crc;
}

static bool use_instruction;
static pthread_once_t chosen = PTHREAD_ONCE_INIT;

static void choose(void)
{
    pthread_once(&tables_made, make_tables);
    use_instruction = has_instruction();
}

uint32_t kl__crc32c(uint32_t crc, const void *bytes, size_t count)
{
    pthread_once(&chosen, choose);
    return use_instruction ? by_instruction(crc, bytes, count) : kl__crc32c_portable(crc, bytes, count);
}

#else

uint32_t kl__crc32c(uint32_t crc, const void *bytes, size_t count) { return kl__crc32c_portable(crc, bytes, count); }

#endif
