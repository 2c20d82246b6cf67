/*
 * The remote memory access of librpma, both ends of it: reads, writes, flushes, atomic writes, messages, and completions of a channel that two
 * queues share.
 *
 *     rpma_remote server ADDRESS PORT    serves one connection, and ends when it is closed
 *     rpma_remote client ADDRESS PORT
 *
 * The server passes its region's descriptor as private data. The client compares what it reads with what it wrote, and the server compares
 * its memory with the client's last message. Exit code 0: everything was right.
 */

#include <arpa/inet.h>
#include <librpma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what) ((what) ? (void)0 : fail(#what, __LINE__))
#define DONE(call) done(#call, call, __LINE__)

enum { SIZE = 1 << 20, HALF = SIZE / 2, MESSAGE = 64, ROUNDS = 20, WORD = 64, IMMEDIATE = 0x1234 };

static void fail(const char *what, int line)
{
	fprintf(stderr, "line %d: not %s\n", line, what);
	exit(1);
}

static void done(const char *call, int error, int line)
{
	if (error == 0)
		return;
	fprintf(stderr, "line %d: %s: %s\n", line, call, rpma_err_2str(error));
	exit(1);
}

static struct rpma_peer *peer;
static struct rpma_conn *connection;
static struct rpma_mr_local *memory, *messages;
static unsigned char *bytes, *message;

static void *pages(size_t size)
{
	void *memory = aligned_alloc(4096, size);

	CHECK(memory);
	return memset(memory, 0, size);
}

static void open_device(const char *address, enum rpma_util_ibv_context_type type)
{
	struct ibv_context *context;
	int odp = -1;

	DONE(rpma_utils_get_ibv_context(address, type, &context));
	DONE(rpma_utils_ibv_context_is_odp_capable(context, &odp));
	CHECK(odp == 0 || odp == 1);
	DONE(rpma_peer_new(context, &peer));
	bytes = pages(SIZE);
	message = pages(4096);
	DONE(rpma_mr_reg(peer, bytes, SIZE, RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC |
			 RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY, &memory));
	DONE(rpma_mr_reg(peer, message, 4096, RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &messages));
}

/* Two completion queues, for sends and receives, with one channel. */
static struct rpma_conn_cfg *shared_channel(void)
{
	struct rpma_conn_cfg *cfg;

	DONE(rpma_conn_cfg_new(&cfg));
	DONE(rpma_conn_cfg_set_timeout(cfg, 10000));
	DONE(rpma_conn_cfg_set_rcq_size(cfg, 10));
	DONE(rpma_conn_cfg_set_compl_channel(cfg, true));
	return cfg;
}

static void expect(enum rpma_conn_event wanted)
{
	enum rpma_conn_event event;

	DONE(rpma_conn_next_event(connection, &event));
	if (event == wanted)
		return;
	fprintf(stderr, "%s instead of %s\n", rpma_utils_conn_event_2str(event), rpma_utils_conn_event_2str(wanted));
	exit(1);
}

/* Waits for one completion of either queue. `RPMA_E_NO_COMPLETION` is for an event whose completion an earlier call took. */
static struct ibv_wc next(void)
{
	struct rpma_cq *cq;
	struct ibv_wc wc;
	bool is_received;
	int error;

	do {
		DONE(rpma_conn_wait(connection, 0, &cq, &is_received));
		error = rpma_cq_get_wc(cq, 1, &wc, NULL);
	} while (error == RPMA_E_NO_COMPLETION);
	done("rpma_cq_get_wc", error, __LINE__);
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status));
		exit(1);
	}
	CHECK(is_received == ((wc.opcode & IBV_WC_RECV) != 0));
	return wc;
}

static void complete(enum ibv_wc_opcode opcode, uintptr_t id)
{
	struct ibv_wc wc = next();

	CHECK(wc.opcode == opcode && wc.wr_id == id);
}

