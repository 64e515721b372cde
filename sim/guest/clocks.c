// SPDX-License-Identifier: GPL-2.0
/*
 * Runs on a simulated machine and tells whether its time is right; sim/fidelity reads it.
 * Without a C library, because the guest has none for it and because every instruction counts.
 *
 *	clocks spin TASKS CPUS INSTRUCTIONS	each task executes so many; task i on CPU i % CPUS.
 *						Prints ns from the first start to the last end.
 *	clocks sleep NS COUNT			sleeps NS, COUNT times, each until a time set before.
 *						Prints ns: least, mean and greatest lateness, and of
 *						the whole.
 *	clocks lock TASKS CPUS COUNT		each task takes one spinlock COUNT times, for 100
 *						instructions. Prints ns from first start to last end.
 */
#include <stdatomic.h>
#include <stdint.h>

enum {
	NR_sched_setaffinity = 122, NR_clock_nanosleep = 115, NR_exit = 93, NR_write = 64,
	NR_mmap = 222, NR_clone = 220, NR_wait4 = 260, NR_prctl = 167, NR_clock_gettime = 113,
};

#define SIGCHLD			17
#define PR_SET_TIMERSLACK	29
#define CLOCK_MONOTONIC		1
#define TIMER_ABSTIME		1
#define MAX_TASKS		1024

struct timespec {
	int64_t sec;
	int64_t nsec;
};

/* What the tasks share. */
struct shared {
	atomic_int ready;
	atomic_int go;
	atomic_int lock;
	int64_t start[MAX_TASKS];
	int64_t end[MAX_TASKS];
};

static long call(long nr, long a, long b, long c, long d, long e, long f)
{
	register long x8 asm("x8") = nr;
	register long x0 asm("x0") = a;
	register long x1 asm("x1") = b;
	register long x2 asm("x2") = c;
	register long x3 asm("x3") = d;
	register long x4 asm("x4") = e;
	register long x5 asm("x5") = f;

	asm volatile("svc #0"
		     : "+r"(x0)
		     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
		     : "memory");
	return x0;
}

static void leave(int status)
{
	for (;;)
		call(NR_exit, status, 0, 0, 0, 0, 0);
}

static void put(const char *text)
{
	long n = 0;

	while (text[n])
		n++;
	call(NR_write, 1, (long)text, n, 0, 0, 0);
}

static void put_number(const char *name, int64_t value)
{
	char text[24];
	int i = sizeof(text) - 1;
	uint64_t rest = value < 0 ? -value : value;

	text[i] = 0;
	do {
		text[--i] = '0' + rest % 10;
		rest /= 10;
	} while (rest);
	if (value < 0)
		text[--i] = '-';
	put(name);
	put(" ");
	put(&text[i]);
	put("\n");
}

static int64_t number(const char *text)
{
	int64_t n = 0;

	while (*text >= '0' && *text <= '9')
		n = 10 * n + *text++ - '0';
	return n;
}

/* The counter that the kernel's clock is made of, in ns. */
static int64_t now(void)
{
	int64_t count, frequency;

	asm volatile("isb\n mrs %0, cntvct_el0" : "=r"(count) : : "memory");
	asm volatile("mrs %0, cntfrq_el0" : "=r"(frequency));
	return frequency == 1000000000 ? count : count * 1000 / (frequency / 1000000);
}

/* The loop is two instructions. */
static void execute(int64_t instructions)
{
	int64_t n = instructions / 2;

	asm volatile("1: subs %0, %0, #1\n b.ne 1b" : "+r"(n) : : "cc");
}

static void pin(int cpu)
{
	uint64_t mask[16] = { 0 };

	mask[cpu / 64] = 1ULL << (cpu % 64);
	if (call(NR_sched_setaffinity, 0, sizeof(mask), (long)mask, 0, 0, 0))
		leave(4);
}

