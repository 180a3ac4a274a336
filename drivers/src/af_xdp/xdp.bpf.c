// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * Decides what is ours and hands it to AF_XDP sockets.
 *
 * Without rules every packet goes to the socket that is bound to its RX queue. With rules only packets that
 * one of them takes do; all else goes on to the kernel's own stack, and so does what has no socket.
 *
 *             rules?           a rule takes it?         socket of the queue?     a frame for it?
 *   packet ---- no ----------------------------------------- yes -------------------- yes ------> socket   REDIRECTED
 *           \                                          /\                           \- no ------> nowhere  REDIRECTED
 *            \- yes ---------- yes -------------------/  \-- no --------------------------------> kernel   NOT_BOUND
 *                          \-- no ------------------------------------------------------------> kernel   PASSED
 *                           \- headers damaged -----------------------------------------------> kernel   MALFORMED
 *
 * steer/words.rs writes the rules, steer/taken.rs says the same as this in Rust, room.rs tells of frames, verdict.rs
 * names the counts.
 */

/* The few types of linux/bpf.h that are needed, so that no kernel header is. */
typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u16 __sum16;
typedef __u32 __wsum;
typedef _Bool bool;
enum { false, true };

enum { BPF_F_MMAPABLE = 1 << 10 };
enum { BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_PERCPU_ARRAY = 6, BPF_MAP_TYPE_ARRAY_OF_MAPS = 12, BPF_MAP_TYPE_XSKMAP = 17 };
enum xdp_action { XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_TX, XDP_REDIRECT };

struct xdp_md {
	__u32 data;
	__u32 data_end;
	__u32 data_meta;
	__u32 ingress_ifindex;
	__u32 rx_queue_index;
	__u32 egress_ifindex;
};

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 64); /* The loader sets the number of queues. */
	__type(key, __u32);
	__type(value, __u32);
} xsks SEC(".maps");

/*
 * How many packets a queue's socket has frames for: room.rs is the other side. A packet that finds none is dropped here
 * and not by the socket, where that costs the core that sends a cache line or two, for the kernel keeps its counts
 * beside what it reads when it sends.
 */
struct room {
	__u64 limit; /* User space writes it: how high `taken` may go. 0: any. */
	__u64 frame_bytes; /* The largest packet that fits into a frame. */
	__u64 pad[14]; /* CPUs fetch two lines at a time. */
	__u64 taken; /* The program writes it: packets that went to the socket and fit into a frame. */
	__u64 lost; /* And how many found no room. */
	__u64 pad2[14];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 64); /* The loader sets the number of queues. */
	__type(key, __u32);
	__type(value, struct room);
} rooms SEC(".maps");

/* What became of a packet: each adds one to one of these. The order is that of Verdict in verdict.rs. */
enum verdict { REDIRECTED, NOT_BOUND, PASSED, MALFORMED, VERDICTS };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1); /* All counts are one value: one look-up a packet. */
	__type(key, __u32);
	__type(value, __u64[VERDICTS]);
} verdicts SEC(".maps");

/* What rules are compared with. Fields that a packet does not have are 0, and so is their HAS_ bit. */
struct key {
	__u64 what; /* bits 0-15 ethertype, 16-23 protocol, 24-26 HAS_*, 32-47 destination port */
	__u64 to[2]; /* destination address, in the order of the wire; of IPv4 and ARP the first four bytes */
};
#define PROTOCOL(protocol) ((__u64)(protocol) << 16)
#define PORT(port) ((__u64)(port) << 32)
#define HAS_ADDRESS (1ULL << 24)
#define HAS_PROTOCOL (1ULL << 25)
#define HAS_PORT (1ULL << 26)

/* A rule takes a packet if the bits of its key that are set in the mask are as in the value. */
struct rule {
	struct key value;
	struct key mask;
};

enum { MAX_RULES = 64, MAX_TAGS = 2, MAX_EXTENSIONS = 6 };

struct rules {
	__u64 count;
	struct rule rule[MAX_RULES];
};

