// SPDX-License-Identifier: GPL-2.0
/*
 * Usage: load wake [--workers N] [--messengers N] [--requests N] [--work LOOPS] [--pause US | --busy PERCENT] [--seed N]
 *        load fork [--tasks N] [--rounds N] [--work LOOPS] [--vary PERCENT] [--threads | --barrier] [--seed N]
 *        load nice [--levels N,...] [--tasks N] [--sleepers N] [--work LOOPS] [--total LOOPS] [--seed N]
 *
 * Loads for comparing schedulers, for which no packaged program is at hand. Work is counted in loops of a
 * few instructions (1 to 4 ns each), so that it is the same work each time, whatever the clock says.
 *
 * wake: requests, as in schbench. A worker asks a messenger for a request and waits; the messenger wakes it,
 * it computes, pauses and asks again. Prints the latency of the wake-up (from the messenger's call until the
 * worker runs) and that of the request (until its work is done), each as percentiles and the maximum, and
 * requests a second. The first tenth of the requests does not count.
 *
 *	--workers N	(as many as CPUs)
 *	--messengers N	each has its share of the workers (one for each 10 CPUs)
 *	--requests N	of all workers together (100 a worker)
 *	--work LOOPS	of a request (50000)
 *	--pause US	a random time up to twice this between a worker's requests (50)
 *	--busy PERCENT	no pause; each worker's requests are due at random times that do not depend on the answers, so often
 *			that their work takes PERCENT of the CPUs' time. A request's latency counts from when it is due.
 *			With --pause a better scheduler gets more requests; with --busy all get the same (0: not)
 *
 * fork: forks and joins. In each round tasks are forked, compute about the same, and end; prints the time
 * of all rounds.
 *
 *	--tasks N	(as many as CPUs)
 *	--rounds N	(10)
 *	--work LOOPS	of a task in a round (300000)
 *	--vary PERCENT	how much this varies, at random, from task to task (20)
 *	--threads	the tasks are threads
 *	--barrier	the tasks are threads that stay and meet at a barrier after each round
 *
 * nice: tasks of several nice levels that compute without a pause, and sleepers, of nice 0, which compute for some
 * 50000 loops and sleep for up to 1 ms in turn. Prints each level's share of the CPU time that all levels had, that of the
 * sleepers of all CPU time, and the time that it took.
 * Each level begins spread evenly over the CPUs, and may go anywhere from then on: without that, its shares would be those
 * of chance until the balancer has mended them, which takes seconds. The first tenth does not count.
 *
 *	--levels N,...	(0,5,10)
 *	--tasks N	of each level (as many as CPUs)
 *	--sleepers N	(half as many as CPUs)
 *	--work LOOPS	between two looks at whether it is over (10000)
 *	--total LOOPS	it ends when all together have done so many (20000000 a CPU)
 *
 *	--seed N	of the random numbers: the same seed gives the same work and pauses (1)
 *
 * Each result is a line "metric NAME UNIT BETTER VALUE", where BETTER is lower, higher, or same for what is to stay
 * as it is. The exit status is 0, 1 after an error, 2 after a usage error.
 *
 * Compile it with: cc -O2 -pthread -static -o load load.c
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_LEVELS	40
#define USED(x)		__asm__ volatile("" : : "r"(x))

static void __attribute__((noreturn, format(printf, 2, 3))) end(int status, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "load: error: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, status == 2 ? "; see the top of load.c\n" : "\n");
	va_end(args);
	exit(status);
}

static void *allocate(size_t n, size_t size)
{
	void *memory = calloc(n, size);

	if (!memory)
		end(1, "no memory");
	return memory;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static void work(uint64_t loops)
{
	uint64_t x = loops;

	while (loops--) {
		x = x * 6364136223846793005ULL + 1442695040888963407ULL;
		USED(x);
	}
}

/* A random number that depends on nothing but what it is for. */
static uint64_t random_of(uint64_t seed, uint64_t a, uint64_t b)
{
	uint64_t x = seed * 0x9e3779b97f4a7c15ULL + a * 0xbf58476d1ce4e5b9ULL + b * 0x94d049bb133111ebULL;

	for (int i = 0; i < 2; i++) {
		x ^= x >> 31;
		x *= 0x94d049bb133111ebULL;
	}
	return x ^ x >> 29;
}

