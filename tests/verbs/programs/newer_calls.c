/* Calls added after rdma-core 44, looked up by name and version like in a program linked to a newer release. The headers at compile time may be
 * older, so the newer declarations are repeated here. Both ends are in this process. Prints the first failed check and exits with 1. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <time.h>

#include "check.h"

enum { IOVA = 1, ADDR = 2, FD = 4, FD_OFFSET = 8, DMAH = 16, BUF = 32 };
struct mr_init {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah, *buf;
};
enum { WR_FLUSH = 14, WITH_FLUSH = 1 << 11, FLUSH_GLOBAL = 1, FLUSH_PERSISTENT = 2, WHOLE_REGION = 1, ACCESS_FLUSH = 3 << 8,
       ODP_FLUSH_AND_ATOMIC_WRITE = 3 << 6 };
#define ACCESS_FLUSH_OF(kind) ((kind) << 8)
typedef void wr_flush(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);

static const int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static void *call(const char *name, const char *version)
{
	void *found = dlvsym(RTLD_DEFAULT, name, version);

	if (!found)
		printf("%s@%s is not there\n", name, version);
	CHECK(found);
	return found;
}

static struct ibv_mr *reg(struct mr_init init)
{
	struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct mr_init *) = call("ibv_reg_mr_ex", "IBVERBS_1.15");

	errno = 0;
	return reg_mr_ex(pd, &init);
}

static void regions(void)
{
	static char memory[8192] __attribute__((aligned(65536)));
	struct mr_init wanted = { .length = sizeof memory, .access = all, .comp_mask = ADDR, .addr = memory };
	struct mr_init with;
	struct ibv_mr *mr = reg(wanted);

	CHECK(mr && mr->addr == memory && mr->length == sizeof memory && mr->pd == pd && mr->context == ctx);
	CHECK(ibv_dereg_mr(mr) == 0);
	with = wanted, with.comp_mask |= IOVA, with.iova = 0x10000;
	CHECK((mr = reg(with)) && mr->addr == memory);
	CHECK(ibv_dereg_mr(mr) == 0);
	with = wanted, with.comp_mask |= DMAH;
	CHECK(!reg(with) && errno == EOPNOTSUPP);
	with = wanted, with.comp_mask = FD | FD_OFFSET | IOVA;
	CHECK(!reg(with) && errno == EOPNOTSUPP);
	with = wanted, with.comp_mask |= FD;
	CHECK(!reg(with) && errno == EINVAL);
}

static void buffers(void)
{
	void *(*alloc_buf)(struct ibv_pd *, size_t, void **) = call("ibv_alloc_buf", "IBVERBS_1.17");
	void (*free_buf)(void *) = call("ibv_free_buf", "IBVERBS_1.17");
	struct ibv_mr *(*reg_buf)(struct ibv_pd *, void *, void *, size_t, int) = call("ibv_reg_buf_mr", "IBVERBS_1.17");
	int (*export)(void *) = call("ibv_export_buf_dmabuf_fd", "IBVERBS_1.18");
	struct ibv_pd *other = ibv_alloc_pd(ctx);
	struct mr_init with = { .access = all, .comp_mask = ADDR | BUF };
	struct ibv_mr *mr;
	void *buf = NULL;
	char *memory = alloc_buf(pd, 10000, &buf);

	CHECK(other && memory && buf && (uintptr_t)memory % 4096 == 0);
	memset(memory, 1, 10000);
	CHECK((mr = reg_buf(pd, buf, memory + 16, 9984, all)) && mr->addr == memory + 16 && mr->length == 9984);
	CHECK(ibv_dereg_mr(mr) == 0);
	with.buf = buf, with.addr = memory, with.length = 10000;
	CHECK((mr = reg(with)));
	CHECK(ibv_dereg_mr(mr) == 0);
	errno = 0;
	CHECK(!reg_buf(pd, buf, memory + 16, 9985, all) && errno == EINVAL);
	errno = 0;
	CHECK(!reg_buf(pd, buf, memory - 1, 1, all) && errno == EINVAL);
	errno = 0;
	CHECK(!reg_buf(other, buf, memory, 1, all) && errno == EINVAL);
	errno = 0;
	CHECK(export(buf) == -1 && errno == ENODATA);
	free_buf(buf);
	CHECK(ibv_dealloc_pd(other) == 0);
	/* The flag allows buffers outside of a confidential guest's protected memory. */
	struct ibv_parent_domain_init_attr unprotected = { .pd = pd, .comp_mask = 1 << 2 };
	CHECK((other = ibv_alloc_parent_domain(ctx, &unprotected)));
	CHECK((memory = alloc_buf(other, 64, &buf)) && (mr = reg_buf(other, buf, memory, 64, all)));
	CHECK(ibv_dereg_mr(mr) == 0);
	free_buf(buf);
	CHECK(ibv_dealloc_pd(other) == 0);
	unprotected.comp_mask = 1 << 3;
	CHECK(!ibv_alloc_parent_domain(ctx, &unprotected) && errno == EOPNOTSUPP);
}