struct bank {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct rules)); /* clang 14 does not describe types that only an inner map names. */
};

/*
 * The rules that hold; empty: everything is ours. User space writes a bank that no program uses and puts it here:
 * that is one store of a pointer, so a packet sees the old rules or the new ones, and the kernel returns from it
 * only when no program uses the old ones any more (maybe_wait_bpf_programs in kernel/bpf/syscall.c).
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct bank);
} steering SEC(".maps");

/* IEEE 802.1Q-2018 9.6; RFC 826; RFC 791 3.1; RFC 8200 3 and 4.3 to 4.6. */
enum { TAG_BYTES = 4, ETHERTYPE_AT = 12, PORTS_BYTES = 4 };
enum { ETHERTYPE_IPV4 = 0x0800, ETHERTYPE_ARP = 0x0806, ETHERTYPE_IPV6 = 0x86dd, ETHERTYPE_VLAN = 0x8100, ETHERTYPE_QINQ = 0x88a8 };
enum { HOP_BY_HOP = 0, TCP = 6, UDP = 17, ROUTING = 43, FRAGMENT = 44, DESTINATION = 60, SCTP = 132 };

/* Of Ethernet and IPv4. */
struct arp {
	__be16 hardware, protocol;
	__u8 hardware_bytes, protocol_bytes;
	__be16 operation;
	__u8 sender[6];
	__be16 sender_ip[2];
	__u8 target[6];
	__be32 target_ip;
};

struct ipv4 {
	__u8 version_ihl;
	__u8 service;
	__be16 total_bytes;
	__be16 id;
	__be16 fragment; /* flags in the upper 3 bits, offset in the lower 13 */
	__u8 hops;
	__u8 protocol;
	__sum16 sum;
	__be32 from;
	__be32 to;
};

struct ipv6 {
	__u8 version_class;
	__u8 class_flow[3];
	__be16 payload_bytes;
	__u8 next;
	__u8 hops;
	__be32 from[4];
	__be32 to[4];
};

struct extension {
	__u8 next;
	__u8 eights; /* its length less the first 8 bytes, in units of 8 */
	__be16 fragment; /* in a fragment header: offset in the upper 13 bits */
	__be32 rest;
};

/*
 * How the bytes of a packet are reached. They may lie in later buffers of a packet of several: then they are copied.
 * Driver and kernel put a packet's first bytes into the linear part as a rule, so with FRAGS the copy is rare. COPY is
 * for loaders without CAP_PERFMON: to them the verifier refuses pointers into a packet at an offset that varies.
 */
enum reach { LINEAR, FRAGS, COPY };

/* The bytes of a packet from an offset on, or 0 if they are not all there. */
static __always_inline const void *bytes(struct xdp_md *ctx, __u32 offset, __u32 len, void *copy, enum reach reach)
{
	if (reach != COPY) {
		const void *start = (void *)(long)ctx->data + offset;
		const void *end = (void *)(long)ctx->data_end;

		if (start + len <= end)
			return start;
	}
	if (reach != LINEAR && bpf_xdp_load_bytes(ctx, offset, copy, len) == 0)
		return copy;
	return 0;
}

/* Adds the destination port, if the datagram reaches as far. */
static __always_inline void add_port(struct xdp_md *ctx, struct key *key, __u32 protocol, __u32 offset, __u32 end,
				     enum reach reach)
{
	__be16 copy[2];
	const __be16 *ports;

	if ((protocol != TCP && protocol != UDP && protocol != SCTP) || offset + PORTS_BYTES > end)
		return;
	ports = bytes(ctx, offset, PORTS_BYTES, copy, reach);
	if (ports)
		key->what |= HAS_PORT | PORT(bpf_ntohs(ports[1]));
}

/* Adds the target's address: it is asked for it, or told. Other ARP has none. */
static __always_inline void add_arp(struct xdp_md *ctx, struct key *key, __u32 offset, enum reach reach)
{
	struct arp copy;
	const struct arp *arp = bytes(ctx, offset, sizeof(*arp), &copy, reach);

	if (!arp || arp->protocol != bpf_htons(ETHERTYPE_IPV4) || arp->hardware_bytes != 6 || arp->protocol_bytes != 4)
		return;
	key->what |= HAS_ADDRESS;
	*(__be32 *)key->to = arp->target_ip;
}

