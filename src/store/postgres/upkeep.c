/* upkeep.c - a thread that takes away what is settled or has expired.
 *
 * Of all processes that have the store open, one does it at a time: whoever finds that it is time, and gets the
 * advisory lock. A round is one transaction of bounded size; as long as a round was full, the next follows at once.
 * Nothing depends on when it comes: what is settled or has expired is not shown anyway. */
#include "base/clock.h"
#include "base/wait.h"
#include "store/postgres/postgres.h"

enum {
    ROUND_MS = 1000,
    ROUND_SPREAD_MS = 200,  /* so that it is not the same process each time: their limits may differ */
    ROUND_BATCHES = 1000,   /* settled batches in one transaction, */
    ROUND_ROWS = 5000,      /* and about so many rows of each table */
    OLD_MS = 60000,         /* a segment is closed when it is so old, */
    LARGE_BYTES = 32 << 20, /* or so large */
    LEFT_OVER_MS = 60000,   /* what is left over in a closed one moves after so long */
    LAST_BYTES = 1 << 20,   /* what is smaller is left to those who come */
    TOKEN_MS = 11 * 60000,
    HISTORY_MS = 5 * 60000, /* the number of rows that the server guesses is too high for so long */
};

static const kl__told_words words = {"clearing away fails", "clearing away works again"};

/* While the server does not answer, that is told already. */
static void note(kl__pg *pg, kl_rc rc)
{
    char text[KL_TOLD_BYTES];
    bool anew = false;
    if (rc == KL_OK)
        anew = kl__told_success(&pg->upkeep_told, &words, kl__monotonic_ns(), text);
    else if (!kl__away_is_told(&pg->away))
        anew = kl__told_failure(&pg->upkeep_told, &words, rc, kl_error_text(), kl__monotonic_ns(), text);
    if (anew)
        kl__pg_log(pg, KL_LOG_WARN, "%s", text);
}

/* True: there is more. Where there turned out to be no more history than there may be, it is left alone for a while. */
static bool clear_rows(kl__pg *pg, int64_t *history_ns)
{
    bool looks = kl__monotonic_ns() >= *history_ns;
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    bool more = false;
    kl__pg_int(&args, KL_PG_INT4, ROUND_BATCHES);
    kl__pg_int(&args, KL_PG_INT4, ROUND_ROWS);
    kl__pg_int(&args, KL_PG_INT8, looks ? pg->opts.history_rows_max : INT64_MAX);
    kl_rc rc = kl__pg_ask(pg, &(kl__pg_call){"SELECT * FROM $S.upkeep($1,$2,$3)", &args, false}, &rows);
    kl__pg_args_free(&args);
    if (rc == KL_OK) {
        more = kl__pg_get_int(rows, 0, 0) != 0;
        if (!PQgetisnull(rows, 0, 1) && kl__pg_get_int(rows, 0, 1) == 0)
            *history_ns = kl__deadline_ns(HISTORY_MS);
        PQclear(rows);
    }
    note(pg, rc);
    return more;
}

static void do_step(kl__pg *pg, const char *sql, kl__pg_args *args)
{
    note(pg, kl__pg_do(pg, &(kl__pg_call){sql, args, false}));
    kl__pg_args_free(args);
}

static bool do_round(kl__pg *pg, int64_t *history_ns)
{
    kl__pg_args args = {0}, tokens = {0};
    kl__pg_int(&args, KL_PG_INT8, OLD_MS);
    kl__pg_int(&args, KL_PG_INT8, LEFT_OVER_MS);
    kl__pg_int(&args, KL_PG_INT8, LARGE_BYTES);
    do_step(pg, "SELECT $S.upkeep_segments($1,$2,$3)", &args);
    if (atomic_load(&pg->closing))
        return false;
    kl__pg_int(&tokens, KL_PG_INT8, TOKEN_MS);
    do_step(pg, "SELECT $S.upkeep_tokens($1)", &tokens);
    return !atomic_load(&pg->closing) && clear_rows(pg, history_ns);
}

/* Of all processes one does it, whoever comes first when it is time. */
static bool is_due(kl__pg *pg)
{
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    kl__pg_int(&args, KL_PG_INT8, ROUND_MS);
    kl_rc rc = kl__pg_ask(pg, &(kl__pg_call){"SELECT $S.upkeep_due($1)", &args, false}, &rows);
    kl__pg_args_free(&args);
    if (rc != KL_OK) {
        note(pg, rc);
        return false;
    }
    bool due = kl__pg_get_int(rows, 0, 0) != 0;
    PQclear(rows);
    return due;
}

/* Who begins to work reads the positions that are settled: there are none where everything was cleared away. */
static void do_last(kl__pg *pg)
{
    kl__pg_args args = {0};
    if (!atomic_load(&pg->settles) || atomic_load(&pg->cut_ns)) /* or the server was silent */
        return;
    kl__pg_int(&args, KL_PG_INT8, LAST_BYTES);
    do_step(pg, "SELECT $S.upkeep_last($1)", &args);
}

static void *upkeep_thread(void *ctx)
{
    kl__pg *pg = ctx;
    int64_t history_ns = 0;
    pthread_mutex_lock(&pg->mutex);
    while (!pg->closing) {
        int64_t until_ns = kl__deadline_ns(ROUND_MS + kl__monotonic_ns() % ROUND_SPREAD_MS);
        while (!pg->closing && kl__cond_wait(&pg->upkeep_wakes, &pg->mutex, until_ns))
            ;
        pthread_mutex_unlock(&pg->mutex);
        for (bool more = !atomic_load(&pg->closing) && is_due(pg); more && !atomic_load(&pg->closing);)
            more = do_round(pg, &history_ns);
        pthread_mutex_lock(&pg->mutex);
    }
    pthread_mutex_unlock(&pg->mutex);
    do_last(pg);
    return NULL;
}

kl_rc kl__pg_upkeep_start(kl__pg *pg)
{
    if (pthread_create(&pg->upkeep, NULL, upkeep_thread, pg) != 0)
        return kl__fail(KL_ESYSTEM, "no thread is to be had for clearing away; end others first");
    pg->upkeep_runs = true;
    return KL_OK;
}

void kl__pg_upkeep_stop(kl__pg *pg)
{
    pthread_mutex_lock(&pg->mutex);
    pg->closing = true;
    pthread_cond_broadcast(&pg->upkeep_wakes);
    pthread_mutex_unlock(&pg->mutex);
    if (pg->upkeep_runs)
        kl__pg_join(pg, pg->upkeep);
}
