/*
 * The agent of `roxie conform`: does at the target what the bench asks for, through libibverbs.
 *
 *     cc agent.c -libverbs -lrdmacm -o agent
 *     ./agent [-d DEVICE] [-p TCP_PORT] [-b ADDRESS]
 *     ./agent -i [-d DEVICE]
 *
 * Some devices have a connection manager only while a program uses one, so the agent listens by librdmacm on a port that nobody asks for.
 * Without librdmacm: cc -DWITHOUT_CM agent.c -libverbs -o agent
 *
 * A request is one line: a verb, then key=value words. Numbers are decimal or 0x hexadecimal. The answer is one line,
 * `ok key=value ...` or `err reason`. The agent serves one client at a time. All objects of a client are destroyed when its
 * connection ends, and a client that is silent for five minutes is disconnected. Any host that reaches the TCP port can use the
 * device: run the agent in a test network only. With -i the agent serves one client over its standard input and output, and ends.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#ifndef WITHOUT_CM
#include <rdma/rdma_cma.h>
#endif

#define PROTOCOL 1
#define MAX_MRS 32
#define MAX_QPS 32
#define MAX_WORDS 32
#define MAX_LINE 16384
#define MAX_REGION (1 << 22)
#define MAX_MARGIN 65536
#define MARGIN_BYTE 0xa7
#define MAX_BYTES 4096 /* of one peek or poke */
#define MAX_WAIT_MS 20000
#define IDLE_SECONDS 300

struct region {
	struct ibv_mr *mr;
	uint8_t *start;
	uint64_t size;
	uint64_t margin; /* bytes in front of start, and behind its last page, that are not registered */
};

struct pair {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	struct ibv_comp_channel *channel;
	struct ibv_ah *ah;
	struct ibv_mw *mw;
	struct ibv_srq *srq;   /* alone with cq and channel */
	struct rdma_cm_id *id; /* of a connection by the connection manager, which may have no queue pair yet */
	uint32_t qkey;
};

static struct ibv_context *context;
static struct ibv_pd *pds[2];
static struct ibv_xrcd *xrcds[2];
static struct region regions[MAX_MRS];
static struct pair pairs[MAX_QPS];
static int gid_index;
static uint8_t port_number = 1;
static FILE *out;

static char *words[MAX_WORDS];
static int word_count;
static int failed;

/* ---- the line protocol ---- */

static void ok(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	fputs("ok ", out);
	vfprintf(out, format, list);
	fputc('\n', out);
	va_end(list);
}

static void fail(const char *format, ...)
{
	va_list list;

	if (failed)
		return;
	failed = 1;
	va_start(list, format);
	fputs("err ", out);
	vfprintf(out, format, list);
	fputc('\n', out);
	va_end(list);
}

static const char *text(const char *key)
{
	size_t length = strlen(key);

	for (int i = 1; i < word_count; i++)
		if (strncmp(words[i], key, length) == 0 && words[i][length] == '=')
			return words[i] + length + 1;
	return NULL;
}

static uint64_t number(const char *key, uint64_t otherwise)
{
	const char *value = text(key);
	char *end;

	if (!value)
		return otherwise;
	errno = 0;
	uint64_t n = strtoull(value, &end, 0);
	if (errno || *end || end == value || *value == '-')
		fail("%s=%s is no number", key, value);
	return n;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return -1;
}

