/* Requests of a program to the device: queries up to the bounds of tables, refusals, and rare calls for work requests and completions.
 * Both ends are in this process. Prints the first failure and exits with 1. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { SEND = 1, RECV = 2, WRITE = 4, READ = 8, ATOMIC = 16, SRQ_RECV = 32, NETLINK_OF_RDMA = 20 };

static const int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND;
static struct ibv_device *device;
static struct ibv_context *ctx;
static struct ibv_pd *pd;
static union ibv_gid gid;
static char bytes[8192];

static void tables(void)
{
	struct ibv_port_attr port;
	struct ibv_gid_entry entry;
	union ibv_gid other;
	uint16_t pkey = 0;
	int last, kernel = syscall(SYS_socket, AF_NETLINK, SOCK_RAW, NETLINK_OF_RDMA);

	CHECK(ibv_query_port(ctx, 1, &port) == 0 && (last = port.gid_tbl_len - 1) > 0);
	CHECK(ibv_query_gid(ctx, 1, last, &other) == 0);
	CHECK(ibv_query_gid(ctx, 1, last + 1, &other) == -1 && ibv_query_gid(ctx, 1, -1, &other) == -1);
	CHECK(ibv_query_gid(ctx, 2, 1, &other) == -1);
	CHECK(ibv_query_gid_ex(ctx, 1, 1, &entry, 0) == 0 && memcmp(&entry.gid, &gid, sizeof gid) == 0);
	CHECK(entry.gid_index == 1 && entry.port_num == 1 && entry.gid_type == IBV_GID_TYPE_ROCE_V2 && entry.ndev_ifindex);
	CHECK(ibv_query_gid_ex(ctx, 1, last, &entry, 0) == ENODATA);
	CHECK(ibv_query_gid_ex(ctx, 1, last + 1, &entry, 0) == EINVAL && ibv_query_gid_ex(ctx, 2, 1, &entry, 0) == EINVAL);
	CHECK(ibv_query_gid_ex(ctx, 1, 1, &entry, 1) == EINVAL);
	CHECK(ibv_query_pkey(ctx, 1, 0, &pkey) == 0 && pkey == 0xffff);
	CHECK(ibv_query_pkey(ctx, 1, 1, &pkey) == -1 && ibv_query_pkey(ctx, 2, 0, &pkey) == -1);
	CHECK(ibv_get_pkey_index(ctx, 1, 0xffff) == 0 && ibv_get_pkey_index(ctx, 1, 0x7fff) == -1);
	CHECK(ibv_get_device_index(device) == (kernel < 0 ? 0 : -1));
	if (kernel >= 0)
		close(kernel);
	/* Other protocols may have the same number. */
	CHECK(socket(AF_INET, SOCK_DGRAM, NETLINK_OF_RDMA) == -1 && errno == EPROTONOSUPPORT);
}

static void abilities(void)
{
	struct ibv_device_attr_ex can;

	CHECK(ibv_query_device_ex(ctx, NULL, &can) == 0);
	CHECK((can.odp_caps.per_transport_caps.rc_odp_caps & 63) == (SEND | RECV | WRITE | READ | ATOMIC | SRQ_RECV));
	CHECK(can.odp_caps.per_transport_caps.uc_odp_caps == (SEND | RECV | WRITE));
	CHECK(can.odp_caps.per_transport_caps.ud_odp_caps == (SEND | RECV));
	CHECK(can.xrc_odp_caps == (SEND | RECV | WRITE | READ | ATOMIC | SRQ_RECV));
	CHECK(can.completion_timestamp_mask == ~0ull && can.hca_core_clock == 1000000 && can.phys_port_cnt_ex == 1);
	/* Device memory, to its last byte. */
	struct ibv_alloc_dm_attr most = { .length = can.max_dm_size };
	struct ibv_dm *dm = ibv_alloc_dm(ctx, &most);

	CHECK(dm && ibv_free_dm(dm) == 0);
	most.length++;
	CHECK(!ibv_alloc_dm(ctx, &most) && errno == EINVAL);
}

