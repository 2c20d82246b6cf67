/* How the programs of this folder check: what they include, and no library beside. */

#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Exits with 1 and names the condition that does not hold. */
#define CHECK(condition) ((condition) ? (void)0 : fail(#condition, __LINE__))

static inline void fail(const char *condition, int line)
{
	fprintf(stderr, "line %d: not so: %s (errno %d, %s)\n", line, condition, errno, strerror(errno));
	exit(1);
}

/* Number of unexpected results. */
static int wrong;

/* Counts an unexpected result and continues. */
static inline void expect(const char *what, long got, long wanted)
{
	int error = errno;

	if (got == wanted)
		return;
	fprintf(stderr, "%s: %ld, not %ld (errno %d, %s)\n", what, got, wanted, error, strerror(error));
	wrong++;
}

#endif
