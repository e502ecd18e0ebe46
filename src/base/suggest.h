/* suggest.h - the name that was probably meant. */
#ifndef KL_SUGGEST_H
#define KL_SUGGEST_H

/* Of two names the one more like `word`, where NULL and everything too far away to be a slip count as unlike. Fold a
 * list with it to find a suggestion. */
const char *kl__closer(const char *word, const char *best, const char *candidate);

#endif
