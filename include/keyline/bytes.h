/* bytes.h - pointer and length, the form in which keys and payloads travel. */
#ifndef KEYLINE_BYTES_H
#define KEYLINE_BYTES_H

#include <stddef.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Borrowed memory: whoever passes a kl_bytes keeps it. Length 0 means "none", whatever the pointer. */
typedef struct kl_bytes {
    const void *data;
    size_t len;
} kl_bytes;

/* A C string without its terminator. NULL gives no bytes. */
static inline kl_bytes kl_str(const char *text)
{
    kl_bytes bytes = {text, text ? strlen(text) : 0};
    return bytes;
}

/* The longest ordering key. */
#define KL_KEY_BYTES_MAX 512

#ifdef __cplusplus
}
#endif
#endif
