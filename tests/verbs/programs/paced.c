/*
 * Accuracy of a paced queue pair's rate, and the cost of waiting for it.
 *
 *     paced [-r kb/s] [-s bytes] [-m milliseconds] [-d depth] [-g gid index] [-p TCP port] spin|event|epoll write|send [SERVER]
 *
 * Without SERVER it is the server, which waits as the client does. The client keeps 128 messages posted (-d), as perftest does, and takes
 * their completions: by ibv_poll_cq() again and again, in ibv_get_cq_event(), or in epoll on a channel that does not block. It prints
 * bytes on the wire per time between two completions, as a ratio to the rate, and the processor time of its process in that time.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { RECEIVES = 512, MTU = 4096, PATIENCE_MS = 10000 };
/* Ethernet, IPv4, UDP, BTH and ICRC of a packet; RETH of a WRITE. */
enum { HEADERS = 14 + 20 + 8 + 12 + 4, RETH = 16 };

struct end {
	uint32_t qpn, psn, rkey;
	uint64_t memory;
	union ibv_gid gid;
};

static int gid_index = 1, tcp_port = 19778, kbps = 10000, size = 1024, milliseconds = 1000, depth = 128, tcp, epoll_set;
static const char *way, *what;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char *memory;
static struct end peer;
static long sends;
static int is_over;

