/* engines.h - the engines that kl_store_open knows by their scheme. */
#ifndef KL_STORE_ENGINES_H
#define KL_STORE_ENGINES_H

#include <string.h>

#include "keyline/store.h"

/* Where an engine counts the tokens that it remembers: one, and the 65,536 that follow it (kl_store_append). */
enum { KL_TOKENS_KEPT = 65536 + 1 };

extern const kl_engine kl__engine_memory, kl__engine_disk, kl__engine_postgres, kl__engine_s3;
/* A disk store's directory from the root, links included: it stays the same wherever the process works later. Empty:
 * the usual one. KL_EINVAL, KL_ESYSTEM: it cannot be told. */
enum { KL_DISK_PATH_MAX = 3968 };
kl_rc kl__disk_path(const char *where, char ret_path[KL_DISK_PATH_MAX + 1]);

extern const kl_engine kl__engine_http, kl__engine_https; /* a server's store: socket/remote.c */

uint32_t kl__remote_can(const void *self); /* what the store of the server can */

/* See kl__store_identity. */
uint64_t kl__disk_identity(const void *self);
uint64_t kl__remote_identity(const void *self);

/* Whether a parameter of a URL is `name=VALUE`. */
static inline bool kl__url_param(kl_bytes param, const char *name, kl_bytes *ret_value)
{
    size_t len = strlen(name);
    const char *text = param.data;
    if (param.len <= len || strncmp(text, name, len) != 0 || text[len] != '=')
        return false;
    *ret_value = (kl_bytes){text + len + 1, param.len - len - 1};
    return true;
}

#endif
