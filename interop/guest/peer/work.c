/* Work requests and their completions. */
#include "peer.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
	{ "bind_mw", IBV_WR_BIND_MW },
	{ "local_inv", IBV_WR_LOCAL_INV },
#if HAS_PLACEMENT
	{ "atomic_write", IBV_WR_ATOMIC_WRITE },
	{ "flush", IBV_WR_FLUSH },
#endif
};

/* mr=, off=, len=: a gather or scatter entry. A work request without mr= has none. */
static bool entry_of(struct request *r, struct ibv_sge *sge, int *entries)
{
	*entries = 0;
	if (!text_or_null(r, "mr"))
		return !r->failed;
	struct region *region = region_of(r);
	if (!region)
		return false;
	uint64_t offset = number_or(r, "off", 0), length = number_or(r, "len", 0);
	if (r->failed || !within(region, offset, length))
		return false;
	sge->addr = region->start + offset;
	sge->length = length;
	sge->lkey = number_or(r, "lkey", region->mr->lkey);
	*entries = 1;
	return !r->failed;
}

void cmd_recv(struct request *r)
{
	/* srq=: to a shared queue instead of a pair's own. */
	bool shared = text_or_null(r, "srq");
	struct ibv_srq *srq = shared ? srq_of(r) : NULL;
	struct pair *pair = shared ? NULL : pair_of(r);
	struct ibv_sge sge;
	struct ibv_recv_wr *bad, wr = { .wr_id = number_or(r, "wr_id", 0), .sg_list = &sge };
	uint64_t count = number_or(r, "n", 1), stride = number_or(r, "stride", 0);

	if (!(pair || srq) || !entry_of(r, &sge, &wr.num_sge))
		return;
	for (uint64_t i = 0; i < count; i++, wr.wr_id++, sge.addr += stride) {
		int code = srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(pair->qp, &wr, &bad);
		if (code)
			return err(code, "posting receive %llu of %llu: %s", (unsigned long long)i + 1,
				   (unsigned long long)count, strerror(code));
	}
	ok("n=%llu", (unsigned long long)count);
}

static int send_flags(struct request *r)
{
	const char *list = text_or_null(r, "flags");
	int flags = 0;

	for (const char *c = list ? list : "s"; *c; c++) {
		switch (*c) {
		case 's': flags |= IBV_SEND_SIGNALED; break;
		case 'i': flags |= IBV_SEND_INLINE; break;
		case 'e': flags |= IBV_SEND_SOLICITED; break;
		case 'f': flags |= IBV_SEND_FENCE; break;
		case '0': break;
		default:
			err(EINVAL, "flags=%s: known are s(ignaled), i(nline), (solicited) e(vent), f(ence), 0", list);
			r->failed = true;
			return 0;
		}
	}
	return flags;
}

static bool operation_of(struct request *r, struct ibv_send_wr *wr)
{
	const char *name = text(r, "op");

	for (size_t i = 0; name && i < sizeof operations / sizeof *operations; i++) {
		if (strcmp(name, operations[i].name))
			continue;
		wr->opcode = operations[i].opcode;
		return true;
	}
	if (name)
		err(EINVAL, "op=%s is none of send, send_imm, send_inv, write, write_imm, read, cmp_swap, fetch_add, "
			    "bind_mw, local_inv, nor, of rdma-core 45, atomic_write, flush", name);
	return false;
}

/* Destination of a datagram: ah=, remote_qpn=, remote_qkey=. */
static void set_datagram(struct request *r, struct ibv_send_wr *wr)
{
	wr->wr.ud.ah = ah_of(r);
	wr->wr.ud.remote_qpn = number(r, "remote_qpn");
	wr->wr.ud.remote_qkey = number(r, "remote_qkey");
}

/* bind_mw: mw=, new_rkey=, mr=, off=, len=, access=. */
static void set_bind(struct request *r, struct ibv_send_wr *wr, const struct ibv_sge *sge)
{
	struct region *region = region_of(r);
	struct ibv_mw *mw = mw_of(r);

	if (r->failed)
		return;
	wr->num_sge = 0;
	wr->bind_mw.mw = mw;
	wr->bind_mw.rkey = number_or(r, "new_rkey", ibv_inc_rkey(mw->rkey));
	wr->bind_mw.bind_info = (struct ibv_mw_bind_info){
		.mr = region->mr,
		.addr = sge->addr,
		.length = sge->length,
		.mw_access_flags = access_flags(r),
	};
}

static void set_operation(struct request *r, struct ibv_send_wr *wr, const struct ibv_sge *sge)
{
	switch (wr->opcode) {
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		wr->wr.atomic.remote_addr = number(r, "raddr");
		wr->wr.atomic.rkey = number(r, "rkey");
		wr->wr.atomic.compare_add = number(r, "compare_add");
		wr->wr.atomic.swap = number_or(r, "swap", 0);
		break;
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_RDMA_READ:
		wr->wr.rdma.remote_addr = number(r, "raddr");
		wr->wr.rdma.rkey = number(r, "rkey");
		break;
	case IBV_WR_BIND_MW:
		set_bind(r, wr, sge);
		break;
	default:
		break;
	}
	if (wr->opcode == IBV_WR_SEND_WITH_INV || wr->opcode == IBV_WR_LOCAL_INV)
		wr->invalidate_rkey = number(r, "rkey");
	else
		wr->imm_data = htobe32(number_or(r, "imm", 0));
}

