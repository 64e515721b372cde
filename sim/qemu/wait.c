// SPDX-License-Identifier: GPL-2.0
/*
 * Condition variables. A fiber that waits gives its turn away; its host thread must not sleep.
 *
 * A vCPU waits on its halt condition when the guest has nothing for it to do (WFI), and whoever
 * has something for it broadcasts on that. On all other conditions a fiber waits for other fibers:
 * for all vCPUs to leave the guest, for work that it gave to another one, for a thread to start.
 * Waking too often is allowed, so that no difference is made between signal and broadcast.
 */
#define _GNU_SOURCE
#include "sim.h"

/* Fibers that wait for others, not asleep. */
static int nr_waiting;

bool waits_for_others(void)
{
	return nr_waiting > 0;
}

/* @f is woken at @time; called on the simulator's host thread. */
void end_wait(struct fiber *f, int64_t time)
{
	pthread_cond_t *cond = atomic_load(&f->cond);

	/* without a condition only one that was adopted just now has something to do */
	if (f->state != FIBER_WAITS || (!cond && f == main_fiber()))
		return;
	if (cond && cond != f->halt_cond)
		nr_waiting--;
	atomic_store(&f->cond, NULL);
	if (f->slept && f->time < time)
		f->time = time;
	make_host(f);
}

static void wake_waiters(pthread_cond_t *cond)
{
	int i, n;

	if (!sim_enabled())
		return;
	n = fiber_count();
	for (i = -1; i < n; i++) {
		struct fiber *f = i < 0 ? main_fiber() : fiber_at(i);

		if (atomic_load(&f->cond) == cond) {
			if (on_fiber())
				end_wait(f, now());
			else
				remote_wake(f);
		} else if (f->halt_cond == cond && on_fiber()) {
			kick(f);
		}
	}
}

EXPORT int pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
	static int (*real)(pthread_cond_t *, pthread_mutex_t *);
	struct fiber *f;

	if (!on_fiber()) {
		if (!real)
			real = next_symbol(pthread_cond_wait, "GLIBC_2.3.2");
		return real(cond, mutex);
	}

	f = running;
	if (f != main_fiber()) {
		leave_guest(f);
		if (!f->halt_cond)
			f->halt_cond = cond;
		if (cond == f->halt_cond)
			f->slept = true;
		else
			sim_stats.exclusive++;
	}
	if (cond != f->halt_cond)
		nr_waiting++;
	f->state = FIBER_WAITS;
	/* from here on threads that are no fibers may wake it; they hold the mutex if they must not yet */
	atomic_store(&f->cond, cond);
	pthread_mutex_unlock(mutex);
	give_turn();
	pthread_mutex_lock(mutex);
	return 0;
}

EXPORT int pthread_cond_broadcast(pthread_cond_t *cond)
{
	static int (*real)(pthread_cond_t *);

	if (!real)
		real = next_symbol(pthread_cond_broadcast, "GLIBC_2.3.2");
	wake_waiters(cond);
	return real(cond);
}

EXPORT int pthread_cond_signal(pthread_cond_t *cond)
{
	static int (*real)(pthread_cond_t *);

	if (!real)
		real = next_symbol(pthread_cond_signal, "GLIBC_2.3.2");
	wake_waiters(cond);
	return real(cond);
}
