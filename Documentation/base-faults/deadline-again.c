// SPDX-License-Identifier: GPL-2.0
/*
 * Usage: deadline-again SECONDS [US]
 *
 * For SECONDS, a task makes itself a SCHED_DEADLINE task (1 ms of runtime in 10 ms, deadline
 * 5 ms), computes for 2.5 ms, makes itself SCHED_OTHER again and sleeps for US (12000).
 * If the task does not end within a second after SECONDS, the program prints what the kernel
 * knows of it and ends with status 1. It needs root.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SCHED_DEADLINE
#define SCHED_DEADLINE 6
#endif

struct attr {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

static int64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

int main(int argc, char **argv)
{
	struct attr deadline = {
		.size = sizeof(deadline), .policy = SCHED_DEADLINE,
		.runtime = 1000000, .deadline = 5000000, .period = 10000000,
	};
	struct attr other = { .size = sizeof(other) };
	int64_t end = now_us() + 1000000LL * (argc > 1 ? atoi(argv[1]) : 10);
	long *times = mmap(NULL, sizeof(*times), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char command[100];
	pid_t pid = fork();

	if (!pid) {
		while (now_us() < end) {
			int64_t until;

			if (syscall(SYS_sched_setattr, 0, &deadline, 0)) {
				perror("to SCHED_DEADLINE");
				exit(2);
			}
			for (until = now_us() + 2500; now_us() < until; )
				;
			if (syscall(SYS_sched_setattr, 0, &other, 0))
				perror("to SCHED_OTHER");
			++*times;
			usleep(argc > 2 ? atoi(argv[2]) : 12000);
		}
		exit(0);
	}
	while (!waitpid(pid, NULL, WNOHANG)) {
		usleep(100000);
		if (now_us() > end + 1000000) {
			printf("does not end; became a deadline task %ld times before\n", *times);
			fflush(stdout);
			snprintf(command, sizeof(command),
				 "cat /proc/%d/stat /proc/%d/sched; cat /sys/kernel/debug/sched/debug", pid, pid);
			return system(command) | 1;
		}
	}
	printf("ended; became a deadline task %ld times\n", *times);
	return 0;
}
