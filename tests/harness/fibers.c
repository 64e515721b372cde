// SPDX-License-Identifier: GPL-2.0
/*
 * Threads that behave as QEMU's do, on the simulator's fibers and without QEMU: each is named as a vCPU's
 * thread and then waits and is woken, in turns with the main thread. tests/harness/test_machine.py links it
 * with the simulator's parts but plugin.c and section.c, for the host and for arm64.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS	5
#define ROUNDS	1000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t created = PTHREAD_COND_INITIALIZER;
static pthread_cond_t halt[THREADS];
static pthread_cond_t answer = PTHREAD_COND_INITIALIZER;
static int born, asked[THREADS], answered[THREADS];
static __thread int mine;

/* The plugin's, for caches, of which there are none here. */
bool physical_address(uint32_t info, uint64_t address, uint64_t *physical);
bool physical_address(uint32_t info, uint64_t address, uint64_t *physical)
{
	(void)info;
	(void)address;
	(void)physical;
	return false;
}

static void *thread(void *arg)
{
	int i = (int)(long)arg;
	/* in registers that a switch must keep */
	double sum = i;
	long count = i;
	char name[16];

	snprintf(name, sizeof(name), "CPU %d/TCG", i);
	pthread_setname_np(pthread_self(), name);
	mine = i;
	pthread_mutex_lock(&lock);
	born++;
	pthread_cond_signal(&created);
	for (;;) {
		while (answered[i] == asked[i])
			pthread_cond_wait(&halt[i], &lock);
		sum += 0.5;
		count += 3;
		answered[i]++;
		if (mine != i || count != i + 3L * answered[i] || sum != i + 0.5 * answered[i]) {
			fprintf(stderr, "thread %d: mine %d, count %ld, sum %f\n", i, mine, count, sum);
			exit(1);
		}
		pthread_cond_broadcast(&answer);
	}
	return NULL;
}

int main(void)
{
	pthread_t id;
	int i, round;

	mine = -1;
	pthread_mutex_lock(&lock);
	for (i = 0; i < THREADS; i++) {
		pthread_cond_init(&halt[i], NULL);
		if (pthread_create(&id, NULL, thread, (void *)(long)i))
			return 2;
		while (born == i)
			pthread_cond_wait(&created, &lock);
	}
	for (round = 0; round < ROUNDS; round++) {
		for (i = 0; i < THREADS; i++) {
			asked[i]++;
			pthread_cond_broadcast(&halt[i]);
		}
		for (i = 0; i < THREADS; i++)
			while (answered[i] < asked[i])
				pthread_cond_wait(&answer, &lock);
		if (mine != -1)
			return 3;
	}
	printf("%d rounds of %d threads\n", ROUNDS, THREADS);
	return 0;
}
