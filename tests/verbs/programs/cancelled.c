/* Threads that are cancelled during calls: the library's cancellation points are those of rdma-core. Each call is made by a thread with a
 * pending cancellation: it must return, and the thread must end at the next cancellation point.
 *
 * Calls that are cancellation points (they wait for events) end the thread, and leave the library usable. */

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdint.h>

#include "check.h"

static struct ibv_device *device;
static struct ibv_context *context, *second;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_cq_ex *cq_ex;
static struct ibv_qp *qp, *other;
static struct ibv_srq *srq;
static struct ibv_mr *mr;
static struct ibv_ah *ah;
static struct ibv_mw *mw;
static union ibv_gid gid;
static char bytes[4096];

static void open_it(void)
{
	second = ibv_open_device(device);
	CHECK(second);
}

static void close_it(void)
{
	CHECK(ibv_close_device(second) == 0);
}

static void ask(void)
{
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	union ibv_gid found;
	uint16_t pkey;

	CHECK(ibv_query_device(context, &attr) == 0);
	CHECK(ibv_query_port(context, 1, &port) == 0);
	CHECK(ibv_query_gid(context, 1, 1, &found) == 0);
	CHECK(ibv_query_pkey(context, 1, 0, &pkey) == 0);
}

static void make_domain(void)
{
	pd = ibv_alloc_pd(context);
	CHECK(pd);
}

static void register_it(void)
{
	mr = ibv_reg_mr(pd, bytes, sizeof(bytes), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);
}

static void register_again(void)
{
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, pd, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == 0);
}

static void make_queues(void)
{
	channel = ibv_create_comp_channel(context);
	cq = ibv_create_cq(context, 64, NULL, channel, 0);
	CHECK(channel && cq);
	CHECK(ibv_resize_cq(cq, 128) == 0);
}

static void make_queue_ex(void)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 16 };
	struct ibv_poll_cq_attr poll = { 0 };

	cq_ex = ibv_create_cq_ex(context, &attr);
	CHECK(cq_ex);
	CHECK(ibv_start_poll(cq_ex, &poll) == ENOENT);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq_ex)) == 0);
}

static struct ibv_qp *make_one(void)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };

	return ibv_create_qp(pd, &init);
}

static void make_pairs(void)
{
	qp = make_one();
	other = make_one();
	CHECK(qp && other);
}

static void join(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp_init_attr init;

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
		.min_rnr_timer = 1, .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 1 } } };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7 };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				   IBV_QP_MAX_QP_RD_ATOMIC) == 0);
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_RTS);
}

static void join_both(void)
{
	join(qp, other);
	join(other, qp);
}

static void make_ah(void)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 1 } };

	ah = ibv_create_ah(pd, &attr);
	CHECK(ah);
	CHECK(ibv_destroy_ah(ah) == 0);
}

static void make_srq(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = 8, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_srq_attr attr = { .srq_limit = 1 };

	srq = ibv_create_srq(pd, &init);
	CHECK(srq);
	CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
	CHECK(ibv_query_srq(srq, &attr) == 0);
	CHECK(ibv_destroy_srq(srq) == 0);
}

static void make_window(void)
{
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	CHECK(mw);
	CHECK(ibv_dealloc_mw(mw) == 0);
}

static void arm(void)
{
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
}

static void receive(void)
{
	struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = 8, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(ibv_post_recv(other, &wr, &bad) == 0);
}

static void send_it(void)
{
	struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = 8, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static void poll_both(void)
{
	struct ibv_wc wc;
	int found = 0, got;

	while (found < 2) {
		got = ibv_poll_cq(cq, 1, &wc);
		CHECK(got >= 0);
		CHECK(!got || wc.status == IBV_WC_SUCCESS);
		found += got;
	}
}

static void remove_pairs(void)
{
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(other) == 0);
}

static void remove_rest(void)
{
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
}

static volatile int returned;

/* Makes the call with a pending cancellation. */
static void *due(void *call)
{
	CHECK(pthread_cancel(pthread_self()) == 0);
	((void (*)(void))call)();
	returned = 1;
	pthread_testcancel();
	fail("cancelled at the next point", __LINE__);
	return NULL;
}

static void through(const char *name, void (*call)(void))
{
	pthread_t thread;
	void *result;

	returned = 0;
	CHECK(pthread_create(&thread, NULL, due, (void *)call) == 0);
	CHECK(pthread_join(thread, &result) == 0);
	if (!returned || result != PTHREAD_CANCELED) {
		fprintf(stderr, "%s: cancelled in the midst of it\n", name);
		exit(1);
	}
}

static void *wait_for_completion(void *unused)
{
	struct ibv_cq *found;
	void *user;

	ibv_get_cq_event(channel, &found, &user);
	return unused;
}

static void *wait_for_event(void *unused)
{
	struct ibv_async_event event;

	ibv_get_async_event(context, &event);
	return unused;
}

/* Calls that wait are cancellation points. */
static void cancelled_in(void *(*call)(void *))
{
	pthread_t thread;
	void *result;

	CHECK(pthread_create(&thread, NULL, call, NULL) == 0);
	CHECK(pthread_cancel(thread) == 0);
	CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
}

#define THROUGH(call) through(#call, call)

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list && list[0]);
	device = list[0];
	context = ibv_open_device(device);
	CHECK(context);
	CHECK(ibv_query_gid(context, 1, 1, &gid) == 0);
	for (int round = 0; round < 3; round++) {
		THROUGH(open_it);
		THROUGH(close_it);
		THROUGH(ask);
		THROUGH(make_domain);
		THROUGH(register_it);
		THROUGH(register_again);
		THROUGH(make_queues);
		THROUGH(make_queue_ex);
		THROUGH(make_pairs);
		THROUGH(join_both);
		THROUGH(make_ah);
		THROUGH(make_srq);
		THROUGH(make_window);
		THROUGH(arm);
		cancelled_in(wait_for_completion);
		cancelled_in(wait_for_event);
		THROUGH(receive);
		THROUGH(send_it);
		THROUGH(poll_both);
		THROUGH(remove_pairs);
		THROUGH(remove_rest);
	}
	puts("all so");
	return 0;
}
