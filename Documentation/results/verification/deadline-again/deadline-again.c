// SPDX-License-Identifier: GPL-2.0
/*
 * Usage: deadline-again SECONDS [US]
 *
 * A task makes itself a deadline task (1 ms of 10, within 5), computes for longer than its runtime, but mostly not until the tick
 * sees it, makes itself SCHED_OTHER again, sleeps for US (12000) and begins anew. Prints how often it did; if it has not ended a second after
 * it should have, what the kernel knows of it, and the exit status is 1.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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
	struct attr deadline = { sizeof(deadline), 6, 0, 0, 0, 1000000, 5000000, 10000000 };
	struct attr other = { .size = sizeof(other) };
	int64_t end = now_us() + 1000000LL * (argc > 1 ? atoi(argv[1]) : 10);
	long *n = mmap(NULL, sizeof(*n), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
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
			++*n;
			usleep(argc > 2 ? atoi(argv[2]) : 12000);
		}
		exit(0);
	}
	while (!waitpid(pid, NULL, WNOHANG)) {
		usleep(100000);
		if (now_us() > end + 1000000) {
			printf("does not end; became a deadline task %ld times before\n", *n);
			fflush(stdout);
			snprintf(command, sizeof(command), "cat /proc/%d/stat /proc/%d/sched; cat /sys/kernel/debug/sched/debug", pid, pid);
			return system(command) | 1;
		}
	}
	printf("ended; became a deadline task %ld times\n", *n);
	return 0;
}
