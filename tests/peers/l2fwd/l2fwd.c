/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * AF_XDP without a framework, as its users write it with libxdp: one socket, which sends every packet back where it
 * came from with its MAC addresses swapped.
 *
 *   FILL --> kernel --> RX --swap--> TX --> kernel --> COMPLETION
 *     ^                                                    |
 *     +----------------------------------------------------+
 *
 * Usage: l2fwd INTERFACE BATCH [TX_BUDGET]: queue 0 of the interface, native copy mode, need_wakeup. It polls, up to
 * BATCH packets and one kick a turn, until SIGTERM or SIGINT. TX_BUDGET is XDP_MAX_TX_SKB_BUDGET (linux/if_xdp.h, Linux
 * 6.17): packets that the kernel sends for one kick, 32 unless told otherwise.
 *
 * Invariant: there are as many frames as each ring has slots, so what is put into a ring has room there; each frame is
 * in one of the rings or with the kernel.
 */
#include <errno.h>
#include <linux/if_link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

#include <xdp/xsk.h>

#ifndef XDP_MAX_TX_SKB_BUDGET
#define XDP_MAX_TX_SKB_BUDGET 9
#endif

enum {
	SLOTS = 2048, /* As the programs beside it have. */
	FRAME_BYTES = 2048,
	BIND_TRIES = 300, /* One every 10 ms. */
};

static volatile sig_atomic_t is_told_to_end;

static void on_signal(int number)
{
	(void)number;
	is_told_to_end = 1;
}

static void fail(const char *what, int error)
{
	fprintf(stderr, "l2fwd: %s: %s\n", what, strerror(error));
	exit(1);
}

static unsigned number(const char *text)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (*end || value == 0 || value > SLOTS) {
		fprintf(stderr, "l2fwd: '%s'; allowed: a whole number from 1 to %d\n", text, SLOTS);
		exit(2);
	}
	return value;
}

/* Binds to queue 0, with libxdp's own XDP program, which takes every packet. */
static struct xsk_socket *open_queue(const char *interface, struct xsk_umem *umem, struct xsk_ring_cons *rx,
				     struct xsk_ring_prod *tx)
{
	const struct xsk_socket_config config = {
		.rx_size = SLOTS,
		.tx_size = SLOTS,
		.xdp_flags = XDP_FLAGS_DRV_MODE,
		.bind_flags = XDP_COPY | XDP_USE_NEED_WAKEUP,
	};
	struct xsk_socket *socket;
	int error = -EBUSY;

	/* The kernel lets go of a queue some time after the socket was closed that had it before. */
	for (int tries = 0; error == -EBUSY && tries < BIND_TRIES; tries++) {
		if (tries > 0)
			nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
		error = xsk_socket__create(&socket, interface, 0, umem, rx, tx, &config);
	}
	if (error)
		fail(interface, -error);
	return socket;
}

/* Frames that were sent lie ready for reception again. Returns how many. */
static unsigned refill(struct xsk_ring_cons *completion, struct xsk_ring_prod *fill, unsigned batch)
{
	unsigned from, to = 0;
	const unsigned count = xsk_ring_cons__peek(completion, batch, &from);

	if (count == 0)
		return 0;
	xsk_ring_prod__reserve(fill, count, &to);
	for (unsigned i = 0; i < count; i++)
		*xsk_ring_prod__fill_addr(fill, to + i) = *xsk_ring_cons__comp_addr(completion, from + i);
	xsk_ring_prod__submit(fill, count);
	xsk_ring_cons__release(completion, count);
	return count;
}

/* Destination and source change places. */
static void swap_macs(unsigned char *packet)
{
	unsigned char destination[6];

	memcpy(destination, packet, 6);
	memcpy(packet, packet + 6, 6);
	memcpy(packet + 6, destination, 6);
}

/* Moves received packets to the TX ring. Returns how many. */
static unsigned forward(void *memory, struct xsk_ring_cons *rx, struct xsk_ring_prod *tx, unsigned batch)
{
	unsigned from, to = 0;
	const unsigned count = xsk_ring_cons__peek(rx, batch, &from);

	if (count == 0)
		return 0;
	xsk_ring_prod__reserve(tx, count, &to);
	for (unsigned i = 0; i < count; i++) {
		const struct xdp_desc *received = xsk_ring_cons__rx_desc(rx, from + i);
		struct xdp_desc *sent = xsk_ring_prod__tx_desc(tx, to + i);

		swap_macs(xsk_umem__get_data(memory, received->addr));
		*sent = (struct xdp_desc){.addr = received->addr, .len = received->len};
	}
	xsk_ring_prod__submit(tx, count);
	xsk_ring_cons__release(rx, count);
	return count;
}

int main(int argc, char **argv)
{
	if (argc != 3 && argc != 4) {
		fprintf(stderr, "usage: l2fwd INTERFACE BATCH [TX_BUDGET]\n");
		return 2;
	}
	const unsigned batch = number(argv[2]);
	const int budget = argc == 4 ? number(argv[3]) : 0;

	const struct sigaction action = {.sa_handler = on_signal};
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);

	const size_t bytes = (size_t)SLOTS * FRAME_BYTES;
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (memory == MAP_FAILED)
		fail("packet memory", errno);

	const struct xsk_umem_config config = {.fill_size = SLOTS, .comp_size = SLOTS, .frame_size = FRAME_BYTES};
	struct xsk_ring_prod fill, tx;
	struct xsk_ring_cons completion, rx;
	struct xsk_umem *umem;
	const int error = xsk_umem__create(&umem, memory, bytes, &fill, &completion, &config);
	if (error)
		fail("registering the packet memory", -error);
	struct xsk_socket *socket = open_queue(argv[1], umem, &rx, &tx);
	const int fd = xsk_socket__fd(socket);
	if (budget && setsockopt(fd, SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &budget, sizeof(budget)))
		fail("XDP_MAX_TX_SKB_BUDGET (Linux 6.17)", errno);

	unsigned at = 0;
	xsk_ring_prod__reserve(&fill, SLOTS, &at);
	for (unsigned frame = 0; frame < SLOTS; frame++)
		*xsk_ring_prod__fill_addr(&fill, at + frame) = (__u64)frame * FRAME_BYTES;
	xsk_ring_prod__submit(&fill, SLOTS);

	unsigned in_flight = 0;
	while (!is_told_to_end) {
		if (in_flight > 0) {
			/* EAGAIN: it has sent its budget, and the rest waits for the next turn. */
			if (xsk_ring_prod__needs_wakeup(&tx) && sendto(fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 &&
			    errno != EAGAIN && errno != EBUSY && errno != ENOBUFS && errno != ENETDOWN)
				fail("sending", errno);
			in_flight -= refill(&completion, &fill, batch);
		}
		const unsigned received = forward(memory, &rx, &tx, batch);
		in_flight += received;
		if (received == 0 && xsk_ring_prod__needs_wakeup(&fill))
			recvfrom(fd, NULL, 0, MSG_DONTWAIT, NULL, NULL);
	}

	xsk_socket__delete(socket);
	xsk_umem__delete(umem);
	return 0;
}
