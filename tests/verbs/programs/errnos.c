/* Failing calls, and the errno that each sets: as libibverbs and a kernel device set it, whatever errno was before. Exit code 0: all as
 * expected. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* No call here fails with this number. */
enum { BEFORE = EXFULL };

static void failed(const char *call, long got, long result, int left, int error)
{
	if (got == result && left == error)
		return;
	fprintf(stderr, "%s: %ld with errno %d (%s), not %ld with errno %d\n", call, got, left, strerror(left), result, error);
	wrong++;
}

#define FAILS(call, result, error)                             \
	do {                                                   \
		errno = BEFORE;                                \
		long got = (long)(call);                       \
		failed(#call, got, (long)(result), errno, error); \
	} while (0)
/* For calls that return a pointer, -1, or the errno itself. */
#define NO_OBJECT(call, error) FAILS(call, 0, error)
#define MINUS_ONE(call, error) FAILS(call, -1, error)
#define ITSELF(call, error) FAILS(call, error, error)

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static char memory[4096];

static struct ibv_qp *queue_pair(enum ibv_qp_type type, int sends, int receives)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = { .max_send_wr = sends, .max_recv_wr = receives, .max_send_sge = 1, .max_recv_sge = 1 } };

	return ibv_create_qp(pd, &init);
}

static struct ibv_srq *shared_queue(int depth)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = depth, .max_sge = 1 } };

	return ibv_create_srq(pd, &init);
}

static int to(struct ibv_qp *qp, enum ibv_qp_state state, int mask)
{
	struct ibv_qp_attr attr = { .qp_state = state, .port_num = 1 };

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask);
}

static void ways(void)
{
	struct ibv_ah_attr nowhere = { .port_num = 1, .is_global = 1, .grh = { .sgid_index = 1 } };
	struct ibv_ah_attr no_port = { .is_global = 1 }, lid = { .port_num = 1, .dlid = 1 };
	struct ibv_ah_attr far = { .port_num = 1, .is_global = 1, .grh = { .sgid_index = 250 } };
	struct ibv_wc wc = { 0 }, with_header = { .wc_flags = IBV_WC_GRH };
	struct ibv_grh header = { 0 };

	NO_OBJECT(ibv_create_ah(pd, &nowhere), EINVAL);
	NO_OBJECT(ibv_create_ah(pd, &no_port), EINVAL);
	NO_OBJECT(ibv_create_ah(pd, &lid), EINVAL);
	NO_OBJECT(ibv_create_ah(pd, &far), EINVAL);
	NO_OBJECT(ibv_create_ah_from_wc(pd, &wc, &header, 1), EINVAL);
	NO_OBJECT(ibv_create_ah_from_wc(pd, &with_header, &header, 1), EINVAL);
	NO_OBJECT(ibv_create_ah_from_wc(NULL, &with_header, &header, 1), EINVAL);
}

static void questions(void)
{
	struct ibv_port_attr port;
	union ibv_gid gid;
	uint16_t key;

	ITSELF(ibv_query_port(ctx, 2, &port), EINVAL);
	MINUS_ONE(ibv_query_gid(ctx, 2, 0, &gid), EINVAL);
	MINUS_ONE(ibv_query_gid(ctx, 1, 1000, &gid), EINVAL);
	MINUS_ONE(ibv_query_pkey(ctx, 1, 7, &key), EINVAL);
	MINUS_ONE(ibv_get_pkey_index(ctx, 1, htons(0x7fff)), EINVAL);
}

static void queues(void)
{
	struct ibv_device_attr can;
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct ibv_cq *own = ibv_create_cq(ctx, 4, NULL, channel, 0), *from;
	struct ibv_srq *srq = shared_queue(4);
	struct ibv_srq_attr small = { .max_wr = 1 << 30 };
	void *user;

	CHECK(own && srq && ibv_query_device(ctx, &can) == 0);
	NO_OBJECT(ibv_create_cq(ctx, 0, NULL, NULL, 0), EINVAL);
	NO_OBJECT(ibv_create_cq(ctx, can.max_cqe + 1, NULL, NULL, 0), EINVAL);
	NO_OBJECT(ibv_create_cq(ctx, 4, NULL, NULL, ctx->num_comp_vectors), EINVAL);
	ITSELF(ibv_resize_cq(own, can.max_cqe + 1), EINVAL);
	ITSELF(ibv_destroy_comp_channel(channel), EBUSY);
	CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	MINUS_ONE(ibv_get_cq_event(channel, &from, &user), EAGAIN);
	NO_OBJECT(shared_queue(can.max_srq_wr + 1), EINVAL);
	ITSELF(ibv_modify_srq(srq, &small, IBV_SRQ_MAX_WR), EINVAL);
	CHECK(ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(own) == 0 && ibv_destroy_comp_channel(channel) == 0);
}

