/* log.h - libraries return, programs log: whoever opens an executor or a store may ask to be told what happens inside.
 * */
#ifndef KEYLINE_LOG_H
#define KEYLINE_LOG_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kl_log_level { KL_LOG_ERROR, KL_LOG_WARN, KL_LOG_INFO, KL_LOG_DEBUG } kl_log_level;

/* `text` is one line without its newline, valid during the call. Several threads may call it at once. It must be quick,
 * and must not call what tells it so: other calls may be waiting until it returns. */
typedef void kl_log_fn(void *ctx, kl_log_level level, const char *text);

#ifdef __cplusplus
}
#endif
#endif
