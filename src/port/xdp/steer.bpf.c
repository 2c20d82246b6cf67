// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Redirects RoCE to the AF_XDP socket of the receive queue and leaves all other frames to the kernel.
//
//   UDP port 4791 to an address in `addresses` (IPv4 or IPv6), if an adapter would take the frame; with a VLAN tag, to an
//     address in `tagged`
//   EtherType 0x8915 (RoCE v1)         to an address in the same way, if OPTION_ROCE_V1 is set
//   EtherType 0x8808 (MAC control)     if OPTION_MAC_CONTROL is set
//   frames that a flow of a raw packet QP describes (`src/base/flow/mod.rs`), except RoCE
//
// An adapter would not take, and each is counted here:
//   a frame with a wrong IPv4 header checksum: dropped
//   a frame to another station than the interface's or the multicast group's: left to the kernel, which may have a bridge
//   a frame with another tag than the address has (a priority tag, VLAN 0, is none), a service tag or two tags: left to the kernel
// A tag that the driver strips from the frame is not seen here.
//
// IP fragments pass to the kernel: RoCE is never fragmented (IBTA A17.9.2), and only the first fragment carries a port.
// IPv6 packets with extension headers, which RoCE does not use, pass as well, and all frames of a queue without a
// socket.
//
// The section is `xdp.frags` (frames of several buffers): otherwise drivers refuse the program on a large MTU.

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define ETH_P_IP 0x0800
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88a8
#define ETH_P_IPV6 0x86dd
#define ETH_P_MAC_CONTROL 0x8808
#define ETH_P_ROCE_V1 0x8915

#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPV4_MORE_FRAGMENTS_OR_OFFSET 0x3fff
#define ROCE_V2_PORT 4791
#define VLAN_ID 0x0fff

#define MAX_FLOWS 64

#define LAYER_VLAN 1
#define LAYER_IPV4 2
#define LAYER_IPV6 4
#define LAYER_TCP 8
#define LAYER_UDP 16

#define OPTION_ROCE_V1 1
#define OPTION_MAC_CONTROL 2

// An IPv6 address; an IPv4 address a.b.c.d is ::ffff:a.b.c.d (RFC 4291 2.5.5.2).
struct address {
	__u32 word[4];
};

// Our addresses. The value is 1 if frames without a tag are taken, 0 if the address is only on VLANs.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct address);
	__type(value, __u8);
} addresses SEC(".maps");

struct tagged_address {
	struct address address;
	__u32 vlan;
};

// Our addresses on VLANs.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct tagged_address);
	__type(value, __u8);
} tagged SEC(".maps");

// The sockets, by receive queue.
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

// OPTION_* bits in the only element.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} options SEC(".maps");

struct station {
	__u8 mac[6];
	__u8 zero[2];
};

// The interface's station, in the only element.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct station);
} stations SEC(".maps");

// Frames to our addresses that were not taken, by reason.
#define BAD_CHECKSUM 0
#define OTHER_STATION 1
#define TAGGED 2
#define REASONS 3

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS);
	__type(key, __u32);
	__type(value, __u64);
} refused SEC(".maps");

// Header fields that flows compare, in network order. The layout is that of `FlowKey` in `src/base/flow/mod.rs`.
struct flow_key {
	__u8 destination[6];
	__u8 source[6];
	__be16 type;
	__be16 tag;
	__u8 layers;
	__u8 protocol;
	__u8 traffic_class;
	__u8 hop_limit;
	__be16 source_port;
	__be16 destination_port;
	__be32 flow_label;
	__u8 ipv4_flags;
	__u8 zero[3];
	struct address source_ip;
	struct address destination_ip;
};

#define KEY_WORDS 8

_Static_assert(sizeof(struct flow_key) == KEY_WORDS * sizeof(__u64), "src/base/flow/mod.rs has keys of 64 bytes");

// A frame matches if its key has the value's bits wherever the mask has ones.
struct flow {
	__u64 value[KEY_WORDS];
	__u64 mask[KEY_WORDS];
};

