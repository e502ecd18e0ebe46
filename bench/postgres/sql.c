/* sql.c - a producer that calls one statement: $1 are the keys of a group of tasks, $2 their payloads. Prepared, and
 * values are binary. */
#include <arpa/inet.h>

#include "bench.h"

enum { BYTEA = 17, TEXT = 25, BYTEA_ARRAY = 1001, TEXT_ARRAY = 1009 };

PGconn *open_connection(const struct load *load)
{
    PGconn *conn = PQconnectdb(load->settings->url);
    MUST(PQstatus(conn) == CONNECTION_OK, PQerrorMessage(conn));
    return conn;
}

/* --- An array in binary --- */

struct array {
    char *bytes;
    size_t used;
};

static void add_word(struct array *array, uint32_t word)
{
    word = htonl(word);
    memcpy(array->bytes + array->used, &word, 4);
    array->used += 4;
}

static void begin_array(struct array *array, Oid type, long count)
{
    array->used = 0;
    add_word(array, 1);
    add_word(array, 0);
    add_word(array, type);
    add_word(array, (uint32_t)count);
    add_word(array, 1);
}

static void add_bytes(struct array *array, const char *bytes, size_t length)
{
    add_word(array, (uint32_t)length);
    memcpy(array->bytes + array->used, bytes, length);
    array->used += length;
}

/* --- A producer --- */

void produce_sql(struct load *load, const char *sql)
{
    long group = load->settings->group;
    PGconn *conn = open_connection(load);
    struct array keys = {malloc((size_t)group * 20 + 20), 0}, values = {malloc((size_t)group * 210 + 20), 0};
    unsigned long number = (unsigned long)now_ns();
    MUST(keys.bytes && values.bytes, "memory");
    PQclear(PQprepare(conn, "put", sql, 2, (const Oid[]){TEXT_ARRAY, BYTEA_ARRAY}));
    while (goes_on(load)) {
        char key[KEY_BYTES + 1], bytes[PAYLOAD_BYTES];
        stamp(bytes);
        begin_array(&keys, TEXT, group);
        begin_array(&values, BYTEA, group);
        for (long i = 0; i < group; i++) {
            make_key(key, number++);
            add_bytes(&keys, key, KEY_BYTES);
            add_bytes(&values, bytes, PAYLOAD_BYTES);
        }
        PGresult *rows = PQexecPrepared(conn, "put", 2, (const char *const[]){keys.bytes, values.bytes},
                                        (const int[]){(int)keys.used, (int)values.used}, (const int[]){1, 1}, 1);
        MUST(PQresultStatus(rows) == PGRES_COMMAND_OK || PQresultStatus(rows) == PGRES_TUPLES_OK, PQerrorMessage(conn));
        PQclear(rows);
        atomic_fetch_add(&load->put, group);
    }
    free(keys.bytes);
    free(values.bytes);
    PQfinish(conn);
}