static void take(atomic_int *lock)
{
	while (atomic_exchange_explicit(lock, 1, memory_order_acquire))
		while (atomic_load_explicit(lock, memory_order_relaxed))
			asm volatile("yield");
}

static void task(struct shared *s, int i, int cpus, int64_t amount, int locks)
{
	int64_t n;

	pin(i % cpus);
	atomic_fetch_add(&s->ready, 1);
	while (!atomic_load(&s->go)) {
		struct timespec t = { 0, 100000 };

		call(NR_clock_nanosleep, CLOCK_MONOTONIC, 0, (long)&t, 0, 0, 0);
	}
	s->start[i] = now();
	if (!locks)
		execute(amount);
	for (n = 0; locks && n < amount; n++) {
		take(&s->lock);
		execute(100);
		atomic_store_explicit(&s->lock, 0, memory_order_release);
		execute(100);
	}
	s->end[i] = now();
	leave(0);
}

static void tasks(int nr, int cpus, int64_t amount, int locks)
{
	/* read and write; shared and anonymous */
	struct shared *s = (void *)call(NR_mmap, 0, sizeof(*s), 3, 0x21, -1, 0);
	int64_t start, end;
	int i, status;

	if ((long)s < 0 && (long)s > -4096)
		leave(5);
	for (i = 0; i < nr; i++) {
		long pid = call(NR_clone, SIGCHLD, 0, 0, 0, 0, 0);

		if (pid < 0)
			leave(6);
		if (!pid)
			task(s, i, cpus, amount, locks);
	}
	while (atomic_load(&s->ready) < nr) {
		struct timespec t = { 0, 100000 };

		call(NR_clock_nanosleep, CLOCK_MONOTONIC, 0, (long)&t, 0, 0, 0);
	}
	atomic_store(&s->go, 1);
	for (i = 0; i < nr; i++) {
		if (call(NR_wait4, -1, (long)&status, 0, 0, 0, 0) < 0 || status)
			leave(7);
	}
	start = s->start[0];
	end = s->end[0];
	for (i = 1; i < nr; i++) {
		if (s->start[i] < start)
			start = s->start[i];
		if (s->end[i] > end)
			end = s->end[i];
	}
	put_number("elapsed_ns", end - start);
}

static void sleeps(int64_t ns, int64_t count)
{
	int64_t least = INT64_MAX, greatest = 0, sum = 0, begin, whole, late, i;
	struct timespec t;

	pin(0);
	/* not 50 us, which is for sleeps of no importance */
	call(NR_prctl, PR_SET_TIMERSLACK, 1, 0, 0, 0, 0);
	call(NR_clock_gettime, CLOCK_MONOTONIC, (long)&t, 0, 0, 0, 0);
	begin = now();
	for (i = 1; i <= count; i++) {
		t.nsec += ns;
		t.sec += t.nsec / 1000000000;
		t.nsec %= 1000000000;
		if (call(NR_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, (long)&t, 0, 0, 0))
			leave(8);
		late = now() - begin - i * ns;
		sum += late;
		if (late < least)
			least = late;
		if (late > greatest)
			greatest = late;
	}
	whole = now() - begin - count * ns;
	put_number("least_ns", least);
	put_number("mean_ns", sum / count);
	put_number("greatest_ns", greatest);
	put_number("whole_ns", whole);
}

void run(long *stack)
{
	const char **argv = (const char **)(stack + 1);

	if (stack[0] == 5 && argv[1][0] == 's')
		tasks(number(argv[2]), number(argv[3]), number(argv[4]), 0);
	else if (stack[0] == 5 && argv[1][0] == 'l')
		tasks(number(argv[2]), number(argv[3]), number(argv[4]), 1);
	else if (stack[0] == 4)
		sleeps(number(argv[2]), number(argv[3]));
	else
		leave(2);
	leave(0);
}

asm(".globl _start\n_start: mov x0, sp\n b run\n");
