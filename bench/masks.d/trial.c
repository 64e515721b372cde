// SPDX-License-Identifier: GPL-2.0
/*
 * A mask on trial: many CPUs set, clear, walk and check it at once. bench/masks compiles this with kernel/sched/sparsemask.h,
 * which the series adds, and with dense.h beside this file.
 *
 *	trial POINT CPUS COUNT SEED	runs a thread on each of the CPUs 0 to CPUS - 1 and prints one line of numbers, see report()
 *	trial check CPUS COUNT SEED	COUNT operations of chance, compared with an array. Exit status 1 if they differ
 *
 * The points:
 *
 *	toggle	  each CPU sets and clears its own bit
 *	walk	  every fourth CPU sets or clears its bit once in 1 us, the others walk all set bits. One more fourth of the bits
 *		  is set throughout
 *	empty	  each CPU checks a mask that is empty
 *	not-empty every fourth CPU sets or clears its bit once in 1 us, the others check whether the mask is empty
 *	busy	  each CPU computes for 10 us and then sets or clears its bit, or searches: it checks whether the mask is empty (not
 *		  without a mask), walks from its own core and stops at the fourth set bit. As many searches as changes
 *	rare	  the same, but it computes for 200 us
 *	idle	  as busy, with a change in 16 events, which the next event takes back
 *
 * Times of computing are uniformly distributed from 0 to twice the mean; on other machines than the simulated one they are
 * approximate.
 *
 * CPU by CPU, the first COUNT operations are measured. All CPUs go on until the last one has done its own. On a simulated
 * machine, this time is a section: it ends when the last CPU is done.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>

#include "sparsemask.h"

#ifndef SPARSEMASK_WORD_CPUS
#define SPARSEMASK_WORD_CPUS	SPARSEMASK_DENSITY
#endif

#define MAX_CPUS	1024
#define STEAL_MAX	4
#define PAUSE_NS	1000
#define BUSY_NS		10000
#define RARE_NS		200000

enum point { TOGGLE, WALK, EMPTY, NOT_EMPTY, BUSY, RARE, IDLE };

static const char *const names[] = { "toggle", "walk", "empty", "not-empty", "busy", "rare", "idle" };

struct timing {
	uint64_t ticks;
	uint64_t ops;
};

struct worker {
	_Alignas(128) pthread_t thread;
	unsigned int cpu;
	unsigned int elem;
	/* the bit, as the runqueue remembers it */
	bool set;
	uint64_t random;
	/* what the point is about, and the changes of bits beside it: measured */
	struct timing main, changes;
	/* all operations of the section */
	uint64_t all;
	/* so that walks are not optimized away */
	unsigned int seen;
};

unsigned int nr_cpu_ids;

static struct worker workers[MAX_CPUS];
static struct sparsemask *mask;
static enum point point;
static unsigned int cpus;
static uint64_t count;
static uint64_t overhead;

static _Alignas(128) int ready;
static _Alignas(128) int arrived;
static _Alignas(128) int finished;
/* Only read while the CPUs are measured. */
static _Alignas(128) int stop;
static int64_t start_at;
static int go;

static uint64_t now(void)
{
	uint64_t t;

#ifdef __x86_64__
	__asm__ volatile("lfence\n rdtsc\n shl $32, %%rdx\n or %%rdx, %%rax" : "=a"(t) : : "rdx", "memory");
#else
	__asm__ volatile("isb\n mrs %0, cntvct_el0" : "=r"(t) : : "memory");
#endif
	return t;
}

static void execute(uint64_t ns)
{
	uint64_t n = ns / 2 + 1;

#ifdef __x86_64__
	/* Some 6 cycles for 2 ns. */
	n *= 6;
	__asm__ volatile("1: dec %0\n jne 1b" : "+r"(n) : : "cc");
#else
	__asm__ volatile("1: subs %0, %0, #1\n b.ne 1b" : "+r"(n) : : "cc");
#endif
}

static void relax(void)
{
#ifdef __x86_64__
	__asm__ volatile("pause");
#else
	__asm__ volatile("yield");
#endif
}

static void section(bool begin)
{
#ifdef __aarch64__
	if (begin)
		__asm__ volatile("hint #0x70" : : : "memory");
	else
		__asm__ volatile("hint #0x71" : : : "memory");
#else
	(void)begin;
#endif
}

static int64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static uint64_t draw(uint64_t *state)
{
	*state = *state * 6364136223846793005 + 1442695040888963407;
	return *state >> 33;
}

static void compute(struct worker *w, uint64_t mean)
{
	execute(draw(&w->random) % (2 * mean));
}

static inline __attribute__((always_inline)) void change(struct worker *w)
{
	w->set = !w->set;
	if (w->set)
		sparsemask_set_elem(w->elem, mask);
	else
		sparsemask_clear_elem(w->elem, mask);
}