struct flow_set {
	__u16 first;
	__u16 count;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * MAX_FLOWS);
	__type(key, __u32);
	__type(value, struct flow);
} flows SEC(".maps");

// The flows in force, in the only element: index of the first, and count. Other elements are written meanwhile.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_set);
} flows_in_force SEC(".maps");

struct ethernet {
	__u8 destination[6];
	__u8 source[6];
	__be16 type;
};

struct vlan_tag {
	__be16 control;
	__be16 type;
};

// The tags of a frame; 0: none.
struct tags {
	struct vlan_tag *outer;
	struct vlan_tag *inner;
};

struct ipv4 {
	__u8 version_and_words;
	__u8 tos;
	__be16 length;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__be16 checksum;
	__u32 source;
	__u32 destination;
};

struct ipv6 {
	__be32 version_class_flow;
	__be16 length;
	__u8 next;
	__u8 hops;
	struct address source;
	struct address destination;
};

struct udp {
	__be16 source;
	__be16 destination;
	__be16 length;
	__be16 checksum;
};

static __always_inline int to_socket(struct xdp_md *ctx)
{
	return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
}

static __always_inline int is_on(__u32 option)
{
	__u32 zero = 0;
	__u32 *bits = bpf_map_lookup_elem(&options, &zero);

	return bits && (*bits & option);
}

static __always_inline int is_roce_port(struct udp *udp, void *end)
{
	return (void *)(udp + 1) <= end && udp->destination == bpf_htons(ROCE_V2_PORT);
}

// Verdicts on a frame; 0: it is not RoCE to one of our addresses.
#define TAKE 1
#define LEAVE 2
#define DROP 3

static __always_inline int refuse(__u32 reason, int verdict)
{
	__u64 *count = bpf_map_lookup_elem(&refused, &reason);

	if (count)
		*count += 1;
	return verdict;
}

static __always_inline int is_at(struct ethernet *eth, const __u8 *mac)
{
	return eth->destination[0] == mac[0] && eth->destination[1] == mac[1] && eth->destination[2] == mac[2] &&
	       eth->destination[3] == mac[3] && eth->destination[4] == mac[4] && eth->destination[5] == mac[5];
}

// True if frames to an address are taken with this tag, or without one. `untagged`: the address's value in `addresses`.
static __always_inline int takes_tag(struct ethernet *eth, struct vlan_tag *tag, struct address *to, const __u8 *untagged)
{
	struct tagged_address on = { .address = *to };

	if (!tag)
		return *untagged;
	if (eth->type != bpf_htons(ETH_P_8021Q))
		return 0;
	on.vlan = bpf_ntohs(tag->control) & VLAN_ID;
	return on.vlan ? !!bpf_map_lookup_elem(&tagged, &on) : *untagged;
}

// Judges a frame to one of our addresses. `group`: station address of the multicast group, if it is one.
static __always_inline int judge(struct ethernet *eth, struct tags tags, struct address *to, const __u8 *untagged,
				 const __u8 *group)
{
	__u32 zero = 0;
	struct station *station = bpf_map_lookup_elem(&stations, &zero);

	if (tags.inner || !takes_tag(eth, tags.outer, to, untagged))
		return refuse(TAGGED, LEAVE);
	if (!station || !is_at(eth, group ? group : station->mac))
		return refuse(OTHER_STATION, LEAVE);
	return TAKE;
}

// The ones' complement sum of all 16-bit words, with the checksum, is all ones (RFC 791 3.1).
static __always_inline int has_good_checksum(struct ipv4 *ip, __u32 words, void *end)
{
	__u32 *at = (void *)ip;
	__u64 sum = 0;
	__u32 i;

	// Unrolled, so that the verifier knows each offset.
#pragma unroll
	for (i = 0; i < 15; i++) {
		if (i < 5 || i < words) {
			if ((void *)(at + i + 1) > end)
				return 0;
			sum += at[i];
		}
	}
	// The order of bytes and halves does not matter to the sum.
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}

