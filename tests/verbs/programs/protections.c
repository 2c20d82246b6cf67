/*
  * Registers memory of each protection for reading and for writing by the device. A device that pins pages refuses memory that it could not write
  * with EFAULT. Exit code 0: each result was the kernel's.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

enum { PAGE = 65536, LENGTH = 2 * PAGE };

static const char constants[LENGTH] = "constants";
static struct ibv_pd *pd;

static char *pages_at(void *place, int protection, int fd)
{
	int flags = MAP_PRIVATE | (fd < 0 ? MAP_ANONYMOUS : 0) | (place ? MAP_FIXED_NOREPLACE : 0);
	char *at = mmap(place, LENGTH, protection, flags, fd, 0);
	if (at == MAP_FAILED)
		perror("mmap");
	return at;
}

static char *pages(int protection, int fd)
{
	return pages_at(0, protection, fd);
}

/* `wanted`: the errno of ibv_reg_mr, or 0. */
static void expect_of(const char *what, const void *at, size_t length, int access, int wanted)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, (void *)at, length, access);
	char told[100];

	snprintf(told, sizeof told, "%s, access %#x", what, access);
	expect(told, mr ? 0 : errno, wanted);
	if (mr)
		ibv_dereg_mr(mr);
}

/* `reads`, `writes`: the errno for a region that the device reads, and for one that it writes. */
static void expect_both(const char *what, const void *at, size_t length, int reads, int writes)
{
	expect_of(what, at, length, 0, reads);
	expect_of(what, at, length, IBV_ACCESS_REMOTE_READ, reads);
	expect_of(what, at, length, IBV_ACCESS_MW_BIND, writes);
	expect_of(what, at, length, IBV_ACCESS_LOCAL_WRITE, writes);
	expect_of(what, at, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, writes);
	expect_of(what, at, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC, writes);
}

/* Registers memory for reading, then adds rights. Returns 0 or EFAULT, by the memory's protection. */
static void expect_added(const char *what, void *at, int access, int errno_wanted)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, at, LENGTH, IBV_ACCESS_REMOTE_READ);
	errno = 0;
	int failed = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, 0, 0, 0, access), got = failed ? errno : 0;
	if (got != errno_wanted || !failed != !errno_wanted) {
		printf("%s, access %#x added: %s, not %s\n", what, access, strerror(got), strerror(errno_wanted));
		wrong++;
	}
	ibv_dereg_mr(mr);
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(0);
	struct ibv_context *context = ibv_open_device(devices[0]);
	pd = ibv_alloc_pd(context);
	int file = open("/proc/self/exe", O_RDONLY);

	char *touched = pages(PROT_READ | PROT_WRITE, -1);
	memset(touched, 1, LENGTH);
	expect_both("touched", touched, LENGTH, 0, 0);
	expect_both("never touched", pages(PROT_READ | PROT_WRITE, -1), LENGTH, 0, 0);
	expect_both("a private file that may be written", pages(PROT_READ | PROT_WRITE, file), 512, 0, 0);
	mprotect(touched, LENGTH, PROT_READ);
	expect_both("touched, then PROT_READ", touched, LENGTH, 0, EFAULT);
	expect_both("PROT_READ", pages(PROT_READ, -1), LENGTH, 0, EFAULT);
	expect_both("a file that is read", pages(PROT_READ, file), 512, 0, EFAULT);
	expect_both("constants", constants, LENGTH, 0, EFAULT);
	expect_both("text", (void *)main, 16, 0, EFAULT);
	expect_both("PROT_NONE", pages(PROT_NONE, -1), LENGTH, EFAULT, EFAULT);
	/* Far from where the kernel places mappings: another thread's could fill the hole. */
	char *half = pages_at((void *)0x200000000000, PROT_READ | PROT_WRITE, -1);
	mprotect(half + PAGE, PAGE, PROT_READ);
	expect_both("half of it PROT_READ", half, LENGTH, 0, EFAULT);
	expect_both("the other half", half, PAGE, 0, 0);
	munmap(half + PAGE, PAGE);
	expect_both("half of it not mapped", half, LENGTH, EFAULT, EFAULT);
	expect_of("PROT_READ on demand", pages(PROT_READ, -1), LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND, 0);
	expect_of("remote writes alone, over PROT_NONE", pages(PROT_NONE, -1), LENGTH, IBV_ACCESS_REMOTE_WRITE, EINVAL);
	expect_added("PROT_READ", pages(PROT_READ, -1), IBV_ACCESS_LOCAL_WRITE, EFAULT);
	expect_added("PROT_READ", pages(PROT_READ, -1), 0, 0);
	expect_added("touched, then PROT_READ", touched, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, EFAULT);
	expect_added("PROT_WRITE", pages(PROT_READ | PROT_WRITE, -1), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, 0);
	return wrong != 0;
}
