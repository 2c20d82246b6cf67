/* A thread handles the events of a channel, and another one destroys the channel as soon as the last event is acknowledged: as rping ends.
 * The first thread is about to call rdma_get_cm_event again: as with the kernel, it then waits for ever. */

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <semaphore.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static struct rdma_event_channel *channel;
static sem_t acknowledged;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

static void *handle(void *unused)
{
	struct rdma_cm_event *event;
	double until;

	(void)unused;
	for (;;) {
		if (rdma_get_cm_event(channel, &event))
			fail("rdma_get_cm_event", __LINE__);
		CHECK(rdma_ack_cm_event(event) == 0);
		until = now() + 0.01;
		CHECK(sem_post(&acknowledged) == 0);
		/* Spins, as if the thread had been preempted here. */
		while (now() < until)
			;
	}
	return NULL;
}

/* Sleeps elsewhere while its channel is closed. */
static void *sleeps(void *unused)
{
	struct rdma_cm_event *event;

	(void)unused;
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(sem_post(&acknowledged) == 0);
	pause();
	return NULL;
}

static void once(void *(*what)(void *), struct sockaddr_in *to)
{
	struct rdma_cm_id *id;
	pthread_t thread;

	CHECK((channel = rdma_create_event_channel()) != NULL);
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(pthread_create(&thread, NULL, what, NULL) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)to, 2000) == 0);
	CHECK(sem_wait(&acknowledged) == 0);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}

int main(int count, char **words)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(7174)};
	int times;

	CHECK(count == 2 && inet_pton(AF_INET, words[1], &to.sin_addr) == 1);
	CHECK(sem_init(&acknowledged, 0, 0) == 0);
	for (times = 0; times < 5; times++) {
		once(handle, &to);
		once(sleeps, &to);
	}
	/* A thread with an error would have ended the process by now. */
	usleep(50000);
	puts("all waited");
	return 0;
}