static void the_rest(void)
{
	int (*speed)(struct ibv_context *, uint32_t, uint64_t *) = call("ibv_query_port_speed", "IBVERBS_1.16");
	const char *(*name)(unsigned) = call("ibv_wr_opcode_str", "IBVERBS_PRIVATE_34");
	void *(*dmah)(struct ibv_context *, void *) = call("ibv_alloc_dmah", "IBVERBS_1.15");
	void *(*counter)(struct ibv_context *, void *) = call("ibv_create_comp_cntr", "IBVERBS_1.18");
	int (*caps)(struct ibv_context *, void *, size_t) = call("_ibv_query_comp_cntr_caps", "IBVERBS_1.18");
	int (*dm_fd)(struct ibv_dm *) = call("ibv_dm_export_dmabuf_fd", "IBVERBS_1.16");
	uint64_t told = 0;

	CHECK(speed(ctx, 1, &told) == 0 && told == 100);
	CHECK(speed(ctx, 2, &told) == EINVAL);
	CHECK(strcmp(name(WR_FLUSH), "FLUSH") == 0 && strcmp(name(99), "unknown") == 0);
	CHECK(!dmah(ctx, NULL) && errno == EOPNOTSUPP);
	CHECK(!counter(ctx, NULL) && errno == EOPNOTSUPP);
	CHECK(caps(ctx, NULL, 0) == EOPNOTSUPP);
	CHECK(dm_fd(NULL) == -1 && errno == EOPNOTSUPP);
}

static struct ibv_qp *made(void)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = { 16, 16, 1, 1, 0 }, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | WITH_FLUSH,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(ctx, &init);

	CHECK(qp && ibv_qp_to_qp_ex(qp));
	return qp;
}

static void connected(struct ibv_qp *qp, struct ibv_qp *to)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = all | ACCESS_FLUSH };
	union ibv_gid gid;

	CHECK(ibv_query_gid(ctx, 1, 1, &gid) == 0);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	attr.qp_state = IBV_QPS_RTR, attr.path_mtu = IBV_MTU_1024, attr.dest_qp_num = to->qp_num;
	attr.max_dest_rd_atomic = 1, attr.min_rnr_timer = 12;
	attr.ah_attr = (struct ibv_ah_attr){ .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 1 } };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr.qp_state = IBV_QPS_RTS, attr.timeout = 14, attr.retry_cnt = 7, attr.rnr_retry = 7, attr.max_rd_atomic = 1;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static struct ibv_wc completion(void)
{
	time_t until = time(NULL) + 20;
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		CHECK(time(NULL) < until);
	CHECK(n == 1);
	return wc;
}

/* Posts a batch with one FLUSH. */
static int flushed(struct ibv_qp_ex *qp, uint64_t id, struct ibv_mr *mr, size_t length, uint8_t type, uint8_t level)
{
	/* The last function, behind wr_atomic_write. */
	wr_flush *flush = *(wr_flush **)((char *)qp + 352);

	ibv_wr_start(qp);
	qp->wr_id = id, qp->wr_flags = 0;
	flush(qp, mr->rkey, (uintptr_t)mr->addr, length, type, level);
	return ibv_wr_complete(qp);
}

