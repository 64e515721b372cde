// SPDX-License-Identifier: GPL-2.0
/*
 * Usage: behaviours llcs CPUS FIRST SECOND WORK-US COMPUTE-US SLEEP-US
 *        behaviours sync ROUNDS WAKER HOME ALLOWED HOGS
 *        behaviours idle ROUNDS THIEF A A-IDLE A-NORMAL B B-NORMAL
 *        behaviours misfit ROUNDS SMALL CPUS HELPERS ALLOWED
 *        behaviours pairs ROUNDS PAIRS MS
 *
 * Runs on a machine under test. Each command puts tasks in one situation and prints what the scheduler does:
 *
 *	llcs	Two last-level caches of CPUS CPUs. FIRST tasks begin in the first one and SECOND in the second.
 *		Then they may use all CPUs. Each computes WORK-US in total, about COMPUTE-US at a time, and sleeps for about
 *		SLEEP-US in between. Prints "time NS", until all are done; "mean NS", until one is done on average; and
 *		"second PERCENT", the part of the work done in the second cache.
 *	sync	A reader of a pipe blocks on CPU HOME; it may use the CPUs ALLOWED. The waker, on CPU WAKER, writes to the
 *		pipe and computes on for 20 ms. Each CPU of HOGS has a task that computes. Prints "waited NS CPU" for
 *		each round: how long after the write the reader runs, and where.
 *	idle	CPU A has A-IDLE SCHED_IDLE tasks and A-NORMAL normal tasks, and CPU B has B-NORMAL normal tasks. All
 *		compute. In each round they may also use CPU THIEF, which then goes idle. Prints "took NAME" for each
 *		round: a-idle, a-normal, b-normal or nothing.
 *	misfit	CPUs 0 to SMALL - 1 are small, the others up to CPUS - 1 are large. A task computes on CPU 0. Then it may
 *		use all CPUs. HELPERS tasks, which may use the CPUs ALLOWED, and one on each large CPU compute and sleep
 *		briefly. Prints "moved NS" for each round: how long after that the task runs on a large CPU.
 *	pairs	PAIRS pairs of a writer and a reader take turns at a pipe that holds one message, for MS milliseconds. Then
 *		others follow, ROUNDS times in all. Prints "turns NUMBER": how many messages are read.
 *
 * Sets of CPUs are hexadecimal masks. Exit status: 1 for an error, 2 for a usage error.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define US		1000LL
#define MS		(1000 * US)
#define MAX_TASKS	64
#define PIECE		(20 * US)

static struct shared {
	atomic_llong value;
	atomic_int where;
	atomic_int first;
	int64_t end[MAX_TASKS];
	int64_t pieces[MAX_TASKS];
	int64_t pieces_second[MAX_TASKS];
} *s;

static pid_t children[MAX_TASKS];
static int nr_children;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void sleep_until(int64_t ns)
{
	struct timespec t = { ns / 1000000000, ns % 1000000000 };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL))
		;
}

/* Executes as many instructions; the simulated machine takes 1 ns for each. */
static void compute(int64_t ns)
{
	int64_t n = ns / 256 + 1;

	asm volatile("1:\n"
		     ".rept 254\n"
		     "nop\n"
		     ".endr\n"
		     "subs %0, %0, #1\n"
		     "b.ne 1b" : "+r"(n) : : "cc");
}

static void allow(pid_t pid, uint64_t mask)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	for (int cpu = 0; cpu < 64; cpu++) {
		if (mask & 1ULL << cpu)
			CPU_SET(cpu, &set);
	}
	if (sched_setaffinity(pid, sizeof(set), &set))
		die("sched_setaffinity");
}

/* In the child: 0. */
static pid_t start(void)
{
	pid_t pid = fork();

	if (pid < 0 || nr_children == MAX_TASKS)
		die("cannot start a task");
	if (pid) {
		children[nr_children++] = pid;
		return pid;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_TIMERSLACK, 1UL);
	return 0;
}

static void end_all(void)
{
	for (int i = 0; i < nr_children; i++) {
		kill(children[i], SIGKILL);
		waitpid(children[i], NULL, 0);
	}
	nr_children = 0;
}

