/*
 * A tenant of a NIC that others use too:
 *   tenant honest SECONDS         WRITEs of 8 bytes between two QPs of its own, one at a time; prints how many, the median and the longest
 *   tenant late SECONDS UID MS    sends from pages that each come MS ms late; begins as root, and becomes UID
 *   tenant huge SECONDS           WRITEs to huge pages that are not there, again and again
 *   tenant own SECONDS            the same huge pages, written by the program itself: what the NIC is not part of
 *   tenant waiters SECONDS        18,000 waits for the one eventfd that each of its completions raises
 * Each connects its QPs to one another. An attack prints how many of its requests ended.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { PAGE = 4096, HUGE_PAGE = 2 << 20, HUGE_PAGES = 256, WAITERS = 20, ENTRIES = 900, DEPTH = 200, MOST = 1 << 22 };
#define LATE (1UL << 26)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *from, *to;
static double end;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static struct ibv_qp *made(void)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	return qp;
}

static void connected(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
		.min_rnr_timer = 12, .max_dest_rd_atomic = 1, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 1, .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 1, .hop_limit = 64 } } };

	CHECK(!ibv_query_gid(context, 1, 1, &attr.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

static void open_device(struct ibv_comp_channel *(*channel)(struct ibv_context *))
{
	struct ibv_device **devices = ibv_get_device_list(NULL);

	CHECK(devices && devices[0]);
	CHECK((context = ibv_open_device(devices[0])));
	CHECK((pd = ibv_alloc_pd(context)));
	CHECK((cq = ibv_create_cq(context, 2 * DEPTH, NULL, channel ? channel(context) : NULL, 0)));
	from = made(), to = made();
	connected(from, to->qp_num), connected(to, from->qp_num);
}

static struct ibv_mr *registered(void *at, size_t length)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, at, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);

	CHECK(mr);
	return mr;
}

static int post(struct ibv_mr *source, const char *at, struct ibv_mr *target, const char *remote, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)at, length, source->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { (uintptr_t)remote, target->rkey } }, *bad;

	return ibv_post_send(from, &wr, &bad);
}

/* Waits for a completion. False: its request failed, or none came in ten seconds. */
static int completed(void)
{
	struct ibv_wc wc;
	double until = now() + 10;
	int count;

	while (!(count = ibv_poll_cq(cq, 1, &wc)) && now() < until)
		;
	return count == 1 && wc.status == IBV_WC_SUCCESS;
}

static int by_time(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;

	return (left > right) - (left < right);
}

static void honest(void)
{
	char *pages = aligned_alloc(PAGE, 2 * PAGE);
	struct ibv_mr *mr = registered(memset(pages, 7, 2 * PAGE), 2 * PAGE);
	double *took = calloc(MOST, sizeof *took);
	int count = 0;

	while (now() < end && count < MOST) {
		double begin = now();

		CHECK(!post(mr, pages, mr, pages + PAGE, 8));
		CHECK(completed());
		took[count++] = now() - begin;
		usleep(200);
	}
	qsort(took, (size_t)count, sizeof *took, by_time);
	printf("%d WRITEs, median %.1f us, longest %.2f ms\n", count, took[count / 2] * 1e6, took[count ? count - 1 : 0] * 1e3);
}

/* Answers requests of a file system with one file, of which each page is read MS late. */
static void serve(int device, uid_t uid, useconds_t late_by)
{
	static char request[1 << 17], answer[sizeof(struct fuse_out_header) + PAGE];
	struct fuse_out_header *head = (void *)answer;
	void *body = head + 1;
	struct fuse_attr file = { .ino = 2, .size = LATE, .mode = S_IFREG | 0600, .nlink = 1, .uid = uid, .blksize = PAGE };
	struct fuse_attr folder = { .ino = 1, .mode = S_IFDIR | 0700, .nlink = 1, .uid = uid };

	while (read(device, request, sizeof request) > 0) {
		const struct fuse_in_header *asked = (void *)request;
		size_t length = 0;
		int error = 0;

		memset(answer, 0, sizeof answer);
		switch (asked->opcode) {
		case FUSE_INIT:
			*(struct fuse_init_out *)body = (struct fuse_init_out){ .major = 7, .minor = 31, .max_write = PAGE };
			length = sizeof(struct fuse_init_out);
			break;
		case FUSE_LOOKUP:
			*(struct fuse_entry_out *)body = (struct fuse_entry_out){ .nodeid = 2, .attr_valid = 1000, .entry_valid = 1000, .attr = file };
			length = sizeof(struct fuse_entry_out);
			break;
		case FUSE_GETATTR:
			*(struct fuse_attr_out *)body = (struct fuse_attr_out){ .attr_valid = 1000, .attr = asked->nodeid == 1 ? folder : file };
			length = sizeof(struct fuse_attr_out);
			break;
		case FUSE_OPEN:
			length = sizeof(struct fuse_open_out);
			break;
		case FUSE_READ:
			usleep(late_by);
			length = PAGE;
			break;
		case FUSE_FLUSH:
		case FUSE_RELEASE:
			break;
		case FUSE_FORGET:
		case FUSE_BATCH_FORGET:
		case FUSE_INTERRUPT:
			continue;
		default:
			error = -ENOSYS;
		}
		*head = (struct fuse_out_header){ (uint32_t)(sizeof *head + length), error, asked->unique };
		CHECK(write(device, answer, head->len) == head->len || errno == ENOENT);
	}
	_exit(0);
}

