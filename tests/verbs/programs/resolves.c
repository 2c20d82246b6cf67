/* rdma_resolve_addr of hosts that do not answer, and of one that does. Each address has its event when its own timeout expires, however many
 * others are being resolved. Arguments: an address that answers, and the first of 21 that do not. Prints the first failure and exits
 * with 1. */

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { SILENT = 20, LONG_MS = 2500, SHORT_MS = 100 };

static struct rdma_event_channel *channel;

static struct rdma_cm_id *resolve(struct in_addr address, int timeout_ms)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7471), .sin_addr = address };
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, timeout_ms) == 0);
	return id;
}

/* Checks the next event. */
static void next(struct rdma_cm_id *id, enum rdma_cm_event_type type, int status)
{
	struct rdma_cm_event *event;

	CHECK(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != type || event->status != status)
		fprintf(stderr, "%s, status %d\n", rdma_event_str(event->event), event->status);
	CHECK(event->event == type && event->status == status);
	CHECK(!id || event->id == id);
	CHECK(rdma_ack_cm_event(event) == 0);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int count, char **arguments)
{
	struct in_addr there, silent;
	struct rdma_cm_id *id, *others[SILENT];
	double began;

	CHECK(count == 3 && inet_aton(arguments[1], &there) && inet_aton(arguments[2], &silent));
	CHECK((channel = rdma_create_event_channel()));
	alarm(60);
	began = now();
	for (int i = 0; i < SILENT; i++) {
		others[i] = resolve(silent, LONG_MS);
		silent.s_addr = htonl(ntohl(silent.s_addr) + 1);
	}
	/* Resolved, or timed out, before earlier requests. */
	id = resolve(there, LONG_MS);
	next(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(rdma_resolve_route(id, SHORT_MS) == 0);
	next(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	CHECK(rdma_destroy_id(id) == 0);
	id = resolve(silent, SHORT_MS);
	next(id, RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT);
	CHECK(rdma_destroy_id(id) == 0);
	/* A destroyed identifier gets no event. */
	CHECK(rdma_destroy_id(others[0]) == 0);
	for (int i = 1; i < SILENT; i++)
		next(NULL, RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT);
	CHECK(now() - began >= LONG_MS / 1e3);
	for (int i = 1; i < SILENT; i++)
		CHECK(rdma_destroy_id(others[i]) == 0);
	rdma_destroy_event_channel(channel);
	puts("all so");
	return 0;
}
