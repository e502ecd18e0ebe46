/* words.h - words in errors, for engines whose find reads through what is kept.
 *
 * A word is a run of letters, digits and bytes above 127; a to z count in either case. */
#ifndef KL_STORE_WORDS_H
#define KL_STORE_WORDS_H

#include <stdbool.h>

#include "keyline/bytes.h"

/* Whether every one of the words stands in the text. */
bool kl__has_words(kl_bytes text, kl_bytes words);

#endif