static struct ibv_qp *made(struct ibv_cq *cq, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = 1, .cap = { 16, 40, 2, 1, 64 },
		.pd = pd, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .max_tso_header = 64 };
	struct ibv_qp *qp;

	init.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
	if (type == IBV_QPT_RC)
		init.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_BIND_MW;
	CHECK((qp = ibv_create_qp_ex(ctx, &init)));
	CHECK(ibv_query_ece(qp, NULL) == EOPNOTSUPP && ibv_set_ece(qp, NULL) == EOPNOTSUPP);
	/* Fields are ignored without their mask bit, and refused with it. */
	init.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
	CHECK(!ibv_create_qp_ex(ctx, &init) && errno == EOPNOTSUPP);
	return qp;
}

static struct ibv_ah_attr way(void)
{
	return (struct ibv_ah_attr){ .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 1 } };
}

static void connected(struct ibv_qp *qp, struct ibv_qp *to)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = all };

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	attr.qp_state = IBV_QPS_RTR, attr.path_mtu = IBV_MTU_1024, attr.dest_qp_num = to->qp_num;
	attr.max_dest_rd_atomic = 1, attr.min_rnr_timer = 12, attr.ah_attr = way();
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr.qp_state = IBV_QPS_RTS, attr.timeout = 14, attr.retry_cnt = 7, attr.rnr_retry = 7, attr.max_rd_atomic = 1;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static int receive(struct ibv_qp *qp, uint64_t id, struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)bytes, 64, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad = NULL;
	int errors = ibv_post_recv(qp, &wr, &bad);

	CHECK(errors == 0 || bad == &wr);
	return errors;
}

static struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	CHECK(n == 1);
	return wc;
}

/* Posts a valid work request by the extended calls. */
static void done(struct ibv_qp_ex *qp, struct ibv_cq *cq, uint64_t id, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc;

	CHECK(ibv_wr_complete(qp) == 0);
	wc = completion(cq);
	CHECK(wc.wr_id == id && wc.status == IBV_WC_SUCCESS && wc.opcode == opcode);
}

static void begun(struct ibv_qp_ex *qp, uint64_t id)
{
	ibv_wr_start(qp);
	qp->wr_id = id, qp->wr_flags = 0;
}

