/* References between verbs objects: the order of destruction, and events and completions of destroyed objects. Needs no peer: receives are
 * flushed. Prints the first failed check and exits with 1. */

#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static char bytes[4096];

static int set(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state, .port_num = 1 };
	int mask = IBV_QP_STATE;

	if (state == IBV_QPS_INIT)
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	return ibv_modify_qp(qp, &attr, mask);
}

static struct ibv_qp *make(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp && set(qp, IBV_QPS_INIT) == 0);
	return qp;
}

/* Makes a completion without a peer: a posted receive is flushed by the error state. The QP is in INIT again afterwards. */
static void complete(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_recv_wr wr = { .wr_id = id }, *bad;

	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
	CHECK(set(qp, IBV_QPS_ERR) == 0);
}

static int is_readable(int fd)
{
	struct pollfd it = { .fd = fd, .events = POLLIN };

	return poll(&it, 1, 200) == 1;
}

static struct ibv_cq *queue(struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, channel, 0);

	CHECK(cq);
	return cq;
}

/* Destroying a queue drops its events, and events of several queues alternate. */
static void channels(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct ibv_cq *cqs[2], *raised;
	struct ibv_qp *qps[2];
	struct ibv_wc wc;
	void *user;
	int at;

	CHECK(channel);
	for (at = 0; at < 2; at++) {
		cqs[at] = queue(channel);
		qps[at] = make(cqs[at]);
		CHECK(ibv_req_notify_cq(cqs[at], 0) == 0);
		complete(qps[at], at);
	}
	CHECK(is_readable(channel->fd));
	CHECK(ibv_get_cq_event(channel, &raised, &user) == 0 && raised == cqs[0]);
	ibv_ack_cq_events(raised, 1);
	/* The first queue has another event now, which comes after that of the second. */
	CHECK(ibv_poll_cq(cqs[0], 1, &wc) == 1);
	CHECK(set(qps[0], IBV_QPS_RESET) == 0 && set(qps[0], IBV_QPS_INIT) == 0);
	CHECK(ibv_req_notify_cq(cqs[0], 0) == 0);
	complete(qps[0], 7);
	CHECK(ibv_get_cq_event(channel, &raised, &user) == 0 && raised == cqs[1]);
	ibv_ack_cq_events(raised, 1);
	/* The event of the first queue is never read. */
	CHECK(is_readable(channel->fd));
	CHECK(ibv_destroy_cq(cqs[0]) == EBUSY);
	CHECK(ibv_destroy_qp(qps[0]) == 0 && ibv_destroy_cq(cqs[0]) == 0);
	CHECK(!is_readable(channel->fd));
	CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	CHECK(ibv_get_cq_event(channel, &raised, &user) == -1 && errno == EAGAIN);
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	CHECK(ibv_destroy_qp(qps[1]) == 0 && ibv_destroy_cq(cqs[1]) == 0 && ibv_destroy_comp_channel(channel) == 0);
}

/* A queue with more completions than the new size is not resized. */
static void waits_for_all(struct ibv_cq *cq, struct ibv_qp *qp)
{
	int size, at;
	struct ibv_wc wc;

	CHECK(ibv_resize_cq(cq, 200) == 0);
	for (at = 0; at < 150; at++)
		complete(qp, at);
	size = cq->cqe;
	CHECK(ibv_resize_cq(cq, 100) != 0 && cq->cqe == size);
	for (at = 0; at < 150; at++)
		CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == (uint64_t)at);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
}

