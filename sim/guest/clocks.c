// SPDX-License-Identifier: GPL-2.0
/*
 * Runs on a simulated machine and tells whether its time is right; sim/fidelity reads it.
 * Without a C library, because the guest has none for it and because every instruction counts.
 *
 *	clocks spin TASKS CPUS INSTRUCTIONS	each task executes so many; task i on CPU i % CPUS.
 *						Prints ns from the first start to the last end.
 *	clocks sleep NS COUNT			sleeps NS, COUNT times, each until a time set before.
 *						COUNT is 1000 at most. Prints ns: least, median, mean and
 *						greatest lateness, and that of the whole.
 *	clocks lock TASKS CPUS COUNT		each task takes one spinlock COUNT times, for 100
 *						instructions. Prints ns from first start to last end.
 *
 * For machines with caches:
 *
 *	clocks chase BYTES CPU			goes four times and more through all lines of BYTES of memory, in an
 *						order of chance; each load has the next one's address. Prints
 *						ps for a load: the median of three measurements, as the kernel's
 *						own work may fall into one. The first round is not measured.
 *	clocks move BYTES FROM TO		writes the lines on CPU FROM, then goes through them on CPU TO.
 *						Prints ps for a load of the first, second and third round.
 *	clocks hand CPU CPU COUNT		two tasks hand a line to and fro, COUNT times. Prints ps for one
 *						way.
 *	clocks count TASKS STEP COUNT BYTES	each task adds to a counter COUNT times, task i on CPU i * STEP.
 *						The counters are BYTES apart; 0: all use one. Prints ps for one
 *						addition.
 *	clocks jump BYTES			goes many times through BYTES of instructions, with a jump on each
 *						line. Prints ps for a jump, but for those of the first round.
 */
#include <stdatomic.h>
#include <stdint.h>

enum {
	NR_sched_setaffinity = 122, NR_clock_nanosleep = 115, NR_exit = 93, NR_write = 64,
	NR_mmap = 222, NR_clone = 220, NR_wait4 = 260, NR_prctl = 167, NR_clock_gettime = 113, NR_mprotect = 226,
};

#define SIGCHLD			17
#define PR_SET_TIMERSLACK	29
#define CLOCK_MONOTONIC		1
#define TIMER_ABSTIME		1
#define MAX_TASKS		1024
#define MAX_SLEEPS		1000

struct timespec {
	int64_t sec;
	int64_t nsec;
};

