/* Multicast groups: joined at the kernel, attached to a queue pair. */
#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool is_v4(const union ibv_gid *gid)
{
	return IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)gid->raw);
}

/*
 * The device's driver receives what its host's IP layer accepts, which drops groups that no socket has joined. The RDMA
 * connection manager would join in the kernel; without it, a socket joins.
 */
static int join(const union ibv_gid *gid, unsigned interface)
{
	int fd = socket(is_v4(gid) ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0), code;

	if (fd < 0)
		return -1;
	if (is_v4(gid)) {
		struct ip_mreqn request = { .imr_ifindex = interface };
		memcpy(&request.imr_multiaddr, gid->raw + 12, 4);
		code = setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request);
	} else {
		struct ipv6_mreq request = { .ipv6mr_interface = interface };
		memcpy(&request.ipv6mr_multiaddr, gid->raw, 16);
		code = setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &request, sizeof request);
	}
	if (!code)
		return fd;
	code = errno;
	close(fd);
	errno = code;
	return -1;
}

static bool group_of(struct request *r, union ibv_gid *gid)
{
	const char *hex = text(r, "gid");

	if (r->failed)
		return false;
	if (parse_gid(hex, gid))
		return true;
	err(EINVAL, "gid=%s is not 32 hex digits", hex);
	return false;
}

/* Returns the interface of a GID, from sysfs. */
static bool interface_of(uint64_t gid_index, char *name, size_t room)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/%d/gid_attrs/ndevs/%llu",
		 ibv_get_device_name(context->device), port_number, (unsigned long long)gid_index);
	f = fopen(path, "r");
	if (!f || !fgets(name, room, f))
		name[0] = 0;
	if (f)
		fclose(f);
	name[strcspn(name, "\n")] = 0;
	return name[0];
}

/* attach qp= gid= gid_index=: until `detach`, `qp_free` or `reset`. One group at a time. */
void cmd_attach(struct request *r)
{
	struct pair *pair = pair_of(r);
	uint64_t gid_index = number(r, "gid_index");
	char name[64] = "";
	union ibv_gid gid;

	if (!pair || r->failed || !group_of(r, &gid))
		return;
	if (pair->attached)
		return err(EBUSY, "the queue pair is in a group already: detach it first");
	if (!interface_of(gid_index, name, sizeof name))
		return err(ENODEV, "GID %llu has no interface", (unsigned long long)gid_index);
	int fd = join(&gid, if_nametoindex(name));
	if (fd < 0)
		return err(errno, "joining on %s: %s", name, strerror(errno));
	int code = ibv_attach_mcast(pair->qp, &gid, 0);
	if (code) {
		close(fd);
		return err(code, "ibv_attach_mcast: %s", strerror(code));
	}
	pair->attached = true;
	pair->group = gid;
	pair->membership = fd;
	ok(" ");
}

void cmd_detach(struct request *r)
{
	struct pair *pair = pair_of(r);

	if (!pair)
		return;
	int code = leave_group(pair);
	if (code)
		return err(code, "ibv_detach_mcast: %s", strerror(code));
	ok(" ");
}

/* member gid=: whether the kernel's tables have the group, on any interface. */
void cmd_member(struct request *r)
{
	char row[256], want[40] = "";
	union ibv_gid gid;
	bool found = false;

	if (!group_of(r, &gid))
		return;
	if (is_v4(&gid)) {
		uint32_t address;
		memcpy(&address, gid.raw + 12, 4);
		snprintf(want, sizeof want, "%08X", address);
	} else {
		format_gid(&gid, want);
	}
	FILE *f = fopen(is_v4(&gid) ? "/proc/net/igmp" : "/proc/net/igmp6", "r");
	while (f && !found && fgets(row, sizeof row, f))
		found = strstr(row, want) != NULL;
	if (f)
		fclose(f);
	ok("member=%d", found);
}
