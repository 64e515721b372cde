// SPDX-License-Identifier: GPL-2.0
/*
 * Usage: storm KIND TASKS FILE
 *
 * Starts TASKS tasks which compute and sleep in turn, for random times of some 100 us, and until FILE
 * is removed does something to a random one of them every 300 us:
 *
 *	plain		nothing
 *	hogs		nothing; these are SCHED_IDLE tasks which never sleep
 *	affinity	allows it a random set of CPUs
 *	classes		makes it SCHED_OTHER or SCHED_BATCH with a random nice value, SCHED_IDLE,
 *			SCHED_FIFO or SCHED_RR, or lets a child of it be a SCHED_DEADLINE task for
 *			a while; not always at once: see set_class()
 *	fifo, deadline	nothing: the tasks themselves are SCHED_FIFO or SCHED_DEADLINE, and work in bursts
 *	cookies		gives it a core-scheduling cookie of its own, or another task's, or none
 *
 * When it has done so STORM_OPERATIONS times (environment; 1; classes, when there was a SCHED_DEADLINE task as well), or never will, it
 * makes the file FILE.KIND.
 *
 * Then tells the tasks to end and prints "storm KIND operations N", for plain, hogs, fifo and deadline
 * how often they computed. Each task has 60 s to end; one that does not is lost: its number is printed, and the
 * exit status is 1. It is 2 for a wrong call, 3 if the kernel does not know the operation: "unsupported" is printed.
 */
#define _GNU_SOURCE
#include <errno.h>
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
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef PR_SCHED_CORE
#define PR_SCHED_CORE		62
#endif
enum { COOKIE_CREATE = 1, COOKIE_SHARE_TO = 2, COOKIE_SHARE_FROM = 3 };

#ifndef SCHED_DEADLINE
#define SCHED_DEADLINE		6
#endif

/* The kernel's struct sched_attr; C libraries begin to have one of that name. */
struct attr {
	uint32_t size;
	uint32_t policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime;
	uint64_t deadline;
	uint64_t period;
};

struct shared {
	_Atomic int stop;
	_Atomic long bursts;
	_Atomic int deadline;		/* there is a deadline task, or will be soon */
	_Atomic int was_deadline;	/* there was one */
	struct order {
		_Atomic int state;
		struct attr attr;
	} order[];			/* what is to become of a task as soon as it is ready for that */
};

enum { NONE, GIVEN, READY };

static struct shared *shared;
static uint64_t seed;
static pid_t helper;		/* the process that does something to the tasks */

static unsigned int below(unsigned int n)
{
	seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return (seed >> 33) % n;
}

static int64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

static void nap_us(unsigned int us)
{
	struct timespec t = { us / 1000000, us % 1000000 * 1000L };

	nanosleep(&t, NULL);
}

static void compute_us(unsigned int us)
{
	int64_t end = now_us() + us;

	while (now_us() < end)
		;
}

static int set_attr(pid_t pid, struct attr *a)
{
	a->size = sizeof(*a);
	return syscall(SYS_sched_setattr, pid, a, 0);
}

static const struct attr deadline_attr = {
	.policy = SCHED_DEADLINE,
	.runtime = 1000000, .deadline = 5000000, .period = 10000000,
};

static int is_realtime(pid_t pid)
{
	int policy = sched_getscheduler(pid);

	return policy == SCHED_FIFO || policy == SCHED_RR;
}

/*
 * Two kinds of change are not made at once, to whatever the task is doing, as the kernel may do wrong then:
 *
 * From a real-time policy to a fair one. If the task has just blocked, and its CPU has not yet put it, it becomes cfs_rq->curr, with a
 * deadline that is still relative. update_deadline() may then make it absolute, and place_entity() adds vruntime once more. So the task
 * says when it is ready, and does not sleep until it is changed.
 *
 * To SCHED_DEADLINE and back. If the task is being woken, and waits on the list of the CPU that it moves to (TTWU_QUEUE), the kernel gives
 * that CPU the task's bandwidth twice, or takes from it what it never had, and warns. If the task waits for a lock, the owner may
 * inherit parameters that are cleared. So the task does this, and no other. And if it has used up its runtime when it leaves,
 * and soon becomes a deadline task again, it still counts as throttled, and nothing ever queues it. So each is one only once: a child of the task.
 */