/* Decodes lower-case hexadecimal digits. Returns the number of bytes, or -1. */
static long from_hex(const char *hex, uint8_t *into, size_t most)
{
	size_t length = strlen(hex);

	if (length % 2 || length / 2 > most)
		return -1;
	for (size_t i = 0; i < length / 2; i++) {
		int high = hex_digit(hex[2 * i]), low = hex_digit(hex[2 * i + 1]);
		if (high < 0 || low < 0)
			return -1;
		into[i] = high << 4 | low;
	}
	return length / 2;
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Rights as letters: l(ocal write), r(emote read), w(remote write), a(tomic), b(ind windows); 0 for none. */
static int rights(const char *key, const char *otherwise)
{
	const char *list = text(key) ? text(key) : otherwise;
	int flags = 0;

	for (; *list; list++) {
		switch (*list) {
		case 'l': flags |= IBV_ACCESS_LOCAL_WRITE; break;
		case 'r': flags |= IBV_ACCESS_REMOTE_READ; break;
		case 'w': flags |= IBV_ACCESS_REMOTE_WRITE; break;
		case 'a': flags |= IBV_ACCESS_REMOTE_ATOMIC; break;
		case 'b': flags |= IBV_ACCESS_MW_BIND; break;
		case '0': break;
		default: fail("%s: unknown right '%c'", key, *list);
		}
	}
	return flags;
}

/* ---- memory ---- */

static struct region *region(void)
{
	uint64_t id = number("mr", MAX_MRS);

	if (id < MAX_MRS && regions[id].mr)
		return &regions[id];
	fail("no memory region %llu", (unsigned long long)id);
	return NULL;
}

/* Returns the bytes off= to off= + length of a region, or NULL. */
static uint8_t *bytes_of(struct region *r, uint64_t length)
{
	uint64_t offset = number("off", 0);

	if (!r || failed)
		return NULL;
	if (offset > r->size || length > r->size - offset) {
		fail("bytes %llu + %llu of a region of %llu", (unsigned long long)offset, (unsigned long long)length,
		     (unsigned long long)r->size);
		return NULL;
	}
	return r->start + offset;
}

static void cmd_mr(void)
{
	uint64_t size = number("size", 4096), pd = number("pd", 0), margin = number("margin", 0);
	int access = rights("access", "lrwa"), id = 0;
	void *whole_start;

	while (id < MAX_MRS && regions[id].mr)
		id++;
	if (id == MAX_MRS || size == 0 || size > MAX_REGION || pd > 1)
		fail("at most %d regions of 1 to %d bytes, pd=0 or 1", MAX_MRS, MAX_REGION);
	if (margin > MAX_MARGIN || margin % 4096)
		fail("a margin is whole pages of 4096 bytes, at most %d bytes", MAX_MARGIN);
	if (failed)
		return;
	uint64_t whole = 2 * margin + ((size + 4095) & ~4095ull);
	if (posix_memalign(&whole_start, 4096, whole))
		return fail("no memory");
	uint8_t *start = (uint8_t *)whole_start + margin;
	memset(whole_start, MARGIN_BYTE, whole);
	memset(start, 0, size);
	struct ibv_mr *mr = ibv_reg_mr(pds[pd], start, size, access);
	if (!mr) {
		fail("ibv_reg_mr: %s", strerror(errno));
		free(whole_start);
		return;
	}
	regions[id] = (struct region){ mr, start, size, margin };
	ok("mr=%d addr=0x%llx lkey=0x%x rkey=0x%x", id, (unsigned long long)(uintptr_t)start, mr->lkey, mr->rkey);
}

static void mr_free(struct region *r)
{
	if (r->mr && ibv_dereg_mr(r->mr) == 0) {
		free(r->start - r->margin);
		r->mr = NULL;
	}
}

static void cmd_mr_free(void)
{
	struct region *r = region();

	if (!r)
		return;
	mr_free(r);
	if (r->mr)
		return fail("ibv_dereg_mr: %s", strerror(errno));
	ok("");
}

/* Compares the bytes beside a region with what they were: at= is the place of the first that differs, from the region's first byte. */
static void cmd_margin(void)
{
	struct region *r = region();

	if (!r)
		return;
	int64_t margin = r->margin, end = ((r->size + 4095) & ~4095ull) + margin;
	const volatile uint8_t *start = r->start;
	for (int64_t i = -margin; i < end; i++) {
		if (i == 0)
			i = r->size;
		if (i >= end || start[i] == MARGIN_BYTE)
			continue;
		if (!number("repair", 0))
			return ok("changed=1 at=%lld", (long long)i);
		r->start[i] = MARGIN_BYTE;
	}
	if (!failed)
		ok("changed=0");
}

static void cmd_peek(void)
{
	uint64_t length = number("len", 8);
	uint8_t *from = bytes_of(region(), length);

	if (length > MAX_BYTES)
		fail("at most %d bytes at a time", MAX_BYTES);
	if (failed)
		return;
	fputs("ok hex=", out);
	for (uint64_t i = 0; i < length; i++)
		fprintf(out, "%02x", ((volatile uint8_t *)from)[i]);
	fputc('\n', out);
}

static void cmd_poke(void)
{
	static uint8_t decoded[MAX_BYTES];
	const char *hex = text("hex");
	long length = from_hex(hex ? hex : "", decoded, MAX_BYTES);

	if (length < 0)
		return fail("hex= has up to %d bytes of lower-case digits", MAX_BYTES);
	uint8_t *to = bytes_of(region(), length);
	if (!to)
		return;
	memcpy(to, decoded, length);
	ok("len=%ld", length);
}

/* Fills with bytes that count up from seed=, modulo 251. */
static void cmd_fill(void)
{
	uint64_t length = number("len", 0), seed = number("seed", 0);
	uint8_t *to = bytes_of(region(), length);

	if (!to)
		return;
	for (uint64_t i = 0; i < length; i++)
		to[i] = (seed + i) % 251;
	ok("len=%llu", (unsigned long long)length);
}

/* Compares with what fill would have written: at= is the first byte that differs, or len. */
static void cmd_compare(void)
{
	uint64_t length = number("len", 0), seed = number("seed", 0), i = 0;
	const volatile uint8_t *from = bytes_of(region(), length);

	if (!from)
		return;
	while (i < length && from[i] == (seed + i) % 251)
		i++;
	ok("len=%llu at=%llu", (unsigned long long)length, (unsigned long long)i);
}

/* ---- queue pairs ---- */

/* Returns the queue pair, shared receive queue or connection qp=, or NULL. */
static struct pair *queue(void)
{
	uint64_t id = number("qp", MAX_QPS);

	if (id < MAX_QPS && (pairs[id].qp || pairs[id].srq || pairs[id].id))
		return &pairs[id];
	fail("no queue pair %llu", (unsigned long long)id);
	return NULL;
}

static struct pair *pair(void)
{
	struct pair *p = queue();

	if (!p || p->qp)
		return p;
	fail("%d is no queue pair", (int)(p - pairs));
	return NULL;
}

/* Returns an entry that is not used, or NULL. */
static struct pair *unused(void)
{
	for (struct pair *p = pairs; p < pairs + MAX_QPS; p++)
		if (!p->qp && !p->srq && !p->id)
			return p;
	fail("at most %d queue pairs", MAX_QPS);
	return NULL;
}

/* A window is freed before its queue pair: rdma_rxe waits for it otherwise. */
static void pair_free(struct pair *p)
{
	if (p->mw)
		ibv_dealloc_mw(p->mw);
#ifndef WITHOUT_CM
	if (p->id) {
		if (p->qp)
			rdma_destroy_qp(p->id);
		rdma_destroy_id(p->id);
		p->qp = NULL;
	}
#endif
	if (p->qp)
		ibv_destroy_qp(p->qp);
	if (p->srq)
		ibv_destroy_srq(p->srq);
	if (p->ah)
		ibv_destroy_ah(p->ah);
	if (p->cq)
		ibv_destroy_cq(p->cq);
	if (p->channel)
		ibv_destroy_comp_channel(p->channel);
	memset(p, 0, sizeof *p);
}

/* Makes a completion queue and its channel. */
static int completions(struct pair *p, int count)
{
	p->channel = ibv_create_comp_channel(context);
	p->cq = p->channel ? ibv_create_cq(context, count, NULL, p->channel, 0) : NULL;
	if (!p->cq)
		fail("ibv_create_cq: %s", strerror(errno));
	return p->cq != NULL;
}

/* Returns the XRC domain domain= (0 or 1), which lives as long as the agent, or NULL. */
static struct ibv_xrcd *domain(void)
{
	uint64_t at = number("domain", 0);
	struct ibv_xrcd_init_attr init = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT
	};

	if (at > 1)
		fail("domain=0 or 1");
	else if (!xrcds[at] && !(xrcds[at] = ibv_open_xrcd(context, &init)))
		fail("ibv_open_xrcd: %s", strerror(errno));
	return failed ? NULL : xrcds[at];
}

