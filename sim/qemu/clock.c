// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual time. Each vCPU has its own; the machine's, which its timers and everything outside the
 * vCPUs see, is the time that all executing vCPUs have reached. QEMU derives the guest's clock
 * from CLOCK_MONOTONIC, which is therefore virtual for the fibers. Other threads of QEMU's see
 * the host's clock.
 */
#define _GNU_SOURCE
#include <time.h>
#include "sim.h"

/* Not 0: QEMU takes some zeros for "never". */
static int64_t machine_time = 1000000000 * PS_PER_NS;

static int (*real_clock_gettime)(clockid_t, struct timespec *);

static int host_clock(clockid_t clock, struct timespec *ts)
{
	if (!real_clock_gettime)
		real_clock_gettime = next_symbol(clock_gettime, NULL);
	return real_clock_gettime(clock, ts);
}

/* The host's monotonic time in ns. */
int64_t host_ns(void)
{
	struct timespec ts;

	host_clock(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000LL + ts.tv_nsec;
}

int64_t global_time(void)
{
	return machine_time;
}

void advance_global_time(int64_t to)
{
	if (to > machine_time)
		machine_time = to;
}

/* The time of the fiber that runs. */
int64_t now(void)
{
	struct fiber *f = running;

	if (!f->count)
		return machine_time;
	return f->time + (int64_t)(*f->count - f->slice_start) * f->insn + f->stall;
}

/* For the plugin in cost.c: the running vCPU's time, @insns instructions before the last that it has counted. */
EXPORT int64_t time_before(uint64_t insns)
{
	return now() - (int64_t)insns * running->insn;
}

/* Add the instructions executed in the slice to @f's time; counting starts again from there. */
void charge_slice(struct fiber *f)
{
	int64_t used;

	if (!f->count)
		return;
	f->insns += *f->count - f->slice_start;
	used = (int64_t)(*f->count - f->slice_start) * f->insn + f->stall;
	f->stall = 0;
	f->time += used;
	f->busy += used;
	f->slice_start = *f->count;
}

/* @f may execute for @length, at least one block if that is positive and nothing but one if not. */
void start_slice(struct fiber *f, int64_t length)
{
	uint64_t insns;
	int busy;

	if (!f->count)
		return;
	f->insn = sim.insn;
	if (f->busy_threads) {
		busy = *f->busy_threads + !f->place;
		if (busy > 1)
			f->insn = sim.insn * busy / (2 * sim.smt) + 0.5;
	}
	if (f->view)
		cache_turn(f, length <= 0);
	insns = length > 0 ? (length + f->insn - 1) / f->insn : 0;
	f->slice_start = SLICE_END - insns;
	*f->count = f->slice_start;
}

/* The running vCPU has caused something that changes who is next: end its slice with its block. */
void cut_slice(void)
{
	struct fiber *f = running;

	if (!f->count || *f->count >= SLICE_END)
		return;
	f->slice_start += SLICE_END - *f->count;
	*f->count = SLICE_END;
}

/* @f, which runs, waits for memory; its slice is the shorter for it. */
void stall(struct fiber *f, int64_t cost)
{
	uint64_t insns = cost / f->insn;

	f->stall += cost;
	*f->count += insns;
	f->slice_start += insns;
}

EXPORT int clock_gettime(clockid_t clock, struct timespec *ts)
{
	int64_t ns;

	if (clock != CLOCK_MONOTONIC || !sim_enabled() || !on_fiber())
		return host_clock(clock, ts);
	ns = now() / PS_PER_NS;
	ts->tv_sec = ns / 1000000000;
	ts->tv_nsec = ns % 1000000000;
	return 0;
}
