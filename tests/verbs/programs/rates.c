/* Rates, flow labels, and service levels of queue pairs: set, queried, and effective; invalid ones are refused. `rates GID SGID_INDEX`. */

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <time.h>

#include "check.h"

#define COUNT 40
#define LENGTH 1000
#define LABEL 0x54321

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static union ibv_gid gid;
static int sgid_index;
static char bytes[LENGTH];

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static struct ibv_qp *make(void)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UC, .sq_sig_all = 1,
		.cap = { .max_send_wr = COUNT, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	CHECK(qp);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	return qp;
}

static int ready(struct ibv_qp *qp, int sl, int static_rate)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = 17, .rq_psn = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .sl = sl, .static_rate = static_rate,
			     .grh = { .dgid = gid, .sgid_index = sgid_index, .hop_limit = 33, .traffic_class = 0x68,
				      .flow_label = LABEL } } };

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
}

static void go(struct ibv_qp *qp, uint32_t kbps)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .sq_psn = 1, .rate_limit = kbps };

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | (kbps ? IBV_QP_RATE_LIMIT : 0)) == 0);
}

/* Returns the time that COUNT messages take. */
static double play(struct ibv_qp *qp)
{
	struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = LENGTH, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	double start = now();
	int done = 0;

	for (int i = 0; i < COUNT; i++)
		CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	while (done < COUNT) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(cq, 1, &wc);

		CHECK(n >= 0 && (n == 0 || wc.status == IBV_WC_SUCCESS));
		done += n;
	}
	return now() - start;
}

/* A lower bound of the time: a busy machine takes longer. The first message may be sent at once. */
static void slow(const char *what, double took, double kbps)
{
	double least = (COUNT - 3) * LENGTH * 8 / kbps / 1e3;

	printf("%s: %.0f ms, %.0f at least\n", what, took * 1e3, least * 1e3);
	if (took < least)
		fail(what, __LINE__);
}

int main(int argc, char **argv)
{
	struct ibv_device **all = ibv_get_device_list(NULL);
	struct ibv_device_attr_ex device = { 0 };
	struct ibv_qp_rate_limit_attr limit = { .rate_limit = 1000 };
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_qp *qp, *other;

	CHECK(argc == 3 && inet_pton(AF_INET6, argv[1], gid.raw) == 1);
	sgid_index = atoi(argv[2]);
	CHECK(all && all[0] && (context = ibv_open_device(all[0])));
	CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 2 * COUNT, NULL, NULL, 0)));
	CHECK((mr = ibv_reg_mr(pd, bytes, sizeof(bytes), IBV_ACCESS_LOCAL_WRITE)));

	CHECK(ibv_query_device_ex(context, NULL, &device) == 0);
	CHECK(device.packet_pacing_caps.qp_rate_limit_min == 1 && device.packet_pacing_caps.qp_rate_limit_max >= 400000000);
	for (int type = IBV_QPT_RC; type <= IBV_QPT_UD; type++)
		CHECK(device.packet_pacing_caps.supported_qpts >> type & 1);
	CHECK(device.packet_pacing_caps.supported_qpts >> IBV_QPT_RAW_PACKET & 1);

	/* Not before RTS, and no unknown flags. */
	qp = make();
	CHECK(ibv_modify_qp_rate_limit(qp, &limit) == EINVAL);
	CHECK(ready(qp, 8, 0) == EINVAL);
	CHECK(ready(qp, 7, 1) == EINVAL);
	CHECK(ready(qp, 7, 25) == EINVAL);
	CHECK(ready(qp, 7, IBV_RATE_MAX) == 0);
	go(qp, 0);
	limit.comp_mask = 1;
	CHECK(ibv_modify_qp_rate_limit(qp, &limit) == EINVAL);
	limit.comp_mask = 0;

	CHECK(ibv_modify_qp_rate_limit(qp, &limit) == 0);
	slow("ibv_modify_qp_rate_limit", play(qp), 1000);
	limit = (struct ibv_qp_rate_limit_attr){ .rate_limit = 2000, .max_burst_sz = 3000, .typical_pkt_sz = 1066 };
	CHECK(ibv_modify_qp_rate_limit(qp, &limit) == 0);
	slow("with bursts", play(qp), 2000);
	limit = (struct ibv_qp_rate_limit_attr){ 0 };
	CHECK(ibv_modify_qp_rate_limit(qp, &limit) == 0);
	printf("without a limit: %.1f ms\n", play(qp) * 1e3);

	other = make();
	CHECK(ready(other, 0, IBV_RATE_2_5_GBPS) == 0);
	go(other, 3000);
	slow("IBV_QP_RATE_LIMIT", play(other), 3000);
	CHECK(ibv_query_qp(other, &attr, IBV_QP_AV, &init) == 0);
	CHECK(attr.ah_attr.static_rate == IBV_RATE_2_5_GBPS && attr.ah_attr.grh.flow_label == LABEL);

	/* The same for address handles. */
	struct ibv_ah_attr way = { .is_global = 1, .port_num = 1, .sl = 8, .grh = { .dgid = gid, .sgid_index = sgid_index } };

	CHECK(!ibv_create_ah(pd, &way) && errno == EINVAL);
	way.sl = 7;
	struct ibv_ah *ah = ibv_create_ah(pd, &way);

	CHECK(ah && ibv_destroy_ah(ah) == 0);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(other) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("all so");
	return 0;
}