static void queue_pairs(void)
{
	struct ibv_qp *qp = queue_pair(IBV_QPT_RC, 1, 1);
	struct ibv_sge sges[2] = { { 0 } };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = sges, .num_sge = 2 }, *bad_send = NULL;
	struct ibv_recv_wr receive = { .sg_list = sges, .num_sge = 2 }, *bad_receive = NULL;
	union ibv_gid group = { .raw = { 0xff, 2 } };
	struct ibv_ece options = { 0 };

	CHECK(qp);
	NO_OBJECT(queue_pair(IBV_QPT_RC, 1 << 28, 1), EINVAL);
	NO_OBJECT(queue_pair(IBV_QPT_DRIVER, 1, 1), EOPNOTSUPP);
	/* SMI, GSI and a number that nothing has. */
	NO_OBJECT(queue_pair(0, 1, 1), EINVAL);
	NO_OBJECT(queue_pair(1, 1, 1), EINVAL);
	NO_OBJECT(queue_pair(42, 1, 1), EINVAL);
	ITSELF(to(qp, IBV_QPS_RTS, 0), EINVAL);
	ITSELF(to(qp, IBV_QPS_INIT, 0), EINVAL);
	ITSELF(to(qp, 17, 0), EINVAL);
	ITSELF(ibv_attach_mcast(qp, &group, 0), EINVAL);
	ITSELF(ibv_detach_mcast(qp, &group, 0), EINVAL);
	ITSELF(ibv_post_recv(qp, &receive, &bad_receive), EINVAL);
	CHECK(to(qp, IBV_QPS_INIT, IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS) == 0);
	ITSELF(ibv_post_recv(qp, &receive, &bad_receive), EINVAL);
	CHECK(bad_receive == &receive);
	ITSELF(ibv_post_send(qp, &wr, &bad_send), EINVAL);
	CHECK(bad_send == &wr);
	receive.num_sge = 1;
	while (ibv_post_recv(qp, &receive, &bad_receive) == 0)
		;
	ITSELF(ibv_post_recv(qp, &receive, &bad_receive), ENOMEM);
	NO_OBJECT(ibv_qp_to_qp_ex(qp), EOPNOTSUPP);
	ITSELF(ibv_query_ece(qp, &options), EOPNOTSUPP);
	ITSELF(ibv_destroy_cq(cq), EBUSY);
	ITSELF(ibv_dealloc_pd(pd), EBUSY);
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* Operations of ibv_wr_* for each type of QP: IBV_QP_EX_WITH_RDMA_WRITE to IBV_QP_EX_WITH_ATOMIC_WRITE. No type has TSO. */
static void send_operations(void)
{
	enum { FLAGS = 13, ALL = (1 << FLAGS) - 1 & ~IBV_QP_EX_WITH_TSO,
		DATAGRAM = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
		UC = DATAGRAM | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW };
	static const struct { enum ibv_qp_type type; int operations; } types[] = { { IBV_QPT_RC, ALL }, { IBV_QPT_UC, UC },
		{ IBV_QPT_UD, DATAGRAM }, { IBV_QPT_RAW_PACKET, IBV_QP_EX_WITH_SEND }, { IBV_QPT_XRC_SEND, ALL }, { IBV_QPT_XRC_RECV, 0 } };

	for (size_t type = 0; type < sizeof types / sizeof *types; type++)
		for (int bit = 0; bit < FLAGS; bit++) {
			struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .pd = pd, .qp_type = types[type].type,
				.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = 1 << bit,
				.cap = { .max_send_wr = 1, .max_send_sge = 1 } };
			struct ibv_qp *qp = ibv_create_qp_ex(ctx, &init);
			char what[64];

			snprintf(what, sizeof what, "operation %#x of QP type %d is refused", 1 << bit, init.qp_type);
			/* Sockets have no raw packet QPs at all. */
			if (qp || init.qp_type != IBV_QPT_RAW_PACKET)
				expect(what, !qp && errno == EOPNOTSUPP, !(types[type].operations >> bit & 1));
			if (qp)
				ibv_destroy_qp(qp);
		}
}