static void timed_change(struct worker *w)
{
	uint64_t t = now();

	change(w);
	w->changes.ticks += now() - t;
	w->changes.ops++;
}

static void search(struct worker *w)
{
	unsigned int elem, nr = 0;
	uint64_t t = now();

	/* With a line for each CPU, a check would read all of them: the walk is the check. */
	if (SPARSEMASK_WORD_CPUS == 1 || !sparsemask_empty(mask)) {
		sparsemask_for_each_wrap(elem, mask, w->elem & ~1u) {
			if (elem == w->elem)
				continue;
			w->seen += sparsemask_cpu(elem, mask);
			if (++nr == STEAL_MAX)
				break;
		}
	}
	w->main.ticks += now() - t;
	w->main.ops++;
}

static void walk(struct worker *w)
{
	unsigned int elem;

	sparsemask_for_each_wrap(elem, mask, w->elem)
		w->seen += sparsemask_cpu(elem, mask);
}

/* Do all CPUs compute, and then do one thing or another? */
static bool mixed(void)
{
	return point >= BUSY;
}

/* The CPUs that change their bits while the others do what the point is about. */
static bool changes(const struct worker *w)
{
	return (point == WALK || point == NOT_EMPTY) && cpus > 1 && w->cpu % 4 == 0;
}

static void event(struct worker *w)
{
	compute(w, point == RARE ? RARE_NS : BUSY_NS);
	if (point == IDLE ? w->set || draw(&w->random) % 16 == 0 : draw(&w->random) % 2)
		timed_change(w);
	else
		search(w);
}

/* Do @point's operation from the @n-th on, until the last CPU is done. Returns the number of the next one. */
static inline __attribute__((always_inline)) uint64_t repeat(struct worker *w, enum point p, bool paused, uint64_t n, uint64_t end)
{
	for (; n < end && !READ_ONCE(stop); n++) {
		if (paused) {
			compute(w, PAUSE_NS);
			timed_change(w);
		} else if (p == TOGGLE) {
			change(w);
		} else if (p == WALK) {
			walk(w);
		} else if (p == EMPTY || p == NOT_EMPTY) {
			w->seen += sparsemask_empty(mask);
		} else {
			event(w);
		}
	}
	return n;
}

/* A loop of its own for each kind of operation: the choice takes no time in it. */
static uint64_t operate(struct worker *w, uint64_t n, uint64_t end)
{
	if (changes(w))
		return repeat(w, point, true, n, end);
	switch (point) {
	case TOGGLE:
		return repeat(w, TOGGLE, false, n, end);
	case WALK:
		return repeat(w, WALK, false, n, end);
	case EMPTY:
	case NOT_EMPTY:
		return repeat(w, EMPTY, false, n, end);
	default:
		return repeat(w, BUSY, false, n, end);
	}
}

/* Wait until all threads are on their CPUs, and begin at once. */
static void begin(struct worker *w)
{
	struct timespec t = { 0, 1000000 };
	int64_t at;

	if (__atomic_add_fetch(&ready, 1, __ATOMIC_SEQ_CST) == (int)cpus)
		__atomic_store_n(&start_at, clock_ns() + 2000000, __ATOMIC_SEQ_CST);
	while (!(at = __atomic_load_n(&start_at, __ATOMIC_SEQ_CST)))
		nanosleep(&t, NULL);
	t = (struct timespec){ at / 1000000000, at % 1000000000 };
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
	__atomic_fetch_add(&arrived, 1, __ATOMIC_SEQ_CST);
	if (w->cpu == 0) {
		while (__atomic_load_n(&arrived, __ATOMIC_SEQ_CST) < (int)cpus)
			relax();
		section(true);
		__atomic_store_n(&go, 1, __ATOMIC_SEQ_CST);
	}
	while (!__atomic_load_n(&go, __ATOMIC_SEQ_CST))
		relax();
}

static void *work(void *argument)
{
	struct worker *w = argument;
	/* by events, or as a whole */
	bool timed = changes(w) || mixed();
	struct timing m, c;
	uint64_t n, t;

	prctl(PR_SET_TIMERSLACK, 1);
	/* The program's pages are mapped then. */
	operate(w, 0, 8);
	w->main = w->changes = (struct timing){ 0 };
	begin(w);

	t = now();
	n = operate(w, 0, count);
	if (!timed)
		w->main = (struct timing){ now() - t, n };
	if (!changes(w) && __atomic_add_fetch(&finished, 1, __ATOMIC_SEQ_CST) == (int)cpus) {
		section(false);
		WRITE_ONCE(stop, 1);
	}
	/* What is measured ends here, but for the CPUs that go on with it until the others are done. */
	m = w->main;
	c = w->changes;
	n = operate(w, n, UINT64_MAX);
	if (!changes(w)) {
		w->main = m;
		w->changes = c;
	}
	w->all = n;
	return NULL;
}

