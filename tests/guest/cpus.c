// SPDX-License-Identifier: GPL-2.0
/*
 * Usage: cpus apart COUNT | cpus back COUNT | cpus yield COUNT | cpus wfe COUNT
 *
 * What the simulator promises of the CPUs of a simulated machine, as a program there sees it:
 *
 *	apart	CPU 1 writes its clock to memory all the time; CPU 0 reads that and its own clock, COUNT
 *		times. Prints how far CPU 1 was ahead at most: what the quantum bounds.
 *	back	a task on CPU 1 waits COUNT times for one on CPU 0. Prints by how much CPU 1's clock went
 *		back over such a wait, at most.
 *	yield	executes COUNT times YIELD, and prints what that took. So does wfe, with WFE.
 *
 * All in ns, of which the machine's counter has one in each. There is no C library for it.
 */
#include <stdatomic.h>
#include <stdint.h>

struct shared {
	_Atomic int64_t clock;
	_Atomic int stop;
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
		call(93 /* exit */, status, 0, 0, 0, 0, 0);
}

static void print(int64_t value)
{
	char text[24];
	int i = sizeof(text);

	text[--i] = '\n';
	do {
		text[--i] = '0' + value % 10;
		value /= 10;
	} while (value);
	call(64 /* write */, 1, (long)&text[i], sizeof(text) - i, 0, 0, 0);
}

static int64_t now(void)
{
	int64_t count;

	asm volatile("isb\n mrs %0, cntvct_el0" : "=r"(count) : : "memory");
	return count;
}

static void pin(int cpu)
{
	uint64_t mask = 1ULL << cpu;

	if (call(122 /* sched_setaffinity */, 0, sizeof(mask), (long)&mask, 0, 0, 0))
		leave(4);
}

/* Starts a task that shares @s with this one; its number, or 0 in that task. It is on CPU 1, this on CPU 0. */
static long start(struct shared **s)
{
	long pid;

	*s = (void *)call(222 /* mmap */, 0, sizeof(**s), 3, 0x21, -1, 0);
	if ((long)*s < 0 && (long)*s > -4096)
		leave(5);
	pid = call(220 /* clone */, 17 /* SIGCHLD */, 0, 0, 0, 0, 0);
	if (pid < 0)
		leave(6);
	pin(!pid);
	return pid;
}

static void finish(long pid)
{
	int status;

	if (call(260 /* wait4 */, pid, (long)&status, 0, 0, 0, 0) < 0 || status)
		leave(7);
}

static void apart(int64_t count)
{
	struct shared *s;
	int64_t ahead, greatest = 0;
	long pid = start(&s);

	while (!pid) {
		atomic_store(&s->clock, now());
		if (atomic_load(&s->stop))
			leave(0);
	}
	while (!atomic_load(&s->clock))
		;
	while (count--) {
		ahead = atomic_load(&s->clock);
		ahead -= now();
		if (ahead > greatest)
			greatest = ahead;
	}
	atomic_store(&s->stop, 1);
	finish(pid);
	print(greatest);
}

/* Until @ns later. */
static void compute(int64_t ns)
{
	int64_t end = now() + ns;

	while (now() < end)
		;
}

static void back(int64_t count)
{
	int pipe[2];
	struct shared *s;
	int64_t before, greatest = 0;
	char byte = 0;
	long pid, i;

	if (call(59 /* pipe2 */, (long)pipe, 0, 0, 0, 0, 0))
		leave(8);
	pid = start(&s);
	for (i = 0; pid && i < count; i++) {
		compute(50000);
		if (call(64 /* write */, pipe[1], (long)&byte, 1, 0, 0, 0) != 1)
			leave(9);
	}
	for (i = 0; !pid && i < count; i++) {
		compute(1000 * (i % 60));
		before = now();
		if (call(63 /* read */, pipe[0], (long)&byte, 1, 0, 0, 0) != 1)
			leave(9);
		before -= now();
		if (before > greatest)
			greatest = before;
		atomic_store(&s->clock, greatest);
	}
	if (!pid)
		leave(0);
	finish(pid);
	print(atomic_load(&s->clock));
}

static void waits(int64_t count, int wfe)
{
	int64_t begin;

	pin(0);
	begin = now();
	while (count--) {
		if (wfe)
			asm volatile("wfe");
		else
			asm volatile("yield");
	}
	print(now() - begin);
}

void run(long *stack)
{
	const char **argv = (const char **)(stack + 1);
	const char *text = argv[2];
	int64_t count = 0;

	if (stack[0] != 3)
		leave(2);
	while (*text >= '0' && *text <= '9')
		count = 10 * count + *text++ - '0';
	if (argv[1][0] == 'a')
		apart(count);
	else if (argv[1][0] == 'b')
		back(count);
	else
		waits(count, argv[1][0] == 'w');
	leave(0);
}

asm(".globl _start\n_start: mov x0, sp\n b run\n");