static __always_inline int judge_v4(struct ethernet *eth, struct tags tags, struct ipv4 *ip, void *end)
{
	const __u8 *untagged;
	struct address to = { .word = { 0, 0, bpf_htonl(0xffff), 0 } };
	__u8 group[6] = { 0x01, 0x00, 0x5e };
	__u32 words, ip_to;

	if ((void *)(ip + 1) > end || ip->version_and_words >> 4 != 4 || ip->protocol != IPPROTO_UDP)
		return 0;
	if (ip->fragment & bpf_htons(IPV4_MORE_FRAGMENTS_OR_OFFSET))
		return 0;
	words = ip->version_and_words & 15;
	if (words < 5 || !is_roce_port((void *)ip + words * 4, end))
		return 0;
	to.word[3] = ip->destination;
	untagged = bpf_map_lookup_elem(&addresses, &to);
	if (!untagged)
		return 0;
	if (!has_good_checksum(ip, words, end))
		return refuse(BAD_CHECKSUM, DROP);
	ip_to = bpf_ntohl(ip->destination);
	if (ip_to >> 28 != 14)
		return judge(eth, tags, &to, untagged, 0);
	// RFC 1112 6.4.
	group[3] = ip_to >> 16 & 0x7f;
	group[4] = ip_to >> 8;
	group[5] = ip_to;
	return judge(eth, tags, &to, untagged, group);
}

// Judges by a destination address of 128 bits. The header is within the frame.
static __always_inline int judge_wide(struct ethernet *eth, struct tags tags, struct ipv6 *ip)
{
	const __u8 *untagged;
	__u8 group[6] = { 0x33, 0x33 };
	struct address to = ip->destination;

	untagged = bpf_map_lookup_elem(&addresses, &to);
	if (!untagged)
		return 0;
	if (bpf_ntohl(to.word[0]) >> 24 != 0xff)
		return judge(eth, tags, &to, untagged, 0);
	// RFC 2464 7.
	__builtin_memcpy(group + 2, &to.word[3], 4);
	return judge(eth, tags, &to, untagged, group);
}

static __always_inline int judge_v6(struct ethernet *eth, struct tags tags, struct ipv6 *ip, void *end)
{
	if ((void *)(ip + 1) > end || ip->next != IPPROTO_UDP || !is_roce_port((void *)(ip + 1), end))
		return 0;
	return judge_wide(eth, tags, ip);
}

// RoCE v1: a GRH, which is like an IPv6 header. The NIC knows which of our addresses are GIDs of that type.
static __always_inline int judge_v1(struct ethernet *eth, struct tags tags, struct ipv6 *grh, void *end)
{
	if ((void *)(grh + 1) > end || !is_on(OPTION_ROCE_V1))
		return 0;
	return judge_wide(eth, tags, grh);
}

static __always_inline void read_ports(struct flow_key *key, __u8 protocol, __be16 *ports, void *end)
{
	if ((protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) || (void *)(ports + 2) > end)
		return;
	key->layers |= protocol == IPPROTO_TCP ? LAYER_TCP : LAYER_UDP;
	key->source_port = ports[0];
	key->destination_port = ports[1];
}

static __always_inline void read_ipv4(struct flow_key *key, struct ipv4 *ip, void *end)
{
	__u32 words, flags;

	if ((void *)(ip + 1) > end)
		return;
	words = ip->version_and_words & 15;
	if (ip->version_and_words >> 4 != 4 || words < 5)
		return;
	key->layers |= LAYER_IPV4;
	key->traffic_class = ip->tos;
	flags = bpf_ntohs(ip->fragment) >> 13;
	key->ipv4_flags = (flags & 2) | (flags & 1) << 2 | flags >> 2;
	key->hop_limit = ip->ttl;
	key->protocol = ip->protocol;
	key->source_ip.word[3] = ip->source;
	key->destination_ip.word[3] = ip->destination;
	if (!(ip->fragment & bpf_htons(IPV4_MORE_FRAGMENTS_OR_OFFSET)))
		read_ports(key, ip->protocol, (void *)ip + words * 4, end);
}

