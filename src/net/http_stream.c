/* http_stream.c - answers without an end: server-sent events.
 *
 * From: any thread, one at a time for a stream.  To: the connection, on its loop's thread.
 *
 *     send ─► pending ═ posted, once for all that comes meanwhile ═► outgoing ─► socket
 *
 * The two buffers change places: while the loop sends one, pieces are added to the other. What is in both is what the
 * client has not taken, and a stream that holds too much of it is ended by whoever sends.
 *
 * S1  A turn with a stream is in the posted list at most once: is_posted, under the loop's mutex.
 * S2  After `ended` its owner has let go; the loop frees it when it finds that, and nobody else. */
#include "net/http_inside.h"

enum { PENDING_MIN = 4096 };

/* ---- Any thread ---- */

static kl__turn *turn_of(kl__request *request) { return (kl__turn *)(void *)request; }

/* With the mutex held, which it releases. Once it is released the turn may be gone, unless it is we who post it. */
static void post_and_unlock(kl__turn *turn, pthread_mutex_t *mutex)
{
    bool post = !turn->is_posted;
    turn->is_posted = true;
    pthread_mutex_unlock(mutex);
    if (post)
        kl__loop_post(turn);
}

static pthread_mutex_t *lock(const kl__turn *turn)
{
    pthread_mutex_t *mutex = &turn->connection->loop->mutex;
    pthread_mutex_lock(mutex);
    return mutex;
}

bool kl__http_stream(kl__request *request, const char *type)
{
    kl__turn *turn = turn_of(request);
    const kl__field fields[] = {{kl_str("Content-Type"), kl_str(type)},
                                {kl_str("Cache-Control"), kl_str("no-store")},
                                {kl_str("Connection"), kl_str("close")}};
    bool formatted = kl__answer_format_head(turn, 200, fields, sizeof fields / sizeof fields[0]);
    turn->posted = KL_POSTED_STREAM;
    turn->close = true;
    if (!formatted) {
        turn->sending = (kl__sending){0};
        return false;
    }
    post_and_unlock(turn, lock(turn));
    return true;
}

static bool append(kl__pending *pending, kl_bytes piece)
{
    size_t len = pending->len + piece.len;
    if (len > pending->size) {
        size_t size = len < PENDING_MIN ? PENDING_MIN : len * 2;
        char *larger = kl__alloc(size);
        if (!larger)
            return false;
        if (pending->len > 0)
            memcpy(larger, pending->bytes, pending->len);
        kl__free(pending->bytes);
        pending->bytes = larger;
        pending->size = size;
    }
    if (piece.len > 0)
        memcpy(pending->bytes + pending->len, piece.data, piece.len);
    pending->len = len;
    return true;
}

bool kl__http_send(kl__request *request, kl_bytes piece, size_t unsent_max)
{
    kl__turn *turn = turn_of(request);
    pthread_mutex_t *mutex = lock(turn);
    if (turn->lost || turn->pending.len + turn->sending_bytes >= unsent_max || !append(&turn->pending, piece)) {
        pthread_mutex_unlock(mutex);
        return false;
    }
    post_and_unlock(turn, mutex);
    return true;
}

void kl__http_end(kl__request *request)
{
    kl__turn *turn = turn_of(request);
    pthread_mutex_t *mutex = lock(turn);
    turn->ended = true;
    post_and_unlock(turn, mutex);
}

/* ---- The loop ---- */

/* Takes what is pending into `sending`. False: there is nothing. An end that is posted counts when it comes (S1): until
 * then the turn is in the list. */
static bool take_pending(kl__connection *connection, bool *ret_ended)
{
    kl__turn *turn = connection->turn;
    pthread_mutex_t *mutex = lock(turn);
    kl__pending empty = connection->outgoing;
    empty.len = 0;
    connection->outgoing = turn->pending;
    turn->pending = empty;
    turn->sending_bytes = connection->outgoing.len;
    *ret_ended = turn->ended && !turn->is_posted;
    pthread_mutex_unlock(mutex);
    turn->sending.pieces[0] = (kl_bytes){connection->outgoing.bytes, connection->outgoing.len};
    return connection->outgoing.len > 0;
}

static void note_sent(kl__turn *turn)
{
    pthread_mutex_t *mutex = lock(turn);
    turn->sending_bytes = kl__sending_left(&turn->sending);
    pthread_mutex_unlock(mutex);
}

void kl__stream_go_on(kl__connection *connection)
{
    kl__turn *turn = connection->turn;
    bool ended = false;
    while (kl__sending_left(&turn->sending) > 0 || take_pending(connection, &ended)) {
        bool sent = kl__connection_send(connection, &turn->sending);
        note_sent(turn);
        if (!sent) {
            kl__connection_close(connection);
            return;
        }
        if (kl__sending_left(&turn->sending) > 0)
            return;
    }
    kl__timer_set(connection, KL_TIMER_NONE);
    if (!ended)
        return;
    kl__turn_give(connection->loop, turn);
    connection->turn = NULL;
    kl__connection_finish(connection, false);
}

void kl__stream_posted(kl__turn *turn)
{
    kl__connection *connection = turn->connection;
    pthread_mutex_t *mutex = lock(turn);
    turn->is_posted = false;
    bool ended = turn->ended;
    pthread_mutex_unlock(mutex);
    if (connection->fd >= 0) {
        connection->state = KL_CONN_STREAM;
        if (connection->hung)
            kl__connection_close(connection);
        else
            kl__stream_go_on(connection);
        return;
    }
    connection->state = KL_CONN_STREAM;
    if (ended || kl__stream_lost(connection))
        kl__connection_bury(connection);
}

/* An end that has been posted comes to kl__stream_posted, which buries it. */
bool kl__stream_lost(kl__connection *connection)
{
    kl__turn *turn = connection->turn;
    pthread_mutex_t *mutex = lock(turn);
    turn->lost = true;
    bool over = turn->ended && !turn->is_posted;
    pthread_mutex_unlock(mutex);
    return over;
}
