/* mutant.h - known bugs that can be switched on, to prove that the simulator finds them (tests/sim/).
 *
 *     if (KL_MUTANT(stale_settle)) ...
 *
 * In the library KL_MUTANT is the constant false and the code behind it is gone. The simulator is linked with a copy of
 * lanes, queue and work that is compiled with KL_MUTANTS, where it asks which one is on. */
#ifndef KL_MUTANT_H
#define KL_MUTANT_H

#ifdef KL_MUTANTS

/* Name, what is wrong, and where that has been seen. */
#define KL_MUTANT_TABLE(X)                                                                                             \
    X(none, "nothing", "")                                                                                             \
    X(retry_frees_key, "a task that is to be retried does not hold its key", "BullMQ groups, Awa (003)")               \
    X(stale_settle, "outcomes are sent without the epoch of the owner", "river #1302, DFQ (002)")                      \
    X(no_fence, "a shard is taken over without a fence", "DFQ (002)")                                                  \
    X(worker_clock, "leases are judged on a worker's clock", "oq (000)")                                               \
    X(lease_ignored, "tasks are taken although the lease is over", "DFQ (002)")                                        \
    X(skip_forgotten, "a key of which tasks were left out is read on from behind them", "graphile-worker #621")        \
    X(evict_from, "what is evicted does not lower the place to read on from", "our own, before release")               \
    X(gate_open, "a new layout is run although an older one holds the key", "Awa (003), width change")                 \
    X(never_sealed, "an older layout is not sealed", "Awa (003), width change")                                        \
    X(due_not_moved, "what is moved to a newer layout is ended, and not put there", "our own, before release")         \
    X(due_other_id, "a move that is repeated makes another id", "our own, before release")                             \
    X(start_not_marked, "starts of suspect tasks are not written down", "activepieces #15130")                         \
    X(stop_costs, "a task that is given back unrun has lost an attempt", "users' wish 8: a deploy costs no attempt")   \
    X(unique_unwritten, "a unique points at a task that was never written", "oq (000)")                                \
    X(token_forgotten, "a put that is repeated with its token is a new put", "SQS without deduplication")              \
    X(commit_lost, "a claim that was answered is not committed", "Conveyor (001)")                                     \
    X(claim_other_job, "whoever takes a claim over makes another job", "Conveyor (001)")                               \
    X(halt_holds_shard, "a halted key keeps all others of its shard from being started", "pg-boss #849")               \
    X(pause_holds_shard, "a paused key keeps all others of its shard from being started", "pg-boss #849")              \
    X(first_page, "only the first tasks of a line are ever read", "DFQ (002)")                                         \
    X(retry_line_late, "after a takeover the ready lines are read before the retry line", "our own, before release")   \
    X(outcomes_dropped, "outcomes whose settle failed are forgotten", "solid_queue #689")                              \
    X(outcomes_turned, "outcomes whose settle failed are sent after later ones", "graphile-worker #621")               \
    X(tick_twice, "a tick is fired under another id by whoever finishes it", "cron on several hosts")                  \
    X(pause_forgotten, "a key that is paused runs again after a takeover", "our own, before release")                  \
    X(cancel_ignored, "tasks of a cancelled job are run", "users of every peer")                                       \
    X(lost_kept, "a worker goes on with a shard that it has lost", "DFQ (002)")                                        \
    X(gates_late, "a new layout is served before it is known what older ones hold", "found here by seed 1")            \
    X(lease_renewed, "a beat renews the lease of what it has lost", "found here by seed 8")                            \
    X(floor_lost, "a side look forgets how late the tasks were that it brought", "found here by seed 15")              \
    X(due_run_here, "due tasks of older layouts are run and moved", "found here by seed 24")                           \
    X(hand_unchecked, "what waited in a hand is started although the lease is over",                                   \
      "found here by seed 98427317135218")                                                                             \
    X(gate_early, "what older layouts hold is believed before the record is read again", "found here by a review")     \
    X(stale_move, "delayed tasks are moved although the lease is over", "found here by seed 736925984554")             \
    X(record_early, "due tasks are run before the record is read that knows of newer layouts", "found here")           \
    X(copy_left, "a delayed task is drained in an older layout, and its copy is not",                                  \
      "found here by seed 267988500855")                                                                               \
    X(submit_blind, "a submit that is continued does not look for what it has put",                                    \
      "what the oracle forgives must not hide it")                                                                     \
    X(lines_unread, "a less urgent task is started before the more urgent ones of its key were read",                  \
      "our own: priorities over several looks")                                                                        \
    X(due_unread, "ready tasks are started before the due ones of their keys were read", "our own, after a takeover")  \
    X(due_piecemeal, "due tasks are started before a more urgent one further behind was read",                         \
      "found here by seed 1235")                                                                                       \
    X(side_alone, "while a line is read again, what comes behind in it waits, and not what is less urgent",            \
      "found here by seed 28")                                                                                         \
    X(full_blind, "a worker whose memory is full does not look for what is more urgent", "our own")                    \
    X(partition_unlimited, "more tasks of a partition are started than may run at a time", "Awa (003)")                \
    X(capacity_leaks, "a task that ends leaves its partition as full as it was", "every limit that counts by hand")    \
    X(lease_kept, "a worker keeps the lease that was set when it started", "our own, before release")                  \
    X(stale_answer, "an owner that lost the shard says that a request was carried out", "our own, before release")

enum kl__mutant_name {
#define KL_MUTANT_ENUM(name, bug, seen) KL_MUTANT_##name,
    KL_MUTANT_TABLE(KL_MUTANT_ENUM)
#undef KL_MUTANT_ENUM
        KL_MUTANTS_COUNT
};

extern enum kl__mutant_name kl__mutant;

#define KL_MUTANT(name) (kl__mutant == KL_MUTANT_##name)
#else
#define KL_MUTANT(name) false
#endif

#endif
