/* Memory that is unmapped or protected while it is registered. Handlers of SIGSEGV and SIGBUS must not see these faults, but all of the
 * program's own. Two QPs of one device exchange messages.
 *
 * gone ops          every operation, in either role, on memory that is removed in every way
 * gone anew         memory that is mapped again at its old address: the old key accesses the new pages until it is deregistered
 * gone before       the same with handlers of the program that were installed first
 * gone after        the same with handlers that are installed after memory is registered
 * gone thread       the same in a thread that blocks all signals
 * gone child        the same in a child of a fork
 * gone stack        the same with handlers on an alternate stack, which handle a fault of the program
 * gone MODE segv    then a fault of the program itself, which must reach its handler or end the process
 * gone MODE bus     the same with SIGBUS */

#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define PAGE 4096

static volatile sig_atomic_t seen;
static void *volatile seen_at;
static volatile sig_atomic_t seen_on_stack;
static sigjmp_buf back;
static char alternate[1 << 16];

static void handler(int signal, siginfo_t *info, void *context)
{
	char here;

	(void)context;
	seen = signal;
	seen_at = info->si_addr;
	seen_on_stack = &here >= alternate && &here < alternate + sizeof(alternate);
	siglongjmp(back, 1);
}

static void handle(int flags)
{
	struct sigaction mine = { 0 };

	mine.sa_sigaction = handler;
	mine.sa_flags = SA_SIGINFO | flags;
	sigaddset(&mine.sa_mask, SIGUSR1);
	CHECK(sigaction(SIGSEGV, &mine, NULL) == 0);
	CHECK(sigaction(SIGBUS, &mine, NULL) == 0);
}

/* The program's own settings are returned. */
static void check_handlers(void)
{
	struct sigaction now;

	CHECK(sigaction(SIGSEGV, NULL, &now) == 0 && now.sa_sigaction == handler && (now.sa_flags & SA_SIGINFO));
	CHECK(sigismember(&now.sa_mask, SIGUSR1) == 1 && sigismember(&now.sa_mask, SIGUSR2) == 0);
	CHECK(sigaction(SIGBUS, NULL, &now) == 0 && now.sa_sigaction == handler);
}

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static union ibv_gid gid;

static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	CHECK(ibv_query_gid(context, 1, 1, &gid) == 0);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	CHECK(pd && cq);
}

static struct ibv_qp *make(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	return qp;
}

static void join(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 1 } } };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				   IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static struct ibv_wc next_wc(void)
{
	struct ibv_wc wc;
	int got;

	do {
		got = ibv_poll_cq(cq, 1, &wc);
		CHECK(got >= 0);
	} while (!got);
	return wc;
}

enum way { UNMAPPED, PROTECTED, BEHIND_FILE, WAYS };

/* Maps a page, and sets `fd` to its file, or to -1. */
static char *map(enum way way, int *fd)
{
	void *at;

	*fd = -1;
	if (way == BEHIND_FILE) {
		*fd = memfd_create("page", 0);
		CHECK(*fd >= 0 && ftruncate(*fd, PAGE) == 0);
		at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	} else {
		at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	}
	CHECK(at != MAP_FAILED);
	return at;
}

