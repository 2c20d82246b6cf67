/*
 * A file descriptor of an event channel that is reused for another file, unnoticed by the library: by system calls of the program, and by
 * close_range, in the process itself and in a child. Later writes must go to that file. Exit code 0: they did.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* Opens a file until its descriptor has this number; lower ones remain open. */
static void take_number(int number, int (*opened)(void))
{
	for (int tries = 0, fd = -1; tries < 64 && fd != number; tries++)
		fd = opened();
}

static int a_file(void) { return syscall(SYS_openat, AT_FDCWD, "/tmp", O_TMPFILE | O_RDWR, 0600); }

static void write_to_others(const char *whose, int number)
{
	char what[64];
	snprintf(what, sizeof what, "%s: a file", whose);
	syscall(SYS_close_range, number, number, 0);
	take_number(number, a_file);
	expect(what, write(number, "hello\n", 6), 6);
}

int main(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	if (!channel)
		return 2;
	int status;
	pid_t child = fork();
	if (!child) {
		write_to_others("child", channel->fd);
		_exit(wrong);
	}
	waitpid(child, &status, 0);
	wrong += !WIFEXITED(status) || WEXITSTATUS(status);
	struct rdma_cm_id *id;
	expect("the channel itself", rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	expect("the channel itself", rdma_destroy_id(id), 0);
	write_to_others("parent", channel->fd);
	return wrong;
}
