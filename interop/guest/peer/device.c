/* The device: its properties, GIDs, events and counters. */
#include "peer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#if HAS_PLACEMENT
/* The kernel's values (ib_user_verbs.h, enum ib_uverbs_device_cap_flags), which verbs.h does not define. */
#define DEVICE_FLUSH_GLOBAL (1ull << 38)
#define DEVICE_FLUSH_PERSISTENT (1ull << 39)
#define DEVICE_ATOMIC_WRITE (1ull << 40)
#endif

struct ibv_context *context;
struct ibv_pd *pd;
uint8_t port_number = 1;
int flush_rights;

uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

bool device_open(const char *name)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);

	for (int i = 0; list && i < count && !context; i++)
		if (!name || strcmp(ibv_get_device_name(list[i]), name) == 0)
			context = ibv_open_device(list[i]);
	if (!context)
		fprintf(stderr, "roxie-peer: no RDMA device %s among %d: see `rdma link`\n", name ? name : "at all",
			count);
	if (list)
		ibv_free_device_list(list);
	if (!context)
		return false;
	/* Non-blocking: asynchronous events are polled. */
	fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
	pd = ibv_alloc_pd(context);
	if (!pd)
		fprintf(stderr, "roxie-peer: ibv_alloc_pd: %s\n", strerror(errno));
#if HAS_PLACEMENT
	struct ibv_device_attr_ex device;
	if (ibv_query_device_ex(context, NULL, &device) == 0) {
		if (device.device_cap_flags_ex & DEVICE_FLUSH_GLOBAL)
			flush_rights |= IBV_ACCESS_FLUSH_GLOBAL;
		if (device.device_cap_flags_ex & DEVICE_FLUSH_PERSISTENT)
			flush_rights |= IBV_ACCESS_FLUSH_PERSISTENT;
	}
#endif
	return pd != NULL;
}

bool device_is_open(void)
{
	return context;
}

void device_close(void)
{
	if (pd)
		ibv_dealloc_pd(pd);
	ibv_close_device(context);
	pd = NULL;
	context = NULL;
}

bool parse_gid(const char *hex, union ibv_gid *gid)
{
	if (strlen(hex) != 32 || strspn(hex, "0123456789abcdefABCDEF") != 32)
		return false;
	for (int i = 0; i < 16; i++) {
		unsigned byte;
		sscanf(hex + 2 * i, "%2x", &byte);
		gid->raw[i] = byte;
	}
	return true;
}

void format_gid(const union ibv_gid *gid, char out[33])
{
	for (int i = 0; i < 16; i++)
		sprintf(out + 2 * i, "%02x", gid->raw[i]);
}

void cmd_hello(struct request *r)
{
	struct ibv_port_attr port;
	struct ibv_device_attr_ex ex;
	const struct ibv_device_attr *device = &ex.orig_attr;
	struct utsname system;
	bool global = false, persistent = false, atomic_write = false;
	int code = ibv_query_port(context, port_number, &port);

	(void)r;
	if (!code)
		code = ibv_query_device_ex(context, NULL, &ex);
	if (code)
		return err(code, "query of %s: %s", ibv_get_device_name(context->device), strerror(code));
	uname(&system);
#if HAS_PLACEMENT
	global = ex.device_cap_flags_ex & DEVICE_FLUSH_GLOBAL;
	persistent = ex.device_cap_flags_ex & DEVICE_FLUSH_PERSISTENT;
	atomic_write = ex.device_cap_flags_ex & DEVICE_ATOMIC_WRITE;
#endif
	ok("protocol=%d device=%s kernel=%s rdma_core=%d.%d fw=%s state=%s active_mtu=%d max_mtu=%d max_qp_wr=%d max_sge=%d "
	   "max_qp_rd_atom=%d max_qp_init_rd_atom=%d atomic_cap=%d flush_global=%d flush_persistent=%d atomic_write=%d gids=%d",
	   PROTOCOL_VERSION, ibv_get_device_name(context->device), system.release, RDMA_CORE_MAJOR, RDMA_CORE_MINOR,
	   device->fw_ver[0] ? device->fw_ver : "-", port.state == IBV_PORT_ACTIVE ? "active" : "down",
	   128 << port.active_mtu, 128 << port.max_mtu, device->max_qp_wr, device->max_sge, device->max_qp_rd_atom,
	   device->max_qp_init_rd_atom, device->atomic_cap, global, persistent, atomic_write, port.gid_tbl_len);
}

/* Returns the GID's type from sysfs: "v2", "v1" or "ib". */
static const char *gid_type(int index)
{
	char path[256], type[32] = "";
	FILE *f;

	snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/%d/gid_attrs/types/%d",
		 ibv_get_device_name(context->device), port_number, index);
	f = fopen(path, "r");
	if (!f)
		return "-";
	if (!fgets(type, sizeof type, f))
		type[0] = 0;
	fclose(f);
	if (strncmp(type, "RoCE v2", 7) == 0)
		return "v2";
	return strncmp(type, "IB/RoCE v1", 10) == 0 ? "v1" : "-";
}

void cmd_gids(struct request *r)
{
	struct ibv_port_attr port;
	int shown = 0, code = ibv_query_port(context, port_number, &port);

	(void)r;
	if (code)
		return err(code, "ibv_query_port: %s", strerror(code));
	for (int i = 0; i < port.gid_tbl_len; i++) {
		static const union ibv_gid none;
		union ibv_gid gid;
		char hex[33];
		if (ibv_query_gid(context, port_number, i, &gid) || memcmp(&gid, &none, sizeof gid) == 0)
			continue;
		format_gid(&gid, hex);
		detail("index=%d gid=%s type=%s", i, hex, gid_type(i));
		shown++;
	}
	ok("n=%d", shown);
}

void cmd_events(struct request *r)
{
	uint64_t timeout = number_or(r, "timeout_ms", 0), until = now_ms() + timeout;
	int count = 0;

	if (r->failed)
		return;
	for (;;) {
		struct pollfd ready = { .fd = context->async_fd, .events = POLLIN };
		uint64_t now = now_ms();
		struct ibv_async_event event;
		/* After the first event, take the queued ones without waiting. */
		if (poll(&ready, 1, count || now >= until ? 0 : (int)(until - now)) <= 0)
			break;
		if (ibv_get_async_event(context, &event))
			break;
		detail("event=%d name=\"%s\"", event.event_type, ibv_event_type_str(event.event_type));
		ibv_ack_async_event(&event);
		count++;
	}
	ok("n=%d", count);
}

void cmd_counters(struct request *r)
{
	char folder[200];
	int count = 0;

	(void)r;
	snprintf(folder, sizeof folder, "/sys/class/infiniband/%s/ports/%d/hw_counters",
		 ibv_get_device_name(context->device), port_number);
	DIR *dir = opendir(folder);
	if (!dir)
		return err(errno, "%s: %s", folder, strerror(errno));
	for (struct dirent *entry; (entry = readdir(dir));) {
		char path[512], value[64];
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
		FILE *f = fopen(path, "r");
		if (!f)
			continue;
		if (fgets(value, sizeof value, f)) {
			value[strcspn(value, "\n")] = 0;
			detail("%s=%s", entry->d_name, value);
			count++;
		}
		fclose(f);
	}
	closedir(dir);
	ok("n=%d", count);
}