/* Mounts the file system, where no other process sees it, and returns its file. */
static int late_file(uid_t uid, useconds_t late_by)
{
	int device = open("/dev/fuse", O_RDWR);
	char options[100];

	CHECK(device >= 0 && !unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%u,group_id=0,max_read=%d", device, uid, PAGE);
	CHECK(!mount("late", "/mnt", "fuse", MS_NOSUID | MS_NODEV, options));
	if (!fork()) {
		/* The user first: the signal comes from a process of that user. */
		CHECK(!setresuid(uid, uid, uid) && !prctl(PR_SET_PDEATHSIG, SIGKILL));
		serve(device, uid, late_by);
	}
	close(device);
	CHECK(!setresuid(uid, uid, uid));
	/* A process that has changed its user may not open its own memory before this. */
	CHECK(!prctl(PR_SET_DUMPABLE, 1));
	return open("/mnt/late", O_RDONLY);
}

static void late(uid_t uid, useconds_t late_by)
{
	char *pages = mmap(NULL, LATE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *target = aligned_alloc(PAGE, PAGE);
	int file = late_file(uid, late_by), count = 0;

	CHECK(pages != MAP_FAILED && file >= 0);
	open_device(NULL);
	struct ibv_mr *source = ibv_reg_mr(pd, pages, LATE, 0), *to_here = registered(target, PAGE);

	CHECK(source && mmap(pages, LATE, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0) == pages);
	CHECK(!madvise(pages, LATE, MADV_RANDOM));
	for (size_t at = 0; now() < end && at < LATE; at += PAGE) {
		if (post(source, pages + at, to_here, target, 8) || !completed())
			break;
		count++;
	}
	printf("%d requests\n", count);
}

static void huge(void)
{
	size_t length = (size_t)HUGE_PAGES * HUGE_PAGE;
	char *all = mmap(NULL, length + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *pages = all + (-(uintptr_t)all & (HUGE_PAGE - 1)), *byte = aligned_alloc(PAGE, PAGE);
	int count = 0;

	CHECK(all != MAP_FAILED);
	madvise(pages, length, MADV_HUGEPAGE);
	struct ibv_mr *target = registered(pages, length), *source = registered(byte, PAGE);

	while (now() < end) {
		int posted = 0, done = 0;

		CHECK(!madvise(pages, length, MADV_DONTNEED));
		while (done < HUGE_PAGES && now() < end) {
			while (posted < HUGE_PAGES && posted - done < DEPTH)
				CHECK(!post(source, byte, target, pages + (size_t)posted++ * HUGE_PAGE, 1));
			CHECK(completed());
			done++;
		}
		while (done < posted && completed())
			done++;
		count += done;
	}
	printf("%d requests\n", count);
}

/* At most as many pages as a NIC wrote in the same time, 1,500 a second. */
static void own(void)
{
	size_t length = (size_t)HUGE_PAGES * HUGE_PAGE;
	char *all = mmap(NULL, length + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *pages = all + (-(uintptr_t)all & (HUGE_PAGE - 1));
	int count = 0;

	CHECK(all != MAP_FAILED);
	madvise(pages, length, MADV_HUGEPAGE);
	while (now() < end) {
		CHECK(!madvise(pages, length, MADV_DONTNEED));
		for (int i = 0; i < HUGE_PAGES && now() < end; i++, count++) {
			double begin = now();

			pages[(size_t)i * HUGE_PAGE] = 1;
			while (now() < begin + 1 / 1500.)
				usleep(50);
		}
	}
	printf("%d pages\n", count);
}

static struct ibv_comp_channel *raised;

static struct ibv_comp_channel *with_channel(struct ibv_context *of)
{
	return raised = ibv_create_comp_channel(of);
}

static void *wait_for_event(void *unused)
{
	/* Each entry waits by itself. */
	struct pollfd events[ENTRIES];

	for (int entry = 0; entry < ENTRIES; entry++)
		events[entry] = (struct pollfd){ .fd = raised->fd, .events = POLLIN };
	for (;;)
		poll(events, ENTRIES, -1);
	return unused;
}

static void waiters(void)
{
	char *pages = aligned_alloc(PAGE, PAGE);
	struct ibv_mr *mr = registered(memset(pages, 7, PAGE), PAGE);
	pthread_attr_t small;
	int count = 0;

	fcntl(raised->fd, F_SETFL, O_NONBLOCK);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 1 << 17);
	for (int thread = 0; thread < WAITERS; thread++) {
		pthread_t id;

		CHECK(!pthread_create(&id, &small, wait_for_event, NULL));
	}
	while (now() < end) {
		struct ibv_cq *of;
		void *data;

		CHECK(!ibv_req_notify_cq(cq, 0));
		CHECK(!post(mr, pages, mr, pages + 8, 8));
		CHECK(completed());
		count++;
		if (!ibv_get_cq_event(raised, &of, &data))
			ibv_ack_cq_events(of, 1);
	}
	printf("%d requests\n", count);
	fflush(stdout);
	_exit(0);
}

int main(int count, char **words)
{
	const char *way = count > 1 ? words[1] : "";

	CHECK(count > 2);
	end = now() + atof(words[2]);
	if (!strcmp(way, "late")) {
		CHECK(count == 5);
		late((uid_t)atoi(words[3]), (useconds_t)(1000 * atoi(words[4])));
		return 0;
	}
	open_device(strcmp(way, "waiters") ? NULL : with_channel);
	if (!strcmp(way, "honest"))
		honest();
	else if (!strcmp(way, "huge"))
		huge();
	else if (!strcmp(way, "own"))
		own();
	else if (!strcmp(way, "waiters"))
		waiters();
	else
		CHECK(!"a way that there is");
	return 0;
}