/* Print operations, ns for one as the mean of the CPUs, and the least and the greatest of the CPUs. */
static void print(size_t offset, double tick_ns, uint64_t less)
{
	double sum = 0, least = 0, most = 0;
	uint64_t ops = 0;
	unsigned int i, nr = 0;

	for (i = 0; i < cpus; i++) {
		const struct timing *t = (const void *)((const char *)&workers[i] + offset);
		double ns;

		if (!t->ops)
			continue;
		ns = ((double)t->ticks / t->ops - less) * tick_ns;
		least = nr && least < ns ? least : ns;
		most = nr && most > ns ? most : ns;
		sum += ns;
		ops += t->ops;
		nr++;
	}
	printf(",%" PRIu64 ",%.2f,%.2f,%.2f", ops, nr ? sum / nr : 0, least, most);
}

static void report(double tick_ns)
{
	bool timed = mixed();
	uint64_t all = 0;
	unsigned int i;

	for (i = 0; i < cpus; i++)
		all += workers[i].all;
	printf("%s,%u,%" PRIu64, names[point], cpus, all);
	print(offsetof(struct worker, main), tick_ns, timed ? overhead : 0);
	print(offsetof(struct worker, changes), tick_ns, overhead);
	printf("\n");
}

static int check(uint64_t seed)
{
	static bool set[MAX_CPUS];
	uint64_t n, random = seed;

	for (n = 0; n < count; n++) {
		unsigned int cpu = draw(&random) % cpus, start = sparsemask_find_cpu(cpu, mask), at = cpu, nr = 0, elem, i;
		/* Now and then the mask gets empty, or full. */
		unsigned int kind = draw(&random) % 16, phase = n / 64 % 4;

		if (start == mask->nr_elems || sparsemask_cpu(start, mask) != cpu)
			goto differs;
		if (kind < (phase == 0 ? 14 : phase == 1 ? 0 : 6)) {
			sparsemask_set_elem(start, mask);
			set[cpu] = true;
		} else if (kind < 14) {
			sparsemask_clear_elem(start, mask);
			set[cpu] = false;
		}
		for (i = 0; i < cpus; i++)
			nr += set[i];
		if (sparsemask_empty(mask) != !nr || sparsemask_test_elem(start, mask) != set[cpu])
			goto differs;
		sparsemask_for_each_wrap(elem, mask, start) {
			while (at < cpu + cpus && !set[at % cpus])
				at++;
			if (at >= cpu + cpus || sparsemask_cpu(elem, mask) != at % cpus)
				goto differs;
			at++;
			nr--;
		}
		if (nr)
			goto differs;
	}
	return 0;
differs:
	fprintf(stderr, "trial: operation %" PRIu64 " of seed %" PRIu64 " gives another answer than an array\n", n, seed);
	return 1;
}

int main(int argc, char **argv)
{
	uint64_t seed, t;
	pthread_attr_t attributes;
	int64_t from;
	double tick_ns;
	unsigned int i;

	if (argc != 5)
		return 2;
	cpus = nr_cpu_ids = strtoul(argv[2], NULL, 10);
	count = strtoull(argv[3], NULL, 10);
	seed = strtoull(argv[4], NULL, 10);
	if (!cpus || cpus > MAX_CPUS)
		return 2;
	mask = sparsemask_alloc_node(cpus, 0, 0);
	if (!mask)
		return 3;
	for (i = 0; i < cpus; i++)
		sparsemask_add_cpu(i, mask);
	if (!strcmp(argv[1], "check"))
		return check(seed);
	while (strcmp(argv[1], names[point]))
		if (++point > IDLE)
			return 2;

	overhead = UINT64_MAX;
	for (i = 0; i < 1000; i++) {
		t = now();
		t = now() - t;
		if (t < overhead)
			overhead = t;
	}
	from = clock_ns();
	t = now();
	for (i = 0; i < cpus; i++) {
		struct worker *w = &workers[i];
		cpu_set_t set;

		w->cpu = i;
		w->elem = sparsemask_find_cpu(i, mask);
		w->random = seed * 1000003 + i;
		draw(&w->random);
		if (point == WALK && (cpus == 1 || i % 4 == 1))
			sparsemask_set_elem(w->elem, mask);
		/* those that only change bits are no part of what is waited for */
		finished += changes(w);
		pthread_attr_init(&attributes);
		pthread_attr_setstacksize(&attributes, 65536);
		CPU_ZERO(&set);
		CPU_SET(i, &set);
		if (pthread_attr_setaffinity_np(&attributes, sizeof(set), &set) ||
		    pthread_create(&w->thread, &attributes, work, w)) {
			fprintf(stderr, "trial: error: no thread for CPU %u\n", i);
			return 3;
		}
	}
	for (i = 0; i < cpus; i++)
		pthread_join(workers[i].thread, NULL);
	tick_ns = (double)(clock_ns() - from) / (now() - t);
	report(tick_ns);
	return 0;
}
