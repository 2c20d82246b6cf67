/*
  * The descriptor number of an event channel is reused by another file, unseen by the library: by direct system calls and close_range, in the
  * process itself and in a child. A write must then go to that file. Exit code 0: it did.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* Opens files until one has this number; those below it stay open. */
static void take_number(int number, int (*opened)(void))
{
	for (int tries = 0, fd = -1; tries < 64 && fd != number; tries++)
		fd = opened();
}

static int a_file(void) { return syscall(SYS_openat, AT_FDCWD, "/tmp", O_TMPFILE | O_RDWR, 0600); }
static int a_counter(void) { return eventfd(0, EFD_NONBLOCK); }

static void write_to_others(const char *whose, int number)
{
	char what[64];
	snprintf(what, sizeof what, "%s: a file", whose);
	syscall(SYS_close_range, number, number, 0);
	take_number(number, a_file);
	expect(what, write(number, "hello\n", 6), 6);
	uint64_t one = 1;
	snprintf(what, sizeof what, "%s: an eventfd", whose);
	syscall(SYS_close_range, number, number, 0);
	take_number(number, a_counter);
	expect(what, write(number, &one, sizeof one), sizeof one);
	expect(what, read(number, &one, sizeof one), sizeof one);
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
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = devices && *devices ? ibv_open_device(*devices) : NULL;
	if (!context)
		return 2;
	struct ibv_comp_channel *completions = ibv_create_comp_channel(context);
	if (!completions)
		return 2;
	write_to_others("completion channel", completions->fd);
	write_to_others("asynchronous events", context->async_fd);
	return wrong;
}