static void work_requests(void)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 64, NULL, NULL, 0), *far_cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	struct ibv_qp *from = made(cq, IBV_QPT_RC), *to = made(far_cq, IBV_QPT_RC);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(from);
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, all);
	struct ibv_data_buf parts[2] = { { "to", 2 }, { "gether", 6 } };
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);

	CHECK(cq && far_cq && mr && mw && qp);
	connected(from, to), connected(to, from);
	/* An aborted post has no effect. */
	begun(qp, 1);
	ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)bytes);
	ibv_wr_set_inline_data(qp, "never", 5);
	ibv_wr_abort(qp);
	begun(qp, 2);
	ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)bytes + 4096);
	ibv_wr_set_inline_data_list(qp, 2, parts);
	done(qp, cq, 2, IBV_WC_RDMA_WRITE);
	CHECK(memcmp(bytes + 4096, "together", 9) == 0 && bytes[0] == 0);
	begun(qp, 3);
	ibv_wr_rdma_read(qp, mr->rkey, (uintptr_t)bytes + 4096);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)bytes, 8);
	done(qp, cq, 3, IBV_WC_RDMA_READ);
	CHECK(memcmp(bytes, "together", 9) == 0);
	/* Reregistered memory has a new lkey and rkey. */
	uint32_t before = mr->rkey;

	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, bytes, sizeof bytes, 0) == 0 && mr->rkey != before);
	begun(qp, 4);
	ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)bytes + 16);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)bytes, 8);
	done(qp, cq, 4, IBV_WC_RDMA_WRITE);
	/* Windows: a bind occupies a slot of the queue until it completes. */
	for (int at = 0; at < 2; at++) {
		struct ibv_mw_bind bind = { .wr_id = 5, .send_flags = IBV_SEND_SIGNALED,
			.bind_info = { mr, (uintptr_t)bytes, 64, IBV_ACCESS_REMOTE_WRITE } };
		struct ibv_wc wc;

		CHECK(ibv_bind_mw(from, mw, &bind) == 0);
		wc = completion(cq);
		CHECK(wc.wr_id == 5 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW);
	}
	begun(qp, 6);
	ibv_wr_rdma_write(qp, mw->rkey, (uintptr_t)bytes + 32);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)bytes, 8);
	done(qp, cq, 6, IBV_WC_RDMA_WRITE);
	CHECK(memcmp(bytes + 32, "together", 9) == 0);
	/* All work requests of a list before the invalid one are posted. */
	struct ibv_sge sge = { (uintptr_t)bytes, 8, mr->lkey };
	struct ibv_send_wr wrong = { .wr_id = 8, .opcode = IBV_WR_SEND, .num_sge = 9, .sg_list = &sge }, *bad = NULL;
	struct ibv_send_wr first = { .wr_id = 7, .opcode = IBV_WR_SEND, .num_sge = 1, .sg_list = &sge, .next = &wrong };

	CHECK(receive(to, 1, mr) == 0);
	CHECK(ibv_post_send(from, &first, &bad) == EINVAL && bad == &wrong);
	CHECK(completion(cq).wr_id == 7 && completion(far_cq).wr_id == 1);
	CHECK(ibv_poll_cq(cq, 1, &(struct ibv_wc){ 0 }) == 0);
	/* SQD raises an event if requested. */
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	struct ibv_async_event event;

	CHECK(ibv_modify_qp(from, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY) == 0);
	do {
		CHECK(ibv_get_async_event(ctx, &event) == 0);
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_SQ_DRAINED);
	CHECK(event.element.qp == from && from->state == IBV_QPS_SQD);
	CHECK(ibv_dealloc_mw(mw) == 0 && ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0);
	/* More than one batch that is taken from the ring. */
	struct ibv_wc wc[40];

	to = made(cq, IBV_QPT_RC);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1 };
	CHECK(ibv_modify_qp(to, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	for (int at = 0; at < 20; at++)
		CHECK(receive(to, at, mr) == 0);
	attr.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(to, &attr, IBV_QP_STATE) == 0);
	CHECK(ibv_poll_cq(cq, 40, wc) == 20 && wc[19].wr_id == 19);
	CHECK(ibv_destroy_qp(to) == 0 && ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_destroy_cq(far_cq) == 0);
}

/* Posting to a full queue fails. */
static void full(void)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	struct ibv_qp *qp = made(cq, IBV_QPT_RC);
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, all);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int errors = 0;

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	for (int at = 0; at < 100000 && !errors; at++)
		errors = receive(qp, at, mr);
	CHECK(errors == ENOMEM);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0);
}

static void *begins(void *cq)
{
	struct ibv_poll_cq_attr none = { 0 };

	return (void *)(intptr_t)ibv_start_poll(cq, &none);
}