static void pause_us(uint64_t us)
{
	struct timespec t = { us / 1000000, us % 1000000 * 1000 };

	if (us)
		nanosleep(&t, NULL);
}

static void wait_until(uint64_t ns)
{
	struct timespec t = { ns / 1000000000, ns % 1000000000 };

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static void futex_wait(_Atomic int *word, int value)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic int *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static pthread_t start(void *(*function)(void *), void *argument)
{
	pthread_attr_t attr;
	pthread_t thread;
	int error;

	/* There may be thousands of them. */
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 128 * 1024);
	error = pthread_create(&thread, &attr, function, argument);
	if (error)
		end(1, "pthread_create: %s", strerror(error));
	return thread;
}

static void metric(const char *name, const char *unit, const char *better, double value)
{
	printf("metric %s %s %s %.9g\n", name, unit, better, value);
}

/* Options: all are numbers but the levels. */
static struct {
	uint64_t workers, messengers, requests, work, pause, busy, tasks, rounds, vary, sleepers, total, seed;
	int threads, barrier, levels, level[MAX_LEVELS];
} o;

/* The CPUs that this process may use. */
static int cpu[CPU_SETSIZE], cpus;
static cpu_set_t allowed;

static pthread_barrier_t begin;

/* wake */

struct worker {
	struct messenger *messenger;
	struct worker *next;
	_Atomic int woken;
	uint64_t number, due, at;
};

struct messenger {
	_Atomic(struct worker *) ready;
	_Atomic int asked;
	_Atomic uint64_t alive;
};

static _Atomic uint64_t requests;
/* mean time between a worker's requests with --busy */
static uint64_t gap_ns;
static uint64_t *wake_ns, *request_ns, *done_at;

static void ask(struct messenger *m)
{
	if (!atomic_exchange(&m->asked, 1))
		futex_wake(&m->asked);
}

static void *worker(void *argument)
{
	struct worker *w = argument;
	struct messenger *m = w->messenger;
	uint64_t n, ran;

	/* not 50 us, which is for sleeps of no importance */
	if (o.busy)
		prctl(PR_SET_TIMERSLACK, 1);
	pthread_barrier_wait(&begin);
	w->due = now_ns();
	for (;;) {
		n = atomic_fetch_add(&requests, 1);
		if (n >= o.requests)
			break;
		if (o.busy)
			wait_until(w->due += random_of(o.seed, w->number, n) % (2 * gap_ns + 1));
		else if (o.pause)
			pause_us(random_of(o.seed, w->number, n) % (2 * o.pause + 1));
		atomic_store(&w->woken, 0);
		w->next = atomic_load(&m->ready);
		while (!atomic_compare_exchange_weak(&m->ready, &w->next, w))
			;
		ask(m);
		while (!atomic_load(&w->woken))
			futex_wait(&w->woken, 0);
		/* Who did not have to wait may look before it was woken: clocks of CPUs differ a little. */
		ran = now_ns();
		if (ran < w->at)
			ran = w->at;
		work(o.work);
		done_at[n] = now_ns();
		wake_ns[n] = ran - w->at;
		request_ns[n] = done_at[n] - (o.busy ? w->due : w->at);
	}
	atomic_fetch_sub(&m->alive, 1);
	ask(m);
	return NULL;
}

