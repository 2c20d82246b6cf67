/*
 * Round trip times of programs that wait for completions, for all ways to wait.
 *
 *     waits [-n rounds] [-g gid index] [-p TCP port] MODE [SERVER]
 *
 * Without SERVER it is the server. Both ends of the same mode exchange messages of 8 bytes; the client prints the median, the 99th and
 * the 99.9th percentile of a round trip. TCP carries the addresses. Yardsticks without RDMA:
 *
 *     tcp      echo over TCP, both ends wait in epoll
 *     udp      echo over UDP, both ends sleep in recv
 *     udpspin  echo over UDP, both ends call recv without blocking, again and again
 *
 *     epoll    SEND and answer; both ends arm, poll until nothing comes, and wait in epoll on the channel, which does not block
 *     poll     the same in poll(), on a channel that blocks
 *     select   the same in select(), likewise
 *     uring    the same by IORING_OP_POLL_ADD, likewise
 *     event    the same in ibv_get_cq_event()
 *     spin     both ends call ibv_poll_cq() again and again
 *     spin2    the same, with another thread that polls an empty queue of the device
 *     memory   WRITE and WRITE back; both ends poll only their memory
 *     late     the client posts a SEND, computes for 1 ms without any call, then waits: when did it reach the server?
 *     idle     nothing is exchanged: the processor time of each end in the -n milliseconds that it waits in epoll, in us
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <linux/io_uring.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { RECEIVES = 32, PATIENCE_MS = 10000, IN = 0, OUT = 64, LENGTH = 4096 };

struct end {
	uint32_t qpn, psn, rkey;
	uint64_t memory;
	union ibv_gid gid;
};

static int gid_index = 1, tcp_port = 19777, rounds = 2000, is_server = 1, tcp;
static const char *mode;
static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char *memory;
static struct end peer;
static int epoll_set, sends, receives;
static volatile int stop;

static int is(const char *name) { return !strcmp(mode, name); }

static void die(const char *what)
{
	fprintf(stderr, "waits %s: %s: %s\n", mode, what, strerror(errno));
	exit(1);
}

static double now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void tcp_read(void *to, size_t count)
{
	for (char *at = to; count;) {
		ssize_t came = read(tcp, at, count);
		if (came <= 0)
			die("the peer is gone");
		at += came, count -= came;
	}
}

static void tcp_write(const void *from, size_t count)
{
	if (write(tcp, from, count) != (ssize_t)count)
		die("write");
}

static void connect_tcp(const char *server)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(tcp_port) };
	int one = 1;
	if (server) {
		inet_pton(AF_INET, server, &address.sin_addr);
		for (int tries = 0;; tries++) {
			tcp = socket(AF_INET, SOCK_STREAM, 0);
			if (!connect(tcp, (void *)&address, sizeof address))
				break;
			if (tries == 100)
				die("connect");
			close(tcp);
			usleep(50000);
		}
	} else {
		int listener = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		if (bind(listener, (void *)&address, sizeof address) || listen(listener, 1))
			die("listen");
		tcp = accept(listener, 0, 0);
	}
	setsockopt(tcp, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void post_receive(void)
{
	struct ibv_sge sge = { (uintptr_t)memory + IN, 64, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	if (ibv_post_recv(qp, &wr, &bad))
		die("ibv_post_recv");
}

static void post_from(enum ibv_wr_opcode opcode, int offset)
{
	struct ibv_sge sge = { (uintptr_t)memory + offset, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.rdma.remote_addr = peer.memory + IN;
	wr.wr.rdma.rkey = peer.rkey;
	if (ibv_post_send(qp, &wr, &bad))
		die("ibv_post_send");
}

static void post(enum ibv_wr_opcode opcode) { post_from(opcode, OUT); }

static void drain(void)
{
	struct ibv_wc wc[16];
	for (int came; (came = ibv_poll_cq(cq, 16, wc)) > 0;)
		for (int i = 0; i < came; i++) {
			if (wc[i].status) {
				fprintf(stderr, "waits %s: %s\n", mode, ibv_wc_status_str(wc[i].status));
				exit(3);
			}
			if (wc[i].opcode & IBV_WC_RECV)
				receives++;
			else
				sends++;
		}
}

/* Waits by io_uring until the channel is readable. */
static int uring_wait(void)
{
	static struct io_uring_params params;
	static struct io_uring_sqe *sqes;
	static char *sq, *cqr;
	static int ring = -1;
	if (ring < 0) {
		ring = syscall(SYS_io_uring_setup, 4, &params);
		if (ring < 0)
			die("io_uring_setup");
		size_t sq_size = params.sq_off.array + params.sq_entries * sizeof(uint32_t);
		size_t cq_size = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
		sq = mmap(0, sq_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
		cqr = mmap(0, cq_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
		sqes = mmap(0, params.sq_entries * sizeof *sqes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
		if (sq == MAP_FAILED || cqr == MAP_FAILED || sqes == MAP_FAILED)
			die("mmap of a ring");
	}
	uint32_t *tail = (uint32_t *)(sq + params.sq_off.tail), mask = *(uint32_t *)(sq + params.sq_off.ring_mask);
	uint32_t at = *tail & mask;
	sqes[at] = (struct io_uring_sqe){ .opcode = IORING_OP_POLL_ADD, .fd = channel->fd, .poll32_events = POLLIN };
	((uint32_t *)(sq + params.sq_off.array))[at] = at;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) < 0)
		die("io_uring_enter");
	uint32_t *head = (uint32_t *)(cqr + params.cq_off.head);
	__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	return 1;
}

/* Waits according to the mode; returns 0 after a long time without events. */
static int wait_on_channel(void)
{
	if (is("event"))
		return 1;
	if (is("poll")) {
		struct pollfd fds = { channel->fd, POLLIN, 0 };
		return poll(&fds, 1, PATIENCE_MS);
	}
	if (is("select")) {
		struct timeval patience = { PATIENCE_MS / 1000, 0 };
		fd_set fds;
		FD_ZERO(&fds);
		FD_SET(channel->fd, &fds);
		return select(channel->fd + 1, &fds, 0, 0, &patience);
	}
	if (is("uring"))
		return uring_wait();
	struct epoll_event event;
	return epoll_wait(epoll_set, &event, 1, PATIENCE_MS);
}

static void wait_for_receive(int wanted)
{
	if (!strncmp(mode, "spin", 4) || is("late")) {
		while (receives < wanted)
			drain();
		return;
	}
	for (;;) {
		drain();
		if (receives >= wanted)
			return;
		ibv_req_notify_cq(cq, 0);
		drain();
		if (receives >= wanted)
			return;
		struct ibv_cq *raised;
		void *user;
		if (wait_on_channel() <= 0) {
			fprintf(stderr, "waits %s: no event in %d ms\n", mode, PATIENCE_MS);
			exit(4);
		}
		if (!ibv_get_cq_event(channel, &raised, &user))
			ibv_ack_cq_events(raised, 1);
		else if (errno != EAGAIN)
			die("ibv_get_cq_event");
	}
}

static void *poll_an_empty_queue(void *nothing)
{
	struct ibv_cq *empty = ibv_create_cq(context, 16, 0, 0, 0);
	struct ibv_wc wc;
	while (!stop)
		ibv_poll_cq(empty, 1, &wc);
	return nothing;
}

static void modify(int state, struct ibv_qp_attr attr, int mask)
{
	attr.qp_state = state;
	if (ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE))
		die("ibv_modify_qp");
}