static __always_inline void read_ipv6(struct flow_key *key, struct ipv6 *ip, void *end)
{
	__u32 first;

	if ((void *)(ip + 1) > end)
		return;
	first = bpf_ntohl(ip->version_class_flow);
	if (first >> 28 != 6)
		return;
	key->layers |= LAYER_IPV6;
	key->traffic_class = first >> 20;
	key->flow_label = bpf_htonl(first & 0xfffff);
	key->protocol = ip->next;
	key->hop_limit = ip->hops;
	key->source_ip = ip->source;
	key->destination_ip = ip->destination;
	read_ports(key, ip->next, (void *)(ip + 1), end);
}

static __always_inline int matches(const struct flow *flow, const __u64 *key)
{
	__u64 other = 0;
	int i;

	for (i = 0; i < KEY_WORDS; i++)
		other |= (key[i] & flow->mask[i]) ^ flow->value[i];
	return !other;
}

// True if a flow matches the frame. `next` follows the Ethernet header and the tag, if any, and is of this type.
static __always_inline int is_steered(struct ethernet *eth, struct vlan_tag *tag, __be16 type, void *next, void *end)
{
	union {
		struct flow_key key;
		__u64 words[KEY_WORDS];
	} of = {};
	__u32 zero = 0, i;
	struct flow_set *in_force = bpf_map_lookup_elem(&flows_in_force, &zero);
	struct flow_set set;

	if (!in_force)
		return 0;
	// Read both fields at once: the set may change at any moment.
	*(__u32 *)&set = *(volatile __u32 *)in_force;
	if (!set.count)
		return 0;
	__builtin_memcpy(of.key.destination, eth, 12);
	of.key.type = type;
	if (tag) {
		of.key.layers = LAYER_VLAN;
		of.key.tag = tag->control;
	}
	if (type == bpf_htons(ETH_P_IP))
		read_ipv4(&of.key, next, end);
	else if (type == bpf_htons(ETH_P_IPV6))
		read_ipv6(&of.key, next, end);
	else if (type == bpf_htons(ETH_P_ROCE_V1))
		return 0;
	if ((of.key.layers & LAYER_UDP) && of.key.destination_port == bpf_htons(ROCE_V2_PORT))
		return 0;
	for (i = 0; i < MAX_FLOWS && i < set.count; i++) {
		__u32 at = set.first + i;
		struct flow *flow = bpf_map_lookup_elem(&flows, &at);

		if (flow && matches(flow, of.words))
			return 1;
	}
	return 0;
}

SEC("xdp.frags")
int roxie_steer(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = (void *)(long)ctx->data;
	void *next = eth + 1;
	struct tags tags = {};
	int ours = 0; // A verdict.
	__be16 type, steered_type;
	void *steered;

	if (next > end)
		return XDP_PASS;
	type = eth->type;
	if (type == bpf_htons(ETH_P_8021Q) || type == bpf_htons(ETH_P_8021AD)) {
		tags.outer = next;
		next = tags.outer + 1;
		if (next > end)
			return XDP_PASS;
		type = tags.outer->type;
	}
	steered = next;
	steered_type = type;
	if (tags.outer && (type == bpf_htons(ETH_P_8021Q) || type == bpf_htons(ETH_P_8021AD))) {
		tags.inner = next;
		next = tags.inner + 1;
		if (next > end)
			return XDP_PASS;
		type = tags.inner->type;
	}

	switch (bpf_ntohs(type)) {
	case ETH_P_IP:
		ours = judge_v4(eth, tags, next, end);
		break;
	case ETH_P_IPV6:
		ours = judge_v6(eth, tags, next, end);
		break;
	case ETH_P_ROCE_V1:
		ours = judge_v1(eth, tags, next, end);
		break;
	case ETH_P_MAC_CONTROL:
		ours = tags.outer ? 0 : is_on(OPTION_MAC_CONTROL);
		break;
	}
	if (ours == DROP)
		return XDP_DROP;
	if (ours == TAKE || (!ours && is_steered(eth, tags.outer, steered_type, steered, end)))
		return to_socket(ctx);
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
