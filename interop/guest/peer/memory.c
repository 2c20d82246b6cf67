/* Registered memory, and the pattern by which transfers are verified. */
#include "peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_REGION (64u << 20)

static struct region regions[MAX_MRS];

/*
 * The pattern of a seed: xorshift64* (Marsaglia's 12, 25, 27; multiplier 0x2545F4914F6CDD1D),
 * started at seed ^ 0x9E3779B97F4A7C15, or at 1 where that is 0. Each step yields 8 bytes, least
 * significant first; a last step may be used in part. pattern.rs implements the same pattern.
 */
static uint64_t pattern_start(uint64_t seed)
{
	uint64_t x = seed ^ 0x9E3779B97F4A7C15u;

	return x ? x : 1;
}

static uint64_t pattern_next(uint64_t *x)
{
	*x ^= *x >> 12;
	*x ^= *x << 25;
	*x ^= *x >> 27;
	return *x * 0x2545F4914F6CDD1Du;
}

void pattern_fill(uint8_t *to, size_t length, uint64_t seed)
{
	uint64_t x = pattern_start(seed);

	for (size_t i = 0; i < length; i += 8) {
		uint64_t word = htole64(pattern_next(&x));
		memcpy(to + i, &word, length - i < 8 ? length - i : 8);
	}
}

/* Returns the offset of the first byte that differs from the pattern, or `length`. */
static size_t pattern_mismatch(const uint8_t *at, size_t length, uint64_t seed, uint8_t *want)
{
	uint64_t x = pattern_start(seed);

	for (size_t i = 0; i < length; i += 8) {
		uint64_t word = htole64(pattern_next(&x));
		size_t n = length - i < 8 ? length - i : 8;
		if (memcmp(at + i, &word, n) == 0)
			continue;
		for (size_t j = 0; j < n; j++) {
			*want = ((uint8_t *)&word)[j];
			if (at[i + j] != *want)
				return i + j;
		}
	}
	return length;
}

struct region *region_of(struct request *r)
{
	uint64_t id = number(r, "mr");

	if (r->failed)
		return NULL;
	if (id >= MAX_MRS || !regions[id].mr) {
		err(ENOENT, "no memory region %llu", (unsigned long long)id);
		r->failed = true;
		return NULL;
	}
	return &regions[id];
}

bool within(const struct region *region, uint64_t offset, uint64_t length)
{
	if (offset <= region->size && length <= region->size - offset)
		return true;
	err(ERANGE, "bytes %llu..+%llu lie outside the region's %zu", (unsigned long long)offset,
	    (unsigned long long)length, region->size);
	return false;
}

int access_flags(struct request *r)
{
	const char *access = text_or_null(r, "access");
	int flags = 0;

	for (const char *c = access ? access : "lrwa"; *c; c++) {
		switch (*c) {
		case 'l': flags |= IBV_ACCESS_LOCAL_WRITE; break;
		case 'r': flags |= IBV_ACCESS_REMOTE_READ; break;
		case 'w': flags |= IBV_ACCESS_REMOTE_WRITE; break;
		case 'a': flags |= IBV_ACCESS_REMOTE_ATOMIC; break;
		case 'b': flags |= IBV_ACCESS_MW_BIND; break;
		case 'z': break; /* see cmd_mr */
#if HAS_PLACEMENT
		case 'g': flags |= IBV_ACCESS_FLUSH_GLOBAL; break;
		case 'p': flags |= IBV_ACCESS_FLUSH_PERSISTENT; break;
#endif
		case '0': break;
		default:
			err(EINVAL, "access=%s: known are l, r, w, a, b, z, 0 and, of rdma-core 45, g, p", access);
			r->failed = true;
			return 0;
		}
	}
	return flags;
}

