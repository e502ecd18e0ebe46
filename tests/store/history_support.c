/* history_support.c - see history_support.h. */
#include "history_support.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <unistd.h>

enum { TEXT_BYTES = 1 << 16 };

void shelf_open(struct shelf *shelf)
{
    shelf->history = NULL;
    CHECK_OK(kl__history_open(shelf->path, shelf->sqlite_vfs, shelf->rows_max, shelf->ms_max, &shelf->history));
}

void shelf_new(struct shelf *shelf)
{
    const char *tmp = getenv("TMPDIR");
    memset(shelf, 0, sizeof *shelf);
    shelf->rows_max = shelf->ms_max = INT64_MAX;
    snprintf(shelf->dir, sizeof shelf->dir, "%.40s/keyline-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(shelf->dir))
        test_fail(__FILE__, __LINE__, "%s cannot be made", shelf->dir);
    snprintf(shelf->path, sizeof shelf->path, "%s/history.db", shelf->dir);
    shelf_open(shelf);
}

void shelf_close(struct shelf *shelf)
{
    kl__history_close(shelf->history);
    shelf->history = NULL;
}

void shelf_free(struct shelf *shelf)
{
    static const char *const endings[] = {"", "-wal", "-shm"};
    char name[96];
    shelf_close(shelf);
    kl_arena_free(&shelf->arena);
    if (!shelf->dir[0])
        return;
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s%s", shelf->path, endings[i]);
        unlink(name);
    }
    rmdir(shelf->dir);
}

kl_task_id shelf_id(uint32_t number)
{
    kl_task_id id = {{0x12, 0x34}};
    for (int i = 0; i < 4; i++)
        id.bytes[12 + i] = (uint8_t)(number >> (24 - 8 * i));
    return id;
}

uint32_t shelf_number(const kl_task *task)
{
    const uint8_t *bytes = task->entry.id.bytes + 12;
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

kl_entry shelf_entry(uint32_t number, const char *key)
{
    return (kl_entry){.place = {1, 2}, .id = shelf_id(number), .key = kl_str(key), .payload = kl_str("payload")};
}

kl__history_row shelf_row(const kl_entry *entry, kl_outcome outcome, uint32_t attempts, const char *error)
{
    kl_task task = {.entry = *entry};
    int64_t finished_ms = SHELF_MS + shelf_number(&task);
    return (kl__history_row){.entry = entry,
                             .outcome = outcome,
                             .attempts = attempts,
                             .finished_ms = finished_ms,
                             .expires_ms = finished_ms + 1000,
                             .error = kl_str(error)};
}

void shelf_add(struct shelf *shelf, uint32_t number, kl_outcome outcome, const char *key, const char *error)
{
    kl_entry entry = shelf_entry(number, key);
    kl__history_row row = shelf_row(&entry, outcome, 1, error);
    CHECK_OK(kl__history_add(shelf->history, &row, 1, number));
}

void shelf_retry(struct shelf *shelf, uint32_t number, uint32_t attempts, const char *error)
{
    kl_entry entry = shelf_entry(number, NULL);
    kl__history_row row = shelf_row(&entry, KL_RETRY, attempts, error);
    CHECK_OK(kl__history_add(shelf->history, &row, 1, number));
}

kl_task shelf_read(struct shelf *shelf, uint32_t number)
{
    kl_task task = {.state = KL_TASK_UNKNOWN};
    kl_task_id id = shelf_id(number);
    CHECK_OK(read_kept(shelf->history, (kl_place){1, 2}, &id, 1, &shelf->arena, &task));
    return task;
}

const char *shelf_find(struct shelf *shelf, kl_find find, size_t page)
{
    static char text[TEXT_BYTES];
    kl_task *tasks = calloc(page, sizeof *tasks), last;
    size_t len = 0, count = 0;
    text[0] = '\0';
    find.max = page;
    do {
        kl_arena_reset(&shelf->arena);
        count = 0;
        CHECK_OK(kl__history_find(shelf->history, &find, &shelf->arena, tasks, &count));
        for (size_t i = 0; i < count && len + 16 < sizeof text; i++)
            len += (size_t)snprintf(text + len, sizeof text - len, "%s%u", len ? " " : "", shelf_number(&tasks[i]));
        if (count) {
            last = tasks[count - 1];
            find.after = &last;
        }
    } while (count == page);
    free(tasks);
    return text;
}

const char *shelf_sql(struct shelf *shelf, const char *sql)
{
    static char text[TEXT_BYTES];
    sqlite3 *db = NULL;
    sqlite3_stmt *statement = NULL;
    snprintf(text, sizeof text, "nothing");
    if (sqlite3_open_v2(shelf->path, &db, SQLITE_OPEN_READWRITE, shelf->sqlite_vfs) != SQLITE_OK ||
        sqlite3_prepare_v2(db, sql, -1, &statement, NULL) != SQLITE_OK) {
        snprintf(text, sizeof text, "%s", sqlite3_errmsg(db));
    } else if (sqlite3_step(statement) == SQLITE_ROW) {
        const char *value = (const char *)sqlite3_column_text(statement, 0);
        snprintf(text, sizeof text, "%s", value ? value : "null");
    }
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return text;
}