static uint64_t next(uint64_t *random)
{
	*random = *random * 6364136223846793005 + 1442695040888963407;
	return *random >> 33;
}

/* Compute and sleep for about these times, for ever. */
static void works(uint64_t seed, int64_t compute_ns, int64_t sleep_ns)
{
	for (;;) {
		compute(compute_ns / 2 + next(&seed) % compute_ns);
		sleep_until(now() + sleep_ns / 2 + next(&seed) % sleep_ns);
	}
}

static void llcs(int cpus, int first, int second, int64_t work, int64_t compute_ns, int64_t sleep_ns)
{
	uint64_t llc = (1ULL << cpus) - 1;
	int64_t begin = now() + 20 * MS, end = 0, sum = 0, pieces = 0, pieces_second = 0;

	for (int i = 0; i < first + second; i++) {
		if (start())
			continue;

		uint64_t seed = i + 1;

		allow(0, i < first ? llc : llc << cpus);
		sleep_until(begin);
		allow(0, llc | llc << cpus);
		for (int64_t left = work / PIECE; left > 0;) {
			for (int64_t n = (compute_ns / 2 + next(&seed) % compute_ns) / PIECE; n && left; n--, left--) {
				compute(PIECE);
				s->pieces[i]++;
				s->pieces_second[i] += sched_getcpu() >= cpus;
			}
			sleep_until(now() + sleep_ns / 2 + next(&seed) % sleep_ns);
		}
		s->end[i] = now();
		_exit(0);
	}
	for (int i = 0; i < nr_children; i++)
		waitpid(children[i], NULL, 0);
	for (int i = 0; i < nr_children; i++) {
		if (s->end[i] > end)
			end = s->end[i];
		sum += s->end[i] - begin;
		pieces += s->pieces[i];
		pieces_second += s->pieces_second[i];
	}
	printf("time %lld\nmean %lld\nsecond %.1f\n", (long long)(end - begin), (long long)sum / nr_children, 100.0 * pieces_second / pieces);
}

static void sync_waker(int rounds, int waker, int home, uint64_t allowed, uint64_t hogs)
{
	int ends[2];

	if (pipe(ends))
		die("pipe");
	for (int cpu = 0; cpu < 64; cpu++) {
		if ((hogs & 1ULL << cpu) && !start()) {
			allow(0, 1ULL << cpu);
			for (;;)
				compute(MS);
		}
	}
	if (!start()) {
		int64_t written;

		for (;;) {
			allow(0, 1ULL << home);
			allow(0, allowed);
			if (read(ends[0], &written, sizeof(written)) != sizeof(written))
				die("read");
			s->where = sched_getcpu();
			s->value = now() - written;
		}
	}
	allow(0, 1ULL << waker);
	/* The reader is new in the first round, and ineligible. */
	for (int i = 0; i <= rounds; i++) {
		s->value = -1;
		sleep_until(now() + 10 * MS);
		/* CPUs count as busy from their first tick on. The next sleep does not stop it. */
		compute(30 * MS + i * 300 * US);
		sleep_until(now() + 500 * US);
		compute(300 * US);

		int64_t written = now();

		if (write(ends[1], &written, sizeof(written)) != sizeof(written))
			die("write");
		compute(20 * MS);
		while (s->value < 0)
			sleep_until(now() + MS);
		if (i)
			printf("waited %lld %d\n", (long long)s->value, (int)s->where);
	}
}

