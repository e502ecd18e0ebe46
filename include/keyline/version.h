/* version.h - of which version these headers are. meson.build reads it from here. */
#ifndef KEYLINE_VERSION_H
#define KEYLINE_VERSION_H

#define KL_VERSION_MAJOR 0
#define KL_VERSION_MINOR 1
#define KL_VERSION_PATCH 0
#define KL_VERSION       "0.1.0"

/* For comparing: #if KL_VERSION_NUMBER >= 1002000 asks for 1.2.0. */
#define KL_VERSION_NUMBER (KL_VERSION_MAJOR * 1000000 + KL_VERSION_MINOR * 1000 + KL_VERSION_PATCH)

#endif