/* Adds what an IPv4 header says; false if it is damaged. */
static __always_inline bool add_ipv4(struct xdp_md *ctx, struct key *key, __u32 offset, enum reach reach)
{
	struct ipv4 copy;
	const struct ipv4 *ip = bytes(ctx, offset, sizeof(*ip), &copy, reach);
	__u32 header, total;

	if (!ip)
		return false;
	header = (ip->version_ihl & 0xf) * 4;
	total = bpf_ntohs(ip->total_bytes);
	if (ip->version_ihl >> 4 != 4 || header < sizeof(*ip) || total < header)
		return false;
	key->what |= HAS_ADDRESS | HAS_PROTOCOL | PROTOCOL(ip->protocol);
	*(__be32 *)key->to = ip->to;
	/* Only the first fragment has the ports. */
	if (!(ip->fragment & bpf_htons(0x1fff)))
		add_port(ctx, key, ip->protocol, offset + header, offset + total, reach);
	return true;
}

static __always_inline bool is_extension(__u32 header)
{
	return header == HOP_BY_HOP || header == ROUTING || header == FRAGMENT || header == DESTINATION;
}

/*
 * Adds what an IPv6 header says; false if it is damaged. Other extension headers than those above count as the
 * packet's protocol. Behind a cut one, and behind too many, there is no protocol.
 */
static __always_inline bool add_ipv6(struct xdp_md *ctx, struct key *key, __u32 offset, enum reach reach)
{
	struct ipv6 copy;
	const struct ipv6 *ip = bytes(ctx, offset, sizeof(*ip), &copy, reach);
	__u32 next, end;
	int seen;

	if (!ip || ip->version_class >> 4 != 6)
		return false;
	key->what |= HAS_ADDRESS;
	key->to[0] = *(__u64 *)&ip->to[0];
	key->to[1] = *(__u64 *)&ip->to[2];
	next = ip->next;
	offset += sizeof(*ip);
	end = offset + bpf_ntohs(ip->payload_bytes);
	/* Unrolled as in is_taken: of a count that goes on beyond its end the verifier would follow every step. */
#pragma clang loop unroll(full)
	for (seen = 0; seen < MAX_EXTENSIONS; seen++) {
		struct extension header_copy;
		const struct extension *header;

		if (!is_extension(next))
			break;
		if (offset + sizeof(*header) > end)
			return true;
		header = bytes(ctx, offset, sizeof(*header), &header_copy, reach);
		if (!header)
			return true;
		if (next == FRAGMENT) {
			next = header->next;
			offset += sizeof(*header);
			if (header->fragment & bpf_htons(0xfff8)) {
				/* A later fragment: what follows is no header, and has no ports. */
				if (!is_extension(next))
					key->what |= HAS_PROTOCOL | PROTOCOL(next);
				return true;
			}
		} else {
			next = header->next;
			offset += (header->eights + 1) * 8;
		}
	}
	if (is_extension(next))
		return true;
	key->what |= HAS_PROTOCOL | PROTOCOL(next);
	add_port(ctx, key, next, offset, end, reach);
	return true;
}

