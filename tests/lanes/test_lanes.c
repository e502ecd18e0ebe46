/* test_lanes.c - what the lanes promise, one claim at a time. */
#include "harness.h"
#include "lanes/lanes.h"