/* A reset drops earlier completions; the queue reports its size. */
static void completions(void)
{
	struct ibv_cq *cq = queue(NULL);
	struct ibv_qp *qp = make(cq), *other = make(cq);
	struct ibv_wc wc[4];

	complete(qp, 1);
	complete(other, 2);
	CHECK(set(qp, IBV_QPS_RESET) == 0);
	CHECK(ibv_poll_cq(cq, 4, wc) == 1 && wc[0].wr_id == 2 && wc[0].qp_num == other->qp_num);
	CHECK(set(qp, IBV_QPS_INIT) == 0);
	complete(qp, 3);
	CHECK(ibv_poll_cq(cq, 4, wc) == 1 && wc[0].wr_id == 3 && wc[0].status == IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_resize_cq(cq, 100) == 0 && cq->cqe >= 100);
	complete(other, 4);
	/* Pending completions are not lost. */
	CHECK(ibv_resize_cq(cq, 2) == 0 && cq->cqe >= 2 && cq->cqe < 100);
	complete(qp, 5);
	CHECK(ibv_poll_cq(cq, 4, wc) == 2 && wc[0].wr_id == 4 && wc[1].wr_id == 5);
	waits_for_all(cq, qp);
	complete(other, 6);
	CHECK(ibv_destroy_qp(other) == 0 && ibv_poll_cq(cq, 4, wc) == 0);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

/* After ibv_start_poll without a completion, no ibv_end_poll is due. */
static void steps(void)
{
	struct ibv_cq_init_attr_ex init = { .cqe = 16 };
	struct ibv_poll_cq_attr none = { 0 };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(ctx, &init);
	struct ibv_qp *qp = make(ibv_cq_ex_to_cq(cq));

	CHECK(cq && qp);
	CHECK(ibv_start_poll(cq, &none) == ENOENT && ibv_start_poll(cq, &none) == ENOENT);
	complete(qp, 9);
	CHECK(ibv_start_poll(cq, &none) == 0 && cq->wr_id == 9 && ibv_next_poll(cq) == ENOENT);
	ibv_end_poll(cq);
	CHECK(ibv_start_poll(cq, &none) == ENOENT);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
}

/* An XRC SRQ refers to an XRC domain and a completion queue, an XRC target to the domain. */
static void extended(void)
{
	struct ibv_xrcd_init_attr open_attr = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(ctx, &open_attr);
	struct ibv_cq *cq = queue(NULL);
	struct ibv_srq_init_attr_ex init = { .attr = { .max_wr = 4, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .xrcd = xrcd, .pd = pd, .cq = cq,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD };
	struct ibv_qp_init_attr_ex target = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	union ibv_gid gid;

	CHECK(xrcd && (srq = ibv_create_srq_ex(ctx, &init)) && (qp = ibv_create_qp_ex(ctx, &target)));
	/* Programs set the attributes of both ends on either. */
	CHECK(ibv_query_gid(ctx, 1, 1, &gid) == 0);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_512, .dest_qp_num = 77, .max_dest_rd_atomic = 1,
		.min_rnr_timer = 12, .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 64 } } };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				       IBV_QP_MAX_QP_RD_ATOMIC) == 0);
	CHECK(ibv_close_xrcd(xrcd) == EBUSY && ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_close_xrcd(xrcd) == EBUSY);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_close_xrcd(xrcd) == 0);
}

/* A change of two attributes is atomic. */
static void shared_receives(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_srq_attr attr, before;
	int at;

	CHECK(srq && ibv_query_srq(srq, &before) == 0);
	for (at = 0; at < 3; at++) {
		struct ibv_recv_wr wr = { .wr_id = at }, *bad;

		CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
	}
	/* The limit exceeds both sizes. */
	attr = (struct ibv_srq_attr){ .max_wr = 64, .srq_limit = 1000 };
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) == EINVAL);
	CHECK(ibv_query_srq(srq, &attr) == 0 && attr.max_wr == before.max_wr && attr.srq_limit == 0);
	/* More receives are posted than the new size holds. */
	attr = (struct ibv_srq_attr){ .max_wr = 2, .srq_limit = 1 };
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0);
	CHECK(ibv_query_srq(srq, &attr) == 0 && attr.max_wr == before.max_wr && attr.srq_limit == 0);
	/* The limit is compared with the new size. */
	attr = (struct ibv_srq_attr){ .max_wr = 64, .srq_limit = 3 };
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) == 0);
	CHECK(ibv_query_srq(srq, &attr) == 0 && attr.max_wr >= 64 && attr.srq_limit == 3);
	CHECK(ibv_destroy_srq(srq) == 0);
}

/* A region that is reregistered in another domain refers to that one only. */
static void regions(void)
{
	struct ibv_pd *first = ibv_alloc_pd(ctx), *second = ibv_alloc_pd(ctx);
	struct ibv_mr *mr;

	CHECK(first && second && (mr = ibv_reg_mr(first, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE)));
	CHECK(ibv_dealloc_pd(first) == EBUSY);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, second, NULL, 0, 0) == 0 && mr->pd == second);
	CHECK(ibv_dealloc_pd(first) == 0 && ibv_dealloc_pd(second) == EBUSY);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(second) == 0);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	/* A hang is a failure too. */
	alarm(60);
	CHECK(list && list[0] && (ctx = ibv_open_device(list[0])) && (pd = ibv_alloc_pd(ctx)));
	channels();
	completions();
	steps();
	extended();
	regions();
	shared_receives();
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(ctx) == 0);
	ibv_free_device_list(list);
	puts("all so");
	return 0;
}
