/* output.h - what commands print: described once, for people and for machines.
 *
 *     static const kl__column columns[] = {{"queue", 0}, {"waiting", KL_COLUMN_RIGHT}, {0}};
 *     kl__out out;
 *     kl__out_begin(&out, call, columns);
 *     kl__out_row(&out, (kl__cell[]){kl__cell_text("orders"), kl__cell_number(7)});
 *     return kl__out_end(&out);
 *
 * For people: lists are tables with a line of titles, single things are lines of a name and a value. Texts that came
 * from elsewhere (keys, payloads, errors) are made harmless for terminals. For machines (--json): each row of a list is
 * an object on a line of its own, and a single thing is one object on one line. */
#ifndef KL_CLI_OUTPUT_H
#define KL_CLI_OUTPUT_H

#include <jansson.h>

#include "cli/cli.h"
#include "keyline/bytes.h"
#include "keyline/id.h"

enum {
    KL_COLUMN_RIGHT = 1 << 0,   /* aligned to the right: numbers */
    KL_COLUMN_MACHINE = 1 << 1, /* only in JSON */
    KL_COLUMN_STATE = 1 << 2,   /* coloured by what it says: done, dead, paused, ... */
    KL_COLUMN_WHOLE = 1 << 3,   /* never cut short in tables */
};

/* The name is the field's in JSON; people see it in capitals, with blanks for _ and without _ms. */
typedef struct kl__column {
    const char *name; /* NULL ends a table */
    unsigned flags;
} kl__column;

enum { KL_COLUMNS_MAX = 40, KL_CELL_WIDTH_MAX = 60 };

typedef enum kl__cell_kind {
    KL_CELL_NONE,   /* null, and nothing for people */
    KL_CELL_ABSENT, /* null, and the word none for people */
    KL_CELL_BYTES,
    KL_CELL_NUMBER,
    KL_CELL_FLAG,
    KL_CELL_TIME,     /* RFC 3339 in both */
    KL_CELL_DURATION, /* milliseconds in JSON, so the name ends in _ms */
    KL_CELL_ID,
    KL_CELL_JSON, /* a value of its own; people see it as JSON */
} kl__cell_kind;

typedef struct kl__cell {
    kl__cell_kind kind;
    kl_bytes bytes;
    int64_t number;
    kl_task_id id;
    json_t *json; /* taken over by the row; NULL: out of memory when it was made */
} kl__cell;

static inline kl__cell kl__cell_none(void) { return (kl__cell){.kind = KL_CELL_NONE}; }
static inline kl__cell kl__cell_absent(void) { return (kl__cell){.kind = KL_CELL_ABSENT}; }
static inline kl__cell kl__cell_bytes(kl_bytes bytes) { return (kl__cell){.kind = KL_CELL_BYTES, .bytes = bytes}; }
static inline kl__cell kl__cell_text(const char *text) { return kl__cell_bytes(kl_str(text)); }
static inline kl__cell kl__cell_flag(bool flag) { return (kl__cell){.kind = KL_CELL_FLAG, .number = flag}; }
static inline kl__cell kl__cell_id(const kl_task_id *id) { return (kl__cell){.kind = KL_CELL_ID, .id = *id}; }
static inline kl__cell kl__cell_json(json_t *json) { return (kl__cell){.kind = KL_CELL_JSON, .json = json}; }

static inline kl__cell kl__cell_number(int64_t number) { return (kl__cell){.kind = KL_CELL_NUMBER, .number = number}; }

/* 0: none. */
static inline kl__cell kl__cell_time(int64_t ms)
{
    return (kl__cell){.kind = ms ? KL_CELL_TIME : KL_CELL_NONE, .number = ms};
}

static inline kl__cell kl__cell_duration(int64_t ms) { return (kl__cell){.kind = KL_CELL_DURATION, .number = ms}; }

/* Nothing when there are no bytes, or the id is all zero. */
kl__cell kl__cell_bytes_or_none(kl_bytes bytes);
kl__cell kl__cell_id_or_none(const kl_task_id *id);

typedef struct kl__out_line kl__out_line;

typedef struct kl__out {
    const kl__column *columns;
    size_t count;
    bool json, colour;
    bool titled;    /* the line of titles was printed */
    bool failed;    /* out of memory */
    kl_arena arena; /* of the lines that wait to be aligned */
    kl__out_line *first, **last;
    size_t waiting;
    size_t widths[KL_COLUMNS_MAX];
} kl__out;

/* A list. */
void kl__out_begin(kl__out *out, const kl__call *call, const kl__column *columns);
void kl__out_row(kl__out *out, const kl__cell *cells);
/* Prints what waits. KL_EXIT_OK, or it has complained. Must be called once. */
int kl__out_end(kl__out *out);

/* A single thing. KL_EXIT_OK, or it has complained. */
int kl__out_thing(const kl__call *call, const kl__column *columns, const kl__cell *cells);

/* Something was done: a sentence for people, and for machines the thing. */
int kl__out_done(const kl__call *call, const kl__column *columns, const kl__cell *cells, const char *format, ...)
    KL_PRINTF(4, 5);

/* Something that belongs to what was done, for people alone: on standard error, so that scripts which take the standard
 * output get nothing but the thing. */
void kl__out_note(const kl__call *call, const char *format, ...) KL_PRINTF(2, 3);

/* Whether --json was given. */
bool kl__call_json(const kl__call *call);

/* The bytes as people may see them on a terminal: control characters and what is not UTF-8 as \xNN; in the arena.
 * NULL: out of memory. */
const char *kl__out_harmless(kl_bytes bytes, kl_arena *arena);

/* Columns that a terminal takes for the text, which is harmless: its characters, at least. */
size_t kl__out_width(const char *text);

#endif
