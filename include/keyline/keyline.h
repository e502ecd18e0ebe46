/* keyline.h - all of Keyline's public interface. */
#ifndef KEYLINE_KEYLINE_H
#define KEYLINE_KEYLINE_H

#include "keyline/arena.h"
#include "keyline/bytes.h"
#include "keyline/control.h"
#include "keyline/cron.h"
#include "keyline/error.h"
#include "keyline/exec.h"
#include "keyline/id.h"
#include "keyline/job.h"
#include "keyline/layout.h"
#include "keyline/log.h"
#include "keyline/queue.h"
#include "keyline/shards.h"
#include "keyline/store.h"
#include "keyline/task.h"
#include "keyline/version.h"
#include "keyline/worker.h"

#endif