#if HAS_PLACEMENT
/* Posts requests without a struct ibv_send_wr. Returns an errno. */
static int post_extended(struct pair *pair, const struct ibv_send_wr *wr, struct request *r, const struct ibv_sge *sge)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(pair->qp);
	uint64_t raddr = number(r, "raddr"), length = number_or(r, "len", 0);
	struct region *from = wr->opcode == IBV_WR_FLUSH ? NULL : region_of(r);
	uint32_t rkey = number(r, "rkey"), type = number_or(r, "type", 1), level = number_or(r, "level", 0);

	if (r->failed || !qp)
		return EOPNOTSUPP;
	ibv_wr_start(qp);
	qp->wr_id = wr->wr_id;
	qp->wr_flags = wr->send_flags;
	if (wr->opcode == IBV_WR_FLUSH)
		ibv_wr_flush(qp, rkey, raddr, length, type, level);
	else
		ibv_wr_atomic_write(qp, rkey, raddr, from->base + (sge->addr - from->start));
	return ibv_wr_complete(qp);
}
#endif

static int post(struct pair *pair, struct ibv_send_wr *wr, struct request *r, const struct ibv_sge *sge)
{
	struct ibv_send_wr *bad;

#if HAS_PLACEMENT
	if (wr->opcode == IBV_WR_FLUSH || (wr->opcode == IBV_WR_ATOMIC_WRITE && wr->num_sge == 1 && sge->length == 8))
		return post_extended(pair, wr, r, sge);
#endif
	(void)r;
	(void)sge;
	return ibv_post_send(pair->qp, wr, &bad);
}

void cmd_send(struct request *r)
{
	struct pair *pair = pair_of(r);
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .wr_id = number_or(r, "wr_id", 0), .sg_list = &sge };
	uint64_t count = number_or(r, "n", 1);

	if (!pair || !operation_of(r, &wr) || !entry_of(r, &sge, &wr.num_sge))
		return;
	wr.send_flags = send_flags(r);
	set_operation(r, &wr, &sge);
	if (pair->qp->qp_type == IBV_QPT_UD)
		set_datagram(r, &wr);
	if (r->failed)
		return;
	for (uint64_t i = 0; i < count; i++, wr.wr_id++) {
		int code = post(pair, &wr, r, &sge);
		if (code)
			return err(code, "posting, %llu of %llu: %s", (unsigned long long)i + 1,
				   (unsigned long long)count, strerror(code));
	}
	if (wr.opcode == IBV_WR_BIND_MW) {
		/* As ibv_bind_mw does: later binds count from this key. */
		wr.bind_mw.mw->rkey = wr.bind_mw.rkey;
		return ok("n=%llu rkey=0x%x", (unsigned long long)count, wr.bind_mw.rkey);
	}
	ok("n=%llu", (unsigned long long)count);
}

static const char *completion_name(const struct ibv_wc *wc)
{
	switch (wc->opcode) {
	case IBV_WC_SEND: return "send";
	case IBV_WC_RDMA_WRITE: return "write";
	case IBV_WC_RDMA_READ: return "read";
	case IBV_WC_COMP_SWAP: return "cmp_swap";
	case IBV_WC_FETCH_ADD: return "fetch_add";
	case IBV_WC_BIND_MW: return "bind_mw";
	case IBV_WC_LOCAL_INV: return "local_inv";
#if HAS_PLACEMENT
	case IBV_WC_ATOMIC_WRITE: return "atomic_write";
	case IBV_WC_FLUSH: return "flush";
#endif
	case IBV_WC_RECV: return "recv";
	case IBV_WC_RECV_RDMA_WITH_IMM: return "recv_imm";
	default: return "other";
	}
}

/*
 * Waits for min= completions (default 1) or timeout_ms=, and returns up to max= of them. Polls often at
 * first, then sleeps between polls: in an emulated guest a spinning process starves the softirqs that
 * process packets.
 */
void cmd_poll(struct request *r)
{
	struct pair *pair = pair_of(r);
	uint64_t least = number_or(r, "min", 1), most = number_or(r, "max", MAX_POLL);
	uint64_t until = now_ms() + number_or(r, "timeout_ms", 0), got = 0;

	if (!pair || r->failed)
		return;
	if (most > MAX_POLL)
		most = MAX_POLL;
	for (unsigned looks = 0; got < most;) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(pair->cq, 1, &wc);
		if (n < 0)
			return err(EIO, "ibv_poll_cq: %d", n);
		if (n == 0) {
			if (got >= least || now_ms() >= until)
				break;
			usleep(looks++ < 50 ? 20 : 200);
			continue;
		}
		/* Opcode, length and data are valid only if the status is success. */
		bool good = wc.status == IBV_WC_SUCCESS;
		detail("wr_id=%llu status=%d opcode=%s byte_len=%u flags=%u imm=0x%08x inv=0x%08x src_qp=%u vendor=0x%x",
		       (unsigned long long)wc.wr_id, wc.status, good ? completion_name(&wc) : "-",
		       good ? wc.byte_len : 0, good ? wc.wc_flags : 0,
		       good && (wc.wc_flags & IBV_WC_WITH_IMM) ? be32toh(wc.imm_data) : 0,
		       good ? wc.invalidated_rkey : 0, good ? wc.src_qp : 0, wc.vendor_err);
		got++;
	}
	ok("n=%llu", (unsigned long long)got);
}
