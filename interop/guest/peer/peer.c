/*
 * The peer's end of an interop run, on stock libibverbs: a resident program that executes commands,
 * so that a row of the matrix costs milliseconds. protocol.md describes the commands.
 *
 *   roxie-peer [--device NAME] [--port N] --listen TCP-PORT    a process per connection (the guest)
 *   roxie-peer [--device NAME] [--port N] --stdio              on standard input and output (over ssh)
 *
 * Each connection has its own verbs context: its objects are destroyed with it in any case.
 *
 * Architecture invariant: a wrong command is an `err` reply. The program ends when its connection does.
 */
#include "peer.h"

#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static void cmd_reset(struct request *r)
{
	(void)r;
	jobs_reset();
	windows_reset();
	qp_reset();
	objects_reset();
	memory_reset();
	ok(" ");
}

/* release: `rdma link delete` waits until no process has the device open. */
static void cmd_release(struct request *r)
{
	cmd_reset(r);
	device_close();
}

static const struct {
	const char *verb;
	void (*run)(struct request *r);
	/* Not after `release`. */
	bool needs_device;
} commands[] = {
	{ "hello", cmd_hello, true },
	{ "gids", cmd_gids, true },
	{ "events", cmd_events, true },
	{ "counters", cmd_counters, true },
	{ "mr", cmd_mr, true },
	{ "mr_free", cmd_mr_free, true },
	{ "fill", cmd_fill, true },
	{ "check", cmd_check, true },
	{ "sum", cmd_sum, true },
	{ "peek", cmd_peek, true },
	{ "poke", cmd_poke, true },
	{ "qp", cmd_qp, true },
	{ "connect", cmd_connect, true },
	{ "modify", cmd_modify, true },
	{ "query", cmd_query, true },
	{ "qp_free", cmd_qp_free, true },
	{ "recv", cmd_recv, true },
	{ "send", cmd_send, true },
	{ "poll", cmd_poll, true },
	{ "spawn", cmd_spawn, false },
	{ "wait", cmd_wait, false },
	{ "kill", cmd_kill, false },
	{ "listening", cmd_listening, false },
	{ "reset", cmd_reset, true },
	{ "ah", cmd_ah, true },
	{ "srq", cmd_srq, true },
	{ "srq_limit", cmd_srq_limit, true },
	{ "mw", cmd_mw, true },
	{ "attach", cmd_attach, true },
	{ "detach", cmd_detach, true },
	{ "member", cmd_member, true },
	{ "datagram", cmd_datagram, true },
	{ "release", cmd_release, true },
};

static void dispatch(char *line)
{
	struct request request;

	request_parse(&request, line);
	if (request.failed)
		return;
	for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
		if (strcmp(request.verb, commands[i].verb) == 0) {
			if (commands[i].needs_device && !device_is_open())
				return err(ENODEV, "%s: the device was released", request.verb);
			return commands[i].run(&request);
		}
	err(ENOSYS, "unknown command \"%s\"", request.verb);
}

/* Serves one connection. True after `quit`. */
static bool serve(int in, int out)
{
	static char buffer[MAX_LINE];
	size_t have = 0;

	for (;;) {
		char *end;
		while ((end = memchr(buffer, '\n', have))) {
			size_t length = end + 1 - buffer;
			*end = 0;
			if (strcmp(buffer, "quit") == 0) {
				ok(" ");
				flush_replies(out);
				return true;
			}
			dispatch(buffer);
			if (!flush_replies(out))
				return false;
			have -= length;
			memmove(buffer, end + 1, have);
		}
		if (have == sizeof buffer) {
			err(E2BIG, "a line of more than %d bytes", MAX_LINE);
			flush_replies(out);
			return false;
		}
		ssize_t n = read(in, buffer + have, sizeof buffer - have);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		have += n;
	}
}

static bool session(int in, int out, const char *device)
{
	if (!device_open(device)) {
		err(ENODEV, "the RDMA device %s cannot be opened", device ? device : "");
		flush_replies(out);
		return false;
	}
	bool quit = serve(in, out);
	jobs_reset();
	return quit;
}

/* `quit` in a session ends this process too. */
static int listen_and_serve(uint16_t port, const char *device)
{
	struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	struct sigaction reap = { .sa_handler = SIG_DFL, .sa_flags = SA_NOCLDWAIT };
	int yes = 1, no = 0, listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

	sigaction(SIGCHLD, &reap, NULL);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
	setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 8)) {
		fprintf(stderr, "roxie-peer: cannot listen on TCP port %u: %s\n", port, strerror(errno));
		return 1;
	}
	printf("roxie-peer: listening on TCP port %u\n", port);
	fflush(stdout);
	for (;;) {
		int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (connection < 0)
			continue;
		setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
		pid_t parent = getpid();
		if (fork() == 0) {
			close(listener);
			signal(SIGCHLD, SIG_DFL);
			if (session(connection, connection, device))
				kill(parent, SIGTERM);
			_exit(0);
		}
		close(connection);
	}
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "device", required_argument, NULL, 'd' }, { "port", required_argument, NULL, 'p' },
		{ "listen", required_argument, NULL, 'l' }, { "stdio", no_argument, NULL, 's' },
		{ NULL, 0, NULL, 0 },
	};
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	const char *device = NULL;
	int listen_port = 0, option;
	bool stdio = false;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'd': device = optarg; break;
		case 'p': port_number = atoi(optarg); break;
		case 'l': listen_port = atoi(optarg); break;
		case 's': stdio = true; break;
		default: return 2;
		}
	}
	if (stdio == (listen_port != 0)) {
		fprintf(stderr, "usage: roxie-peer [--device NAME] [--port N] (--listen TCP-PORT | --stdio)\n");
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	/* Registered memory is locked memory; without the privilege to raise the limit, registration fails. */
	setrlimit(RLIMIT_MEMLOCK, &unlimited);
	if (stdio)
		return session(0, 1, device) ? 0 : 1;
	return listen_and_serve(listen_port, device);
}