/* A completion by ibv_start_poll(), each field by its own call; the datagram is sent to the own QP. */
static void steps(void)
{
	struct ibv_cq_init_attr_ex init = { .cqe = 16, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM |
		IBV_WC_EX_WITH_SRC_QP | IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL | IBV_WC_EX_WITH_DLID_PATH_BITS };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(ctx, &init), *alone;
	struct ibv_cq *sends = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr how = { .send_cq = sends, .recv_cq = ibv_cq_ex_to_cq(cq), .qp_type = IBV_QPT_UD, .sq_sig_all = 1,
		.cap = { 4, 4, 1, 1, 0 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1234567 };
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, all);
	struct ibv_ah_attr to = way();
	struct ibv_poll_cq_attr none = { 0 };
	struct ibv_qp *qp;
	struct ibv_ah *ah;
	uint8_t mac[6] = { 0 }, nothing[6] = { 0 };
	uint16_t vlan = 0;

	CHECK(cq && sends && mr && (qp = ibv_create_qp(pd, &how)) && (ah = ibv_create_ah(pd, &to)));
	init.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, init.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
	CHECK((alone = ibv_create_cq_ex(ctx, &init)) && ibv_destroy_cq(ibv_cq_ex_to_cq(alone)) == 0);
	init.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
	CHECK(!ibv_create_cq_ex(ctx, &init) && errno == EOPNOTSUPP);
	init.comp_mask = 4;
	CHECK(!ibv_create_cq_ex(ctx, &init) && errno == EINVAL);
	CHECK(ibv_resolve_eth_l2_from_gid(ctx, &to, mac, &vlan) == 0 && memcmp(mac, nothing, 6) != 0 && vlan == 0xffff);
	to.is_global = 0;
	CHECK(ibv_resolve_eth_l2_from_gid(ctx, &to, mac, &vlan) == EINVAL && !ibv_create_ah(pd, &to));
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	CHECK(receive(qp, 11, mr) == 0);
	struct ibv_sge sge = { (uintptr_t)bytes + 4096, 8, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 12, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = 0x01020304, .sg_list = &sge, .num_sge = 1,
		.wr.ud = { .ah = ah, .remote_qpn = qp->qp_num, .remote_qkey = 0x1234567 } }, *bad;

	CHECK(ibv_post_send(qp, &wr, &bad) == 0 && completion(sends).wr_id == 12);
	while (ibv_start_poll(cq, &none) == ENOENT)
		;
	CHECK(cq->wr_id == 11 && cq->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(cq) == IBV_WC_RECV);
	CHECK(ibv_wc_read_byte_len(cq) == 48 && ibv_wc_read_imm_data(cq) == 0x01020304 && ibv_wc_read_vendor_err(cq) == 0);
	CHECK(ibv_wc_read_qp_num(cq) == qp->qp_num && ibv_wc_read_src_qp(cq) == qp->qp_num);
	CHECK(ibv_wc_read_wc_flags(cq) == (IBV_WC_GRH | IBV_WC_WITH_IMM));
	/* The field of the service level reports that the network header is IPv4. */
	CHECK(ibv_wc_read_slid(cq) == 0 && ibv_wc_read_sl(cq) == 2 && ibv_wc_read_dlid_path_bits(cq) == 0);
	/* Another thread that starts meanwhile waits for the end. */
	pthread_t thread;
	void *result;

	CHECK(pthread_create(&thread, NULL, begins, cq) == 0);
	usleep(20000);
	CHECK(pthread_tryjoin_np(thread, &result) == EBUSY);
	ibv_end_poll(cq);
	CHECK(pthread_join(thread, &result) == 0 && (intptr_t)result == ENOENT);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_ah(ah) == 0 && ibv_dereg_mr(mr) == 0);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0 && ibv_destroy_cq(sends) == 0);
}

/* Thread domains, and objects imported into a second context. */
static void domains(void)
{
	struct ibv_td_init_attr of_thread = { 0 };
	struct ibv_td *td = ibv_alloc_td(ctx, &of_thread);
	struct ibv_parent_domain_init_attr parent = { .pd = pd, .td = td };
	struct ibv_alloc_dm_attr small = { .length = 64 };
	struct ibv_pd *whole, *own, *theirs;
	struct ibv_context *second;
	struct ibv_mr *mr, *imported;
	struct ibv_dm *dm, *same;
	char copy[8] = "";

	CHECK(td && (whole = ibv_alloc_parent_domain(ctx, &parent)));
	CHECK(ibv_dealloc_td(td) == EBUSY && ibv_dealloc_pd(whole) == 0 && ibv_dealloc_td(td) == 0);
	CHECK((second = ibv_import_device(dup(ctx->cmd_fd))) && (own = ibv_alloc_pd(ctx)));
	CHECK((mr = ibv_reg_mr(own, bytes, 64, all)) && (theirs = ibv_import_pd(second, own->handle)));
	CHECK((imported = ibv_import_mr(theirs, mr->handle)) && imported->lkey == mr->lkey);
	/* An import does not reference the domain. */
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(own) == 0);
	ibv_unimport_mr(imported);
	ibv_unimport_pd(theirs);
	CHECK((dm = ibv_alloc_dm(ctx, &small)) && (same = ibv_import_dm(second, dm->handle)));
	CHECK(ibv_memcpy_to_dm(dm, 8, "together", 8) == 0 && ibv_memcpy_from_dm(copy, same, 8, 8) == 0);
	CHECK(memcmp(copy, "together", 8) == 0);
	CHECK(ibv_memcpy_from_dm(copy, dm, 2, 4) == EINVAL && ibv_memcpy_from_dm(copy, dm, 60, 8) == EINVAL);
	ibv_unimport_dm(same);
	CHECK(!ibv_import_dm(second, dm->handle + 1000) && ibv_free_dm(dm) == 0 && ibv_close_device(second) == 0);
}

