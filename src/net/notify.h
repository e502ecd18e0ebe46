/* notify.h - tells systemd how the service is, by the socket that NOTIFY_SOCKET names: sd_notify(3) without its
 * library. */
#ifndef KL_NET_NOTIFY_H
#define KL_NET_NOTIFY_H

#include <stdint.h>

/* "READY=1", "STOPPING=1", "WATCHDOG=1", or "RELOADING=1", to which the time is added that systemd asks for. Does
 * nothing where nobody asked; what cannot be sent is lost, as systemd wants it. Any thread. */
void kl__notify(const char *state);

/* How often "WATCHDOG=1" is to be sent, in milliseconds: half of what the unit's WatchdogSec allows. 0: not at all. */
int64_t kl__notify_watchdog_ms(void);

#endif
