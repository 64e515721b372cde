// SPDX-License-Identifier: GPL-2.0
/*
 * Usage: deadline-wakelist TASKS SECONDS
 *
 * SCHED_DEADLINE tasks sleep and wake up, while another task makes them SCHED_OTHER and
 * SCHED_DEADLINE again and again. Prints how many changes there were. It needs root.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SCHED_DEADLINE
#define SCHED_DEADLINE 6
#endif

#define MAX_TASKS 64

struct attr {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

static uint64_t state = 88172645463325252ull;

static unsigned int random_below(unsigned int n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % n;
}

static void nap(unsigned int us)
{
	struct timespec t = { 0, us * 1000 };

	clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
}

static void compute(unsigned int us)
{
	struct timespec begin, now;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - begin.tv_sec) * 1000000 + (now.tv_nsec - begin.tv_nsec) / 1000 < (long)us);
}

static int set(pid_t pid, int policy)
{
	struct attr a = { .size = sizeof(a), .policy = policy };

	if (policy == SCHED_DEADLINE) {
		a.runtime = 1000000;
		a.deadline = 5000000;
		a.period = 10000000;
	}
	return syscall(SYS_sched_setattr, pid, &a, 0);
}

int main(int argc, char **argv)
{
	int tasks = argc == 3 ? atoi(argv[1]) : 0, seconds = argc == 3 ? atoi(argv[2]) : 0, i;
	struct sched_param fifo = { .sched_priority = 50 };
	unsigned long changes = 0, refused = 0;
	pid_t pid[MAX_TASKS];
	time_t end;

	if (tasks < 1 || tasks > MAX_TASKS || seconds < 1) {
		fprintf(stderr, "usage: deadline-wakelist TASKS SECONDS\n");
		return 2;
	}
	for (i = 0; i < tasks; i++) {
		pid[i] = fork();
		if (!pid[i]) {
			state += i * 7919 + getpid();
			for (;;) {
				compute(random_below(300));
				nap(random_below(1000) + 1);
			}
		}
		if (set(pid[i], SCHED_DEADLINE))
			perror("to SCHED_DEADLINE");
	}
	sched_setscheduler(0, SCHED_FIFO, &fifo);
	for (end = time(NULL) + seconds; time(NULL) < end; changes++) {
		i = random_below(tasks);
		refused += !!set(pid[i], 0);
		nap(random_below(200) + 1);
		refused += !!set(pid[i], SCHED_DEADLINE);
		nap(random_below(200) + 1);
	}

	printf("changes %lu refused %lu\n", changes, refused);
	for (i = 0; i < tasks; i++)
		kill(pid[i], SIGKILL);
	while (wait(NULL) > 0)
		;
	return 0;
}
