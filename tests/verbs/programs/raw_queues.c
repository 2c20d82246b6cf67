/* Flows, receive queues, and indirection tables: valid calls, refusals, and frames that do not fit a receive. Sends to a group, which loops
 * back to the own device. Prints the first failure and exits with 1. */

#include <infiniband/verbs.h>
#include <time.h>

#include "check.h"

static const unsigned char group[6] = { 1, 0, 0x5e, 0x7f, 0, 1 };
static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *sends, *receives;
static struct ibv_mr *mr;
static char *memory;

static struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	time_t until = time(NULL) + 20;
	int n;

	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		CHECK(time(NULL) < until);
	CHECK(n == 1);
	return wc;
}

static struct ibv_qp *sender(void)
{
	struct ibv_qp_init_attr init = { .send_cq = sends, .recv_cq = sends, .qp_type = IBV_QPT_RAW_PACKET, .sq_sig_all = 1,
					 .cap = { 16, 1, 1, 1, 0 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	return qp;
}

static struct ibv_wq *queue(void)
{
	struct ibv_wq_init_attr init = { .wq_type = IBV_WQT_RQ, .max_wr = 8, .max_sge = 1, .pd = pd, .cq = receives, .create_flags = 1 };
	struct ibv_wq *wq = ibv_create_wq(ctx, &init);

	/* Flags are ignored without their mask bit, and refused with it. */
	init.comp_mask = IBV_WQ_INIT_ATTR_FLAGS;
	CHECK(!ibv_create_wq(ctx, &init) && errno == EOPNOTSUPP);

	CHECK(wq);
	CHECK(wq->state == IBV_WQS_RESET);
	return wq;
}

static int set_state(struct ibv_wq *wq, enum ibv_wq_state from, enum ibv_wq_state to)
{
	struct ibv_wq_attr attr = { .attr_mask = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE, .wq_state = to, .curr_wq_state = from };

	return ibv_modify_wq(wq, &attr);
}

static struct ibv_flow *flow_to_group(struct ibv_qp *qp)
{
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
	} rule = { .attr = { .size = sizeof rule, .num_of_specs = 1, .port = 1 },
		   .eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof rule.eth } };

	memcpy(rule.eth.val.dst_mac, group, 6);
	memset(rule.eth.mask.dst_mac, 0xff, 6);
	return ibv_create_flow(qp, &rule.attr);
}

static void send_to_group(struct ibv_qp *qp, unsigned length)
{
	struct ibv_sge sge = { (uintptr_t)memory, length, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_wc wc;

	memcpy(memory, group, 6);
	memset(memory + 6, 0x5a, length - 6);
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	wc = completion(sends);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 7);
}

static void post_with(struct ibv_wq *wq, unsigned length, uint32_t lkey)
{
	struct ibv_sge sge = { (uintptr_t)memory + 4096, length, lkey };
	struct ibv_recv_wr wr = { .wr_id = 9, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(ibv_post_wq_recv(wq, &wr, &bad) == 0);
}

static void post(struct ibv_wq *wq, unsigned length) { post_with(wq, length, mr->lkey); }

static struct ibv_qp *spread(struct ibv_rwq_ind_table *table, unsigned char key_length, unsigned char function, struct ibv_pd *domain)
{
	static unsigned char key[40] = { 1, 2, 3 };
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_RAW_PACKET,
		.comp_mask = IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH | (domain ? IBV_QP_INIT_ATTR_PD : 0),
		.pd = domain,
		.rwq_ind_tbl = table,
		.rx_hash_conf = { function, key_length, key, IBV_RX_HASH_SRC_IPV4 },
	};

	return ibv_create_qp_ex(ctx, &init);
}

/* Returns the next event of a queue or a QP, without port events: addresses of a new interface come late. */
static struct ibv_async_event next_event(void)
{
	struct ibv_async_event event;

	for (;;) {
		CHECK(ibv_get_async_event(ctx, &event) == 0);
		if (event.event_type < IBV_EVENT_PORT_ACTIVE || event.event_type > IBV_EVENT_SM_CHANGE)
			if (event.event_type != IBV_EVENT_GID_CHANGE && event.event_type != IBV_EVENT_CLIENT_REREGISTER)
				return event;
		ibv_ack_async_event(&event);
	}
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_rwq_ind_table_init_attr of = { .log_ind_tbl_size = 1 };
	struct ibv_rwq_ind_table *table;
	struct ibv_qp_init_attr init;
	struct ibv_async_event event;
	struct ibv_device_attr_ex can;
	struct ibv_wq *queues[2];
	struct ibv_qp_attr attr;
	struct ibv_qp *from, *to;
	struct ibv_flow *flow;
	struct ibv_wc wc;

