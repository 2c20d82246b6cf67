/*
  * Repeats each collective operation of gloo over its ibverbs transport and compares the results.
 *
 *     gloo_collectives DEVICE GID_INDEX RANK SIZE FOLDER ROUNDS
 *
  * FOLDER, empty at first, passes the addresses of the SIZE processes. Exit code 0: all rounds were correct. Gloo aborts if a completion
  * channel is readable without an event. Gloo's buffers may not be destroyed while a completion is due, and no call waits for all of them, so
  * nothing is destroyed here. With fewer elements than processes, allreduce_bcube adds to data that is still being sent.
 */
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <gloo/allgather_ring.h>
#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/barrier_all_to_one.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/pairwise_exchange.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

static void require(bool is_right, const char *what, int round)
{
	if (!is_right) {
		fprintf(stderr, "gloo_collectives: %s, round %d: another result\n", what, round);
		exit(1);
	}
}

int main(int count, char **arguments)
{
	if (count != 7) {
		fprintf(stderr, "gloo_collectives DEVICE GID_INDEX RANK SIZE FOLDER ROUNDS\n");
		return 2;
	}
	const int index = atoi(arguments[2]), rank = atoi(arguments[3]), size = atoi(arguments[4]), rounds = atoi(arguments[6]);
	gloo::transport::ibverbs::attr attributes = { arguments[1], 1, index };
	auto device = gloo::transport::ibverbs::CreateDevice(attributes);
	auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
	gloo::rendezvous::FileStore store(arguments[5]);
	context->connectFullMesh(store, device);

	for (const int elements : { 100, 1000, 100000 }) {
		auto &own = *new std::vector<float>(elements), &all = *new std::vector<float>(size_t(elements) * size);
		const std::vector<float *> pointers = { own.data() };
		const std::vector<const float *> inputs = { own.data() };
		/* A round's buffers may still be read when it ends. A message behind shows that they have arrived. */
		auto &to_all = *new gloo::BarrierAllToAll(context);
		auto fill = [&](int round) {
			for (int at = 0; at < elements; at++)
				own[at] = (at + round) % 100 + rank;
		};
		auto is_sum = [&](int round) {
			for (int at = 0; at < elements; at++)
				if (own[at] != (at + round) % 100 * size + size * (size - 1) / 2)
					return false;
			return true;
		};
		auto reduces = [&](const char *name, gloo::Algorithm *algorithm) {
			for (int round = 0; round < rounds; round++) {
				fill(round);
				algorithm->run();
				require(is_sum(round), name, round);
				to_all.run();
			}
		};
		reduces("allreduce_ring", new gloo::AllreduceRing<float>(context, pointers, elements));
		reduces("allreduce_ring_chunked", new gloo::AllreduceRingChunked<float>(context, pointers, elements));
		reduces("allreduce_halving_doubling", new gloo::AllreduceHalvingDoubling<float>(context, pointers, elements));
		reduces("allreduce_bcube", new gloo::AllreduceBcube<float>(context, pointers, elements));
		auto &allgather = *new gloo::AllgatherRing<float>(context, inputs, all.data(), elements);
		auto &broadcast = *new gloo::BroadcastOneToAll<float>(context, pointers, elements);
		auto &to_one = *new gloo::BarrierAllToOne(context);
		auto &exchange = *new gloo::PairwiseExchange(context, 4 * elements, 1);
		for (int round = 0; round < rounds; round++) {
			fill(round);
			allgather.run();
			for (int from = 0; from < size; from++)
				require(all[size_t(from) * elements] == round % 100 + from, "allgather_ring", round);
			to_all.run();
			broadcast.run();
			require(own[0] == round % 100, "broadcast_one_to_all", round);
			to_one.run();
			exchange.run();
			to_all.run();
		}
		printf("%d elements: right\n", elements);
	}
	fflush(stdout);
	_exit(0);
}
