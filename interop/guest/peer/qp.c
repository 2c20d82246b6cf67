/* Queue pairs: creation, connection, states. */
#include "peer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct pair pairs[MAX_QPS];

static const char *const state_names[] = { "reset", "init", "rtr", "rts", "sqd", "sqe", "err" };

struct pair *pair_of(struct request *r)
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

int leave_group(struct pair *pair)
{
	int code = pair->attached ? ibv_detach_mcast(pair->qp, &pair->group, 0) : 0;

	if (code || !pair->attached)
		return code;
	close(pair->membership);
	pair->attached = false;
	return 0;
}

static int pair_free(struct pair *pair)
{
	int code = pair->qp ? leave_group(pair) : 0;

	if (!code && pair->qp)
		code = ibv_destroy_qp(pair->qp);
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

static int to_init(struct pair *pair)
{
	bool datagrams = pair->qp->qp_type == IBV_QPT_UD, reliable = pair->qp->qp_type == IBV_QPT_RC;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = port_number,
		.qkey = pair->qkey,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE |
				   (reliable ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | flush_rights : 0),
	};

	return ibv_modify_qp(pair->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					      (datagrams ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
}

/* A datagram queue pair has no peer of its own: it can be set to RTS at once. */
static int start_datagrams(struct pair *pair, uint32_t psn)
{
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR }, rts = { .qp_state = IBV_QPS_RTS, .sq_psn = psn };
	int code = ibv_modify_qp(pair->qp, &rtr, IBV_QP_STATE);

	return code ? code : ibv_modify_qp(pair->qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

static enum ibv_qp_type service_of(struct request *r)
{
	const char *name = text_or_null(r, "type");

	if (!name || strcmp(name, "rc") == 0)
		return IBV_QPT_RC;
	if (strcmp(name, "uc") == 0)
		return IBV_QPT_UC;
	if (strcmp(name, "ud") == 0)
		return IBV_QPT_UD;
	err(EINVAL, "type=%s is none of rc, uc, ud", name);
	r->failed = true;
	return IBV_QPT_RC;
}

/*
 * Created by ibv_create_qp_ex, reliable queue pairs have FLUSH and ATOMIC WRITE if rdma-core and the device support them.
 * Other requests are posted as usual.
 */
static struct ibv_qp *create(struct ibv_qp_init_attr *init)
{
#if HAS_PLACEMENT
	if (init->qp_type == IBV_QPT_RC) {
		struct ibv_qp_init_attr_ex ex = {
			.send_cq = init->send_cq,
			.recv_cq = init->recv_cq,
			.srq = init->srq,
			.cap = init->cap,
			.qp_type = init->qp_type,
			.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
			.pd = pd,
			.send_ops_flags = IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE,
		};
		struct ibv_qp *qp = ibv_create_qp_ex(context, &ex);
		if (qp)
			init->cap = ex.cap;
		if (qp || errno != EOPNOTSUPP)
			return qp;
	}
#endif
	return ibv_create_qp(pd, init);
}

void cmd_qp(struct request *r)
{
	struct ibv_qp_init_attr init = {
		.qp_type = service_of(r),
		.cap = {
			.max_send_wr = number_or(r, "sq", 64),
			.max_recv_wr = number_or(r, "rq", 64),
			.max_send_sge = 1,
			.max_recv_sge = 1,
			.max_inline_data = number_or(r, "inline", 0),
		},
	};
	uint32_t qkey = number_or(r, "qkey", 0), psn = number_or(r, "sq_psn", 0);
	int id = 0;

	if (text_or_null(r, "srq"))
		init.srq = srq_of(r);
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
	pair->qkey = qkey;
	pair->qp = create(&init);
	int code = pair->qp ? to_init(pair) : errno;
	if (!code && init.qp_type == IBV_QPT_UD)
		code = start_datagrams(pair, psn);
	if (code) {
		err(code, "%s: %s", pair->qp ? "modify to its first states" : "ibv_create_qp", strerror(code));
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
	/* UC has no responses to limit or to wait for. */
	bool reliable = pair->qp->qp_type == IBV_QPT_RC;
	int code = ibv_modify_qp(pair->qp, &attr,
				 IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					 (reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
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
			     IBV_QP_STATE | IBV_QP_SQ_PSN |
				     (reliable ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
							 IBV_QP_MAX_QP_RD_ATOMIC :
						 0));
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
		int code = state == IBV_QPS_INIT ? to_init(pair) : ibv_modify_qp(pair->qp, &attr, IBV_QP_STATE);
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