/* Each kind of FLUSH has its own access right. */
static void rights(void)
{
	static char memory[4096];

	for (int kind = FLUSH_GLOBAL; kind <= FLUSH_PERSISTENT; kind++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, all | ACCESS_FLUSH_OF(kind));
		struct ibv_qp *from = made(), *to = made();

		CHECK(mr);
		connected(from, to), connected(to, from);
		CHECK(flushed(ibv_qp_to_qp_ex(from), 7, mr, 4096, kind, 0) == 0);
		CHECK(completion().status == IBV_WC_SUCCESS);
		CHECK(flushed(ibv_qp_to_qp_ex(from), 8, mr, 4096, FLUSH_GLOBAL + FLUSH_PERSISTENT - kind, 0) == 0);
		CHECK(completion().status == IBV_WC_REM_ACCESS_ERR);
		CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0 && ibv_dereg_mr(mr) == 0);
	}
}

static void flushes(void)
{
	static char memory[8192];
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, all | ACCESS_FLUSH);
	struct ibv_mr *closed = ibv_reg_mr(pd, memory, sizeof memory, all);
	struct ibv_qp *from = made(), *to = made();
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(from);
	struct ibv_wc wc;

	CHECK(mr && closed);
	connected(from, to), connected(to, from);
	memset(memory, 0x5a, 4096);
	ibv_wr_start(qp);
	qp->wr_id = 1, qp->wr_flags = 0;
	ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)memory + 4096);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 4096);
	CHECK(ibv_wr_complete(qp) == 0);
	wc = completion();
	CHECK(wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS && memory[8191] == 0x5a);
	CHECK(flushed(qp, 2, mr, 4096, FLUSH_GLOBAL, 0) == 0);
	wc = completion();
	CHECK(wc.wr_id == 2 && wc.status == IBV_WC_SUCCESS && wc.opcode == 8);
	CHECK(flushed(qp, 3, mr, 0, FLUSH_GLOBAL, WHOLE_REGION) == 0);
	wc = completion();
	CHECK(wc.wr_id == 3 && wc.status == IBV_WC_SUCCESS);
	/* Also on-demand memory, as the device's capabilities state. */
	struct ibv_device_attr_ex can;
	CHECK(ibv_query_device_ex(ctx, NULL, &can) == 0);
	CHECK((can.odp_caps.per_transport_caps.rc_odp_caps & ODP_FLUSH_AND_ATOMIC_WRITE) == ODP_FLUSH_AND_ATOMIC_WRITE);
	struct ibv_mr *demanded = ibv_reg_mr(pd, memory, sizeof memory, all | ACCESS_FLUSH | IBV_ACCESS_ON_DEMAND);
	CHECK(demanded && flushed(qp, 6, demanded, 4096, FLUSH_GLOBAL, 0) == 0);
	wc = completion();
	CHECK(wc.wr_id == 6 && wc.status == IBV_WC_SUCCESS);
	CHECK(ibv_dereg_mr(demanded) == 0);
	CHECK(flushed(qp, 4, mr, 4096, 0, 0) == EINVAL);
	CHECK(flushed(qp, 4, mr, 4096, 4, 0) == EINVAL);
	CHECK(flushed(qp, 4, mr, 4096, FLUSH_GLOBAL, 2) == EINVAL);
	CHECK(flushed(qp, 4, mr, (1ull << 31) + 1, FLUSH_GLOBAL, 0) == EINVAL);
	CHECK(flushed(qp, 5, closed, 4096, FLUSH_GLOBAL, 0) == 0);
	wc = completion();
	CHECK(wc.wr_id == 5 && wc.status == IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(closed) == 0);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list && list[0] && (ctx = ibv_open_device(list[0])));
	CHECK((pd = ibv_alloc_pd(ctx)) && (cq = ibv_create_cq(ctx, 16, NULL, NULL, 0)));
	regions();
	buffers();
	the_rest();
	flushes();
	rights();
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(ctx) == 0);
	printf("all so\n");
	return 0;
}
