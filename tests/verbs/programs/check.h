/* Checks of the programs in this folder. */

#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Prints a condition that is false, and exits with 1. */
#define CHECK(condition) ((condition) ? (void)0 : fail(#condition, __LINE__))

static inline void fail(const char *condition, int line)
{
	fprintf(stderr, "line %d: not so: %s (errno %d, %s)\n", line, condition, errno, strerror(errno));
	exit(1);
}

/* Results that were not as expected. */
static int wrong;

/* Counts an unexpected result, and continues. */
static inline void expect(const char *what, long got, long wanted)
{
	int error = errno;

	if (got == wanted)
		return;
	fprintf(stderr, "%s: %ld, not %ld (errno %d, %s)\n", what, got, wanted, error, strerror(error));
	wrong++;
}

#endif
