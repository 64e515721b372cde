// SPDX-License-Identifier: GPL-2.0
/*
 * Usage: deadline-wakelist TASKS SECONDS
 *
 * SCHED_DEADLINE tasks that sleep and wake up, while another task makes them SCHED_OTHER and SCHED_DEADLINE again.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
#include <unistd.h>
#include <sched.h>
#include <time.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
struct attr { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t runtime, deadline, period; };
static int set(pid_t p, int policy)
{
	struct attr a = { .size = sizeof(a), .policy = policy };
	if (policy == 6) { a.runtime = 1000000; a.deadline = 5000000; a.period = 10000000; }
	return syscall(SYS_sched_setattr, p, &a, 0);
}
static uint64_t s = 88172645463325252ull;
static unsigned rnd(unsigned n) { s ^= s << 13; s ^= s >> 7; s ^= s << 17; return s % n; }
static void nap(unsigned us) { struct timespec t = { 0, us * 1000 }; clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL); }
int main(int c, char **v)
{
	int n = c == 3 ? atoi(v[1]) : 0, secs = c == 3 ? atoi(v[2]) : 0;
	pid_t p[64];

	if (n < 1 || n > 64 || secs < 1) {
		fprintf(stderr, "usage: deadline-wakelist TASKS SECONDS\n");
		return 2;
	}
	for (int i = 0; i < n; i++) {
		p[i] = fork();
		if (!p[i]) {
			s += i * 7919 + getpid();
			for (;;) {
				struct timespec a, b;
				clock_gettime(CLOCK_MONOTONIC, &a);
				unsigned us = rnd(300);
				do clock_gettime(CLOCK_MONOTONIC, &b);
				while ((b.tv_sec - a.tv_sec) * 1000000 + (b.tv_nsec - a.tv_nsec) / 1000 < (long)us);
				nap(rnd(1000) + 1);
			}
		}
		if (set(p[i], 6)) perror("set");
	}
	struct sched_param sp = { .sched_priority = 50 };
	sched_setscheduler(0, SCHED_FIFO, &sp);
	time_t end = time(NULL) + secs;
	unsigned long ops = 0, bad = 0;
	while (time(NULL) < end) {
		int i = rnd(n);
		if (set(p[i], 0)) bad++;
		nap(rnd(200) + 1);
		if (set(p[i], 6)) bad++;
		nap(rnd(200) + 1);
		ops++;
	}

	printf("changes %lu refused %lu\n", ops, bad);
	for (int i = 0; i < n; i++) kill(p[i], 9);
	while (wait(NULL) > 0);
	return 0;
}
