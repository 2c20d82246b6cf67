/* Queue pairs: creation, connection, work requests, completions. */
#include "peer.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A queue pair has a completion queue of its own, for sends and receives alike. */
struct pair {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
};
static struct pair pairs[MAX_QPS];

static const struct {
	const char *name;
	enum ibv_wr_opcode opcode;
} operations[] = {
	{ "send", IBV_WR_SEND },
	{ "send_imm", IBV_WR_SEND_WITH_IMM },
	{ "send_inv", IBV_WR_SEND_WITH_INV },
	{ "write", IBV_WR_RDMA_WRITE },
	{ "write_imm", IBV_WR_RDMA_WRITE_WITH_IMM },
	{ "read", IBV_WR_RDMA_READ },
	{ "cmp_swap", IBV_WR_ATOMIC_CMP_AND_SWP },
	{ "fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD },
};

static const char *const state_names[] = { "reset", "init", "rtr", "rts", "sqd", "sqe", "err" };

static struct pair *pair_of(struct request *r)
{
	uint64_t id = number(r, "qp");

	if (r->failed)
		return NULL;
	if (id >= MAX_QPS || !pairs[id].qp) {
		err(ENOENT, "no queue pair %llu", (unsigned long long)id);
		r->failed = true;
		return NULL;
	}
	return &pairs[id];
}

static int pair_free(struct pair *pair)
{
	int code = pair->qp ? ibv_destroy_qp(pair->qp) : 0;

	if (code)
		return code;
	pair->qp = NULL;
	code = pair->cq ? ibv_destroy_cq(pair->cq) : 0;
	if (!code)
		pair->cq = NULL;
	return code;
}

void qp_reset(void)
{
	for (int i = 0; i < MAX_QPS; i++)
		if ((pairs[i].qp || pairs[i].cq) && pair_free(&pairs[i]))
			fprintf(stderr, "roxie-peer: queue pair %d cannot be destroyed\n", i);
}

static int to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = port_number,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
	};

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

void cmd_qp(struct request *r)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = number_or(r, "sq", 64),
			.max_recv_wr = number_or(r, "rq", 64),
			.max_send_sge = 1,
			.max_recv_sge = 1,
			.max_inline_data = number_or(r, "inline", 0),
		},
	};
	int id = 0;

	if (r->failed)
		return;
	while (id < MAX_QPS && (pairs[id].qp || pairs[id].cq))
		id++;
	if (id == MAX_QPS)
		return err(ENOSPC, "all %d queue pairs are in use: qp_free some", MAX_QPS);

	struct pair *pair = &pairs[id];
	pair->cq = ibv_create_cq(context, init.cap.max_send_wr + init.cap.max_recv_wr + 1, NULL, NULL, 0);
	if (!pair->cq)
		return err(errno, "ibv_create_cq: %s", strerror(errno));
	init.send_cq = init.recv_cq = pair->cq;
	pair->qp = ibv_create_qp(pd, &init);
	int code = pair->qp ? to_init(pair->qp) : errno;
	if (code) {
		err(code, "%s: %s", pair->qp ? "modify to INIT" : "ibv_create_qp", strerror(code));
		pair_free(pair);
		return;
	}
	ok("qp=%d qpn=%u inline=%u", id, pair->qp->qp_num, init.cap.max_inline_data);
}

static int path_mtu(struct request *r)
{
	uint64_t bytes = number_or(r, "mtu", 1024);

	for (int mtu = IBV_MTU_256; mtu <= IBV_MTU_4096; mtu++)
		if (128u << mtu == bytes)
			return mtu;
	if (!r->failed)
		err(EINVAL, "mtu=%llu: known are 256, 512, 1024, 2048, 4096", (unsigned long long)bytes);
	r->failed = true;
	return 0;
}

