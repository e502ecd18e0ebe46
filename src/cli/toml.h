/* toml.h - the part of TOML that keyline.toml is written in.
 *
 * Understood: comments, [table] and [table.sub], bare, quoted and dotted keys, "basic" and 'literal' strings, decimal
 * whole numbers, true and false, and arrays of strings, over several lines if need be. Everything else of TOML is
 * refused by line and column with what to write instead, never skipped: multi-line strings, floating point, dates,
 * inline tables, arrays of tables, other arrays, numbers in other bases. */
#ifndef KL_CLI_TOML_H
#define KL_CLI_TOML_H

#include <stdint.h>

#include "keyline/arena.h"
#include "keyline/bytes.h"
#include "keyline/error.h"

enum {
    KL_TOML_BYTES_MAX = 1 << 20,
    KL_TOML_DEPTH_MAX = 8, /* parts of a key, its table included */
    KL_TOML_KEYS_MAX = 1000,
    KL_TOML_LIST_MAX = 65536,
};

typedef enum kl__toml_kind { KL_TOML_STRING, KL_TOML_NUMBER, KL_TOML_BOOL, KL_TOML_LIST } kl__toml_kind;

/* A key with its value. Texts lie in the arena and hold no zero byte. */
typedef struct kl__toml_item {
    struct kl__toml_item *next;
    const char *path[KL_TOML_DEPTH_MAX]; /* "worker", "concurrency" */
    int depth;
    int line, column; /* of the key, from 1; columns count bytes */
    int value_column;
    int table_depth; /* parts of the path that stand in the table's header */
    kl__toml_kind kind;
    const char *string;
    int64_t number; /* also 0 and 1 for booleans */
    const char **list;
    size_t count;
} kl__toml_item;

/* Items in the order in which they stand, NULL when there are none. `file` names the text in sentences. KL_EINVAL:
 * "keyline.toml:3:7: ..." what is wrong there and what is allowed. KL_ENOMEM. */
KL_MUST_USE kl_rc kl__toml_parse(kl_bytes text, const char *file, kl_arena *arena, kl__toml_item **ret_items);

#endif