static void connect_qp(void)
{
	int count;
	struct ibv_device **devices = ibv_get_device_list(&count);
	if (!count)
		exit(2);
	context = ibv_open_device(devices[0]);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	if (is("epoll") || is("idle"))
		fcntl(channel->fd, F_SETFL, O_NONBLOCK);
	struct epoll_event event = { .events = EPOLLIN };
	epoll_ctl(epoll_set, EPOLL_CTL_ADD, channel->fd, &event);
	cq = ibv_create_cq(context, 256, 0, channel, 0);
	memory = aligned_alloc(LENGTH, LENGTH);
	memset(memory, 0, LENGTH);
	mr = ibv_reg_mr(pd, memory, LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { 64, 64, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	qp = ibv_create_qp(pd, &init);
	if (!qp || !mr)
		die("ibv_create_qp");
	struct end own = { qp->qp_num, 4711, mr->rkey, (uintptr_t)memory, { { 0 } } };
	ibv_query_gid(context, 1, gid_index, &own.gid);
	tcp_write(&own, sizeof own);
	tcp_read(&peer, sizeof peer);
	modify(IBV_QPS_INIT, (struct ibv_qp_attr){ .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE },
	       IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	struct ibv_qp_attr rtr = { .path_mtu = IBV_MTU_1024, .dest_qp_num = peer.qpn, .rq_psn = peer.psn,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = { .is_global = 1, .port_num = 1 } };
	rtr.ah_attr.grh.dgid = peer.gid;
	rtr.ah_attr.grh.sgid_index = gid_index;
	rtr.ah_attr.grh.hop_limit = 64;
	modify(IBV_QPS_RTR, rtr, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
	       IBV_QP_MIN_RNR_TIMER);
	modify(IBV_QPS_RTS, (struct ibv_qp_attr){ .sq_psn = 4711, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 },
	       IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
	for (int i = 0; i < RECEIVES; i++)
		post_receive();
	char go = 1;
	tcp_write(&go, 1);
	tcp_read(&go, 1);
}

static void echo_over_tcp(double *took)
{
	char message[8] = { 0 };
	struct epoll_event event = { .events = EPOLLIN };
	fcntl(tcp, F_SETFL, O_NONBLOCK);
	epoll_ctl(epoll_set, EPOLL_CTL_ADD, tcp, &event);
	for (int round = 0; round < rounds; round++) {
		double began = now_us();
		if (!is_server)
			tcp_write(message, 8);
		for (int have = 0; have < 8;) {
			ssize_t came = read(tcp, message, 8 - have);
			if (came > 0)
				have += came;
			else if (came < 0 && errno == EAGAIN)
				epoll_wait(epoll_set, &event, 1, PATIENCE_MS);
			else
				die("the peer is gone");
		}
		if (is_server)
			tcp_write(message, 8);
		took[round] = now_us() - began;
	}
	fcntl(tcp, F_SETFL, 0);
}

/* Both ends sleep in recv, or spin on it. A datagram that does not come within PATIENCE_MS ends the program. */
static void echo_over_udp(double *took)
{
	char message[8] = { 0 };
	struct sockaddr_in here, there;
	socklen_t length = sizeof here;
	struct timeval patience = { .tv_sec = PATIENCE_MS / 1000 };
	int udp = socket(AF_INET, SOCK_DGRAM, 0), flags = is("udpspin") ? MSG_DONTWAIT : 0;
	getsockname(tcp, (void *)&here, &length);
	getpeername(tcp, (void *)&there, &length);
	here.sin_port = there.sin_port = htons(tcp_port + 1);
	if (bind(udp, (void *)&here, sizeof here) || connect(udp, (void *)&there, sizeof there))
		die("the UDP socket");
	setsockopt(udp, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	tcp_write(message, 1);
	tcp_read(message, 1);
	for (int round = 0; round < rounds; round++) {
		double began = now_us();
		if (!is_server && send(udp, message, 8, 0) != 8)
			die("send");
		while (recv(udp, message, 8, flags) != 8)
			if (!flags || errno != EAGAIN || now_us() - began > PATIENCE_MS * 1000.0)
				die("recv");
		if (is_server && send(udp, message, 8, 0) != 8)
			die("send");
		took[round] = now_us() - began;
	}
}

static void echo_by_memory(double *took)
{
	volatile uint64_t *in = (uint64_t *)(memory + IN);
	for (int round = 0; round < rounds; round++) {
		double began = now_us();
		/* Posted memory belongs to the adapter until completion, which is polled for every 16 rounds: each round has its own buffer. */
		int place = OUT + 8 * (round % 64);
		*(volatile uint64_t *)(memory + place) = round + 1;
		if (!is_server)
			post_from(IBV_WR_RDMA_WRITE, place);
		while (*in != (uint64_t)round + 1)
			if (now_us() - began > PATIENCE_MS * 1000.0) {
				fprintf(stderr, "waits memory: round %d did not come in %d ms\n", round, PATIENCE_MS);
				exit(4);
			}
		if (is_server)
			post_from(IBV_WR_RDMA_WRITE, place);
		took[round] = now_us() - began;
		if (round % 16 == 15)
			drain();
	}
}

static void send_late(double *took)
{
	for (int round = 0; round < rounds; round++) {
		if (is_server) {
			wait_for_receive(round + 1);
			*(double *)(memory + OUT) = now_us();
			post_receive();
			post(IBV_WR_SEND);
		} else {
			double began = now_us();
			post(IBV_WR_SEND);
			while (now_us() - began < 1000)
				;
			wait_for_receive(round + 1);
			post_receive();
			took[round] = *(double *)(memory + IN) - began;
		}
	}
}

static void echo(double *took)
{
	for (int round = 0; round < rounds; round++) {
		double began = now_us();
		if (!is_server)
			post(IBV_WR_SEND);
		wait_for_receive(round + 1);
		post_receive();
		if (is_server)
			post(IBV_WR_SEND);
		took[round] = now_us() - began;
	}
}

static void idle(void)
{
	struct rusage before, after;
	struct epoll_event event;
	ibv_req_notify_cq(cq, 0);
	drain();
	usleep(300000);
	getrusage(RUSAGE_SELF, &before);
	double until = now_us() + rounds * 1000.0;
	while (now_us() < until)
		epoll_wait(epoll_set, &event, 1, (until - now_us()) / 1000 + 1);
	getrusage(RUSAGE_SELF, &after);
	double used = (after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1e6 +
		after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec - before.ru_stime.tv_usec;
	printf("idle %d ms: %.0f us of processor time\n", rounds, used);
	fflush(stdout);
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int count, char **arguments)
{
	for (int option; (option = getopt(count, arguments, "g:p:n:")) > 0;) {
		if (option == 'g')
			gid_index = atoi(optarg);
		else if (option == 'p')
			tcp_port = atoi(optarg);
		else if (option == 'n')
			rounds = atoi(optarg);
		else
			return 1;
	}
	if (optind >= count || rounds < 1) {
		fprintf(stderr, "waits [-n rounds] [-g gid index] [-p TCP port] MODE [SERVER]\n");
		return 1;
	}
	mode = arguments[optind];
	is_server = !arguments[optind + 1];
	connect_tcp(arguments[optind + 1]);
	epoll_set = epoll_create1(0);
	double *took = calloc(rounds, sizeof *took);
	if (is("tcp")) {
		echo_over_tcp(took);
	} else if (is("udp") || is("udpspin")) {
		echo_over_udp(took);
	} else {
		pthread_t other;
		connect_qp();
		if (is("spin2"))
			pthread_create(&other, 0, poll_an_empty_queue, 0);
		if (is("idle"))
			idle();
		else if (is("memory"))
			echo_by_memory(took);
		else if (is("late"))
			send_late(took);
		else
			echo(took);
		while (!is_server && !is("idle") && sends < rounds)
			drain();
		stop = 1;
	}
	if (!is_server && !is("idle")) {
		qsort(took, rounds, sizeof *took, by_size);
		printf("%s median %.1f us p99 %.1f us p99.9 %.1f us\n", mode, took[rounds / 2], took[(long)rounds * 99 / 100],
		       took[(long)rounds * 999 / 1000]);
		fflush(stdout);
	}
	/* Both ends wait until both are done. */
	char done = 1;
	tcp_write(&done, 1);
	tcp_read(&done, 1);
	return 0;
}
