/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * DPDK's rte_mempool as its users get it: a cache of 512 a lcore over the default ring. mempool.rs runs the same
 * cases on sheafio.
 *
 *   pair, thread   pool --get--> array --put--> pool                           one thread on CPU 0
 *   pipe           pool --get--> array --> ring --> array --put--> pool        CPU 0 to CPU 1
 *
 * Usage: mempool pair BULK const|var | thread BULK | pipe untouched|touched [SLOTS]
 *
 * One case a run, of about half a second; prints one line, the median over blocks of elements. `const`: the compiler
 * knows BULK (1, 8, 16, 32 or 64), `var`: it does not. `thread` is `pair BULK const` in a plain pthread, which is no
 * lcore of EAL. `pipe` moves bursts of 32 through a ring of one producer and one consumer with SLOTS places (32);
 * `touched`: CPU 0 writes a word of each object's first cache line, CPU 1 reads it.
 */
#include <pthread.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_launch.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_ring.h>

enum {
	OBJECTS = 16383, /* rte_mempool is best at a power of two less one. */
	CACHE = 512,
	MAX_BULK = 64,
	BURST = 32,
	BLOCK = 1 << 16, /* Elements between two looks at the clock. */
	MAX_SAMPLES = 1 << 16,
};
static const double SECONDS = 0.4;

static double samples[MAX_SAMPLES];
static unsigned sample_count;

static const char USAGE[] = "usage: mempool pair BULK const|var | thread BULK | pipe untouched|touched [SLOTS], "
			    "BULK 1, 8, 16, 32 or 64, SLOTS at least 32";

static void fail(const char *what, const char *why)
{
	fprintf(stderr, "mempool: %s%s%s\n", what, why ? ": " : "", why ? why : "");
	exit(2);
}

static int by_value(const void *left, const void *right)
{
	double a = *(const double *)left, b = *(const double *)right;
	return (a > b) - (a < b);
}