static void *messenger(void *argument)
{
	struct messenger *m = argument;
	struct worker *w, *next;

	pthread_barrier_wait(&begin);
	while (atomic_load(&m->alive)) {
		if (!atomic_exchange(&m->asked, 0)) {
			futex_wait(&m->asked, 0);
			continue;
		}
		for (w = atomic_exchange(&m->ready, NULL); w; w = next) {
			next = w->next;
			w->at = now_ns();
			atomic_store(&w->woken, 1);
			futex_wake(&w->woken);
		}
	}
	return NULL;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void percentiles(const char *what, uint64_t *ns, uint64_t n)
{
	static const struct {
		const char *name;
		double part;
	} wanted[] = { { "p50", 0.5 }, { "p90", 0.9 }, { "p99", 0.99 }, { "p99.9", 0.999 }, { "max", 1 } };
	char name[40];

	qsort(ns, n, sizeof(*ns), by_value);
	for (unsigned int i = 0; i < sizeof(wanted) / sizeof(*wanted); i++) {
		snprintf(name, sizeof(name), "%s_%s", what, wanted[i].name);
		metric(name, "us", "lower", ns[(uint64_t)(wanted[i].part * (n - 1))] / 1e3);
	}
}

/* The time that work() takes on a CPU of its own. */
static uint64_t work_ns(uint64_t loops)
{
	uint64_t began, least = UINT64_MAX;

	for (int i = 0; i < 20; i++) {
		began = now_ns();
		work(loops);
		if (now_ns() - began < least)
			least = now_ns() - began;
	}
	return least;
}

static void wake(void)
{
	struct messenger *messengers;
	struct worker *workers;
	pthread_t *threads;
	uint64_t skip, first = UINT64_MAX, last = 0;

	if (o.messengers > o.workers)
		o.messengers = o.workers;
	if (o.requests < 10)
		end(2, "at least 10 requests are needed");
	if (o.busy)
		gap_ns = work_ns(o.work) * o.workers * 100 / (o.busy * cpus);
	messengers = allocate(o.messengers, sizeof(*messengers));
	workers = allocate(o.workers, sizeof(*workers));
	threads = allocate(o.messengers + o.workers, sizeof(*threads));
	wake_ns = allocate(o.requests, sizeof(*wake_ns));
	request_ns = allocate(o.requests, sizeof(*request_ns));
	done_at = allocate(o.requests, sizeof(*done_at));
	/* Page faults now, not in the requests. */
	for (uint64_t i = 0; i < o.requests; i++)
		wake_ns[i] = request_ns[i] = done_at[i] = 1;
	for (uint64_t i = 0; i < o.workers; i++) {
		workers[i].number = i;
		workers[i].messenger = &messengers[i % o.messengers];
		workers[i].messenger->alive++;
	}
	pthread_barrier_init(&begin, NULL, o.messengers + o.workers);
	for (uint64_t i = 0; i < o.messengers; i++)
		threads[i] = start(messenger, &messengers[i]);
	for (uint64_t i = 0; i < o.workers; i++)
		threads[o.messengers + i] = start(worker, &workers[i]);
	for (uint64_t i = 0; i < o.messengers + o.workers; i++)
		pthread_join(threads[i], NULL);

	skip = o.requests / 10;
	for (uint64_t i = skip; i < o.requests; i++) {
		if (done_at[i] > last)
			last = done_at[i];
		if (done_at[i] < first)
			first = done_at[i];
	}
	percentiles("wake", wake_ns + skip, o.requests - skip);
	percentiles("request", request_ns + skip, o.requests - skip);
	metric("rate", "requests/s", "higher", (o.requests - skip - 1) / ((last - first) / 1e9));
}

/* fork */

static uint64_t varied(uint64_t round, uint64_t task)
{
	uint64_t range = o.work * o.vary / 100;

	return o.work - range / 2 + random_of(o.seed, round, task) % (range + 1);
}

/* When the first of the threads left the barrier: others may wait for a CPU then, the main thread above all. */
static _Atomic uint64_t began_ns;

static void *in_rounds(void *argument)
{
	uint64_t nobody = 0;

	pthread_barrier_wait(&begin);
	atomic_compare_exchange_strong(&began_ns, &nobody, now_ns());
	for (uint64_t r = 0; r < o.rounds; r++) {
		work(varied(r, (uintptr_t)argument));
		pthread_barrier_wait(&begin);
	}
	return NULL;
}

static void *once(void *argument)
{
	work((uintptr_t)argument);
	return NULL;
}

static void round_of_threads(uint64_t round, pthread_t *threads)
{
	for (uint64_t i = 0; i < o.tasks; i++)
		threads[i] = start(once, (void *)(uintptr_t)varied(round, i));
	for (uint64_t i = 0; i < o.tasks; i++)
		pthread_join(threads[i], NULL);
}

static void round_of_processes(uint64_t round)
{
	int status;
	pid_t pid;

	for (uint64_t i = 0; i < o.tasks; i++) {
		pid = fork();
		if (pid < 0)
			end(1, "fork: %s", strerror(errno));
		if (!pid) {
			work(varied(round, i));
			_exit(0);
		}
	}
	for (uint64_t i = 0; i < o.tasks; i++)
		if (wait(&status) < 0 || status)
			end(1, "a task died");
}

static void fork_and_join(void)
{
	pthread_t *threads = allocate(o.tasks, sizeof(*threads));
	uint64_t began;

	if (o.barrier) {
		pthread_barrier_init(&begin, NULL, o.tasks + 1);
		for (uint64_t i = 0; i < o.tasks; i++)
			threads[i] = start(in_rounds, (void *)(uintptr_t)i);
		pthread_barrier_wait(&begin);
		for (uint64_t r = 0; r < o.rounds; r++)
			pthread_barrier_wait(&begin);
		metric("time", "s", "lower", (now_ns() - began_ns) / 1e9);
		for (uint64_t i = 0; i < o.tasks; i++)
			pthread_join(threads[i], NULL);
		return;
	}
	began = now_ns();
	for (uint64_t r = 0; r < o.rounds; r++) {
		if (o.threads)
			round_of_threads(r, threads);
		else
			round_of_processes(r);
	}
	metric("time", "s", "lower", (now_ns() - began) / 1e9);
}

/* nice */

struct task {
	int nice, sleeper;
	uint64_t number;
};

static _Atomic uint64_t loops_done;
/* WARM after the first tenth, then OVER. */
enum { COLD, WARM, OVER };
static _Atomic int phase;

static void did(uint64_t loops)
{
	uint64_t sum = atomic_fetch_add(&loops_done, loops) + loops;
	int old = COLD;

	if (sum >= o.total) {
		if (atomic_exchange(&phase, OVER) != OVER)
			futex_wake(&phase);
	} else if (sum >= o.total / 10 && atomic_load(&phase) == COLD && atomic_compare_exchange_strong(&phase, &old, WARM)) {
		futex_wake(&phase);
	}
}

static void stay_on(int c)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(c, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		end(1, "cannot stay on CPU %d: %s", c, strerror(errno));
}

static void *of_a_level(void *argument)
{
	struct task *t = argument;

	/* A thread has a nice value of its own. */
	if (setpriority(PRIO_PROCESS, syscall(SYS_gettid), t->nice))
		end(1, "cannot have nice %d: %s", t->nice, strerror(errno));
	if (!t->sleeper)
		stay_on(cpu[(t->number % o.levels * o.tasks + t->number / o.levels) % cpus]);
	pthread_barrier_wait(&begin);
	if (!t->sleeper)
		sched_setaffinity(0, sizeof(allowed), &allowed);
	for (uint64_t n = 0; atomic_load(&phase) != OVER; n++) {
		if (t->sleeper) {
			work(50000);
			did(50000);
			pause_us(random_of(o.seed, t->number, n) % 1000);
		} else {
			work(o.work);
			did(o.work);
		}
	}
	/* Their CPU times are read while they are there. */
	pthread_barrier_wait(&begin);
	return NULL;
}

static uint64_t cpu_ns(pthread_t thread)
{
	struct timespec t;
	clockid_t clock;

	if (pthread_getcpuclockid(thread, &clock) || clock_gettime(clock, &t))
		end(1, "cannot read a thread's CPU time");
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static void nice_levels(void)
{
	uint64_t number = o.levels * o.tasks + o.sleepers, began, ended, of_levels = 0;
	struct task *tasks = allocate(number, sizeof(*tasks));
	pthread_t *threads = allocate(number, sizeof(*threads));
	uint64_t *ns = allocate(number, sizeof(*ns));
	uint64_t of_level[MAX_LEVELS] = { 0 }, of_sleepers = 0;
	char name[40];

	pthread_barrier_init(&begin, NULL, number + 1);
	for (uint64_t i = 0; i < number; i++) {
		tasks[i].number = i;
		tasks[i].sleeper = i >= o.levels * o.tasks;
		tasks[i].nice = tasks[i].sleeper ? 0 : o.level[i % o.levels];
		threads[i] = start(of_a_level, &tasks[i]);
	}
	pthread_barrier_wait(&begin);
	while (atomic_load(&phase) == COLD)
		futex_wait(&phase, COLD);
	began = now_ns();
	for (uint64_t i = 0; i < number; i++)
		ns[i] = cpu_ns(threads[i]);
	while (atomic_load(&phase) != OVER)
		futex_wait(&phase, WARM);
	ended = now_ns();
	for (uint64_t i = 0; i < number; i++) {
		ns[i] = cpu_ns(threads[i]) - ns[i];
		if (tasks[i].sleeper) {
			of_sleepers += ns[i];
		} else {
			of_level[i % o.levels] += ns[i];
			of_levels += ns[i];
		}
	}
	pthread_barrier_wait(&begin);
	for (uint64_t i = 0; i < number; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < o.levels; i++) {
		snprintf(name, sizeof(name), "share_nice%d", o.level[i]);
		metric(name, "%", "same", 100.0 * of_level[i] / of_levels);
	}
	if (o.sleepers)
		metric("share_sleepers", "%", "same", 100.0 * of_sleepers / (of_levels + of_sleepers));
	metric("time", "s", "lower", (ended - began) / 1e9);
}

/* The number; ends with a usage error if the word is none. */
static uint64_t number(const char *option, const char *word, uint64_t least)
{
	char *rest;
	unsigned long long n;

	errno = 0;
	n = word ? strtoull(word, &rest, 10) : 0;
	if (!word || *word < '0' || *word > '9' || *rest || errno || n < least || n > 1000000000000ULL)
		end(2, "%s needs a number from %llu to 10^12", option, (unsigned long long)least);
	return n;
}

static void levels(char *words)
{
	char *rest;
	long n;

	o.levels = 0;
	for (char *word = words ? strtok(words, ",") : NULL; word; word = strtok(NULL, ",")) {
		n = strtol(word, &rest, 10);
		if (rest == word || *rest || n < -20 || n > 19 || o.levels == MAX_LEVELS)
			end(2, "--levels: '%s' is no nice value", word);
		o.level[o.levels++] = n;
	}
	if (!o.levels)
		end(2, "--levels needs nice values");
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name, *of;
		uint64_t *value;
		uint64_t least;
	} numbers[] = {
		{ "--workers", "wake", &o.workers, 1 }, { "--messengers", "wake", &o.messengers, 1 },
		{ "--requests", "wake", &o.requests, 10 }, { "--pause", "wake", &o.pause, 0 },
		{ "--busy", "wake", &o.busy, 0 },
		{ "--rounds", "fork", &o.rounds, 1 }, { "--vary", "fork", &o.vary, 0 },
		{ "--tasks", "fork nice", &o.tasks, 1 }, { "--sleepers", "nice", &o.sleepers, 0 },
		{ "--total", "nice", &o.total, 1 }, { "--work", "wake fork nice", &o.work, 1 },
		{ "--seed", "wake fork nice", &o.seed, 0 },
	};
	const char *what = argc > 1 ? argv[1] : "";
	unsigned int k;

	if (sched_getaffinity(0, sizeof(allowed), &allowed))
		end(1, "sched_getaffinity: %s", strerror(errno));
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &allowed))
			cpu[cpus++] = i;
	o.workers = o.tasks = cpus;
	o.messengers = (cpus + 9) / 10;
	o.pause = 50;
	o.rounds = 10;
	o.vary = 20;
	o.sleepers = (cpus + 1) / 2;
	o.total = 20000000ULL * cpus;
	o.seed = 1;
	o.levels = 3;
	o.level[1] = 5;
	o.level[2] = 10;
	if (strcmp(what, "wake") && strcmp(what, "fork") && strcmp(what, "nice"))
		end(2, "the first argument is wake, fork or nice, not '%s'", what);
	for (int i = 2; i < argc; i++) {
		for (k = 0; k < sizeof(numbers) / sizeof(*numbers); k++)
			if (!strcmp(argv[i], numbers[k].name) && strstr(numbers[k].of, what))
				break;
		if (k < sizeof(numbers) / sizeof(*numbers)) {
			*numbers[k].value = number(argv[i], argv[i + 1], numbers[k].least);
			i++;
		} else if (!strcmp(argv[i], "--levels") && !strcmp(what, "nice")) {
			levels(argv[i + 1]);
			i++;
		} else if (!strcmp(argv[i], "--threads") && !strcmp(what, "fork")) {
			o.threads = 1;
		} else if (!strcmp(argv[i], "--barrier") && !strcmp(what, "fork")) {
			o.barrier = 1;
		} else {
			end(2, "unknown argument of %s: '%s'", what, argv[i]);
		}
	}
	if (o.vary > 100)
		end(2, "--vary is at most 100");
	if (o.threads && o.barrier)
		end(2, "either --threads or --barrier");
	if (!o.work)
		o.work = !strcmp(what, "wake") ? 50000 : !strcmp(what, "fork") ? 300000 : 10000;
	if (!o.requests)
		o.requests = 100 * o.workers;
	if (!strcmp(what, "wake"))
		wake();
	else if (!strcmp(what, "fork"))
		fork_and_join();
	else
		nice_levels();
	return 0;
}
