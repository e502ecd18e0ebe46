/* keys.h - how the state of a key is called. */
#ifndef KL_CLI_KEYS_H
#define KL_CLI_KEYS_H

#include "keyline/control.h"

/* One or two words for people: "retrying", "no worker". */
const char *kl__why_name(kl_why why);

/* The same where only the store was asked: it does not know what runs. */
const char *kl__why_listed(kl_why why);

#endif