/* INIT -> RTR -> RTS in one command. */
void cmd_connect(struct request *r)
{
	struct pair *pair = pair_of(r);
	const char *gid = text(r, "gid");
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = path_mtu(r),
		.dest_qp_num = number(r, "qpn"),
		.rq_psn = number_or(r, "rq_psn", 0),
		.max_dest_rd_atomic = number_or(r, "max_dest_rd_atomic", 16),
		.min_rnr_timer = number_or(r, "min_rnr_timer", 12),
		.ah_attr = {
			.is_global = 1,
			.port_num = port_number,
			.sl = number_or(r, "sl", 0),
			.grh = {
				.sgid_index = number(r, "gid_index"),
				.hop_limit = number_or(r, "hop_limit", 64),
				.traffic_class = number_or(r, "traffic_class", 0),
			},
		},
	};

	if (!pair || r->failed)
		return;
	if (!parse_gid(gid, &attr.ah_attr.grh.dgid))
		return err(EINVAL, "gid=%s is not 32 hex digits", gid);
	int code = ibv_modify_qp(pair->qp, &attr,
				 IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (code)
		return err(code, "modify to RTR: %s%s", strerror(code),
			   code == ETIMEDOUT || code == EHOSTUNREACH ? " (no route or no ARP answer)" : "");

	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS,
		.timeout = number_or(r, "timeout", 14),
		.retry_cnt = number_or(r, "retry", 7),
		.rnr_retry = number_or(r, "rnr_retry", 7),
		.sq_psn = number_or(r, "sq_psn", 0),
		.max_rd_atomic = number_or(r, "max_rd_atomic", 16),
	};
	if (r->failed)
		return;
	code = ibv_modify_qp(pair->qp, &rts,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC);
	if (code)
		return err(code, "modify to RTS: %s", strerror(code));
	ok("state=rts");
}

void cmd_modify(struct request *r)
{
	struct pair *pair = pair_of(r);
	const char *name = text(r, "state");

	if (!pair || r->failed)
		return;
	for (size_t state = 0; state < sizeof state_names / sizeof *state_names; state++) {
		struct ibv_qp_attr attr = { .qp_state = state };
		if (strcmp(name, state_names[state]))
			continue;
		int code = state == IBV_QPS_INIT ? to_init(pair->qp) : ibv_modify_qp(pair->qp, &attr, IBV_QP_STATE);
		if (code)
			return err(code, "modify to %s: %s", name, strerror(code));
		return ok("state=%s", name);
	}
	err(EINVAL, "state=%s is none of reset, init, rtr, rts, sqd, sqe, err", name);
}

void cmd_query(struct request *r)
{
	struct pair *pair = pair_of(r);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	if (!pair)
		return;
	int code = ibv_query_qp(pair->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RQ_PSN | IBV_QP_PATH_MTU, &init);
	if (code)
		return err(code, "ibv_query_qp: %s", strerror(code));
	ok("state=%s sq_psn=0x%x rq_psn=0x%x mtu=%d qpn=%u dest_qpn=%u",
	   attr.qp_state < sizeof state_names / sizeof *state_names ? state_names[attr.qp_state] : "unknown",
	   attr.sq_psn, attr.rq_psn, 128 << attr.path_mtu, pair->qp->qp_num, attr.dest_qp_num);
}

void cmd_qp_free(struct request *r)
{
	struct pair *pair = pair_of(r);

	if (!pair)
		return;
	int code = pair_free(pair);
	if (code)
		return err(code, "destroying the queue pair: %s", strerror(code));
	ok(" ");
}

/* mr=, off=, len=: a gather or scatter entry. A work request without mr= has none. */
static bool entry_of(struct request *r, struct ibv_sge *sge, int *entries)
{
	*entries = 0;
	if (!text_or_null(r, "mr"))
		return !r->failed;
	struct region *region = region_of(r);
	if (!region)
		return false;
	uint64_t offset = number_or(r, "off", 0), length = number_or(r, "len", 0);
	if (r->failed || !within(region, offset, length))
		return false;
	sge->addr = (uintptr_t)region->base + offset;
	sge->length = length;
	sge->lkey = number_or(r, "lkey", region->mr->lkey);
	*entries = 1;
	return !r->failed;
}

void cmd_recv(struct request *r)
{
	struct pair *pair = pair_of(r);
	struct ibv_sge sge;
	struct ibv_recv_wr *bad, wr = { .wr_id = number_or(r, "wr_id", 0), .sg_list = &sge };
	uint64_t count = number_or(r, "n", 1), stride = number_or(r, "stride", 0);

	if (!pair || !entry_of(r, &sge, &wr.num_sge))
		return;
	for (uint64_t i = 0; i < count; i++, wr.wr_id++, sge.addr += stride) {
		int code = ibv_post_recv(pair->qp, &wr, &bad);
		if (code)
			return err(code, "ibv_post_recv, %llu of %llu: %s", (unsigned long long)i + 1,
				   (unsigned long long)count, strerror(code));
	}
	ok("n=%llu", (unsigned long long)count);
}

