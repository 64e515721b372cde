// SPDX-License-Identifier: GPL-2.0
/*
 * Who runs: the scheduler of the simulated machine.
 *
 *  1. A fiber with work outside the guest. It takes no virtual time and others may wait for it.
 *  2. A vCPU that was kicked, if a fiber waits for others to leave the guest: it gets one block.
 *  3. The main loop, when a timer is due before the earliest vCPU's time.
 *  4. The vCPU with the smallest virtual time, until it is a quantum ahead of the next one, or
 *     until the next timer.
 *
 * So no vCPU is more than a quantum ahead of another that executes, but for its last block and one block
 * for each time that all had to leave the guest since; and one that runs alone runs at QEMU's full
 * speed.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>
#include <unistd.h>
#include "sim.h"

/* A vCPU that runs alone looks up this often. */
#define LONGEST_SLICE	(1000000 * PS_PER_NS)

struct sim_parameters sim;
struct sim_statistics sim_stats;

/* Executing vCPUs, as a binary heap: the smallest time is at 0, children of i at 2i+1, 2i+2. */
static struct fiber *heap[SIM_MAX_VCPUS];
static int heap_size;

static struct fiber *host_first, **host_last = &host_first;
static struct fiber *kicked_first, **kicked_last = &kicked_first;
static atomic_bool remote_pending;

static void heap_put(int i, struct fiber *f)
{
	heap[i] = f;
	f->place = i + 1;
}

static void sift_down(int i)
{
	struct fiber *f = heap[i];
	int child;

	while ((child = 2 * i + 1) < heap_size) {
		if (child + 1 < heap_size && heap[child + 1]->time < heap[child]->time)
			child++;
		if (f->time <= heap[child]->time)
			break;
		heap_put(i, heap[child]);
		i = child;
	}
	heap_put(i, f);
}

static void sift_up(int i)
{
	struct fiber *f = heap[i];

	while (i > 0 && f->time < heap[(i - 1) / 2]->time) {
		heap_put(i, heap[(i - 1) / 2]);
		i = (i - 1) / 2;
	}
	heap_put(i, f);
}

static void heap_add(struct fiber *f)
{
	if (f->busy_threads)
		++*f->busy_threads;
	heap_put(heap_size++, f);
	sift_up(heap_size - 1);
}

static void heap_remove(struct fiber *f)
{
	int i = f->place - 1;
	struct fiber *last = heap[--heap_size];

	f->place = 0;
	if (f->busy_threads)
		--*f->busy_threads;
	if (last == f)
		return;
	heap_put(i, last);
	sift_up(i);
	sift_down(last->place - 1);
}

/* The smallest time of the vCPUs other than the first; NEVER if there is no other. */
static int64_t second_time(void)
{
	int64_t t = heap_size > 1 ? heap[1]->time : NEVER;

	if (heap_size > 2 && heap[2]->time < t)
		t = heap[2]->time;
	return t;
}

/* Let @f run its host code: it was woken, or has just been adopted. */
void make_host(struct fiber *f)
{
	f->state = FIBER_HOST;
	f->next_host = NULL;
	*host_last = f;
	host_last = &f->next_host;
	cut_slice();
}

static struct fiber *next_host(void)
{
	struct fiber *f = host_first;

	if (f) {
		host_first = f->next_host;
		if (!host_first)
			host_last = &host_first;
	}
	return f;
}

/* @f is asked to leave the guest; it does when it has run one block. */
void kick(struct fiber *f)
{
	if (f->state != FIBER_READY || f->kicked)
		return;
	f->kicked = true;
	f->next_kicked = NULL;
	*kicked_last = f;
	kicked_last = &f->next_kicked;
}

static struct fiber *next_kicked(void)
{
	struct fiber *f;

	while ((f = kicked_first)) {
		kicked_first = f->next_kicked;
		if (!kicked_first)
			kicked_last = &kicked_first;
		f->kicked = false;
		if (f->state == FIBER_READY)
			return f;
	}
	return NULL;
}

/* Wake @f from a thread that is no fiber. */
void remote_wake(struct fiber *f)
{
	atomic_store(&f->woken, true);
	atomic_store(&remote_pending, true);
	wake_host_thread();
}

static void collect_remote(void)
{
	int n, i;

	if (!atomic_load_explicit(&remote_pending, memory_order_relaxed))
		return;
	atomic_store(&remote_pending, false);
	n = fiber_count();
	for (i = -1; i < n; i++) {
		struct fiber *f = i < 0 ? main_fiber() : fiber_at(i);

		/*
		 * Such a wake-up comes at any moment of the host's. The time that all have reached is
		 * not after any other wake-up still to come, so that it leaves no trace.
		 */
		if (atomic_exchange(&f->woken, false))
			end_wait(f, global_time());
	}
}

bool vcpus_executing(void)
{
	return heap_size > 0;
}

/* Nothing can run until a thread that is no fiber wakes somebody. */
static void sleep_on_host(void)
{
	struct pollfd fd = { .fd = host_wake_fd(), .events = POLLIN };
	uint64_t count;

	/* the file descriptor does not block: somebody else may have read it */
	while (poll(&fd, 1, 10) > 0 && read(fd.fd, &count, sizeof(count)) > 0)
		;
}

/* Choose the next fiber and set its slice up. */
static struct fiber *choose(void)
{
	struct fiber *f;
	int64_t earliest, length;

	for (;;) {
		collect_remote();
		f = next_host();
		if (!f && waits_for_others())
			f = next_kicked();
		if (f) {
			start_slice(f, 0);
			return f;
		}
		earliest = heap_size ? heap[0]->time : NEVER;
		if (main_loop_due(earliest))
			return main_fiber();
		if (heap_size)
			break;
		sleep_on_host();
	}

	f = heap[0];
	length = second_time();
	if (length != NEVER)
		length += f->close_until > f->time ? sim.close_quantum : sim.quantum;
	if (length > main_loop_next())
		length = main_loop_next();
	length -= f->time;
	start_slice(f, length < LONGEST_SLICE ? length : LONGEST_SLICE);
	sim_stats.late += f->time < global_time();
	sim_stats.slices++;
	return f;
}

/* Let somebody run, perhaps the caller. The caller has put itself where it will be found. */
void give_turn(void)
{
	struct fiber *self = running;
	struct fiber *next = choose();

	next->state = FIBER_RUNS;
	if (next != self)
		fiber_switch(self, next);
}

/*
 * The running vCPU is in the guest and its slice is over. Returns when it has its next turn.
 * @extra: virtual time that passes for it besides that of its instructions.
 */
void end_slice(int64_t extra)
{
	struct fiber *f = running;

	charge_slice(f);
	f->time += extra;
	if (f->slept) {
		f->slept = false;
		f->time += sim.idle_exit;
		sim_stats.wakes++;
	}
	if (f->place)
		sift_down(f->place - 1);
	else
		heap_add(f);
	f->state = FIBER_READY;
	give_turn();
}

/* The running vCPU is about to wait: it does not execute any more. */
void leave_guest(struct fiber *f)
{
	charge_slice(f);
	if (f->place)
		heap_remove(f);
}