static void die(const char *why)
{
	fprintf(stderr, "paced: %s: %s\n", why, strerror(errno));
	exit(1);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static double processor(void)
{
	struct rusage used;
	getrusage(RUSAGE_SELF, &used);
	return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static void exchange(const void *own, void *theirs, size_t count)
{
	if (write(tcp, own, count) != (ssize_t)count)
		die("write");
	for (char *at = theirs; count;) {
		ssize_t came = read(tcp, at, count);
		if (came <= 0)
			die("the peer is gone");
		at += came, count -= came;
	}
}

static void connect_tcp(const char *server)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(tcp_port) };
	int one = 1;
	tcp = socket(AF_INET, SOCK_STREAM, 0);
	if (server) {
		inet_pton(AF_INET, server, &address.sin_addr);
		if (connect(tcp, (void *)&address, sizeof address))
			die("connect");
	} else {
		int listener = tcp;
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		if (bind(listener, (void *)&address, sizeof address) || listen(listener, 1))
			die("listen");
		tcp = accept(listener, 0, 0);
	}
	setsockopt(tcp, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void post_receive(void)
{
	struct ibv_sge sge = { (uintptr_t)memory, size, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	if (ibv_post_recv(qp, &wr, &bad))
		die("ibv_post_recv");
}

static void post(int last)
{
	struct ibv_sge sge = { (uintptr_t)memory, size, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.opcode = last ? IBV_WR_SEND_WITH_IMM : strcmp(what, "write") ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
	wr.wr.rdma.remote_addr = peer.memory;
	wr.wr.rdma.rkey = peer.rkey;
	if (ibv_post_send(qp, &wr, &bad))
		die("ibv_post_send");
}

static int drain(int again)
{
	struct ibv_wc wc[16];
	int all = 0;
	for (int came; (came = ibv_poll_cq(cq, 16, wc)) > 0; all += came)
		for (int i = 0; i < came; i++) {
			if (wc[i].status) {
				fprintf(stderr, "paced: %s\n", ibv_wc_status_str(wc[i].status));
				exit(3);
			}
			if (wc[i].opcode & IBV_WC_RECV) {
				is_over |= wc[i].wc_flags & IBV_WC_WITH_IMM;
				post_receive();
			} else {
				sends++;
				if (again)
					post(0);
			}
		}
	return all;
}

/* Waits for a completion. */
static void take(int again)
{
	for (;;) {
		if (drain(again))
			return;
		if (!strcmp(way, "spin"))
			continue;
		ibv_req_notify_cq(cq, 0);
		if (drain(again))
			return;
		struct epoll_event event;
		if (!strcmp(way, "epoll") && epoll_wait(epoll_set, &event, 1, PATIENCE_MS) <= 0)
			die("no event");
		struct ibv_cq *raised;
		void *user;
		if (!ibv_get_cq_event(channel, &raised, &user))
			ibv_ack_cq_events(raised, 1);
		else if (errno != EAGAIN)
			die("ibv_get_cq_event");
	}
}

static void modify(int state, struct ibv_qp_attr attr, int mask)
{
	attr.qp_state = state;
	if (ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE))
		die("ibv_modify_qp");
}

static void connect_qp(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
	if (!context)
		die("no device");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	if (!strcmp(way, "epoll"))
		fcntl(channel->fd, F_SETFL, O_NONBLOCK);
	struct epoll_event event = { .events = EPOLLIN };
	epoll_set = epoll_create1(0);
	epoll_ctl(epoll_set, EPOLL_CTL_ADD, channel->fd, &event);
	cq = ibv_create_cq(context, RECEIVES + depth + 1, 0, channel, 0);
	memory = aligned_alloc(4096, (size + 4095) & ~4095);
	memset(memory, 0, size);
	mr = ibv_reg_mr(pd, memory, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { depth + 1, RECEIVES, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	qp = ibv_create_qp(pd, &init);
	if (!qp || !mr)
		die("ibv_create_qp");
	struct end own = { qp->qp_num, 4711, mr->rkey, (uintptr_t)memory, { { 0 } } };
	ibv_query_gid(context, 1, gid_index, &own.gid);
	exchange(&own, &peer, sizeof own);
	modify(IBV_QPS_INIT, (struct ibv_qp_attr){ .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE },
	       IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	struct ibv_qp_attr rtr = { .path_mtu = IBV_MTU_4096, .dest_qp_num = peer.qpn, .rq_psn = peer.psn,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = { .is_global = 1, .port_num = 1 } };
	rtr.ah_attr.grh.dgid = peer.gid;
	rtr.ah_attr.grh.sgid_index = gid_index;
	rtr.ah_attr.grh.hop_limit = 64;
	modify(IBV_QPS_RTR, rtr, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
	       IBV_QP_MIN_RNR_TIMER);
	modify(IBV_QPS_RTS, (struct ibv_qp_attr){ .sq_psn = 4711, .timeout = 17, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 },
	       IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
	for (int i = 0; i < RECEIVES; i++)
		post_receive();
}

int main(int argc, char **argv)
{
	for (int option; (option = getopt(argc, argv, "r:s:m:d:g:p:")) != -1;) {
		int value = atoi(optarg);
		switch (option) {
		case 'r': kbps = value; break;
		case 's': size = value; break;
		case 'm': milliseconds = value; break;
		case 'd': depth = value; break;
		case 'g': gid_index = value; break;
		case 'p': tcp_port = value; break;
		default: return 2;
		}
	}
	if (argc - optind < 2)
		return 2;
	way = argv[optind], what = argv[optind + 1];
	const char *server = argv[optind + 2];
	connect_tcp(server);
	connect_qp();
	char go = 1;
	exchange(&go, &go, 1);
	if (!server) {
		/* The device serves WRITEs without polls by the program. */
		if (!strcmp(what, "write"))
			return recv(tcp, &go, 1, 0) != 1;
		while (!is_over)
			take(0);
		return 0;
	}
	struct ibv_qp_rate_limit_attr limit = { .rate_limit = kbps };
	if ((errno = ibv_modify_qp_rate_limit(qp, &limit)))
		die("ibv_modify_qp_rate_limit");
	for (int i = 0; i < depth; i++)
		post(0);
	/* The first completions may be more than the rate allows. */
	while (sends < 4)
		take(1);
	double began = now(), used = processor(), last = began;
	long first = sends, at_last = first;
	while (last - began < milliseconds / 1e3) {
		take(1);
		at_last = sends, last = now();
	}
	double seconds = last - began;
	used = processor() - used;
	long packets = (size + MTU - 1) / MTU;
	double bytes = (double)(at_last - first) * (size + packets * HEADERS + (strcmp(what, "write") ? 0 : RETH));
	printf("asked %d kb/s got %.0f ratio %.4f processor %.4f of %.3f s\n", kbps, bytes * 8 / seconds / 1e3,
	       bytes * 8 / seconds / 1e3 / kbps, used / seconds, seconds);
	long left = sends + depth;
	while (sends < left)
		take(0);
	if (!strcmp(what, "write"))
		return write(tcp, &go, 1) != 1;
	post(1);
	while (sends == left)
		take(0);
	return 0;
}
