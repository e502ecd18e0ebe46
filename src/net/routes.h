/* routes.h - every route of the API, once: the table makes the dispatch, the roles, openapi.json and the tests of both.
 *
 * A row without a role does not compile; a handler without a row is an unused function and does not compile either.
 *
 *     method  path  role  flags  handler (kl__api_NAME; NAME is also its operationId)  summary */
#ifndef KL_NET_ROUTES_H
#define KL_NET_ROUTES_H

#include "net/api.h"

#define KL__QUEUE "/v1/queues/{queue}"

#define KL__ROUTES(R)                                                                                                  \
    /* The server: api_server.c */                                                                                     \
    R(GET, "/healthz", ANYONE, KL_ROUTE_NOW, healthz, "The process is alive")                                          \
    R(GET, "/readyz", ANYONE, 0, readyz, "It can put and give out tasks: the store answers, and no stop has begun")    \
    R(GET, "/metrics", READ, 0, metrics, "All metrics, as OpenMetrics text")                                           \
    R(GET, "/openapi.json", READ, 0, openapi, "This API, as OpenAPI 3.1")                                              \
    R(GET, "/v1", READ, 0, info, "The server: version, store, since when")                                             \
    R(GET, "/v1/events", READ, KL_ROUTE_NOW, events, "What happens, live, as server-sent events")                      \
    R(GET, "/v1/store", ADMIN, KL_ROUTE_AUDITED, store,                                                                \
      "The store itself, after Upgrade: keyline-store; for http:// in --store")                                        \
    /* Queues: api_queues.c */                                                                                         \
    R(GET, "/v1/queues", READ, 0, list_queues, "Queues by name")                                                       \
    R(POST, "/v1/queues", ADMIN, KL_ROUTE_CHANGES, create_queue, "Create a queue")                                     \
    R(GET, KL__QUEUE, READ, 0, show_queue, "A queue: settings, layout, depth by state, oldest age")                    \
    R(PATCH, KL__QUEUE, ADMIN, KL_ROUTE_CHANGES, alter_queue, "Change settings, partitions or shards of a queue")      \
    R(DELETE, KL__QUEUE, ADMIN, KL_ROUTE_CHANGES, remove_queue, "Remove an empty queue")                               \
    R(POST, KL__QUEUE "/pause", OPERATE, KL_ROUTE_CHANGES, pause_queue, "Start no more tasks of a queue")              \
    R(POST, KL__QUEUE "/resume", OPERATE, KL_ROUTE_CHANGES, resume_queue, "Go on with a paused queue")                 \
    R(POST, KL__QUEUE "/purge", ADMIN, KL_ROUTE_CHANGES, purge_queue, "End all waiting tasks as cancelled")            \
    R(GET, KL__QUEUE "/workers", READ, 0, list_workers, "Workers of a queue and the shards they own")                  \
    /* The data path: api_put.c, api_claim.c */                                                                        \
    R(POST, KL__QUEUE "/tasks", OPERATE, KL_ROUTE_NOW | KL_ROUTE_OPENS, put_tasks, "Put one task, or up to 10,000")    \
    R(POST, KL__QUEUE "/claim", OPERATE, KL_ROUTE_NOW | KL_ROUTE_OPENS, claim_tasks,                                   \
      "Take tasks to run, with a lease")                                                                               \
    R(POST, KL__QUEUE "/finish", OPERATE, KL_ROUTE_NOW, finish_tasks, "Claimed tasks are done")                        \
    R(POST, KL__QUEUE "/fail", OPERATE, KL_ROUTE_NOW, fail_tasks, "Claimed tasks failed: retry, or dead")              \
    R(POST, KL__QUEUE "/extend", OPERATE, KL_ROUTE_NOW, extend_tasks, "Keep claimed tasks for longer")                 \
    R(POST, KL__QUEUE "/release", OPERATE, KL_ROUTE_NOW, release_tasks, "Give claimed tasks back, at no attempt")      \
    R(POST, KL__QUEUE "/progress", OPERATE, KL_ROUTE_NOW, progress_tasks, "Tell how far claimed tasks are")            \
    /* Tasks: api_tasks.c */                                                                                           \
    R(GET, KL__QUEUE "/tasks", READ, 0, list_tasks, "Waiting or finished tasks, with filters and a cursor")            \
    R(GET, KL__QUEUE "/tasks/{id}", READ, 0, read_task, "One task")                                                    \
    R(GET, KL__QUEUE "/tasks/{id}/payload", READ, 0, read_payload, "The bytes of its payload")                         \
    R(GET, KL__QUEUE "/tasks/{id}/result", READ, 0, read_result, "The bytes of its result")                            \
    R(POST, KL__QUEUE "/tasks/{id}/cancel", OPERATE, KL_ROUTE_CHANGES, cancel_task,                                    \
      "Cancel a waiting or running task")                                                                              \
    R(POST, KL__QUEUE "/tasks/{id}/retry", OPERATE, KL_ROUTE_CHANGES, retry_task, "Try a task now, or again")          \
    R(POST, KL__QUEUE "/tasks/{id}/move", OPERATE, KL_ROUTE_CHANGES, move_task, "Move a task to another queue")        \
    /* Dead letters: api_dead.c */                                                                                     \
    R(GET, KL__QUEUE "/dead", READ, 0, list_dead, "Dead letters, the latest first")                                    \
    R(POST, KL__QUEUE "/dead/retry", OPERATE, KL_ROUTE_CHANGES | KL_ROUTE_LONG, retry_dead, "Put dead letters back")   \
    R(POST, KL__QUEUE "/dead/move", OPERATE, KL_ROUTE_CHANGES | KL_ROUTE_LONG, move_dead,                              \
      "Move dead letters to another queue")                                                                            \
    R(POST, KL__QUEUE "/dead/purge", OPERATE, KL_ROUTE_CHANGES | KL_ROUTE_LONG, purge_dead, "Forget dead letters")     \
    /* Keys: api_keys.c */                                                                                             \
    R(GET, KL__QUEUE "/keys", READ, 0, list_keys, "Keys with waiting tasks, by depth, age or state")                   \
    R(GET, KL__QUEUE "/keys/{key}", READ, 0, show_key, "A key: its first task, and why it waits")                      \
    R(POST, KL__QUEUE "/keys/{key}/pause", OPERATE, KL_ROUTE_CHANGES, pause_key, "Start no more tasks of a key")       \
    R(POST, KL__QUEUE "/keys/{key}/resume", OPERATE, KL_ROUTE_CHANGES, resume_key,                                     \
      "Go on with a paused or halted key")                                                                             \
    R(POST, KL__QUEUE "/keys/{key}/retry", OPERATE, KL_ROUTE_CHANGES, retry_key, "Try its first task now")             \
    R(POST, KL__QUEUE "/keys/{key}/skip", OPERATE, KL_ROUTE_CHANGES, skip_key, "End its first task as cancelled")      \
    R(POST, KL__QUEUE "/keys/{key}/drain", OPERATE, KL_ROUTE_CHANGES, drain_key, "End all its waiting tasks")          \
    R(POST, KL__QUEUE "/keys/{key}/dead", OPERATE, KL_ROUTE_CHANGES, bury_key,                                         \
      "Make dead letters of its waiting tasks")                                                                        \
    /* Jobs: api_jobs.c */                                                                                             \
    R(GET, KL__QUEUE "/jobs", READ, 0, list_jobs, "Jobs in the order in which they were submitted")                    \
    R(POST, KL__QUEUE "/jobs", OPERATE, KL_ROUTE_CHANGES | KL_ROUTE_OPENS, submit_job,                                 \
      "Submit a job; Idempotency-Key")                                                                                 \
    R(GET, KL__QUEUE "/jobs/{id}", READ, 0, show_job, "A job and how far it is")                                       \
    R(DELETE, KL__QUEUE "/jobs/{id}", OPERATE, KL_ROUTE_CHANGES, remove_job, "Remove a job with all it owns")          \
    R(POST, KL__QUEUE "/jobs/{id}/tasks", OPERATE, KL_ROUTE_CHANGES, add_to_job, "Add tasks to a job")                 \
    R(GET, KL__QUEUE "/jobs/{id}/results", READ, 0, list_results, "Finished tasks of a job, by id")                    \
    R(POST, KL__QUEUE "/jobs/{id}/rerun", OPERATE, KL_ROUTE_CHANGES, rerun_job, "Put its finished tasks again")        \
    R(POST, KL__QUEUE "/jobs/{id}/cancel", OPERATE, KL_ROUTE_CHANGES, cancel_job, "Start none of its waiting tasks")   \
    /* Schedules: api_schedules.c */                                                                                   \
    R(GET, KL__QUEUE "/schedules", READ, 0, list_schedules, "Schedules by name")                                       \
    R(GET, KL__QUEUE "/schedules/{name}", READ, 0, show_schedule, "One schedule, and when it fires next")              \
    R(PUT, KL__QUEUE "/schedules/{name}", OPERATE, KL_ROUTE_CHANGES | KL_ROUTE_OPENS, put_schedule,                    \
      "Add or change one")                                                                                             \
    R(DELETE, KL__QUEUE "/schedules/{name}", OPERATE, KL_ROUTE_CHANGES, remove_schedule, "Remove one")                 \
    R(POST, KL__QUEUE "/schedules/{name}/pause", OPERATE, KL_ROUTE_CHANGES, pause_schedule, "Fire it no more")         \
    R(POST, KL__QUEUE "/schedules/{name}/resume", OPERATE, KL_ROUTE_CHANGES, resume_schedule, "Fire it again")         \
    R(POST, KL__QUEUE "/schedules/{name}/run", OPERATE, KL_ROUTE_CHANGES, run_schedule, "Put its task now")

#define KL__ROUTE_DECLARE(method, path, role, flags, handler, summary) void kl__api_##handler(kl__exchange *exchange);
KL__ROUTES(KL__ROUTE_DECLARE)
#undef KL__ROUTE_DECLARE

#endif