static double median(void)
{
	qsort(samples, sample_count, sizeof(samples[0]), by_value);
	return samples[sample_count / 2];
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

/* Inlined into each caller, so that a bulk that is constant there is constant here. */
static __rte_always_inline double pair_of(struct rte_mempool *pool, const unsigned bulk)
{
	alignas(64) void *objects[MAX_BULK];
	double end = now() + SECONDS;

	for (sample_count = 0; sample_count < MAX_SAMPLES && now() < end; sample_count++) {
		uint64_t start = rte_rdtsc();
		for (unsigned moved = 0; moved < BLOCK; moved += bulk) {
			if (unlikely(rte_mempool_get_bulk(pool, objects, bulk) != 0))
				fail("the pool is empty", NULL);
			/* The objects are really in the array, and could be others afterwards. */
			__asm__ volatile("" : : "r"(objects) : "memory");
			rte_mempool_put_bulk(pool, objects, bulk);
		}
		samples[sample_count] = (double)(rte_rdtsc() - start) / BLOCK;
	}
	return median();
}

static double pair(struct rte_mempool *pool, unsigned bulk, bool known)
{
	if (!known) {
		__asm__ volatile("" : "+r"(bulk));
		return pair_of(pool, bulk);
	}
	switch (bulk) {
	case 1: return pair_of(pool, 1);
	case 8: return pair_of(pool, 8);
	case 16: return pair_of(pool, 16);
	case 32: return pair_of(pool, 32);
	default: return pair_of(pool, 64);
	}
}

struct thread {
	struct rte_mempool *pool;
	unsigned bulk;
	double figure;
};

static void *run_thread(void *argument)
{
	struct thread *thread = argument;

	if (rte_lcore_id() != LCORE_ID_ANY)
		fail("the thread is an lcore", NULL);
	thread->figure = pair(thread->pool, thread->bulk, true);
	return NULL;
}

struct pipe {
	struct rte_mempool *pool;
	struct rte_ring *ring;
	bool touched;
	bool stop;
};

static void produce(struct pipe *pipe)
{
	alignas(64) void *objects[BURST];
	uint64_t number = 0;

	while (!__atomic_load_n(&pipe->stop, __ATOMIC_RELAXED)) {
		if (unlikely(rte_mempool_get_bulk(pipe->pool, objects, BURST) != 0))
			fail("the pool is empty", NULL);
		if (pipe->touched)
			for (unsigned at = 0; at < BURST; at++)
				*(volatile uint64_t *)objects[at] = number++;
		for (unsigned sent = 0; sent < BURST && !__atomic_load_n(&pipe->stop, __ATOMIC_RELAXED);)
			sent += rte_ring_sp_enqueue_burst(pipe->ring, objects + sent, BURST - sent, NULL);
	}
}

static int consume(void *argument)
{
	struct pipe *pipe = argument;
	alignas(64) void *objects[BURST];
	unsigned received = 0;
	double last = now(), end = last + SECONDS;

	while (last < end) {
		unsigned count = rte_ring_sc_dequeue_burst(pipe->ring, objects, BURST, NULL);
		if (count == 0)
			continue;
		if (pipe->touched)
			for (unsigned at = 0; at < count; at++)
				(void)*(volatile uint64_t *)objects[at];
		rte_mempool_put_bulk(pipe->pool, objects, count);
		received += count;
		if (received >= BLOCK) {
			double time = now();
			samples[sample_count++ % MAX_SAMPLES] = received / (time - last) / 1e6;
			last = time;
			received = 0;
		}
	}
	__atomic_store_n(&pipe->stop, true, __ATOMIC_RELAXED);
	return 0;
}

static double run_pipe(struct rte_mempool *pool, bool touched, unsigned slots)
{
	/* EXACT_SZ: without it, one place fewer than a power of two would be usable, and a burst would not fit. */
	unsigned flags = RING_F_SP_ENQ | RING_F_SC_DEQ | RING_F_EXACT_SZ;
	struct pipe pipe = { .pool = pool, .touched = touched };

	pipe.ring = rte_ring_create("pipe", slots, SOCKET_ID_ANY, flags);
	if (pipe.ring == NULL)
		fail("can't make a ring", rte_strerror(rte_errno));
	if (rte_eal_remote_launch(consume, &pipe, 1) != 0)
		fail("can't start on CPU 1", NULL);
	produce(&pipe);
	rte_eal_wait_lcore(1);
	return median();
}

static struct rte_mempool *make_pool(const char *name)
{
	char *arguments[] = { (char *)(uintptr_t)name, "-l", "0,1", "--main-lcore", "0", "--no-pci", "--in-memory",
			      "-m", "256", "--no-telemetry", "--log-level", "error", NULL };
	/* An element as rte_pktmbuf_pool_create makes it; only its address is moved. */
	unsigned bytes = sizeof(struct rte_mbuf) + RTE_MBUF_DEFAULT_BUF_SIZE;
	struct rte_mempool *pool;

	if (rte_eal_init(RTE_DIM(arguments) - 1, arguments) < 0)
		fail("EAL does not start (needs root and 128 free hugepages of 2 MiB)", rte_strerror(rte_errno));
	pool = rte_mempool_create("peer", OBJECTS, bytes, CACHE, 0, NULL, NULL, NULL, NULL, SOCKET_ID_ANY, 0);
	if (pool == NULL)
		fail("can't make a pool", rte_strerror(rte_errno));
	return pool;
}

static unsigned bulk_in(const char *text)
{
	int bulk = atoi(text);

	if (bulk != 1 && bulk != 8 && bulk != 16 && bulk != 32 && bulk != 64)
		fail(USAGE, NULL);
	return bulk;
}

int main(int count, char **arguments)
{
	const char *what = count > 1 ? arguments[1] : "", *how = count > 3 ? arguments[3] : "";
	double figure;

	if (strcmp(what, "pair") == 0 && count == 4 && (strcmp(how, "const") == 0 || strcmp(how, "var") == 0)) {
		unsigned bulk = bulk_in(arguments[2]);
		figure = pair(make_pool(arguments[0]), bulk, strcmp(how, "const") == 0);
	} else if (strcmp(what, "thread") == 0 && count == 3) {
		struct thread thread = { .bulk = bulk_in(arguments[2]) };
		pthread_t id;
		thread.pool = make_pool(arguments[0]);
		if (pthread_create(&id, NULL, run_thread, &thread) != 0 || pthread_join(id, NULL) != 0)
			fail("can't run a thread", NULL);
		figure = thread.figure;
	} else if (strcmp(what, "pipe") == 0 && (count == 3 || count == 4) &&
		   (strcmp(arguments[2], "untouched") == 0 || strcmp(arguments[2], "touched") == 0)) {
		int slots = count == 4 ? atoi(how) : BURST;
		if (slots < BURST)
			fail(USAGE, NULL);
		figure = run_pipe(make_pool(arguments[0]), strcmp(arguments[2], "touched") == 0, slots);
		printf("%.1f million objects/s\n", figure);
		return 0;
	} else {
		fail(USAGE, NULL);
	}
	printf("%.3f cycles an element\n", figure);
	return 0;
}