/* Says what the packet is; false if its headers are damaged. A tag that the NIC took off is not there to be seen. */
static __always_inline bool read_key(struct xdp_md *ctx, struct key *key, enum reach reach)
{
	__u32 offset = ETHERTYPE_AT;
	__u32 ethertype;
	__be16 copy;
	const __be16 *at = bytes(ctx, offset, sizeof(*at), &copy, reach);
	int tags;

	if (!at)
		return false;
	ethertype = bpf_ntohs(*at);
#pragma clang loop unroll(full)
	for (tags = 0; tags < MAX_TAGS; tags++) {
		if (ethertype != ETHERTYPE_VLAN && ethertype != ETHERTYPE_QINQ)
			break;
		offset += TAG_BYTES;
		at = bytes(ctx, offset, sizeof(*at), &copy, reach);
		if (!at)
			return false;
		ethertype = bpf_ntohs(*at);
	}
	key->what = ethertype;
	offset += sizeof(*at);
	if (ethertype == ETHERTYPE_IPV4)
		return add_ipv4(ctx, key, offset, reach);
	if (ethertype == ETHERTYPE_IPV6)
		return add_ipv6(ctx, key, offset, reach);
	if (ethertype == ETHERTYPE_ARP)
		add_arp(ctx, key, offset, reach);
	return true;
}

static __always_inline bool is_taken(const struct rules *rules, const struct key *key)
{
	__u32 i;

	/*
	 * Unrolled, so that each rule lies at an offset of its own. A pointer that moves on would be followed beyond the last
	 * rule by the verifier of Linux 6.1, which thinks of CPUs that guess the end of a loop wrong, and refused to loaders
	 * without CAP_PERFMON.
	 */
#pragma clang loop unroll(full)
	for (i = 0; i < MAX_RULES; i++) {
		const struct rule *rule = &rules->rule[i];

		if (i >= rules->count)
			break;
		if (!(((key->what ^ rule->value.what) & rule->mask.what) |
		      ((key->to[0] ^ rule->value.to[0]) & rule->mask.to[0]) |
		      ((key->to[1] ^ rule->value.to[1]) & rule->mask.to[1])))
			return true;
	}
	return false;
}

/* What the device knows of a packet, just in front of it: mempool/src/metadata.rs reads it. */
struct metadata {
	__u64 timestamp;
	__u32 hash;
	__u32 kind;
	__u16 vlan_protocol;
	__u16 vlan_tag;
	__u32 present;
	__u64 key;
};
enum { HAS_TIMESTAMP = 1, HAS_HASH = 2, HAS_VLAN = 4 };

/* What the loader tells the program before it loads it: to the verifier these are constants. */
const volatile struct {
	__u64 key; /* Says that metadata was written for this packet; drawn by lot. */
	__u64 asks; /* HAS_*: what is worth asking the device for. */
} told = {};

/* net/core/xdp.c: the first two since Linux 6.3, VLAN tags since 6.8. */
enum xdp_rss_hash_type { XDP_RSS_TYPE_NONE };
extern int bpf_xdp_metadata_rx_timestamp(const struct xdp_md *ctx, __u64 *timestamp) __ksym __weak;
extern int bpf_xdp_metadata_rx_hash(const struct xdp_md *ctx, __u32 *hash, enum xdp_rss_hash_type *kind) __ksym __weak;
extern int bpf_xdp_metadata_rx_vlan_tag(const struct xdp_md *ctx, __be16 *protocol, __u16 *tag) __ksym __weak;

/* Writes what the device knows. A driver without room for it leaves the packet without. */
static __always_inline void tell(struct xdp_md *ctx)
{
	enum xdp_rss_hash_type kind = XDP_RSS_TYPE_NONE;
	struct metadata *metadata;
	__u32 hash = 0, present = 0;
	__u64 timestamp = 0;
	__be16 protocol = 0;
	__u16 tag = 0;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*metadata)))
		return;
	metadata = (void *)(long)ctx->data_meta;
	if ((void *)(metadata + 1) > (void *)(long)ctx->data)
		return;
	/* veth tells a time of 0 for a packet that has none. */
	if (told.asks & HAS_TIMESTAMP && bpf_ksym_exists(bpf_xdp_metadata_rx_timestamp) && !bpf_xdp_metadata_rx_timestamp(ctx, &timestamp) && timestamp)
		present |= HAS_TIMESTAMP;
	if (told.asks & HAS_HASH && bpf_ksym_exists(bpf_xdp_metadata_rx_hash) && !bpf_xdp_metadata_rx_hash(ctx, &hash, &kind))
		present |= HAS_HASH;
	if (told.asks & HAS_VLAN && bpf_ksym_exists(bpf_xdp_metadata_rx_vlan_tag) && !bpf_xdp_metadata_rx_vlan_tag(ctx, &protocol, &tag))
		present |= HAS_VLAN;
	metadata->timestamp = timestamp;
	metadata->hash = hash;
	metadata->kind = kind;
	metadata->vlan_protocol = bpf_ntohs(protocol);
	metadata->vlan_tag = tag;
	metadata->present = present;
	metadata->key = told.key;
}