static void take_away(enum way way, char *page, int fd)
{
	switch (way) {
	case UNMAPPED:
		CHECK(munmap(page, PAGE) == 0);
		break;
	case PROTECTED:
		CHECK(mprotect(page, PAGE, PROT_NONE) == 0);
		break;
	default:
		CHECK(ftruncate(fd, 0) == 0);
	}
}

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* One operation between two new QPs, with the requester's or the responder's memory gone. */
static void operation(enum ibv_wr_opcode opcode, int ours, enum way way)
{
	struct ibv_qp *near = make(), *far = make();
	static char stays[PAGE] __attribute__((aligned(PAGE)));
	struct ibv_mr *there, *gone;
	struct ibv_wc wc;
	int fd, others;
	char *page;

	join(near, far);
	join(far, near);
	page = map(way, &fd);
	gone = ibv_reg_mr(pd, page, PAGE, ALL);
	there = ibv_reg_mr(pd, stays, PAGE, ALL);
	CHECK(gone && there);
	take_away(way, page, fd);

	struct ibv_mr *local = ours ? gone : there, *remote = ours ? there : gone;
	struct ibv_sge to = { .addr = (uintptr_t)remote->addr, .length = 8, .lkey = remote->lkey };
	struct ibv_recv_wr receive = { .wr_id = 7, .sg_list = &to, .num_sge = 1 }, *bad_receive;
	struct ibv_sge from = { .addr = (uintptr_t)local->addr, .length = 8, .lkey = local->lkey };
	struct ibv_send_wr send = { .wr_id = 8, .sg_list = &from, .num_sge = 1, .opcode = opcode }, *bad;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		send.wr.atomic.remote_addr = to.addr;
		send.wr.atomic.rkey = remote->rkey;
	} else {
		send.wr.rdma.remote_addr = to.addr;
		send.wr.rdma.rkey = remote->rkey;
	}
	if (opcode == IBV_WR_SEND)
		CHECK(ibv_post_recv(far, &receive, &bad_receive) == 0);
	CHECK(ibv_post_send(near, &send, &bad) == 0);
	for (others = 0; (wc = next_wc()).wr_id != 8; others++)
		CHECK(wc.wr_id == 7 && (ours || wc.status == IBV_WC_LOC_PROT_ERR));
	if (ours)
		CHECK(wc.status == IBV_WC_LOC_PROT_ERR);
	else
		CHECK(wc.status == (opcode == IBV_WR_SEND ? IBV_WC_REM_OP_ERR : IBV_WC_REM_ACCESS_ERR));
	CHECK(ibv_destroy_qp(near) == 0 && ibv_destroy_qp(far) == 0);
	/* Completions that were not waited for. */
	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
	CHECK(ibv_dereg_mr(gone) == 0 && ibv_dereg_mr(there) == 0);
	if (way != UNMAPPED)
		munmap(page, PAGE);
	if (fd >= 0)
		close(fd);
}

/* One WRITE or READ of a byte between the program's QPs; returns its status. */
static enum ibv_wc_status move_byte(enum ibv_wr_opcode opcode, struct ibv_mr *local, char *remote, uint32_t rkey)
{
	struct ibv_qp *near = make(), *far = make();
	struct ibv_sge sge = { .addr = (uintptr_t)local->addr, .length = 1, .lkey = local->lkey };
	struct ibv_send_wr wr = { .wr_id = 8, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
		.wr.rdma = { .remote_addr = (uintptr_t)remote, .rkey = rkey } }, *bad;
	struct ibv_wc wc;

	join(near, far);
	join(far, near);
	CHECK(ibv_post_send(near, &wr, &bad) == 0);
	wc = next_wc();
	CHECK(wc.wr_id == 8);
	CHECK(ibv_destroy_qp(near) == 0 && ibv_destroy_qp(far) == 0);
	return wc.status;
}

