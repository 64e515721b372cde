// SPDX-License-Identifier: GPL-2.0
/*
 * Usage: core-sched-double-clock TASKS SECONDS
 *
 * Tasks with a core-scheduling cookie each compute and sleep for random times below 1 ms. Switch
 * on WARN_DOUBLE_CLOCK first, and have CPUs with SMT.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef PR_SCHED_CORE
#define PR_SCHED_CORE		62
#define PR_SCHED_CORE_CREATE	1
#endif

static int64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

int main(int argc, char **argv)
{
	int tasks = argc == 3 ? atoi(argv[1]) : 0, seconds = argc == 3 ? atoi(argv[2]) : 0, i;
	int64_t end = now_us() + 1000000LL * seconds, until;

	if (tasks < 1 || seconds < 1) {
		fprintf(stderr, "usage: core-sched-double-clock TASKS SECONDS\n");
		return 2;
	}
	for (i = 0; i < tasks; i++) {
		if (fork())
			continue;
		srandom(i);
		if (prctl(PR_SCHED_CORE, PR_SCHED_CORE_CREATE, 0, 0, 0)) {
			perror("PR_SCHED_CORE");
			return 1;
		}
		while (now_us() < end) {
			for (until = now_us() + random() % 1000; now_us() < until; )
				;
			usleep(random() % 1000);
		}
		return 0;
	}
	while (wait(NULL) > 0)
		;
	return 0;
}
