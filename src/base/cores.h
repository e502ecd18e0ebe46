/* cores.h - how many processors this thread may use. */
#ifndef KL_CORES_H
#define KL_CORES_H

/* At least 1, also where that cannot be told. */
int kl__cores(void);

#endif