void cmd_mr(struct request *r)
{
	uint64_t size = number(r, "size");
	int flags = access_flags(r);
	int id = 0;

	if (r->failed)
		return;
	while (id < MAX_MRS && regions[id].mr)
		id++;
	if (id == MAX_MRS)
		return err(ENOSPC, "all %d regions are in use: mr_free some", MAX_MRS);
	if (size == 0 || size > MAX_REGION)
		return err(EINVAL, "size=%llu: from 1 to %u", (unsigned long long)size, MAX_REGION);

	struct region *region = &regions[id];
	void *base = NULL;
	if (posix_memalign(&base, 4096, (size + 4095) & ~4095ull))
		return err(ENOMEM, "no memory for %llu bytes", (unsigned long long)size);
	memset(base, 0, size);
	/* Drivers (rxe) ignore IBV_ACCESS_ZERO_BASED, so a zero-based region is registered at address 0. */
	bool zero_based = text_or_null(r, "access") && strchr(text(r, "access"), 'z');
	/* The address of its first byte in work requests. */
	uint64_t start = zero_based ? 0 : (uintptr_t)base;
	region->mr = ibv_reg_mr_iova(pd, base, size, start, flags);
	if (!region->mr) {
		int code = errno;
		free(base);
		return err(code, "ibv_reg_mr of %llu bytes, access %#x: %s", (unsigned long long)size, flags,
			   strerror(code));
	}
	region->base = base;
	region->size = size;
	region->start = start;
	ok("mr=%d addr=0x%llx lkey=0x%x rkey=0x%x size=%llu", id, (unsigned long long)start,
	   region->mr->lkey, region->mr->rkey, (unsigned long long)size);
}

static int region_free(struct region *region)
{
	int code = ibv_dereg_mr(region->mr);

	if (code)
		return code;
	free(region->base);
	memset(region, 0, sizeof *region);
	return 0;
}

void cmd_mr_free(struct request *r)
{
	struct region *region = region_of(r);

	if (!region)
		return;
	int code = region_free(region);
	if (code)
		return err(code, "ibv_dereg_mr: %s", strerror(code));
	ok(" ");
}

void memory_reset(void)
{
	for (int i = 0; i < MAX_MRS; i++)
		if (regions[i].mr && region_free(&regions[i]))
			fprintf(stderr, "roxie-peer: region %d is still in use\n", i);
}

/* Returns the bytes that mr=, off= and len= name, or NULL after an error reply. */
static uint8_t *range_of(struct request *r, uint64_t *length)
{
	struct region *region = region_of(r);
	uint64_t offset = number_or(r, "off", 0);

	if (!region || r->failed)
		return NULL;
	*length = number_or(r, "len", offset <= region->size ? region->size - offset : 0);
	if (r->failed || !within(region, offset, *length))
		return NULL;
	return region->base + offset;
}

void cmd_fill(struct request *r)
{
	uint64_t length, seed = number(r, "seed");
	uint8_t *at = range_of(r, &length);

	if (!at)
		return;
	pattern_fill(at, length, seed);
	ok("len=%llu", (unsigned long long)length);
}

void cmd_check(struct request *r)
{
	uint64_t length, seed = number(r, "seed");
	uint8_t *at = range_of(r, &length), want = 0;

	if (!at)
		return;
	size_t bad = pattern_mismatch(at, length, seed, &want);
	if (bad == length)
		return ok("match=1 len=%llu", (unsigned long long)length);
	ok("match=0 len=%llu at=%zu got=0x%02x want=0x%02x", (unsigned long long)length, bad, at[bad], want);
}

/* FNV-1a, 64 bits. */
void cmd_sum(struct request *r)
{
	uint64_t length, sum = 0xcbf29ce484222325u;
	uint8_t *at = range_of(r, &length);

	if (!at)
		return;
	for (uint64_t i = 0; i < length; i++)
		sum = (sum ^ at[i]) * 0x100000001b3u;
	ok("fnv1a=0x%016llx len=%llu", (unsigned long long)sum, (unsigned long long)length);
}

void cmd_peek(struct request *r)
{
	uint64_t length;
	uint8_t *at = range_of(r, &length);
	char hex[2 * 1024 + 1] = "";

	if (!at)
		return;
	if (length > 1024)
		return err(ERANGE, "len=%llu: peek shows 1024 bytes at most", (unsigned long long)length);
	for (uint64_t i = 0; i < length; i++)
		sprintf(hex + 2 * i, "%02x", at[i]);
	ok("hex=%s", hex);
}

void cmd_poke(struct request *r)
{
	struct region *region = region_of(r);
	const char *hex = text(r, "hex");
	uint64_t offset = number_or(r, "off", 0);

	if (!region || r->failed)
		return;
	size_t digits = strlen(hex);
	if (digits % 2 || strspn(hex, "0123456789abcdefABCDEF") != digits)
		return err(EINVAL, "hex= wants pairs of hex digits");
	if (!within(region, offset, digits / 2))
		return;
	for (size_t i = 0; i < digits / 2; i++) {
		unsigned byte;
		sscanf(hex + 2 * i, "%2x", &byte);
		region->base[offset + i] = byte;
	}
	ok("len=%zu", digits / 2);
}