static int send_flags(struct request *r)
{
	const char *list = text_or_null(r, "flags");
	int flags = 0;

	for (const char *c = list ? list : "s"; *c; c++) {
		switch (*c) {
		case 's': flags |= IBV_SEND_SIGNALED; break;
		case 'i': flags |= IBV_SEND_INLINE; break;
		case 'e': flags |= IBV_SEND_SOLICITED; break;
		case 'f': flags |= IBV_SEND_FENCE; break;
		case '0': break;
		default:
			err(EINVAL, "flags=%s: known are s(ignaled), i(nline), (solicited) e(vent), f(ence), 0", list);
			r->failed = true;
			return 0;
		}
	}
	return flags;
}

static bool operation_of(struct request *r, struct ibv_send_wr *wr)
{
	const char *name = text(r, "op");

	for (size_t i = 0; name && i < sizeof operations / sizeof *operations; i++) {
		if (strcmp(name, operations[i].name))
			continue;
		wr->opcode = operations[i].opcode;
		return true;
	}
	if (name)
		err(EINVAL, "op=%s is none of send, send_imm, send_inv, write, write_imm, read, cmp_swap, fetch_add",
		    name);
	return false;
}

void cmd_send(struct request *r)
{
	struct pair *pair = pair_of(r);
	struct ibv_sge sge;
	struct ibv_send_wr *bad, wr = { .wr_id = number_or(r, "wr_id", 0), .sg_list = &sge };
	uint64_t count = number_or(r, "n", 1);

	if (!pair || !operation_of(r, &wr) || !entry_of(r, &sge, &wr.num_sge))
		return;
	wr.send_flags = send_flags(r);
	switch (wr.opcode) {
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		wr.wr.atomic.remote_addr = number(r, "raddr");
		wr.wr.atomic.rkey = number(r, "rkey");
		wr.wr.atomic.compare_add = number(r, "compare_add");
		wr.wr.atomic.swap = number_or(r, "swap", 0);
		break;
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_RDMA_READ:
		wr.wr.rdma.remote_addr = number(r, "raddr");
		wr.wr.rdma.rkey = number(r, "rkey");
		break;
	default:
		break;
	}
	if (wr.opcode == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = number(r, "rkey");
	else
		wr.imm_data = htobe32(number_or(r, "imm", 0));
	if (r->failed)
		return;
	for (uint64_t i = 0; i < count; i++, wr.wr_id++) {
		int code = ibv_post_send(pair->qp, &wr, &bad);
		if (code)
			return err(code, "ibv_post_send, %llu of %llu: %s", (unsigned long long)i + 1,
				   (unsigned long long)count, strerror(code));
	}
	ok("n=%llu", (unsigned long long)count);
}

static const char *completion_name(const struct ibv_wc *wc)
{
	switch (wc->opcode) {
	case IBV_WC_SEND: return "send";
	case IBV_WC_RDMA_WRITE: return "write";
	case IBV_WC_RDMA_READ: return "read";
	case IBV_WC_COMP_SWAP: return "cmp_swap";
	case IBV_WC_FETCH_ADD: return "fetch_add";
	case IBV_WC_RECV: return "recv";
	case IBV_WC_RECV_RDMA_WITH_IMM: return "recv_imm";
	default: return "other";
	}
}

/*
 * Waits for min= completions (default 1) or timeout_ms=, and gives up to max= of them. Looks often at
 * first, then sleeps between looks: in an emulated guest a spinning process starves the softirqs that
 * would bring the completion.
 */
void cmd_poll(struct request *r)
{
	struct pair *pair = pair_of(r);
	uint64_t least = number_or(r, "min", 1), most = number_or(r, "max", MAX_POLL);
	uint64_t until = now_ms() + number_or(r, "timeout_ms", 0), got = 0;

	if (!pair || r->failed)
		return;
	if (most > MAX_POLL)
		most = MAX_POLL;
	for (unsigned looks = 0; got < most;) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(pair->cq, 1, &wc);
		if (n < 0)
			return err(EIO, "ibv_poll_cq: %d", n);
		if (n == 0) {
			if (got >= least || now_ms() >= until)
				break;
			usleep(looks++ < 50 ? 20 : 200);
			continue;
		}
		/* The opcode, the length and the data mean something only where the status is success. */
		bool good = wc.status == IBV_WC_SUCCESS;
		detail("wr_id=%llu status=%d opcode=%s byte_len=%u flags=%u imm=0x%08x vendor=0x%x",
		       (unsigned long long)wc.wr_id, wc.status, good ? completion_name(&wc) : "-",
		       good ? wc.byte_len : 0, good ? wc.wc_flags : 0,
		       good && (wc.wc_flags & IBV_WC_WITH_IMM) ? be32toh(wc.imm_data) : 0, wc.vendor_err);
		got++;
	}
	ok("n=%llu", (unsigned long long)got);
}
