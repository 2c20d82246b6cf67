/* One of many processes, each connected to all others: it listens, and connects to those with smaller numbers. The first half of them
 * uses the first address, the rest the other one. Both ends send messages with bytes that depend on sender, receiver, and number, and
 * compare all messages. The process sleeps while it waits, because there are many more processes than processors. The next message is
 * sent when the previous one is complete and answered, so two receives are always enough.
 *
 * mesh NUMBER PROCESSES MESSAGES FIRST_PORT ADDRESS OTHER_ADDRESS */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what) ((what) ? (void)0 : fail(#what, __LINE__))
#define LONGEST 9000 /* More than two packets. */
#define MOST 256

static struct ibv_context *device;

/* Ends the process after a failure. If the device is gone, there is an event. */
static void give_up(void)
{
	struct ibv_async_event event = {.event_type = IBV_EVENT_CQ_ERR};
	struct pollfd waits = {.fd = device ? device->async_fd : -1, .events = POLLIN};

	if (device && !ibv_alloc_pd(device)) {
		while (poll(&waits, 1, 20000) > 0 && ibv_get_async_event(device, &event) == 0) {
			if (event.event_type == IBV_EVENT_DEVICE_FATAL) {
				fprintf(stderr, "the device is gone\n");
				break;
			}
			ibv_ack_async_event(&event);
		}
	}
	exit(1);
}

static void fail(const char *what, int line)
{
	fprintf(stderr, "line %d: not %s (errno %d)\n", line, what, errno);
	give_up();
}

struct line {
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	unsigned char *out, *in;
	uint32_t own, peer; /* Who is at which end. */
	int sent, received, sending;
};

static struct rdma_event_channel *channel;
static struct ibv_pd *pd;
static struct ibv_comp_channel *completions;
static struct ibv_cq *cq;
static struct line lines[MOST];
static int connections, messages, made, done, ended;

static uint32_t next(uint32_t *state)
{
	*state = *state * 1664525 + 1013904223;
	return *state >> 8;
}

/* Fills the message with a number from one process to another. */
static int fill(unsigned char *bytes, uint32_t from, uint32_t to, int number)
{
	uint32_t state = from * 2654435761u ^ to * 40503u ^ (uint32_t)number * 97u;
	int length = 1 + next(&state) % LONGEST, at;

	for (at = 0; at < length; at++)
		bytes[at] = next(&state);
	return length;
}

static void post_receive(struct line *line, int number)
{
	struct ibv_sge sge = {(uintptr_t)line->in + number % 2 * LONGEST, LONGEST, line->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = line - lines, .sg_list = &sge, .num_sge = 1}, *bad;

	CHECK(ibv_post_recv(line->id->qp, &wr, &bad) == 0);
}

static void post_send(struct line *line)
{
	int length = fill(line->out, line->own, line->peer, line->sent);
	struct ibv_sge sge = {(uintptr_t)line->out, length, line->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = line - lines, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED}, *bad;

	CHECK(ibv_post_send(line->id->qp, &wr, &bad) == 0);
	line->sending = 1;
}

static struct line *line_for(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {0};
	struct line *line = &lines[made++];

	CHECK(made <= MOST);
	if (!pd) {
		CHECK((pd = ibv_alloc_pd(id->verbs)));
		CHECK((completions = ibv_create_comp_channel(id->verbs)));
		CHECK(fcntl(completions->fd, F_SETFL, O_NONBLOCK) == 0);
		CHECK((cq = ibv_create_cq(id->verbs, 4 * MOST, NULL, completions, 0)));
		CHECK(ibv_req_notify_cq(cq, 0) == 0);
	}
	attr.send_cq = attr.recv_cq = cq;
	attr.qp_type = IBV_QPT_RC;
	attr.cap.max_send_wr = attr.cap.max_recv_wr = 2;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	CHECK(rdma_create_qp(id, pd, &attr) == 0);
	CHECK((line->out = calloc(3, LONGEST)));
	line->in = line->out + LONGEST;
	CHECK((line->mr = ibv_reg_mr(pd, line->out, 3 * LONGEST, IBV_ACCESS_LOCAL_WRITE)));
	line->id = id;
	id->context = line;
	post_receive(line, 0);
	post_receive(line, 1);
	return line;
}

static void check_done(struct line *line)
{
	if (line->sent == messages && line->received == messages)
		done++;
}

static void complete(struct ibv_wc *wc)
{
	static unsigned char expected[LONGEST];
	struct line *line = &lines[wc->wr_id];
	int length;

	/* The peer disconnects when it has everything, possibly before its last acknowledgement is handled here. */
	if (wc->status == IBV_WC_WR_FLUSH_ERR && line->received == messages && line->sent == messages)
		return;
	if (wc->status == IBV_WC_WR_FLUSH_ERR && line->received == messages && line->sent == messages - 1) {
		line->sent++;
		check_done(line);
		return;
	}
	if (wc->status != IBV_WC_SUCCESS) {
		fprintf(stderr, "%u with %u: %s\n", line->own, line->peer, ibv_wc_status_str(wc->status));
		give_up();
	}
	if (wc->opcode == IBV_WC_RECV) {
		length = fill(expected, line->peer, line->own, line->received);
		if ((int)wc->byte_len != length || memcmp(line->in + line->received % 2 * LONGEST, expected, length)) {
			fprintf(stderr, "%u got something else from %u: message %d, %u bytes, not %d\n", line->own, line->peer,
				line->received, wc->byte_len, length);
			exit(1);
		}
		post_receive(line, line->received++);
	} else {
		line->sent++;
		line->sending = 0;
	}
	if (!line->sending && line->sent <= line->received && line->sent < messages)
		post_send(line);
	check_done(line);
}

static void poll_completions(void)
{
	struct ibv_wc wc[16];
	struct ibv_cq *of;
	void *context;
	int count, at;

	while (ibv_get_cq_event(completions, &of, &context) == 0)
		ibv_ack_cq_events(of, 1);
	CHECK(errno == EAGAIN);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	while ((count = ibv_poll_cq(cq, 16, wc)) > 0)
		for (at = 0; at < count; at++)
			complete(&wc[at]);
	CHECK(count == 0);
}

/* The private data contains the number of the other process, from 1 on. */
static void hear(struct rdma_cm_event *event, uint32_t own)
{
	struct rdma_cm_id *id = event->id;
	struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7, .private_data = &own,
					.private_data_len = sizeof(own)};
	struct line *line;

	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		CHECK(rdma_resolve_route(id, 5000) == 0);
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		line = line_for(id);
		line->own = own;
		CHECK(rdma_connect(id, &param) == 0);
		break;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		line = line_for(id);
		line->own = own;
		CHECK(event->param.conn.private_data_len >= sizeof(own));
		memcpy(&line->peer, event->param.conn.private_data, sizeof(own));
		CHECK(rdma_accept(id, &param) == 0);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		line = id->context;
		if (event->param.conn.private_data_len >= sizeof(own) && line->peer == 0)
			memcpy(&line->peer, event->param.conn.private_data, sizeof(own));
		/* A first message may have arrived and been answered before. */
		if (!line->sending && line->sent == 0)
			post_send(line);
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		/* All its messages have arrived. */
		poll_completions();
		line = id->context;
		if (line->received < messages || line->sent < messages - 1) {
			fprintf(stderr, "%u: %u has left early\n", own, line->peer);
			give_up();
		}
		ended++;
		break;
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		break;
	default:
		fprintf(stderr, "%u: %s, status %d\n", own, rdma_event_str(event->event), event->status);
		give_up();
	}
}