static void ranges(void)
{
	char *page = mmap(NULL, sizeof memory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *nothing = mmap(NULL, sizeof memory, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const int write = IBV_ACCESS_LOCAL_WRITE, demand = write | IBV_ACCESS_ON_DEMAND;
	struct ibv_mr *mr;

	CHECK(page != MAP_FAILED && nothing != MAP_FAILED);
	NO_OBJECT(ibv_reg_mr(pd, page, 0, write), EINVAL);
	NO_OBJECT(ibv_reg_mr(pd, page, 0, demand), EINVAL);
	NO_OBJECT(ibv_reg_mr(pd, NULL, 0, write), EINVAL);
	NO_OBJECT(ibv_reg_mr_iova(pd, page, 0, sizeof memory, write), EINVAL);
	/* Another place in its page than the memory's. */
	NO_OBJECT(ibv_reg_mr_iova(pd, page + 8, 8, sizeof memory, write), EINVAL);
	NO_OBJECT(ibv_reg_mr(pd, nothing + 8, 0, write), EFAULT);
	/* The end is an address, but the end of its page is none. */
	NO_OBJECT(ibv_reg_mr(pd, (char *)-sizeof memory + 1, sizeof memory - 2, write), EINVAL);
	CHECK((mr = ibv_reg_mr(pd, page + 8, 0, write)));
	FAILS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, page, 0, 0), IBV_REREG_MR_ERR_INPUT, EINVAL);
	CHECK(ibv_dereg_mr(mr) == 0 && (mr = ibv_reg_mr(pd, page + 8, 0, demand)));
	CHECK(ibv_dereg_mr(mr) == 0);
}

static void regions(void)
{
	char *nothing = mmap(NULL, sizeof memory, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);

	CHECK(nothing != MAP_FAILED && mr);
	NO_OBJECT(ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	NO_OBJECT(ibv_reg_mr(pd, nothing, sizeof memory, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	NO_OBJECT(ibv_alloc_mw(pd, 7), EINVAL);
	FAILS(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT, EINVAL);
	NO_OBJECT(ibv_import_mr(pd, 12345), ENOENT);
	NO_OBJECT(ibv_import_pd(ctx, 12345), ENOENT);
	CHECK(ibv_dereg_mr(mr) == 0);
}

/* Objects of the parent, in a child. */
static void objects_of_another_process(void)
{
	struct ibv_wc wc = { .wc_flags = IBV_WC_GRH };
	struct ibv_grh header = { 0 };
	int status;
	pid_t child = fork();

	if (child == 0) {
		wrong = 0;
		NO_OBJECT(ibv_alloc_pd(ctx), EIO);
		NO_OBJECT(queue_pair(IBV_QPT_RC, 1, 1), EIO);
		NO_OBJECT(ibv_create_ah_from_wc(pd, &wc, &header, 1), EIO);
		NO_OBJECT(ibv_reg_mr(pd, memory, sizeof memory, 0), EIO);
		MINUS_ONE(ibv_poll_cq(cq, 1, &wc), EIO);
		ITSELF(ibv_req_notify_cq(cq, 0), EIO);
		_exit(wrong != 0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	expect("a child", status, 0);
}

static void events(void)
{
	struct ibv_async_event event;

	CHECK(fcntl(ctx->async_fd, F_SETFL, O_NONBLOCK) == 0);
	MINUS_ONE(ibv_get_async_event(ctx, &event), EAGAIN);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	alarm(60);
	CHECK(list && list[0] && (ctx = ibv_open_device(list[0])));
	CHECK((pd = ibv_alloc_pd(ctx)) && (cq = ibv_create_cq(ctx, 4, NULL, NULL, 0)));
	ways();
	questions();
	queues();
	queue_pairs();
	send_operations();
	regions();
	ranges();
	events();
	objects_of_another_process();
	return wrong != 0;
}
