/* Messages from and to memory in a registration cache that was unmapped and mapped again: UCX, to itself. Prints the first wrong byte and
 * exits with 1.
 *
 * cached keep       the same pages each time: the cache is useful
 * cached anew       other pages at the same address each time
 * cached less       other pages at the same address, and fewer */

#define _GNU_SOURCE
#include <sys/mman.h>
#include <ucp/api/ucp.h>

#include "check.h"

/* Larger than the messages that UCX copies. */
#define LENGTH (1 << 20)
#define ROUNDS 16

static ucp_worker_h worker;

static void finish(void *request)
{
	CHECK(!UCS_PTR_IS_ERR(request));
	if (!request)
		return;
	while (ucp_request_check_status(request) == UCS_INPROGRESS)
		ucp_worker_progress(worker);
	CHECK(ucp_request_check_status(request) == UCS_OK);
	ucp_request_free(request);
}

static unsigned char *map(void *at)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
	void *got = mmap(at, LENGTH, PROT_READ | PROT_WRITE, flags, -1, 0);

	CHECK(got != MAP_FAILED);
	return got;
}

int main(int count, char **words)
{
	const char *mode = count > 1 ? words[1] : "anew";
	ucp_params_t wanted = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG };
	ucp_worker_params_t of = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE };
	ucp_ep_params_t to = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS };
	ucp_request_param_t param = { 0 };
	unsigned char *from = map(NULL), *into = map(NULL);
	ucp_address_t *address;
	ucp_context_h context;
	ucp_config_t *config;
	size_t length, at;
	ucp_ep_h ep;

	CHECK(ucp_config_read(NULL, NULL, &config) == UCS_OK);
	CHECK(ucp_init(&wanted, config, &context) == UCS_OK);
	CHECK(ucp_worker_create(context, &of, &worker) == UCS_OK);
	CHECK(ucp_worker_get_address(worker, &address, &length) == UCS_OK);
	to.address = address;
	CHECK(ucp_ep_create(worker, &to, &ep) == UCS_OK);
	for (int round = 1; round <= ROUNDS; round++) {
		size_t bytes = !strcmp(mode, "less") ? LENGTH / 2 : LENGTH;
		void *sent, *got;

		memset(from, round, LENGTH);
		memset(into, 0xee, LENGTH);
		got = ucp_tag_recv_nbx(worker, into, bytes, 7, ~0ull, &param);
		sent = ucp_tag_send_nbx(ep, from, bytes, 7, &param);
		finish(sent);
		finish(got);
		for (at = 0; at < LENGTH; at++)
			if (into[at] != (at < bytes ? round : 0xee))
				fail("what was sent", 1000 * round);
		if (!strcmp(mode, "keep"))
			continue;
		/* Replaces the pages, alternately by an unmapping and by a mapping over the old one. */
		if (round % 2)
			CHECK(munmap(from, LENGTH) == 0 && munmap(into, LENGTH) == 0);
		CHECK(map(from) == from && map(into) == into);
	}
	puts("all so");
	fflush(stdout);
	/* The connection is to itself, so its other end is gone at the second close. */
	_Exit(0);
}
