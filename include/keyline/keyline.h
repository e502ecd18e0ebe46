/* keyline.h - all of Keyline's public interface. */
#ifndef KEYLINE_KEYLINE_H
#define KEYLINE_KEYLINE_H

#include "keyline/bytes.h"
#include "keyline/error.h"
#include "keyline/exec.h"
#include "keyline/id.h"
#include "keyline/layout.h"
#include "keyline/shards.h"

#endif