/*
 * Whether the socket of the packet's queue has a frame for it. One whose first buffer is larger than a frame is left to
 * the socket: it takes several or none. Where others take several, and where several CPUs are here at a time for one
 * queue, as in generic mode, `taken` falls behind; then the socket drops what finds no frame.
 */
static __always_inline bool has_room(struct xdp_md *ctx, enum reach reach)
{
	__u32 queue = ctx->rx_queue_index;
	struct room *room = bpf_map_lookup_elem(&rooms, &queue);
	__u64 limit, len;

	if (!room)
		return true;
	limit = *(const volatile __u64 *)&room->limit;
	/* Loaders without CAP_PERFMON may not subtract pointers; the helper takes 8 ns. */
	len = reach == COPY ? bpf_xdp_get_buff_len(ctx) : (__u64)(ctx->data_end - ctx->data);
	if (limit == 0 || len > room->frame_bytes)
		return true;
	/* Signed, for a limit that was mended can lie below what was taken. */
	if ((__s64)(limit - room->taken) <= 0) {
		__sync_fetch_and_add(&room->lost, 1);
		return false;
	}
	room->taken++;
	return true;
}

static __always_inline int steer(struct xdp_md *ctx, enum reach reach, bool tells)
{
	__u32 zero = 0;
	__u64 *counts = bpf_map_lookup_elem(&verdicts, &zero);
	void *bank = bpf_map_lookup_elem(&steering, &zero);
	int action;

	if (!counts)
		return XDP_PASS; /* Can't be; the verifier doesn't know that. */
	if (bank) {
		const struct rules *rules = bpf_map_lookup_elem(bank, &zero);
		struct key key = {};

		if (!read_key(ctx, &key, reach)) {
			counts[MALFORMED]++;
			return XDP_PASS;
		}
		if (!rules || !is_taken(rules, &key)) {
			counts[PASSED]++;
			return XDP_PASS;
		}
	}
	if (!has_room(ctx, reach)) {
		counts[REDIRECTED]++;
		return XDP_DROP;
	}
	if (tells)
		tell(ctx);
	action = bpf_redirect_map(&xsks, ctx->rx_queue_index, XDP_PASS);
	/* Not by one index that varies: the verifier refuses that to loaders without CAP_PERFMON. */
	if (action == XDP_REDIRECT) {
		counts[REDIRECTED]++;
		barrier(); /* The compiler would make one of the two. */
	} else {
		counts[NOT_BOUND]++;
	}
	return action;
}

SEC("xdp")
int sheafio_xdp(struct xdp_md *ctx)
{
	return steer(ctx, LINEAR, false);
}

/*
 * The same for packets of several buffers (Linux 5.18 and newer); the loader takes one of these programs. It says that they
 * take such packets only where the kernel hands those to sockets.
 */
SEC("xdp")
int sheafio_frags(struct xdp_md *ctx)
{
	return steer(ctx, FRAGS, false);
}

/* And with what the device knows of each packet; loaded for one device (Linux 6.3 and newer, not in generic mode). */
SEC("xdp")
int sheafio_metadata(struct xdp_md *ctx)
{
	return steer(ctx, FRAGS, true);
}

/* The latter two for a loader without CAP_PERFMON. */
SEC("xdp")
int sheafio_frags_c(struct xdp_md *ctx)
{
	return steer(ctx, COPY, false);
}

SEC("xdp")
int sheafio_meta_c(struct xdp_md *ctx)
{
	return steer(ctx, COPY, true);
}

char _license[] SEC("license") = "Dual MIT/GPL";
