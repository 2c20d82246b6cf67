/* Attributes round-trip, each with its own value, and completions overwrite an array with other contents. */

#include <infiniband/verbs.h>
#include <stdint.h>

#include "check.h"

#define SAME(got, wanted) same(#got, (uint64_t)(got), (uint64_t)(wanted), __LINE__)

static void same(const char *what, uint64_t got, uint64_t wanted, int line)
{
	if (got == wanted)
		return;
	fprintf(stderr, "line %d: %s is %#llx, not %#llx\n", line, what, (unsigned long long)got, (unsigned long long)wanted);
	exit(1);
}

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *send_cq, *recv_cq;
static union ibv_gid gid;
static struct ibv_mr *mr;
static char bytes[4096];
/* The hop limit of routes. */
static int hops;

static struct ibv_qp *make(enum ibv_qp_type type, int all)
{
	struct ibv_qp_init_attr init = { .qp_context = bytes + type, .send_cq = send_cq, .recv_cq = recv_cq, .qp_type = type,
		.sq_sig_all = all,
		.cap = { .max_send_wr = 11, .max_recv_wr = 13, .max_send_sge = 2, .max_recv_sge = 3, .max_inline_data = 40 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp && init.cap.max_send_wr >= 11 && init.cap.max_recv_wr >= 13 && init.cap.max_send_sge >= 2 &&
	      init.cap.max_recv_sge >= 3 && init.cap.max_inline_data >= 40);
	return qp;
}

#define RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

static void join(struct ibv_qp *qp, uint32_t peer, uint32_t psn_in, uint32_t psn_out)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = RIGHTS };

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_512, .dest_qp_num = peer, .rq_psn = psn_in,
		.max_dest_rd_atomic = 9, .min_rnr_timer = 21, .pkey_index = 7, .port_num = 9,
		.ah_attr = { .is_global = 1, .port_num = 1, .sl = 5,
			     .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 33, .traffic_class = 0x68, .flow_label = 0x54321 } } };
	/* The mask names neither the partition nor the port. */
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 17, .retry_cnt = 4, .rnr_retry = 6, .sq_psn = psn_out,
		.max_rd_atomic = 10, .pkey_index = 7, .port_num = 9 };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				   IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static void check_rc(struct ibv_qp *qp, uint32_t peer, uint32_t psn_in, uint32_t psn_out, int all)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	SAME(qp->state, IBV_QPS_RTS);
	memset(&attr, 0xa5, sizeof(attr));
	memset(&init, 0xa5, sizeof(init));
	CHECK(ibv_query_qp(qp, &attr, ~0, &init) == 0);
	SAME(attr.qp_state, IBV_QPS_RTS);
	SAME(attr.cur_qp_state, IBV_QPS_RTS);
	SAME(attr.path_mtu, IBV_MTU_512);
	SAME(attr.rq_psn, psn_in);
	SAME(attr.sq_psn, psn_out);
	SAME(attr.dest_qp_num, peer);
	SAME(attr.qp_access_flags, RIGHTS);
	SAME(attr.pkey_index, 0);
	SAME(attr.sq_draining, 0);
	SAME(attr.max_rd_atomic, 10);
	SAME(attr.max_dest_rd_atomic, 9);
	SAME(attr.min_rnr_timer, 21);
	SAME(attr.port_num, 1);
	SAME(attr.timeout, 17);
	SAME(attr.retry_cnt, 4);
	SAME(attr.rnr_retry, 6);
	SAME(attr.ah_attr.is_global, 1);
	SAME(attr.ah_attr.port_num, 1);
	SAME(attr.ah_attr.sl, 5);
	SAME(attr.ah_attr.grh.sgid_index, 1);
	/* The hop limit is the route's, as in a kernel. */
	SAME(attr.ah_attr.grh.hop_limit, hops);
	SAME(attr.ah_attr.grh.traffic_class, 0x68);
	SAME(attr.ah_attr.grh.flow_label, 0x54321);
	CHECK(memcmp(&attr.ah_attr.grh.dgid, &gid, sizeof(gid)) == 0);
	CHECK(attr.cap.max_send_wr >= 11 && attr.cap.max_recv_wr >= 13 && attr.cap.max_send_sge >= 2 &&
	      attr.cap.max_recv_sge >= 3 && attr.cap.max_inline_data >= 40);
	CHECK(attr.cap.max_send_wr < 0xa5a5 && attr.cap.max_recv_wr < 0xa5a5 && attr.cap.max_inline_data < 0xa5a5);
	CHECK(memcmp(&attr.cap, &init.cap, sizeof(attr.cap)) == 0);
	CHECK(init.qp_context == bytes + IBV_QPT_RC && init.send_cq == send_cq && init.recv_cq == recv_cq && !init.srq);
	SAME(init.qp_type, IBV_QPT_RC);
	SAME(init.sq_sig_all, all);
}

static void check_ud(void)
{
	struct ibv_qp *qp = make(IBV_QPT_UD, 0);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1234567 };
	struct ibv_qp_init_attr init;

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 0x765432 };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	memset(&attr, 0xa5, sizeof(attr));
	CHECK(ibv_query_qp(qp, &attr, ~0, &init) == 0);
	SAME(attr.qp_state, IBV_QPS_RTS);
	SAME(attr.qkey, 0x1234567);
	SAME(attr.sq_psn, 0x765432);
	SAME(init.qp_type, IBV_QPT_UD);
	CHECK(init.qp_context == bytes + IBV_QPT_UD);
	CHECK(ibv_destroy_qp(qp) == 0);
}