static int set_class(pid_t pid, struct order *order)
{
	struct attr a = { 0 }, other = { .policy = SCHED_OTHER };
	int failed;

	switch (atomic_load(&order->state)) {
	case READY:
		failed = set_attr(pid, &order->attr);
		atomic_store(&order->state, NONE);
		return failed;
	case GIVEN:
		errno = EBUSY;
		return -1;
	}
	switch (below(6)) {
	case 0: a.policy = SCHED_OTHER; a.nice = (int)below(40) - 20; break;
	case 1: a.policy = SCHED_BATCH; a.nice = (int)below(40) - 20; break;
	case 2: a.policy = SCHED_IDLE; break;
	case 3: a.policy = SCHED_FIFO; a.priority = 1 + below(50); break;
	case 4: a.policy = SCHED_RR; a.priority = 1 + below(50); break;
	case 5:
		if (atomic_exchange(&shared->deadline, 1)) {
			errno = EBUSY;
			return -1;
		}
		a = deadline_attr;
		/* No other one is until it gets to its order, nor will this one change before. */
		if (!is_realtime(pid))
			set_attr(pid, &other);
		break;
	}
	/* Nobody else changes its policy. */
	if (a.policy == SCHED_DEADLINE || (!a.priority && is_realtime(pid))) {
		order->attr = a;
		atomic_store(&order->state, GIVEN);
		/* To be counted when it is done. */
		errno = EINPROGRESS;
		return -1;
	}
	return set_attr(pid, &a);
}

static int set_affinity(pid_t pid)
{
	int cpu, nr = sysconf(_SC_NPROCESSORS_CONF);
	cpu_set_t set;

	CPU_ZERO(&set);
	for (cpu = 0; cpu < nr; cpu++) {
		if (below(3) == 0)
			CPU_SET(cpu, &set);
	}
	return sched_setaffinity(pid, sizeof(set), &set);
}

/* A cookie is taken from another task, or given on, by way of the one who asks: this one. */
static int set_cookie(pid_t pid, pid_t other)
{
	switch (below(4)) {
	case 0:
		return prctl(PR_SCHED_CORE, COOKIE_CREATE, pid, 0 /* a thread */, 0);
	case 1:
		if (prctl(PR_SCHED_CORE, COOKIE_SHARE_FROM, other, 0, 0))
			return -1;
		break;
	}
	return prctl(PR_SCHED_CORE, COOKIE_SHARE_TO, pid, 0, 0);
}

/* A child becomes a deadline task, then a fair one, and ends. */
static void be_deadline(void)
{
	struct attr deadline = deadline_attr, other = { .policy = SCHED_OTHER };
	pid_t pid = fork();
	int i;

	if (pid) {
		if (pid > 0)
			waitpid(pid, NULL, 0);
		return;
	}
	if (!set_attr(0, &deadline)) {
		atomic_store(&shared->was_deadline, 1);
		atomic_fetch_add(&shared->bursts, 1);
		for (i = 0; i < 10; i++) {
			compute_us(below(200));
			nap_us(below(2000));
			if (i == 5 && set_attr(0, &other))
				dprintf(1, "FAIL: a task cannot leave SCHED_DEADLINE\n");
		}
	}
	exit(0);
}

/* Until it is told to end, or nobody is there who would. */
static int goes_on(void)
{
	return !atomic_load(&shared->stop) && getppid() == helper;
}

/* What set_class() leaves to the task. */
static void obey(struct order *order)
{
	if (order->attr.policy == SCHED_DEADLINE) {
		be_deadline();
		atomic_store(&shared->deadline, 0);
		atomic_store(&order->state, NONE);
		return;
	}
	atomic_store(&order->state, READY);
	while (atomic_load(&order->state) == READY && goes_on())
		;
}

static void task(const char *kind, int nr)
{
	struct attr deadline = deadline_attr, idle = { .policy = SCHED_IDLE };
	struct sched_param fifo = { .sched_priority = 10 };
	int bursts = 0, urgent = 0, hog = !strcmp(kind, "hogs");

	seed = 1000003 * (nr + 1);
	if (!strcmp(kind, "fifo"))
		bursts = sched_setscheduler(0, SCHED_FIFO, &fifo) ? -1 : 1;
	else if (!strcmp(kind, "deadline"))
		bursts = set_attr(0, &deadline) ? -1 : 1;
	else if (!strcmp(kind, "plain"))
		bursts = 1;
	else if (hog)
		bursts = set_attr(0, &idle) ? -1 : 1;
	/* Leave something to the kernel's own tasks. */
	urgent = strcmp(kind, "plain") && !hog && bursts;
	while (goes_on()) {
		compute_us(below(urgent ? 200 : 700));
		if (below(8) == 0)
			sched_yield();
		else if (!hog)
			nap_us(below(urgent ? 2000 : 1000));
		if (bursts > 0)
			atomic_fetch_add(&shared->bursts, 1);
		if (atomic_load(&shared->order[nr].state) == GIVEN)
			obey(&shared->order[nr]);
	}
	exit(0);
}