/* No events of the device are expected; those of queue pairs show in completions. */
static void heed_event(void)
{
	struct ibv_async_event event;

	CHECK(ibv_get_async_event(device, &event) == 0);
	if (event.event_type == IBV_EVENT_DEVICE_FATAL) {
		fprintf(stderr, "the device is gone\n");
		exit(1);
	}
	ibv_ack_async_event(&event);
}

static void turn(uint32_t own)
{
	struct pollfd waits[3] = {{.fd = channel->fd, .events = POLLIN},
				  {.fd = completions ? completions->fd : -1, .events = POLLIN},
				  {.fd = device->async_fd, .events = POLLIN}};
	struct rdma_cm_event *event;

	CHECK(poll(waits, 3, 300000) > 0);
	while (rdma_get_cm_event(channel, &event) == 0) {
		struct rdma_cm_event copy = *event;
		uint32_t peer = 0;

		/* The pointers are invalid after the acknowledgement. */
		if (copy.param.conn.private_data_len >= sizeof(peer))
			memcpy(&peer, copy.param.conn.private_data, sizeof(peer));
		copy.param.conn.private_data = &peer;
		CHECK(rdma_ack_cm_event(event) == 0);
		hear(&copy, own);
	}
	CHECK(errno == EAGAIN);
	if (completions)
		poll_completions();
	if (waits[2].revents)
		heed_event();
}

int main(int count, char **words)
{
	struct sockaddr_in ends[2] = {{.sin_family = AF_INET}, {.sin_family = AF_INET}}, address;
	struct rdma_cm_id *id, *listener;
	int number, processes, port, at;
	uint32_t own;

	CHECK(count == 7 && inet_pton(AF_INET, words[5], &ends[0].sin_addr) == 1);
	CHECK(inet_pton(AF_INET, words[6], &ends[1].sin_addr) == 1);
	number = atoi(words[1]);
	processes = atoi(words[2]);
	messages = atoi(words[3]);
	port = atoi(words[4]);
	connections = processes - 1;
	own = 1 + number;
	CHECK(connections > 0 && connections <= MOST && messages > 0);
	CHECK((channel = rdma_create_event_channel()));
	CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	address = ends[number >= processes / 2];
	address.sin_port = htons(port + number);
	CHECK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0);
	CHECK((device = listener->verbs));
	CHECK(rdma_listen(listener, MOST) == 0);
	for (at = 0; at < number; at++) {
		address = ends[at >= processes / 2];
		address.sin_port = htons(port + at);
		CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
		CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 5000) == 0);
	}
	while (done < connections)
		turn(own);
	/* Everything is acknowledged; a finished process reports it, and so does the other end. */
	for (at = 0; at < made; at++)
		rdma_disconnect(lines[at].id);
	while (ended < connections)
		turn(own);
	printf("%u: %d connections, %d messages each way, all as they were sent\n", own, connections, messages);
	return 0;
}