static void serve(const char *address, const char *port)
{
	struct rpma_conn_cfg *cfg = shared_channel();
	struct rpma_conn_private_data data;
	struct rpma_conn_req *request;
	struct rpma_ep *listener;
	unsigned char descriptor[64];
	size_t size;

	open_device(address, RPMA_UTIL_IBV_CONTEXT_LOCAL);
	for (int at = 0; at < SIZE; at++)
		bytes[at] = at * 7 + 1;
	DONE(rpma_mr_get_descriptor_size(memory, &size));
	CHECK(size <= sizeof(descriptor));
	DONE(rpma_mr_get_descriptor(memory, descriptor));
	data = (struct rpma_conn_private_data){ .ptr = descriptor, .len = size };
	DONE(rpma_ep_listen(peer, address, port, &listener));
	DONE(rpma_ep_next_conn_req(listener, cfg, &request));
	DONE(rpma_conn_req_recv(request, messages, 0, MESSAGE, (void *)1));
	DONE(rpma_conn_req_connect(&request, &data, &connection));
	expect(RPMA_CONN_ESTABLISHED);
	for (int round = 1, sent = 0; round <= ROUNDS; round++) {
		struct ibv_wc wc = next();

		/* The client's next message may complete before the answer to its last does. */
		for (; wc.opcode == IBV_WC_SEND; wc = next())
			CHECK(wc.wr_id == 77 && ++sent < round);
		CHECK(wc.wr_id == (uintptr_t)round);
		if (round == ROUNDS) {
			/* The last one is a WRITE's immediate. */
			CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.imm_data == htonl(IMMEDIATE));
			break;
		}
		CHECK(wc.opcode == IBV_WC_RECV && wc.byte_len == MESSAGE && message[0] == round);
		DONE(rpma_recv(connection, messages, 0, MESSAGE, (void *)(uintptr_t)(round + 1)));
		message[MESSAGE] = round + 1;
		DONE(rpma_send(connection, messages, MESSAGE, MESSAGE, RPMA_F_COMPLETION_ALWAYS, (void *)77));
	}
	for (int at = HALF; at < SIZE; at++)
		CHECK(bytes[at] == (unsigned char)(at * 3 + 2));
	CHECK(memcmp(bytes + WORD, "eight by", 8) == 0);
	expect(RPMA_CONN_CLOSED);
	DONE(rpma_conn_disconnect(connection));
	DONE(rpma_conn_delete(&connection));
	DONE(rpma_ep_shutdown(&listener));
	DONE(rpma_conn_cfg_delete(&cfg));
}

static void reach(struct rpma_mr_remote *remote)
{
	unsigned char *own = bytes;

	DONE(rpma_read(connection, memory, 0, remote, 0, SIZE, RPMA_F_COMPLETION_ALWAYS, (void *)10));
	complete(IBV_WC_RDMA_READ, 10);
	for (int at = 0; at < SIZE; at++)
		CHECK(own[at] == (unsigned char)(at * 7 + 1));
	for (int at = HALF; at < SIZE; at++)
		own[at] = at * 3 + 2;
	DONE(rpma_write(connection, remote, HALF, memory, HALF, HALF, RPMA_F_COMPLETION_ON_ERROR, NULL));
	DONE(rpma_atomic_write(connection, remote, WORD, "eight by", RPMA_F_COMPLETION_ON_ERROR, NULL));
	DONE(rpma_flush(connection, remote, HALF, HALF, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ALWAYS, (void *)11));
	complete(IBV_WC_RDMA_READ, 11);
	memset(own, 0, SIZE);
	DONE(rpma_read(connection, memory, 0, remote, 0, SIZE, RPMA_F_COMPLETION_ALWAYS, (void *)12));
	complete(IBV_WC_RDMA_READ, 12);
	for (int at = HALF; at < SIZE; at++)
		CHECK(own[at] == (unsigned char)(at * 3 + 2));
	CHECK(memcmp(own + WORD, "eight by", 8) == 0);
}

static void ask(const char *address, const char *port)
{
	struct rpma_conn_cfg *cfg = shared_channel();
	struct rpma_conn_private_data data;
	struct rpma_conn_req *request;
	struct rpma_mr_remote *remote;
	size_t size;

	open_device(address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
	DONE(rpma_conn_req_new(peer, address, port, cfg, &request));
	DONE(rpma_conn_req_connect(&request, NULL, &connection));
	expect(RPMA_CONN_ESTABLISHED);
	DONE(rpma_conn_get_private_data(connection, &data));
	CHECK(data.ptr);
	DONE(rpma_mr_remote_from_descriptor(data.ptr, data.len, &remote));
	DONE(rpma_mr_remote_get_size(remote, &size));
	CHECK(size == SIZE);
	reach(remote);
	for (int round = 1; round < ROUNDS; round++) {
		struct ibv_wc first, second;

		DONE(rpma_recv(connection, messages, 0, MESSAGE, (void *)20));
		message[MESSAGE] = round;
		DONE(rpma_send(connection, messages, MESSAGE, MESSAGE, RPMA_F_COMPLETION_ALWAYS, (void *)21));
		/* The answer and the completion of the request are of two queues, so either may be first. */
		first = next();
		second = next();
		CHECK(first.wr_id + second.wr_id == 41 && message[0] == round + 1);
	}
	DONE(rpma_write_with_imm(connection, remote, HALF, memory, HALF, 1, RPMA_F_COMPLETION_ALWAYS, IMMEDIATE, (void *)30));
	complete(IBV_WC_RDMA_WRITE, 30);
	DONE(rpma_mr_remote_delete(&remote));
	DONE(rpma_conn_disconnect(connection));
	expect(RPMA_CONN_CLOSED);
	DONE(rpma_conn_delete(&connection));
	DONE(rpma_conn_cfg_delete(&cfg));
}

int main(int count, char **arguments)
{
	if (count != 4) {
		fprintf(stderr, "rpma_remote server|client ADDRESS PORT\n");
		return 2;
	}
	(strcmp(arguments[1], "server") == 0 ? serve : ask)(arguments[2], arguments[3]);
	DONE(rpma_mr_dereg(&memory));
	DONE(rpma_mr_dereg(&messages));
	DONE(rpma_peer_delete(&peer));
	printf("all so\n");
	return 0;
}
