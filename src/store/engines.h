/* engines.h - the engines that kl_store_open knows by their scheme. */
#ifndef KL_STORE_ENGINES_H
#define KL_STORE_ENGINES_H

#include "keyline/store.h"

extern const kl_engine kl__engine_memory, kl__engine_disk, kl__engine_postgres, kl__engine_s3;

#endif
