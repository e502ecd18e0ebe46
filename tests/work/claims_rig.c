/* claims_rig.c - asking and saying that wait for the answer (claims_rig.h). */
#include "claims_rig.h"

#include <errno.h>
#include <time.h>

static void log_line(void *ctx, kl_log_level level, const char *text)
{
    (void)ctx;
    if (level <= KL_LOG_ERROR)
        fprintf(stderr, "# %s\n", text);
}

kl__claims *claims_of(kl_queue *queue, const char *server)
{
    kl__claims *claims = NULL;
    kl__claims_opts opts = {.queue = queue, .name = server, .server = server, .kind_ms = 200, .log = log_line};
    if (kl__claims_open(&opts, &claims) != KL_OK)
        test_fail(__FILE__, __LINE__, "%s", kl_error_text());
    return claims;
}

/* --- Asking --- */

static void answer(kl__claim_ask *ask, kl_rc rc, const kl__claimed *tasks, size_t count)
{
    struct got *got = ask->ctx;
    pthread_mutex_lock(&got->mutex);
    got->answers++;
    got->rc = rc;
    got->tasks = tasks;
    got->count = count;
    pthread_cond_broadcast(&got->changed);
    pthread_mutex_unlock(&got->mutex);
}

void got_init(struct got *got, size_t max, int64_t wait_ms, int64_t lease_ms)
{
    *got = (struct got){.ask = {.max = max, .wait_ms = wait_ms, .lease_ms = lease_ms, .answer = answer}};
    got->ask.ctx = got;
    got->ask.arena = &got->arena;
    pthread_mutex_init(&got->mutex, NULL);
    pthread_cond_init(&got->changed, NULL);
}

void got_free(struct got *got)
{
    kl_arena_free(&got->arena);
    pthread_mutex_destroy(&got->mutex);
    pthread_cond_destroy(&got->changed);
}

static bool wait_for(pthread_mutex_t *mutex, pthread_cond_t *changed, const int *answers)
{
    struct timespec until;
    int error = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_MS / 1000;
    pthread_mutex_lock(mutex);
    while (*answers == 0 && error == 0)
        error = pthread_cond_timedwait(changed, mutex, &until);
    bool came = *answers > 0;
    pthread_mutex_unlock(mutex);
    if (!came)
        test_fail(__FILE__, __LINE__, "no answer came");
    return came;
}

bool got_wait(struct got *got) { return wait_for(&got->mutex, &got->changed, &got->answers); }

size_t claim(kl__claims *claims, struct got *got, size_t max, int64_t wait_ms, int64_t lease_ms)
{
    got_init(got, max, wait_ms, lease_ms);
    kl__claims_ask(claims, &got->ask);
    return got_wait(got) ? got->count : 0;
}

size_t claim_kind(kl__claims *claims, struct got *got, size_t max, int64_t wait_ms, const char *kind)
{
    kl_bytes kinds[] = {kl_str(kind)};
    got_init(got, max, wait_ms, 0);
    got->ask.kinds = kinds;
    got->ask.kind_count = 1;
    kl__claims_ask(claims, &got->ask);
    return got_wait(got) ? got->count : 0;
}

/* --- Saying --- */

struct said {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int answers;
    kl_rc rc;
};

static void answer_says(kl__claim_says *says, kl_rc rc)
{
    struct said *said = says->ctx;
    pthread_mutex_lock(&said->mutex);
    said->answers++;
    said->rc = rc;
    pthread_cond_broadcast(&said->changed);
    pthread_mutex_unlock(&said->mutex);
}

kl_rc say_all(kl__claims *claims, kl__claim_say *list, size_t count)
{
    struct said said = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    kl__claim_says says = {.says = list, .count = count, .answer = answer_says, .ctx = &said};
    kl__claims_say(claims, &says);
    wait_for(&said.mutex, &said.changed, &said.answers);
    CHECK_INT(said.answers, 1);
    return said.rc;
}

kl_rc say(kl__claims *claims, kl__claim_say *one)
{
    kl_rc rc = say_all(claims, one, 1);
    return rc == KL_OK ? one->rc : rc;
}

kl_rc say_word(kl__claims *claims, kl__claim_word word, const char *token)
{
    kl__claim_say one = {.word = word, .token = kl_str(token), .retry_after_ms = -1, .percent = -1};
    return say(claims, &one);
}

const char *payload_of(const kl__claimed *claimed)
{
    static _Thread_local char texts[8][64];
    static _Thread_local unsigned next;
    char *text = texts[next++ % 8];
    kl_bytes payload = claimed->task->entry.payload;
    snprintf(text, sizeof texts[0], "%.*s", (int)payload.len, (const char *)payload.data);
    return text;
}
