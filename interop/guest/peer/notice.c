/* Datagrams sent through a socket beside the device, exact in every byte, from an address of this host. */
#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST 1024

/* Converts hex digits to bytes; -1 if they are invalid or too many. */
static int bytes_of(const char *hex, uint8_t *to)
{
	size_t length = strlen(hex) / 2;
	unsigned byte;

	if (strlen(hex) % 2 || length > MOST)
		return -1;
	for (size_t i = 0; i < length; i++) {
		if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
			return -1;
		to[i] = byte;
	}
	return length;
}

static int send_v4(const union ibv_gid *to, int from, int port, const uint8_t *bytes, size_t length)
{
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = htons(from) };
	struct sockaddr_in there = { .sin_family = AF_INET, .sin_port = htons(port) };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), code = 0;
	/* DF is set, so the identification is 0. */
	int whole = IP_PMTUDISC_DO;

	if (fd < 0)
		return errno;
	memcpy(&there.sin_addr, to->raw + 12, 4);
	if (setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &whole, sizeof whole) ||
	    bind(fd, (struct sockaddr *)&here, sizeof here) ||
	    sendto(fd, bytes, length, 0, (struct sockaddr *)&there, sizeof there) != (ssize_t)length)
		code = errno;
	close(fd);
	return code;
}

static int send_v6(const union ibv_gid *to, int from, int port, const uint8_t *bytes, size_t length)
{
	struct sockaddr_in6 here = { .sin6_family = AF_INET6, .sin6_port = htons(from) };
	struct sockaddr_in6 there = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0), code = 0;

	if (fd < 0)
		return errno;
	memcpy(&there.sin6_addr, to->raw, 16);
	if (bind(fd, (struct sockaddr *)&here, sizeof here) ||
	    sendto(fd, bytes, length, 0, (struct sockaddr *)&there, sizeof there) != (ssize_t)length)
		code = errno;
	close(fd);
	return code;
}

/* datagram gid= from= port= hex=: one UDP datagram to that address. */
void cmd_datagram(struct request *r)
{
	const char *gid = text(r, "gid"), *hex = text(r, "hex");
	uint64_t from = number(r, "from"), port = number(r, "port");
	uint8_t bytes[MOST];
	union ibv_gid to;
	int length, code;

	if (r->failed)
		return;
	if (!parse_gid(gid, &to))
		return err(EINVAL, "gid=%s is not 32 hex digits", gid);
	length = bytes_of(hex, bytes);
	if (length < 0)
		return err(EINVAL, "hex= is no more than %d bytes in hex digits", MOST);
	bool v4 = IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)to.raw);
	code = (v4 ? send_v4 : send_v6)(&to, from, port, bytes, length);
	if (code)
		return err(code, "a datagram: %s", strerror(code));
	ok(" ");
}