/* What the tasks share. */
struct shared {
	atomic_int ready;
	atomic_int go;
	atomic_int lock;
	atomic_int arrived;
	/* on two lines of their own */
	_Alignas(64) atomic_int turn;
	_Alignas(128) atomic_long counters[32];
	_Alignas(128) int64_t start[MAX_TASKS];
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

enum kind { SPINS, LOCKS, HANDS, COUNTS };

static void hand(atomic_int *turn, int me, int64_t count)
{
	int64_t n;

	for (n = 0; n < count; n++) {
		int mine = me;

		while (!atomic_compare_exchange_weak_explicit(turn, &mine, !me, memory_order_acq_rel, memory_order_relaxed))
			mine = me;
	}
}

static void task(struct shared *s, int i, int nr, int cpu, int64_t amount, enum kind kind, int64_t apart)
{
	int64_t n;

	pin(cpu);
	atomic_fetch_add(&s->ready, 1);
	while (!atomic_load(&s->go)) {
		struct timespec t = { 0, 100000 };

		call(NR_clock_nanosleep, CLOCK_MONOTONIC, 0, (long)&t, 0, 0, 0);
	}
	if (kind == HANDS || kind == COUNTS) {
		/* all are on their CPUs: begin at once */
		atomic_fetch_add(&s->arrived, 1);
		while (atomic_load_explicit(&s->arrived, memory_order_relaxed) < nr)
			asm volatile("yield");
	}
	s->start[i] = now();
	if (kind == SPINS)
		execute(amount);
	if (kind == HANDS)
		hand(&s->turn, i, amount);
	for (n = 0; kind == COUNTS && n < amount; n++)
		atomic_fetch_add_explicit(&s->counters[i * apart / 8], 1, memory_order_relaxed);
	for (n = 0; kind == LOCKS && n < amount; n++) {
		take(&s->lock);
		execute(100);
		atomic_store_explicit(&s->lock, 0, memory_order_release);
		execute(100);
	}
	s->end[i] = now();
	leave(0);
}

/* Memory, read and write, anonymous; @shared: with the tasks that are created later. */
static void *memory(int64_t bytes, int shared)
{
	long p = call(NR_mmap, 0, bytes, 3, shared ? 0x21 : 0x22, -1, 0);

	if (p < 0 && p > -4096)
		leave(5);
	return (void *)p;
}

/* Run @nr tasks, task i on CPU cpu[i % cpus], at once. Returns ns from the first start to the last end. */
static int64_t tasks(int nr, const int *cpu, int cpus, int64_t amount, enum kind kind, int64_t apart)
{
	struct shared *s = memory(sizeof(*s), 1);
	int64_t start, end;
	int i, status;

	for (i = 0; i < nr; i++) {
		long pid = call(NR_clone, SIGCHLD, 0, 0, 0, 0, 0);

		if (pid < 0)
			leave(6);
		if (!pid)
			task(s, i, nr, cpu[i % cpus], amount, kind, apart);
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
	return end - start;
}

#define LINE	64

/* One word for each line of @bytes: a cycle through all of them, in an order of chance. */
static void **make_cycle(int64_t bytes)
{
	int64_t lines = bytes / LINE, i, j;
	char *p = memory(bytes, 0);
	uint64_t random = 1;
	void *swap;

	for (i = 0; i < lines; i++)
		*(void **)(p + i * LINE) = p + i * LINE;
	for (i = lines - 1; i > 0; i--) {
		random = random * 6364136223846793005 + 1442695040888963407;
		j = (random >> 33) % i;
		swap = *(void **)(p + i * LINE);
		*(void **)(p + i * LINE) = *(void **)(p + j * LINE);
		*(void **)(p + j * LINE) = swap;
	}
	return (void **)p;
}

/* Follow @loads pointers; returns ps for each. 16 of them are in 18 instructions. */
static int64_t follow(void **p, int64_t loads)
{
	int64_t n = loads / 16, start = now();

	asm volatile("1: ldr %0, [%0]\n ldr %0, [%0]\n ldr %0, [%0]\n ldr %0, [%0]\n"
		     "ldr %0, [%0]\n ldr %0, [%0]\n ldr %0, [%0]\n ldr %0, [%0]\n"
		     "ldr %0, [%0]\n ldr %0, [%0]\n ldr %0, [%0]\n ldr %0, [%0]\n"
		     "ldr %0, [%0]\n ldr %0, [%0]\n ldr %0, [%0]\n ldr %0, [%0]\n"
		     "subs %1, %1, #1\n b.ne 1b" : "+r"(p), "+r"(n) : : "cc", "memory");
	return (now() - start) * 1000 / loads;
}

static void chase(int64_t bytes, int cpu)
{
	/* long enough for the clock */
	int64_t loads = bytes / LINE < 65536 ? 65536 : bytes / LINE;
	int64_t a, b, c, low, high;
	void **p;

	pin(cpu);
	p = make_cycle(bytes);
	follow(p, loads);
	a = follow(p, loads);
	b = follow(p, loads);
	c = follow(p, loads);
	low = a < b ? a : b;
	high = a < b ? b : a;
	put_number("load_ps", c < low ? low : c > high ? high : c);
}

static void move(int64_t bytes, int from, int to)
{
	void **p;
	int i;

	pin(from);
	p = make_cycle(bytes);
	pin(to);
	for (i = 0; i < 3; i++)
		put_number("load_ps", follow(p, bytes / LINE));
}

static void upgrade(int64_t bytes, int from, int to)
{
	int64_t lines = bytes / LINE, n = lines, start;
	void **p;

	pin(from);
	p = make_cycle(bytes);
	pin(to);
	follow(p, lines);
	start = now();
	/* 4 instructions */
	asm volatile("1: str xzr, [%0]\n add %0, %0, #64\n subs %1, %1, #1\n b.ne 1b" : "+r"(p), "+r"(n) : : "cc", "memory");
	put_number("store_ps", (now() - start) * 1000 / lines);
}

static void jump(int64_t bytes)
{
	int64_t lines = bytes / LINE, rounds = 1000000 / lines, i, start, ctr;
	uint32_t *code = memory(bytes + LINE, 0);

	/* "b" to the next line; the last returns */
	for (i = 0; i < lines; i++)
		code[i * LINE / 4] = 0x14000000 | LINE / 4;
	code[lines * LINE / 4] = 0xd65f03c0;
	if (call(NR_mprotect, (long)code, bytes + LINE, 5, 0, 0, 0))
		leave(9);
	asm volatile("mrs %0, ctr_el0" : "=r"(ctr));
	for (i = 0; i <= lines && !(ctr & 1 << 29); i++)
		asm volatile("dc cvau, %0\n dsb ish\n ic ivau, %0\n dsb ish\n isb" : : "r"(code + i * LINE / 4) : "memory");
	((void (*)(void))code)();
	start = now();
	for (i = 0; i < rounds; i++)
		((void (*)(void))code)();
	put_number("jump_ps", (now() - start) * 1000 / (rounds * lines));
}

static int same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

static void sleeps(int64_t ns, int64_t count)
{
	static int64_t lateness[MAX_SLEEPS];	/* in ascending order */
	int64_t sum = 0, begin, whole, late, i, j;
	struct timespec t;

	if (count < 1 || count > MAX_SLEEPS)
		leave(2);
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
		for (j = i - 1; j > 0 && lateness[j - 1] > late; j--)
			lateness[j] = lateness[j - 1];
		lateness[j] = late;
	}
	whole = now() - begin - count * ns;
	put_number("least_ns", lateness[0]);
	put_number("median_ns", lateness[count / 2]);
	put_number("mean_ns", sum / count);
	put_number("greatest_ns", lateness[count - 1]);
	put_number("whole_ns", whole);
}

void run(long *stack)
{
	const char **argv = (const char **)(stack + 1);
	long argc = stack[0], i;
	int64_t n[4] = { 0 };
	int cpu[MAX_TASKS];

	for (i = 2; i < argc && i < 6; i++)
		n[i - 2] = number(argv[i]);
	if (argc == 5 && (same(argv[1], "spin") || same(argv[1], "lock"))) {
		for (i = 0; i < n[1]; i++)
			cpu[i] = i;
		put_number("elapsed_ns", tasks(n[0], cpu, n[1], n[2], argv[1][0] == 's' ? SPINS : LOCKS, 0));
	} else if (argc == 4 && same(argv[1], "sleep")) {
		sleeps(n[0], n[1]);
	} else if (argc == 4 && same(argv[1], "chase")) {
		chase(n[0], n[1]);
	} else if (argc == 5 && same(argv[1], "move")) {
		move(n[0], n[1], n[2]);
	} else if (argc == 5 && same(argv[1], "hand")) {
		cpu[0] = n[0];
		cpu[1] = n[1];
		put_number("hand_ps", tasks(2, cpu, 2, n[2], HANDS, 0) * 1000 / (2 * n[2]));
	} else if (argc == 6 && same(argv[1], "count") && (n[0] - 1) * n[3] / 8 < 32) {
		for (i = 0; i < n[0]; i++)
			cpu[i] = i * n[1];
		put_number("count_ps", tasks(n[0], cpu, n[0], n[2], COUNTS, n[3]) * 1000 / n[2]);
	} else if (argc == 5 && same(argv[1], "upgrade")) {
		upgrade(n[0], n[1], n[2]);
	} else if (argc == 3 && same(argv[1], "jump")) {
		jump(n[0]);
	} else {
		leave(2);
	}
	leave(0);
}

asm(".globl _start\n_start: mov x0, sp\n b run\n");