static void idle(int rounds, int thief, int a, int a_idle, int a_normal, int b, int b_normal)
{
	static const char *const names[] = { "nothing", "a-idle", "a-normal", "b-normal" };
	struct sched_param none = { 0 };

	for (int i = 0; i < a_idle + a_normal + b_normal; i++) {
		int kind = i < a_idle ? 1 : i < a_idle + a_normal ? 2 : 3;

		if (start())
			continue;
		allow(0, 1ULL << (kind < 3 ? a : b));
		if (kind == 1 && sched_setscheduler(0, SCHED_IDLE, &none))
			die("sched_setscheduler");
		for (;;) {
			int expected = 0;

			compute(PIECE);
			if (sched_getcpu() == thief)
				atomic_compare_exchange_strong(&s->first, &expected, kind);
		}
	}
	allow(0, 1ULL << thief);
	sleep_until(now() + 100 * MS);
	while (rounds--) {
		s->first = 0;
		for (int i = 0; i < nr_children; i++)
			allow(children[i], 1ULL << thief | 1ULL << (i < a_idle + a_normal ? a : b));
		compute(100 * US);
		sleep_until(now() + 2 * MS);
		printf("took %s\n", names[s->first]);
		for (int i = 0; i < nr_children; i++)
			allow(children[i], 1ULL << (i < a_idle + a_normal ? a : b));
		sleep_until(now() + 23 * MS);
	}
}

static void misfit(int rounds, int small, int cpus, int helpers, uint64_t allowed)
{
	pid_t task;

	for (int i = 0; i < helpers + cpus - small; i++) {
		if (start())
			continue;
		allow(0, i < helpers ? allowed : 1ULL << (small + i - helpers));
		works(i + 1, i < helpers ? 300 * US : 3 * MS, i < helpers ? 200 * US : MS);
	}
	task = start();
	if (!task) {
		allow(0, 1);
		for (;;) {
			compute(PIECE);
			if (s->value < 0 && sched_getcpu() >= small)
				s->value = now();
		}
	}
	while (rounds--) {
		s->value = 0;
		allow(task, 1);
		sleep_until(now() + 150 * MS);

		int64_t begin = now();

		s->value = -1;
		allow(task, (1ULL << cpus) - 1);
		while (s->value < 0 && now() < begin + 1000 * MS)
			sleep_until(now() + 5 * MS);
		printf("moved %lld\n", (long long)(s->value < 0 ? 1000 * MS : s->value - begin));
	}
}

static void pairs(int rounds, int nr, int64_t ns)
{
	s->value = 0;
	while (rounds--) {
		for (int i = 0; i < nr; i++) {
			int ends[2];
			char byte = 0;

			/* It holds one message: the writer sleeps until the reader has taken it. */
			if (pipe2(ends, O_DIRECT) || fcntl(ends[1], F_SETPIPE_SZ, 4096) < 0)
				die("pipe");
			if (!start()) {
				while (read(ends[0], &byte, 1) == 1)
					s->value++;
				_exit(1);
			}
			if (!start()) {
				while (write(ends[1], &byte, 1) == 1)
					;
				_exit(1);
			}
			close(ends[0]);
			close(ends[1]);
		}
		sleep_until(now() + ns);
		end_all();
	}
	printf("turns %lld\n", (long long)s->value);
}

int main(int argc, char **argv)
{
	int64_t n[8] = { 0 };

	for (int i = 2; i < argc && i < 10; i++)
		n[i - 2] = atoll(argv[i]);
	s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s == MAP_FAILED)
		die("mmap");
	setvbuf(stdout, NULL, _IOLBF, 0);
	prctl(PR_SET_TIMERSLACK, 1UL);
	if (argc == 8 && !strcmp(argv[1], "llcs"))
		llcs(n[0], n[1], n[2], n[3] * US, n[4] * US, n[5] * US);
	else if (argc == 7 && !strcmp(argv[1], "sync"))
		sync_waker(n[0], n[1], n[2], strtoull(argv[5], NULL, 16), strtoull(argv[6], NULL, 16));
	else if (argc == 9 && !strcmp(argv[1], "idle"))
		idle(n[0], n[1], n[2], n[3], n[4], n[5], n[6]);
	else if (argc == 7 && !strcmp(argv[1], "misfit"))
		misfit(n[0], n[1], n[2], n[3], strtoull(argv[6], NULL, 16));
	else if (argc == 5 && !strcmp(argv[1], "pairs"))
		pairs(n[0], n[1], n[2] * MS);
	else {
		fputs("behaviours: error: unknown command or wrong number of arguments; see tests/guest/behaviours.c\n", stderr);
		return 2;
	}
	end_all();
	return 0;
}