/*
 * Not by its name: each look-up takes the locks of the directories on the way. Under PREEMPT_RT these go to the waiter of
 * the highest priority, and where all the storms ask all the time, as real-time tasks, others would never get them.
 */
static int is_removed(int fd)
{
	struct stat s;

	return fstat(fd, &s) || !s.st_nlink;
}

/* Wait for all; returns how many are lost. */
static int collect(pid_t *pids, int nr)
{
	int64_t end = now_us() + 60 * 1000000LL;
	int i, left = nr;

	while (left && now_us() < end) {
		for (i = 0; i < nr; i++) {
			if (pids[i] && waitpid(pids[i], NULL, WNOHANG) == pids[i]) {
				pids[i] = 0;
				left--;
			}
		}
		nap_us(10000);
	}
	for (i = 0; i < nr; i++) {
		if (pids[i])
			printf("lost task %d\n", pids[i]);
	}
	return left;
}

int main(int argc, char **argv)
{
	struct sched_param fifo = { .sched_priority = 60 };
	const char *wanted = getenv("STORM_OPERATIONS");
	long operations = 0, enough = wanted ? atol(wanted) : 1;
	const char *kind;
	pid_t *pids;
	int i, fd, nr, failed, pause, unknown = 0, told = 0;
	char name[200];

	if (argc != 4 || (nr = atoi(argv[2])) < 1) {
		fprintf(stderr, "usage: storm KIND TASKS FILE\n");
		return 2;
	}
	kind = argv[1];
	/* With nothing to do, it only looks whether the file is there: as a real-time task, it keeps others from running. */
	pause = !strcmp(kind, "affinity") || !strcmp(kind, "classes") || !strcmp(kind, "cookies") ? 300 : 10000;
	seed = getpid();
	fd = open(argv[3], O_RDONLY);
	pids = calloc(nr, sizeof(*pids));
	shared = mmap(NULL, sizeof(*shared) + nr * sizeof(shared->order[0]), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (fd < 0 || !pids || shared == MAP_FAILED) {
		perror("FAIL: storm");
		return 1;
	}
	helper = getpid();
	for (i = 0; i < nr; i++) {
		pids[i] = fork();
		if (pids[i] < 0) {
			perror("storm: fork");
			return 1;
		}
		if (!pids[i])
			task(kind, i);
	}
	/* Above the tasks, or they would keep it from its work. */
	if (sched_setscheduler(0, SCHED_FIFO, &fifo)) {
		perror("FAIL: storm: sched_setscheduler");
		return 1;
	}

	while (!is_removed(fd)) {
		pid_t pid;

		for (i = 0; i < nr && atomic_load(&shared->order[i].state) != READY; i++)
			;
		if (i == nr)
			i = below(nr);
		pid = pids[i];
		if (!told && (atomic_load(&shared->was_deadline) || strcmp(kind, "classes")) &&
		    (operations + atomic_load(&shared->bursts) >= enough || (!operations && unknown > 100))) {
			snprintf(name, sizeof(name), "%s.%s", argv[3], kind);
			close(creat(name, 0644));
			told = 1;
		}
		nap_us(pause);
		if (!strcmp(kind, "affinity"))
			failed = set_affinity(pid);
		else if (!strcmp(kind, "classes"))
			failed = set_class(pid, &shared->order[i]);
		else if (!strcmp(kind, "cookies"))
			failed = set_cookie(pid, pids[below(nr)]);
		else
			continue;
		if (!failed)
			operations++;
		else if (errno == EINVAL || errno == ENOSYS || errno == ENODEV)
			unknown++;
	}
	if (!strcmp(kind, "cookies"))
		prctl(PR_SCHED_CORE, COOKIE_SHARE_FROM, 1, 0, 0);

	atomic_store(&shared->stop, 1);
	failed = collect(pids, nr);
	operations += atomic_load(&shared->bursts);
	printf("storm %s operations %ld\n", kind, operations);
	if (failed)
		return 1;
	if (!operations && unknown) {
		printf("storm %s unsupported\n", kind);
		return 3;
	}
	return 0;
}
