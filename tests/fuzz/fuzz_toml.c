/* fuzz_toml.c - keyline.toml: what is read has a place in the text and stands once; what is refused is said where. */
#include "cli/toml.h"
#include "fuzz.h"

static bool is_same_key(const kl__toml_item *a, const kl__toml_item *b)
{
    for (int i = 0; i < a->depth && i < b->depth; i++)
        if (strcmp(a->path[i], b->path[i]) != 0)
            return false;
    return a->depth == b->depth;
}

static void check_item(const kl__toml_item *item, size_t size)
{
    HOLDS(item->depth >= 1 && item->depth <= KL_TOML_DEPTH_MAX && item->table_depth < item->depth);
    HOLDS(item->line >= 1 && (size_t)item->line <= size && item->column >= 1 && item->value_column > item->column);
    for (int i = 0; i < item->depth; i++)
        HOLDS(strlen(item->path[i]) <= size);
    HOLDS(item->kind != KL_TOML_STRING || strlen(item->string) <= size);
    HOLDS(item->kind != KL_TOML_BOOL || item->number == 0 || item->number == 1);
    for (size_t i = 0; item->kind == KL_TOML_LIST && i < item->count; i++)
        HOLDS(strlen(item->list[i]) <= size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kl_arena arena = {0};
    kl__toml_item *items = NULL;
    char *copy = fuzz_copy(data, size);
    size_t count = 0;
    if (kl__toml_parse((kl_bytes){copy, size}, "keyline.toml", &arena, &items) != KL_OK)
        HOLDS(strncmp(kl_error_text(), "keyline.toml:", 13) == 0);
    for (const kl__toml_item *item = items; item; item = item->next, count++) {
        check_item(item, size);
        for (const kl__toml_item *before = items; before != item; before = before->next)
            HOLDS(!is_same_key(before, item));
    }
    HOLDS(count <= KL_TOML_KEYS_MAX);
    kl_arena_free(&arena);
    free(copy);
    return 0;
}