static struct ibv_qp *qp_create(struct ibv_qp_init_attr *init)
{
	if (init->qp_type != IBV_QPT_XRC_RECV)
		return ibv_create_qp(pds[0], init);
	struct ibv_qp_init_attr_ex target = {
		.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = domain()
	};
	return target.xrcd ? ibv_create_qp_ex(context, &target) : NULL;
}

static void cmd_qp(void)
{
	static const struct {
		const char *name;
		enum ibv_qp_type type;
	} types[] = { { "rc", IBV_QPT_RC }, { "uc", IBV_QPT_UC }, { "ud", IBV_QPT_UD }, { "xrc", IBV_QPT_XRC_RECV } };
	const char *type = text("type") ? text("type") : "rc";
	uint32_t sq = number("sq", 32), rq = number("rq", 32);
	struct ibv_qp_init_attr init = { .cap = { sq, rq, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	int access = rights("access", "rwa");
	struct pair *p = unused();

	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (strcmp(types[i].name, type) == 0)
			init.qp_type = types[i].type;
	if (sq > 4096 || rq > 4096)
		fail("at most 4096 requests");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = port_number, .qkey = number("qkey", 0) };
	if (failed)
		return;
	p->qkey = attr.qkey;
	if (completions(p, sq + rq + 1)) {
		init.send_cq = init.recv_cq = p->cq;
		p->qp = qp_create(&init);
	}
	if (!p->qp) {
		fail("ibv_create_qp: %s", strerror(errno));
		return pair_free(p);
	}
	attr.qp_access_flags = init.qp_type == IBV_QPT_UC || init.qp_type == IBV_QPT_UD ? access & IBV_ACCESS_REMOTE_WRITE : access;
	int code = ibv_modify_qp(p->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						       (init.qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
	if (code) {
		fail("modify to INIT: %s", strerror(code));
		return pair_free(p);
	}
	ok("qp=%d qpn=%u", (int)(p - pairs), p->qp->qp_num);
}

/* Makes an XRC shared receive queue in domain=. Its completions are polled as those of a queue pair. */
static void cmd_srq(void)
{
	struct pair *p = unused();
	struct ibv_srq_init_attr_ex init = {
		.attr = { .max_wr = 32, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = pds[0],
		.xrcd = domain(),
	};
	uint32_t srqn = 0;

	if (failed)
		return;
	if (completions(p, 64)) {
		init.cq = p->cq;
		p->srq = ibv_create_srq_ex(context, &init);
	}
	if (!p->srq || ibv_get_srq_num(p->srq, &srqn)) {
		fail("ibv_create_srq_ex: %s", strerror(errno));
		return pair_free(p);
	}
	ok("qp=%d srqn=%u", (int)(p - pairs), srqn);
}

static int address(struct ibv_ah_attr *attr)
{
	const char *gid = text("gid");

	*attr = (struct ibv_ah_attr){
		.is_global = 1,
		.port_num = port_number,
		.grh = { .sgid_index = gid_index, .hop_limit = number("hops", 64), .traffic_class = number("tclass", 0) },
	};
	if (!gid || from_hex(gid, attr->grh.dgid.raw, 16) != 16)
		fail("gid= has 32 lower-case digits");
	return !failed;
}

/* INIT to RTS in one request. An MTU is in bytes. A datagram queue pair has an address handle instead of a peer. */
static void cmd_connect(void)
{
	struct pair *p = pair();
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024 };

	for (int mtu = IBV_MTU_256; mtu <= IBV_MTU_4096; mtu++)
		if (128u << mtu == number("mtu", 1024))
			rtr.path_mtu = mtu;
	if (!p || !address(&rtr.ah_attr))
		return;
	rtr.dest_qp_num = number("qpn", 0);
	rtr.rq_psn = number("rq_psn", 0);
	rtr.max_dest_rd_atomic = number("rd", 4);
	rtr.min_rnr_timer = number("rnr_timer", 12);
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS,
		.timeout = number("timeout", 0),
		.retry_cnt = number("retry", 7),
		.rnr_retry = number("rnr_retry", 7),
		.sq_psn = number("sq_psn", 0),
		.max_rd_atomic = number("rd", 4),
	};
	if (failed)
		return;
	int to_rtr = IBV_QP_STATE, to_rts = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (p->qp->qp_type != IBV_QPT_UD)
		to_rtr |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (p->qp->qp_type == IBV_QPT_RC || p->qp->qp_type == IBV_QPT_XRC_RECV)
		to_rtr |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	if (p->qp->qp_type == IBV_QPT_RC)
		to_rts |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	int code = ibv_modify_qp(p->qp, &rtr, to_rtr);
	if (code)
		return fail("modify to RTR: %s", strerror(code));
	/* An XRC target sends no requests. */
	code = p->qp->qp_type == IBV_QPT_XRC_RECV ? 0 : ibv_modify_qp(p->qp, &rts, to_rts);
	if (code)
		return fail("modify to RTS: %s", strerror(code));
	if (p->qp->qp_type == IBV_QPT_UD && !(p->ah = ibv_create_ah(pds[0], &rtr.ah_attr)))
		return fail("ibv_create_ah: %s", strerror(errno));
	ok("");
}

static const char *const states[] = { "reset", "init", "rtr", "rts", "sqd", "sqe", "err" };

static void cmd_modify(void)
{
	struct pair *p = pair();
	const char *to = text("to");
	struct ibv_qp_attr attr = { .qp_state = to && strcmp(to, "reset") == 0 ? IBV_QPS_RESET : IBV_QPS_ERR };

	if (!p)
		return;
	int code = ibv_modify_qp(p->qp, &attr, IBV_QP_STATE);
	if (code)
		return fail("ibv_modify_qp: %s", strerror(code));
	ok("");
}

static void cmd_query(void)
{
	struct pair *p = pair();
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	if (!p)
		return;
	int code = ibv_query_qp(p->qp, &attr, IBV_QP_STATE | IBV_QP_RQ_PSN | IBV_QP_SQ_PSN, &init);
	if (code)
		return fail("ibv_query_qp: %s", strerror(code));
	ok("state=%s rq_psn=%u sq_psn=%u", attr.qp_state <= IBV_QPS_ERR ? states[attr.qp_state] : "unknown", attr.rq_psn,
	   attr.sq_psn);
}

static void cmd_free(void)
{
	struct pair *p = queue();

	if (!p)
		return;
	pair_free(p);
	ok("");
}

/* ---- work requests and completions ---- */

/* mr=, off=, len= as one entry; none without mr=. */
static int entry(struct ibv_sge *sge)
{
	if (!text("mr"))
		return 0;
	struct region *r = region();
	uint64_t length = number("len", 0);
	uint8_t *start = bytes_of(r, length);
	if (!start)
		return 0;
	*sge = (struct ibv_sge){ (uintptr_t)start, length, number("lkey", r->mr->lkey) };
	return 1;
}

static void cmd_recv(void)
{
	struct pair *p = queue();
	struct ibv_sge sge;
	struct ibv_recv_wr *bad, wr = { .wr_id = number("id", 0), .sg_list = &sge };
	uint64_t count = number("n", 1);

	wr.num_sge = entry(&sge);
	for (uint64_t i = 0; p && !failed && i < count && i < 4096; i++, wr.wr_id++) {
		int code = p->srq ? ibv_post_srq_recv(p->srq, &wr, &bad) : p->qp ? ibv_post_recv(p->qp, &wr, &bad) : EINVAL;
		if (code)
			return fail("ibv_post_recv: %s", strerror(code));
	}
	if (!failed)
		ok("");
}

static const struct {
	const char *name;
	enum ibv_wr_opcode opcode;
} operations[] = {
	{ "send", IBV_WR_SEND },
	{ "send_imm", IBV_WR_SEND_WITH_IMM },
	{ "send_inv", IBV_WR_SEND_WITH_INV },
	{ "write", IBV_WR_RDMA_WRITE },
	{ "write_imm", IBV_WR_RDMA_WRITE_WITH_IMM },
	{ "read", IBV_WR_RDMA_READ },
	{ "cmp_swap", IBV_WR_ATOMIC_CMP_AND_SWP },
	{ "fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD },
};

static void cmd_send(void)
{
	struct pair *p = pair();
	struct ibv_sge sge;
	struct ibv_send_wr *bad, wr = { .wr_id = number("id", 0), .sg_list = &sge };
	const char *name = text("op") ? text("op") : "send", *flags = text("flags") ? text("flags") : "s";
	uint64_t count = number("n", 1);
	size_t op = 0;

	while (op < sizeof operations / sizeof *operations && strcmp(operations[op].name, name))
		op++;
	if (op == sizeof operations / sizeof *operations)
		return fail("op=%s is unknown", name);
	wr.opcode = operations[op].opcode;
	wr.num_sge = entry(&sge);
	wr.send_flags = (strchr(flags, 's') ? IBV_SEND_SIGNALED : 0) | (strchr(flags, 'e') ? IBV_SEND_SOLICITED : 0) |
			(strchr(flags, 'f') ? IBV_SEND_FENCE : 0);
	if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = number("raddr", 0);
		wr.wr.atomic.rkey = number("rkey", 0);
		wr.wr.atomic.compare_add = number("compare", 0);
		wr.wr.atomic.swap = number("swap", 0);
	} else {
		wr.wr.rdma.remote_addr = number("raddr", 0);
		wr.wr.rdma.rkey = number("rkey", 0);
	}
	if (wr.opcode == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = number("inv", 0);
	else
		wr.imm_data = htobe32(number("imm", 0));
	if (p && p->qp->qp_type == IBV_QPT_UD) {
		wr.wr.ud.ah = p->ah;
		wr.wr.ud.remote_qpn = number("qpn", 0);
		wr.wr.ud.remote_qkey = number("qkey", p->qkey);
	}
	for (uint64_t i = 0; p && !failed && i < count && i < 4096; i++, wr.wr_id++) {
		int code = ibv_post_send(p->qp, &wr, &bad);
		if (code)
			return fail("ibv_post_send: %s", strerror(code));
	}
	if (!failed)
		ok("");
}

/* Binds a window of type 2 to off=, len= of a region: its completion is polled as others. */
static void cmd_bind(void)
{
	struct pair *p = pair();
	struct region *r = region();
	uint64_t length = number("len", 0);
	uint8_t *start = bytes_of(r, length);
	struct ibv_send_wr *bad, wr = { .wr_id = number("id", 0), .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED };

	if (!p || !start || failed)
		return;
	if (!p->mw && !(p->mw = ibv_alloc_mw(pds[0], IBV_MW_TYPE_2)))
		return fail("ibv_alloc_mw: %s", strerror(errno));
	wr.bind_mw.mw = p->mw;
	wr.bind_mw.rkey = ibv_inc_rkey(p->mw->rkey);
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ r->mr, (uintptr_t)start, length, IBV_ACCESS_REMOTE_WRITE };
	int code = ibv_post_send(p->qp, &wr, &bad);
	if (code)
		return fail("bind: %s", strerror(code));
	p->mw->rkey = wr.bind_mw.rkey;
	ok("rkey=0x%x", wr.bind_mw.rkey);
}

/* Waits for n= completions or ms=, and prints each as id:status:opcode:length:flags:immediate:source. */
static void cmd_poll(void)
{
	struct pair *p = queue();
	uint64_t want = number("n", 1), wait = number("ms", 0), got = 0;
	struct ibv_wc wc[64];

	if (want > 64 || wait > MAX_WAIT_MS)
		fail("at most 64 completions within %d ms", MAX_WAIT_MS);
	if (p && !p->cq)
		fail("no completion queue");
	if (!p || failed)
		return;
	uint64_t until = now_ms() + wait;
	for (unsigned looks = 0; got < 64;) {
		int n = ibv_poll_cq(p->cq, 1, &wc[got]);
		if (n < 0)
			return fail("ibv_poll_cq: %d", n);
		if (n > 0) {
			got++;
			continue;
		}
		if (got >= want || now_ms() >= until)
			break;
		usleep(looks++ < 100 ? 20 : 500);
	}
	fprintf(out, "ok n=%llu", (unsigned long long)got);
	for (uint64_t i = 0; i < got; i++) {
		int good = wc[i].status == IBV_WC_SUCCESS;
		fprintf(out, " wc=%llu:%d:%d:%u:%u:%u:%u", (unsigned long long)wc[i].wr_id, wc[i].status,
			good ? (int)wc[i].opcode : -1, good ? wc[i].byte_len : 0, good ? wc[i].wc_flags : 0,
			good && wc[i].wc_flags & IBV_WC_WITH_IMM ? be32toh(wc[i].imm_data) : 0, good ? wc[i].src_qp : 0);
	}
	fputc('\n', out);
}

static void cmd_arm(void)
{
	struct pair *p = pair();

	if (!p)
		return;
	int code = ibv_req_notify_cq(p->cq, number("solicited", 0));
	if (code)
		return fail("ibv_req_notify_cq: %s", strerror(code));
	ok("");
}

static void cmd_event(void)
{
	struct pair *p = pair();
	uint64_t wait = number("ms", 0);
	struct ibv_cq *cq;
	void *cq_context;

	if (!p || failed)
		return;
	struct pollfd ready = { .fd = p->channel->fd, .events = POLLIN };
	int n = poll(&ready, 1, wait > MAX_WAIT_MS ? MAX_WAIT_MS : (int)wait);
	if (n > 0 && ibv_get_cq_event(p->channel, &cq, &cq_context) == 0)
		ibv_ack_cq_events(cq, 1);
	ok("event=%d", n > 0);
}

/* ---- connections by the connection manager ---- */

#ifndef WITHOUT_CM
static struct rdma_event_channel *cm_events;
static struct rdma_cm_id *listener;

/* Frees the connections and what listens for them: no identifier may outlive its channel. */
static void cm_free(void)
{
	for (struct pair *p = pairs; p < pairs + MAX_QPS; p++)
		if (p->id)
			pair_free(p);
	if (listener)
		rdma_destroy_id(listener);
	if (cm_events)
		rdma_destroy_event_channel(cm_events);
	listener = NULL;
	cm_events = NULL;
}

/* Listens for connections of IP version family= at a port that the system chooses. What listened before ends. */
static void cmd_listen(void)
{
	struct sockaddr_storage any = { .ss_family = number("family", 4) == 6 ? AF_INET6 : AF_INET };

	if (failed)
		return;
	cm_free();
	cm_events = rdma_create_event_channel();
	if (!cm_events || fcntl(cm_events->fd, F_SETFL, O_NONBLOCK) || rdma_create_id(cm_events, &listener, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(listener, (struct sockaddr *)&any) || rdma_listen(listener, 8)) {
		fail("the connection manager does not listen: %s", strerror(errno));
		return cm_free();
	}
	ok("port=%u", ntohs(rdma_get_src_port(listener)));
}

/* Waits ms= at most for an event. A request for a connection takes an entry, qp=, and has no queue pair before it is accepted. */
static void cmd_cm_event(void)
{
	uint64_t wait = number("ms", 0);
	struct rdma_cm_event *event;

	if (!cm_events)
		fail("nothing listens");
	if (failed)
		return;
	struct pollfd ready = { .fd = cm_events->fd, .events = POLLIN };
	if (poll(&ready, 1, wait > MAX_WAIT_MS ? MAX_WAIT_MS : (int)wait) <= 0 || rdma_get_cm_event(cm_events, &event))
		return ok("event=none");
	struct rdma_cm_id *id = event->id;
	const char *name = rdma_event_str(event->event);
	int is_request = event->event == RDMA_CM_EVENT_CONNECT_REQUEST, status = event->status;
	struct pair *p = pairs;
	rdma_ack_cm_event(event);
	if (is_request && (p = unused()))
		p->id = id;
	if (!p)
		return (void)rdma_destroy_id(id);
	while (p < pairs + MAX_QPS && p->id != id)
		p++;
	ok("event=%s status=%d qp=%d", name, status, (int)(p - pairs));
}

/* Returns the connection qp=, or NULL. */
static struct pair *connection(void)
{
	struct pair *p = queue();

	if (p && !p->id)
		fail("%d is no connection", (int)(p - pairs));
	return failed ? NULL : p;
}

static void cmd_accept(void)
{
	struct pair *p = connection();
	struct ibv_qp_init_attr init = { .cap = { 32, 32, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct rdma_conn_param agreed = {
		.responder_resources = RDMA_MAX_RESP_RES,
		.initiator_depth = RDMA_MAX_INIT_DEPTH,
		.rnr_retry_count = number("rnr_retry", 7),
	};

	if (!p || p->qp || !completions(p, 65))
		return fail("this connection cannot be accepted");
	init.send_cq = init.recv_cq = p->cq;
	if (rdma_create_qp(p->id, pds[0], &init))
		return fail("rdma_create_qp: %s", strerror(errno));
	p->qp = p->id->qp;
	if (rdma_accept(p->id, &agreed))
		return fail("rdma_accept: %s", strerror(errno));
	ok("qpn=%u", p->qp->qp_num);
}

static void cmd_reject(void)
{
	struct pair *p = connection();

	if (!p)
		return;
	if (rdma_reject(p->id, NULL, 0))
		return fail("rdma_reject: %s", strerror(errno));
	ok("");
}

/* Ends a connection: asks the peer to, or answers that it asked. */
static void cmd_disconnect(void)
{
	struct pair *p = connection();

	if (!p)
		return;
	if (rdma_disconnect(p->id))
		return fail("rdma_disconnect: %s", strerror(errno));
	ok("");
}
#else
static void cm_free(void)
{
}

static void cmd_listen(void)
{
	fail("this agent was compiled without librdmacm");
}
#endif

static void free_all(void)
{
	cm_free();
	for (int i = 0; i < MAX_QPS; i++)
		pair_free(&pairs[i]);
	for (int i = 0; i < MAX_MRS; i++)
		mr_free(&regions[i]);
}

/* ---- the device ---- */

/* Chooses the GID: the given one, or the first of RoCE v2. */
static int choose_gid(const char *wanted)
{
	uint8_t raw[16];
	int found = -1;

	if (wanted && from_hex(wanted, raw, 16) != 16)
		return -1;
	for (int i = 0; i < 256; i++) {
		struct ibv_gid_entry e;
		if (ibv_query_gid_ex(context, port_number, i, &e, 0))
			continue;
		if (e.gid_type == IBV_GID_TYPE_ROCE_V2 && (!wanted || memcmp(e.gid.raw, raw, 16) == 0) && found < 0)
			found = i;
	}
	return found;
}

/* A word without blanks, for a line of words. */
static const char *one_word(const char *value, char into[65])
{
	size_t n = 0;

	for (; *value && n < 64; value++)
		into[n++] = *value > ' ' && *value < 127 ? *value : '_';
	into[n] = 0;
	return n ? into : "-";
}

static void cmd_hello(void)
{
	struct ibv_device_attr d;
	struct ibv_port_attr port;
	struct utsname system;
	char firmware[65], kernel[65];

	int index = choose_gid(text("gid"));
	if (index < 0)
		return fail("%s has no RoCE v2 GID of that address: see `ibv_devinfo -v`, and choose another with -d",
			    ibv_get_device_name(context->device));
	gid_index = index;
	if (ibv_query_device(context, &d) || ibv_query_port(context, port_number, &port))
		return fail("ibv_query_device: %s", strerror(errno));
	uname(&system);
	ok("protocol=%d device=%s fw=%s vendor=0x%x part=%u hw=%u kernel=%s state=%d active_mtu=%d gid_index=%d max_qp=%d "
	   "max_qp_wr=%d max_sge=%d max_mr=%d max_qp_rd_atom=%d max_qp_init_rd_atom=%d atomic_cap=%d max_srq=%d "
	   "max_mr_size=%llu cap_flags=0x%x",
	   PROTOCOL, ibv_get_device_name(context->device), one_word(d.fw_ver, firmware), d.vendor_id, d.vendor_part_id, d.hw_ver,
	   one_word(system.release, kernel), port.state, 128 << port.active_mtu, gid_index, d.max_qp, d.max_qp_wr, d.max_sge,
	   d.max_mr, d.max_qp_rd_atom, d.max_qp_init_rd_atom, d.atomic_cap, d.max_srq, (unsigned long long)d.max_mr_size,
	   d.device_cap_flags);
}

static int device_open(const char *name)
{
	int count = 0;
	struct ibv_device **list;

#ifndef WITHOUT_CM
	/* Queue pairs of the connection manager are made with the contexts of its library, which stay open as long as the list. */
	struct ibv_context **opened = rdma_get_devices(&count);

	for (int i = 0; opened && i < count && !context; i++)
		if (!name || strcmp(ibv_get_device_name(opened[i]->device), name) == 0)
			context = opened[i];
	count = 0;
#endif
	list = ibv_get_device_list(&count);

	for (int i = 0; list && i < count && !context; i++)
		if (!name || strcmp(ibv_get_device_name(list[i]), name) == 0)
			context = ibv_open_device(list[i]);
	if (list)
		ibv_free_device_list(list);
	if (!context)
		return 0;
	pds[0] = ibv_alloc_pd(context);
	pds[1] = ibv_alloc_pd(context);
	return pds[0] && pds[1];
}

/* Makes the device's connection manager run, if there is one. The identifier lives as long as the agent. */
static void start_manager(void)
{
#ifndef WITHOUT_CM
	struct sockaddr_in any = { .sin_family = AF_INET };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;

	if (!channel)
		return;
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0 && rdma_bind_addr(id, (struct sockaddr *)&any) == 0)
		rdma_listen(id, 1);
#endif
}

static void cmd_reset(void)
{
	free_all();
	ok("");
}

static const struct {
	const char *name;
	void (*run)(void);
} commands[] = {
	{ "hello", cmd_hello },	  { "mr", cmd_mr },	{ "mr_free", cmd_mr_free }, { "peek", cmd_peek },
	{ "poke", cmd_poke },	  { "fill", cmd_fill }, { "compare", cmd_compare }, { "qp", cmd_qp },
	{ "margin", cmd_margin },
	{ "connect", cmd_connect }, { "modify", cmd_modify }, { "query", cmd_query },	    { "free", cmd_free },
	{ "recv", cmd_recv },	  { "send", cmd_send }, { "bind", cmd_bind },	    { "poll", cmd_poll },
	{ "arm", cmd_arm },	  { "event", cmd_event }, { "reset", cmd_reset },   { "srq", cmd_srq },
	{ "listen", cmd_listen },
#ifndef WITHOUT_CM
	{ "cm_event", cmd_cm_event }, { "accept", cmd_accept }, { "reject", cmd_reject }, { "disconnect", cmd_disconnect },
#endif
};

static void handle(char *line)
{
	word_count = 0;
	failed = 0;
	for (char *word = strtok(line, " \r\n"); word && word_count < MAX_WORDS; word = strtok(NULL, " \r\n"))
		words[word_count++] = word;
	if (word_count == 0)
		return;
	for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
		if (strcmp(commands[i].name, words[0]) == 0)
			return commands[i].run();
	fail("unknown request %s", words[0]);
}

/* Serves a client until its connection ends, its line is too long, or it is silent for too long. */
static void serve(int client, int answers)
{
	static char line[MAX_LINE];
	struct timeval idle = { .tv_sec = IDLE_SECONDS };
	int one = 1;
	FILE *in = fdopen(client, "r");

	/* An answer leaves at once: its second part would wait for the delayed acknowledgement of the first. */
	setsockopt(answers, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	out = fdopen(dup(answers), "w");
	setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &idle, sizeof idle);
	setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &idle, sizeof idle);
	while (in && out && fgets(line, sizeof line, in) && strchr(line, '\n')) {
		handle(line);
		if (fflush(out))
			break;
	}
	free_all();
	if (in)
		fclose(in);
	else
		close(client);
	if (out)
		fclose(out);
}

static int listen_at(const char *address, const char *port)
{
	struct addrinfo hints = { .ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM }, *list, *at;
	int one = 1, fd = -1;

	if (getaddrinfo(address, port, &hints, &list))
		return -1;
	for (at = list; at && fd < 0; at = at->ai_next) {
		/* Of the unspecified addresses, IPv6 takes connections of both versions. */
		if (!address && at->ai_family == AF_INET && at->ai_next)
			continue;
		fd = socket(at->ai_family, at->ai_socktype, 0);
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		if (fd >= 0 && (bind(fd, at->ai_addr, at->ai_addrlen) || listen(fd, 1))) {
			close(fd);
			fd = -1;
		}
	}
	freeaddrinfo(list);
	return fd;
}

int main(int argc, char **argv)
{
	const char *device = NULL, *port = "4790", *at = NULL;
	int option, is_filter = 0;

	while ((option = getopt(argc, argv, "d:p:b:i")) != -1) {
		switch (option) {
		case 'd': device = optarg; break;
		case 'p': port = optarg; break;
		case 'b': at = optarg; break;
		case 'i': is_filter = 1; break;
		default: fprintf(stderr, "usage: %s [-d DEVICE] [-p TCP_PORT] [-b ADDRESS] [-i]\n", argv[0]); return 2;
		}
	}
	signal(SIGPIPE, SIG_IGN);
	if (!device_open(device)) {
		fprintf(stderr, "%s: no RDMA device%s%s: see `ibv_devices`\n", argv[0], device ? " " : "", device ? device : "");
		return 1;
	}
	start_manager();
	if (is_filter) {
		serve(STDIN_FILENO, STDOUT_FILENO);
		return 0;
	}
	int tcp = listen_at(at, port);
	if (tcp < 0) {
		fprintf(stderr, "%s: cannot listen on TCP port %s: %s\n", argv[0], port, strerror(errno));
		return 1;
	}
	fprintf(stderr, "agent: %s, TCP port %s\n", ibv_get_device_name(context->device), port);
	for (;;) {
		int client = accept(tcp, NULL, NULL);
		if (client < 0 && errno != EINTR && errno != ECONNABORTED) {
			perror("accept");
			return 1;
		}
		if (client >= 0)
			serve(client, client);
	}
}
