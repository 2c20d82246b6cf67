/* Address handles, shared receive queues, memory windows. */
#include "peer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct ibv_ah *handles[MAX_AHS];
static struct ibv_srq *queues[MAX_SRQS];
static struct ibv_mw *windows[MAX_MWS];

/* Returns the object that `key=` names in a table of `count`, or NULL after an error reply. */
static void *named(struct request *r, const char *key, void *const *table, uint64_t count)
{
	uint64_t id = number(r, key);

	if (r->failed)
		return NULL;
	if (id < count && table[id])
		return table[id];
	err(ENOENT, "no object %s=%llu", key, (unsigned long long)id);
	r->failed = true;
	return NULL;
}

/* Returns a free place in a table, or -1 after an error reply. */
static int free_place(void *const *table, int count, const char *what)
{
	for (int id = 0; id < count; id++)
		if (!table[id])
			return id;
	err(ENOSPC, "all %d %s are in use: reset frees them", count, what);
	return -1;
}

struct ibv_ah *ah_of(struct request *r)
{
	return named(r, "ah", (void *const *)handles, MAX_AHS);
}

struct ibv_srq *srq_of(struct request *r)
{
	return named(r, "srq", (void *const *)queues, MAX_SRQS);
}

struct ibv_mw *mw_of(struct request *r)
{
	return named(r, "mw", (void *const *)windows, MAX_MWS);
}

void cmd_ah(struct request *r)
{
	const char *gid = text(r, "gid");
	struct ibv_ah_attr attr = {
		.is_global = 1,
		.port_num = port_number,
		.grh = {
			.sgid_index = number(r, "gid_index"),
			.hop_limit = number_or(r, "hop_limit", 64),
			.traffic_class = number_or(r, "traffic_class", 0),
		},
	};
	int id;

	if (r->failed)
		return;
	if (!parse_gid(gid, &attr.grh.dgid))
		return err(EINVAL, "gid=%s is not 32 hex digits", gid);
	if ((id = free_place((void *const *)handles, MAX_AHS, "address handles")) < 0)
		return;
	handles[id] = ibv_create_ah(pd, &attr);
	if (!handles[id])
		return err(errno, "ibv_create_ah: %s", strerror(errno));
	ok("ah=%d", id);
}

void cmd_srq(struct request *r)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = number_or(r, "max", 64), .max_sge = 1 } };
	int id;

	if (r->failed || (id = free_place((void *const *)queues, MAX_SRQS, "shared receive queues")) < 0)
		return;
	queues[id] = ibv_create_srq(pd, &attr);
	if (!queues[id])
		return err(errno, "ibv_create_srq: %s", strerror(errno));
	ok("srq=%d max=%u", id, attr.attr.max_wr);
}

void cmd_srq_limit(struct request *r)
{
	struct ibv_srq *srq = srq_of(r);
	struct ibv_srq_attr attr = { .srq_limit = number(r, "limit") };

	if (r->failed)
		return;
	int code = ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT);
	if (code)
		return err(code, "ibv_modify_srq: %s", strerror(code));
	ok(" ");
}

void cmd_mw(struct request *r)
{
	int id = free_place((void *const *)windows, MAX_MWS, "memory windows");

	(void)r;
	if (id < 0)
		return;
	windows[id] = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	if (!windows[id])
		return err(errno, "ibv_alloc_mw: %s", strerror(errno));
	ok("mw=%d rkey=0x%x", id, windows[id]->rkey);
}

/* Before the queue pairs: rxe waits 50 s when it destroys a queue pair with a window. */
void windows_reset(void)
{
	for (int i = 0; i < MAX_MWS; i++)
		if (windows[i] && ibv_dealloc_mw(windows[i]) == 0)
			windows[i] = NULL;
}

/* After the queue pairs, before the regions. */
void objects_reset(void)
{
	for (int i = 0; i < MAX_AHS; i++)
		if (handles[i] && ibv_destroy_ah(handles[i]) == 0)
			handles[i] = NULL;
	for (int i = 0; i < MAX_SRQS; i++)
		if (queues[i] && ibv_destroy_srq(queues[i]) == 0)
			queues[i] = NULL;
}
