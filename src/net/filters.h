/* filters.h - which finished tasks a request means: shared by lists of tasks and of dead letters. */
#ifndef KL_NET_FILTERS_H
#define KL_NET_FILTERS_H

#include "net/api.h"

enum { KL_PAGE_STANDARD = 100, KL_PAGE_MAX = 1000 };

/* The parameters key, kind, words, job, from, until, max and cursor; to be followed by kl__params_refused. */
kl_finished kl__params_finished(kl__exchange *exchange);

/* Answers with a page of them. */
void kl__reply_finished(kl__exchange *exchange, const kl_finished *which);

#endif