	CHECK(list && list[0]);
	CHECK((ctx = ibv_open_device(list[0])));
	CHECK((pd = ibv_alloc_pd(ctx)));
	CHECK(ibv_query_device_ex(ctx, NULL, &can) == 0 && can.max_wq_type_rq > 0);
	CHECK(can.rss_caps.supported_qpts == 1 << IBV_QPT_RAW_PACKET && can.rss_caps.max_rwq_indirection_tables > 0);
	CHECK(can.rss_caps.max_rwq_indirection_table_size >= 2 && can.rss_caps.rx_hash_function == IBV_RX_HASH_FUNC_TOEPLITZ);
	CHECK(can.rss_caps.rx_hash_fields_mask & IBV_RX_HASH_SRC_IPV4);
	CHECK((sends = ibv_create_cq(ctx, 64, NULL, NULL, 0)) && (receives = ibv_create_cq(ctx, 64, NULL, NULL, 0)));
	CHECK((memory = aligned_alloc(4096, 8192)) && (mr = ibv_reg_mr(pd, memory, 8192, IBV_ACCESS_LOCAL_WRITE)));
	from = sender();

	/* States of a queue. */
	queues[0] = queue();
	queues[1] = queue();
	CHECK(set_state(queues[0], IBV_WQS_RDY, IBV_WQS_ERR) == EINVAL);
	CHECK(set_state(queues[0], IBV_WQS_RESET, IBV_WQS_ERR) == 0);
	CHECK(set_state(queues[0], IBV_WQS_ERR, IBV_WQS_RDY) == EINVAL);
	CHECK(set_state(queues[0], IBV_WQS_ERR, IBV_WQS_RESET) == 0);
	CHECK(set_state(queues[0], IBV_WQS_RESET, IBV_WQS_RDY) == 0 && queues[0]->state == IBV_WQS_RDY);

	/* Objects in use are not destroyed. */
	of.ind_tbl = queues;
	of.comp_mask = 1;
	CHECK(!ibv_create_rwq_ind_table(ctx, &of) && errno == EINVAL);
	of.comp_mask = 0;
	CHECK((table = ibv_create_rwq_ind_table(ctx, &of)));
	CHECK(ibv_destroy_wq(queues[1]) == EBUSY);
	CHECK(!spread(table, 39, IBV_RX_HASH_FUNC_TOEPLITZ, pd) && errno == EINVAL);
	CHECK(!spread(table, 40, 2, pd) && errno == EOPNOTSUPP);
	CHECK(!spread(table, 40, IBV_RX_HASH_FUNC_TOEPLITZ, NULL) && errno == EINVAL);
	CHECK((to = spread(table, 40, IBV_RX_HASH_FUNC_TOEPLITZ, pd)));
	CHECK(ibv_destroy_rwq_ind_table(table) == EBUSY);
	attr.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(to, &attr, IBV_QP_STATE) == EOPNOTSUPP);
	CHECK(ibv_query_qp(to, &attr, IBV_QP_STATE, &init) == EOPNOTSUPP);
	CHECK((flow = flow_to_group(to)));
	CHECK(ibv_destroy_qp(to) == EBUSY);

	/* A frame without an IPv4 address goes to the first queue. */
	post(queues[0], 100);
	send_to_group(from, 60);
	wc = completion(receives);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 9 && wc.byte_len == 60 && wc.qp_num == queues[0]->wq_num);
	CHECK(memcmp(memory, memory + 4096, 60) == 0);

	/* A frame that is longer than the receive is dropped, because any host may send it; the receive remains posted. */
	post(queues[0], 59);
	send_to_group(from, 60);
	send_to_group(from, 50);
	wc = completion(receives);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == 50);

	/* A receive in unregistered memory fails its queue. */
	post_with(queues[0], 100, mr->lkey ^ 0x100);
	post(queues[0], 100);
	send_to_group(from, 60);
	wc = completion(receives);
	CHECK(wc.status == IBV_WC_LOC_PROT_ERR);
	event = next_event();
	CHECK(event.event_type == IBV_EVENT_WQ_FATAL && event.element.wq == queues[0]);
	ibv_ack_async_event(&event);
	CHECK(set_state(queues[0], IBV_WQS_RDY, IBV_WQS_RDY) == EINVAL && queues[0]->state == IBV_WQS_ERR);
	CHECK(set_state(queues[0], IBV_WQS_ERR, IBV_WQS_RESET) == 0);
	/* The other receive was flushed, without a completion. */
	CHECK(ibv_poll_cq(receives, 1, &wc) == 0);
	CHECK(set_state(queues[0], IBV_WQS_RESET, IBV_WQS_RDY) == 0);
	post(queues[0], 100);
	send_to_group(from, 64);
	wc = completion(receives);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == 64);

	/* Destroys the rule, then all other objects in order. */
	post(queues[0], 100);
	CHECK(ibv_destroy_flow(flow) == 0);
	send_to_group(from, 60);
	CHECK(ibv_poll_cq(receives, 1, &wc) == 0);
	CHECK(ibv_destroy_qp(to) == 0 && ibv_destroy_rwq_ind_table(table) == 0);
	CHECK(ibv_destroy_cq(receives) == EBUSY);
	CHECK(ibv_destroy_wq(queues[0]) == 0 && ibv_destroy_wq(queues[1]) == 0);
	CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_cq(receives) == 0 && ibv_destroy_cq(sends) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(ctx) == 0);
	printf("all so\n");
	return 0;
}