/* With an adapter's driver, the old key refers to the old pages. Here, a key refers to addresses. */
static void *anew(void *unused)
{
	static char stays[PAGE] __attribute__((aligned(PAGE)));
	struct ibv_mr *local = ibv_reg_mr(pd, stays, PAGE, ALL), *old;
	int fd, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
	char *page = map(UNMAPPED, &fd);
	uint32_t rkey;

	*page = 1;
	old = ibv_reg_mr(pd, page, PAGE, ALL);
	CHECK(local && old);
	rkey = old->rkey;
	CHECK(move_byte(IBV_WR_RDMA_READ, local, page, rkey) == IBV_WC_SUCCESS && *stays == 1);
	take_away(UNMAPPED, page, fd);
	CHECK(move_byte(IBV_WR_RDMA_READ, local, page, rkey) == IBV_WC_REM_ACCESS_ERR && *stays == 1);
	CHECK(mmap(page, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == page);
	*page = 2;
	CHECK(move_byte(IBV_WR_RDMA_READ, local, page, rkey) == IBV_WC_SUCCESS && *stays == 2);
	*stays = 3;
	CHECK(move_byte(IBV_WR_RDMA_WRITE, local, page, rkey) == IBV_WC_SUCCESS && *page == 3);
	/* A read-only page is not written, even if the key allowed it once. */
	CHECK(mmap(page, PAGE, PROT_READ, flags, -1, 0) == page);
	CHECK(move_byte(IBV_WR_RDMA_WRITE, local, page, rkey) == IBV_WC_REM_ACCESS_ERR && *page == 0);
	CHECK(move_byte(IBV_WR_RDMA_READ, local, page, rkey) == IBV_WC_SUCCESS && *stays == 0);
	CHECK(ibv_dereg_mr(old) == 0);
	*stays = 4;
	CHECK(move_byte(IBV_WR_RDMA_READ, local, page, rkey) == IBV_WC_REM_ACCESS_ERR && *stays == 4);
	CHECK(ibv_dereg_mr(local) == 0 && munmap(page, PAGE) == 0);
	return unused;
}

static void *operations(void *unused)
{
	static const enum ibv_wr_opcode all[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
						  IBV_WR_ATOMIC_CMP_AND_SWP };

	for (enum way way = 0; way < WAYS; way++)
		for (int ours = 0; ours < 2; ours++)
			for (size_t at = 0; at < sizeof(all) / sizeof(*all); at++)
				operation(all[at], ours, way);
	CHECK(!seen);
	return unused;
}

static void *operations_blocked(void *unused)
{
	sigset_t all;

	sigfillset(&all);
	CHECK(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
	return operations(unused);
}

/* Causes a fault of the program itself, of each kind. */
static void fault(int signal)
{
	int fd;
	char *page = map(signal == SIGBUS ? BEHIND_FILE : PROTECTED, &fd);

	take_away(signal == SIGBUS ? BEHIND_FILE : PROTECTED, page, fd);
	*(volatile char *)(page + 5) = 1;
}

static void fault_handled(int signal, int on_stack)
{
	int fd;
	char *volatile page = map(signal == SIGBUS ? BEHIND_FILE : PROTECTED, &fd);
	sigset_t mask;

	take_away(signal == SIGBUS ? BEHIND_FILE : PROTECTED, page, fd);
	seen = 0;
	if (!sigsetjmp(back, 1))
		*(volatile char *)(page + 5) = 1;
	CHECK(seen == signal && seen_at == page + 5 && seen_on_stack == on_stack);
	seen = 0;
	sigprocmask(SIG_SETMASK, NULL, &mask);
	CHECK(!sigismember(&mask, SIGUSR1));
	CHECK(munmap(page, PAGE) == 0);
}

int main(int count, char **words)
{
	const char *mode = count > 1 ? words[1] : "ops";
	int handled = strcmp(mode, "ops") && strcmp(mode, "thread") && strcmp(mode, "anew");
	int on_stack = !strcmp(mode, "stack");
	stack_t stack = { .ss_sp = alternate, .ss_size = sizeof(alternate) };
	pthread_t thread;
	int status;

	if (on_stack)
		CHECK(sigaltstack(&stack, NULL) == 0);
	if (handled && strcmp(mode, "after"))
		handle(on_stack ? SA_ONSTACK : 0);
	if (!strcmp(mode, "child")) {
		/* The parent leaves the port to the child. */
		open_device();
		CHECK(ibv_reg_mr(pd, alternate, PAGE, ALL));
		pid_t child = fork();
		if (!child) {
			handle(0);
			open_device();
			operations(NULL);
			fault_handled(SIGSEGV, 0);
			_exit(0);
		}
		CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
		fault_handled(SIGSEGV, 0);
		puts("all so");
		return 0;
	} else {
		open_device();
	}
	if (!strcmp(mode, "after")) {
		operation(IBV_WR_RDMA_WRITE, 0, UNMAPPED);
		handle(0);
	}
	if (handled)
		check_handlers();
	if (!strcmp(mode, "anew"))
		anew(NULL);
	else if (!strcmp(mode, "thread"))
		CHECK(!pthread_create(&thread, NULL, operations_blocked, NULL) && !pthread_join(thread, NULL));
	else
		operations(NULL);
	if (handled) {
		check_handlers();
		fault_handled(SIGSEGV, on_stack);
		fault_handled(SIGBUS, on_stack);
		/* A signal that was sent must reach the handler. */
		if (!sigsetjmp(back, 1))
			raise(SIGSEGV);
		CHECK(seen == SIGSEGV);
		seen = 0;
		operation(IBV_WR_RDMA_WRITE, 0, PROTECTED);
		CHECK(!seen);
		CHECK(signal(SIGSEGV, SIG_DFL) == (void (*)(int))handler);
		CHECK(signal(SIGBUS, SIG_DFL) == (void (*)(int))handler);
	}
	operation(IBV_WR_RDMA_WRITE, 0, PROTECTED);
	puts("all so");
	fflush(stdout);
	if (count > 2 && !strcmp(words[2], "segv"))
		fault(SIGSEGV);
	if (count > 2 && !strcmp(words[2], "bus"))
		fault(SIGBUS);
	if (count > 2 && !strcmp(words[2], "raise"))
		raise(SIGSEGV);
	return 0;
}