/* Port events may occur: addresses of a new interface come late. */
static struct ibv_async_event next_event(void)
{
	struct ibv_async_event event;

	for (;;) {
		CHECK(ibv_get_async_event(ctx, &event) == 0);
		if (event.event_type != IBV_EVENT_GID_CHANGE && event.event_type != IBV_EVENT_PORT_ACTIVE)
			return event;
		ibv_ack_async_event(&event);
	}
}

static void *destroys_srq(void *srq) { return (void *)(intptr_t)ibv_destroy_srq(srq); }
static void *destroys_qp(void *qp) { return (void *)(intptr_t)ibv_destroy_qp(qp); }

/* Destroying an object waits until its fetched events are acknowledged. */
static void waits(void *(*destroys)(void *), void *object, struct ibv_async_event *event)
{
	pthread_t thread;
	void *result;

	CHECK(pthread_create(&thread, NULL, destroys, object) == 0);
	/* Without a wait it would have returned by now. */
	usleep(20000);
	CHECK(pthread_tryjoin_np(thread, &result) == EBUSY);
	ibv_ack_async_event(event);
	CHECK(pthread_join(thread, &result) == 0 && !result);
}

/* Returns a QP in ERR, which raises the event that it has taken its last receive of an SRQ. */
static struct ibv_qp *ended(struct ibv_qp_init_attr *how)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *qp = ibv_create_qp(pd, how);

	CHECK(qp && ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	attr.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	return qp;
}

/* Events are dropped with their object, which is destroyed only after fetched ones are acknowledged. */
static void events(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr how = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .cap = { 4, 0, 1, 0, 0 } };
	struct ibv_srq_attr limit = { .srq_limit = 5 };
	struct ibv_async_event event;
	struct ibv_qp *qp;

	CHECK(srq && cq);
	/* An event that is not fetched is dropped with the QP, and the next one is the first. */
	CHECK(ibv_destroy_qp(ended(&how)) == 0);
	qp = ended(&how);
	event = next_event();
	CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == qp);
	waits(destroys_qp, qp, &event);
	/* Fewer receives wait than the limit. */
	CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
	event = next_event();
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	waits(destroys_srq, srq, &event);
	CHECK(ibv_destroy_cq(cq) == 0);
}

/* In a child process, the parent's objects are invalid. */
static void children(void)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	int status, child = fork();

	CHECK(cq && child >= 0);
	if (child == 0) {
		struct ibv_wc wc;

		CHECK(ibv_poll_cq(cq, 1, &wc) == -1 && errno == EIO);
		CHECK(ibv_destroy_cq(cq) == EIO && ibv_dealloc_pd(pd) == EIO && !ibv_alloc_pd(ctx));
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(ibv_destroy_cq(cq) == 0);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	/* Endless waiting is a failure too. */
	alarm(60);
	CHECK(list && (device = list[0]) && (ctx = ibv_open_device(device)) && (pd = ibv_alloc_pd(ctx)));
	CHECK(ibv_query_gid(ctx, 1, 1, &gid) == 0);
	tables();
	abilities();
	work_requests();
	full();
	steps();
	domains();
	events();
	children();
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(ctx) == 0);
	puts("all so");
	return 0;
}
