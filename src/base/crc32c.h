/* crc32c.h - CRC-32C (Castagnoli), the checksum of everything we write to disk: by the processor where it can. */
#ifndef KL_CRC32C_H
#define KL_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of the bytes behind those that gave `crc`; 0 to begin. */
uint32_t kl__crc32c(uint32_t crc, const void *bytes, size_t count);

/* The same in portable C: the reference for tests, and what machines without the instruction use. */
uint32_t kl__crc32c_portable(uint32_t crc, const void *bytes, size_t count);

#endif