static void check_srq(void)
{
	struct ibv_srq_init_attr init = { .srq_context = bytes + 77, .attr = { .max_wr = 21, .max_sge = 3 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_srq_attr attr = { .srq_limit = 7 };

	struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = 8, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(srq && srq->srq_context == bytes + 77);
	/* With fewer receives, the limit would be reached at once. */
	for (int count = 0; count < 9; count++)
		CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
	memset(&attr, 0xa5, sizeof(attr));
	CHECK(ibv_query_srq(srq, &attr) == 0);
	SAME(attr.srq_limit, 7);
	CHECK(attr.max_wr >= 21 && attr.max_wr < 0xa5a5 && attr.max_sge >= 3 && attr.max_sge < 0xa5a5);
	CHECK(ibv_destroy_srq(srq) == 0);
}

/* Programs such as libiscsi have unaligned entries in packed structures. */
struct odd {
	char before;
	struct ibv_sge sge;
} __attribute__((packed));

static void receive(struct ibv_qp *qp, uint64_t id)
{
	struct odd at = { .sge = { .addr = (uintptr_t)bytes + 64 * id, .length = 64, .lkey = mr->lkey } };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = (void *)((char *)&at + 1), .num_sge = 1 }, *bad;

	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void send_it(struct ibv_qp *qp, uint64_t id, enum ibv_wr_opcode opcode, uint32_t length)
{
	struct odd at = { .sge = { .addr = (uintptr_t)bytes, .length = length, .lkey = mr->lkey } };
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = (void *)((char *)&at + 1), .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.imm_data = 0x01020304 }, *bad;

	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

/* Polls `count` completions, each time into memory with other contents. */
static void poll_all(struct ibv_cq *cq, struct ibv_wc *to, int count)
{
	int got, all = 0;

	memset(to, 0xa5, (count + 1) * sizeof(*to));
	while (all < count) {
		got = ibv_poll_cq(cq, count - all, to + all);
		CHECK(got >= 0);
		all += got;
		memset(to + all, 0xa5, (count + 1 - all) * sizeof(*to));
	}
	CHECK(to[count].wc_flags == 0xa5a5a5a5 && to[count].status == 0xa5a5a5a5);
}

/* Unused fields of a successful completion are zero, not the old contents. */
static void check_absent(const struct ibv_wc *wc)
{
	SAME(wc->vendor_err, 0);
	SAME(wc->src_qp, 0);
	SAME(wc->pkey_index, 0);
	SAME(wc->slid, 0);
	SAME(wc->sl, 0);
	SAME(wc->dlid_path_bits, 0);
}

/* With immediate data, without, with: no completion has remains of the previous one. */
static void check_completions(struct ibv_qp *near, struct ibv_qp *far)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND };
	struct ibv_wc wc[5];
	int at;

	for (int round = 0; round < 3; round++) {
		for (at = 0; at < 4; at++)
			receive(far, 10 + at);
		for (at = 0; at < 4; at++)
			send_it(near, 20 + at, opcodes[at], 8 + at);
		poll_all(send_cq, wc, 4);
		for (at = 0; at < 4; at++) {
			SAME(wc[at].wr_id, 20 + at);
			SAME(wc[at].status, IBV_WC_SUCCESS);
			SAME(wc[at].opcode, IBV_WC_SEND);
			SAME(wc[at].wc_flags, 0);
			SAME(wc[at].qp_num, near->qp_num);
			check_absent(&wc[at]);
		}
		poll_all(recv_cq, wc, 4);
		for (at = 0; at < 4; at++) {
			int imm = opcodes[at] == IBV_WR_SEND_WITH_IMM;

			SAME(wc[at].wr_id, 10 + at);
			SAME(wc[at].status, IBV_WC_SUCCESS);
			SAME(wc[at].opcode, IBV_WC_RECV);
			SAME(wc[at].byte_len, 8 + at);
			SAME(wc[at].wc_flags, imm ? IBV_WC_WITH_IMM : 0);
			if (imm)
				SAME(wc[at].imm_data, 0x01020304);
			SAME(wc[at].qp_num, far->qp_num);
			check_absent(&wc[at]);
		}
	}
}

int main(int count, char **words)
{
	hops = count > 1 ? atoi(words[1]) : 64;
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp *near, *far;

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context && ibv_query_gid(context, 1, 1, &gid) == 0);
	pd = ibv_alloc_pd(context);
	send_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	recv_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	CHECK(pd && send_cq && recv_cq);
	mr = ibv_reg_mr(pd, bytes, sizeof(bytes), IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	near = make(IBV_QPT_RC, 0);
	far = make(IBV_QPT_RC, 1);
	join(near, far->qp_num, 0x111111, 0x222222);
	join(far, near->qp_num, 0x222222, 0x111111);
	check_rc(near, far->qp_num, 0x111111, 0x222222, 0);
	check_rc(far, near->qp_num, 0x222222, 0x111111, 1);
	check_ud();
	check_srq();
	check_completions(near, far);
	puts("all so");
	return 0;
}
