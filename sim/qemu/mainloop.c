// SPDX-License-Identifier: GPL-2.0
/*
 * QEMU's main loop. It runs timers and serves file descriptors, and sleeps in ppoll() between.
 * Here the vCPUs run while it sleeps, and its timeout is one in virtual time: when all executing
 * vCPUs have reached it, it is the main loop's turn. If every vCPU sleeps, time jumps there.
 *
 * A limit: when QEMU waits in a nested poll for a disk, it keeps its big lock, which a vCPU that gets
 * the turn may want. The machines have no disks.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "sim.h"

/* File descriptors that the guest does not cause (signals, for one) are looked at this often. */
#define CHECK_PERIOD	(50000 * PS_PER_NS)
/* How often the status file is written, in ns of host time. */
#define STATUS_PERIOD	1000000000LL

static bool polling;
static bool notified;
static int64_t deadline = NEVER;
static int64_t next_check;

static int status_fd = -1;
static int64_t host_start, start_time;

/* Has the main loop something to do before @earliest, the smallest time of an executing vCPU? */
bool main_loop_due(int64_t earliest)
{
	if (!polling)
		return false;
	/* if no vCPU executes there may be news that change the deadline: ppoll() looks first */
	if (earliest != NEVER)
		advance_global_time(deadline < earliest ? deadline : earliest);
	return notified || earliest == NEVER || deadline <= earliest || next_check <= earliest;
}

/* No vCPU may run past this time before the main loop has had its turn. */
int64_t main_loop_next(void)
{
	if (!polling)
		return NEVER;
	return deadline < next_check ? deadline : next_check;
}

/*
 * QEMU's threads tell the main loop by an eventfd (or a pipe) that there is something new, for
 * example an earlier timer. (So do its handlers of signals, at any point of a block; cutting the slice
 * there may lose some instructions' time, when the machine is being ended.)
 */
EXPORT ssize_t write(int fd, const void *buffer, size_t size)
{
	static ssize_t (*real)(int, const void *, size_t);

	if (!real)
		real = next_symbol(write, NULL);
	if (on_fiber() && (size == sizeof(uint64_t) || size == 1)) {
		notified = true;
		cut_slice();
	}
	return real(fd, buffer, size);
}

/* No vCPU can run and no timer is set: sleep until there is an event, or another thread's wake-up. */
static int wait_for_event(int (*real)(struct pollfd *, nfds_t, const struct timespec *,
				      const sigset_t *),
			  struct pollfd *fds, nfds_t n, const sigset_t *mask)
{
	const struct timespec a_moment = { .tv_nsec = 10000000 };
	struct pollfd all[n + 1];
	uint64_t count;
	nfds_t i;
	int ret;

	memcpy(all, fds, n * sizeof(*fds));
	all[n] = (struct pollfd){ .fd = host_wake_fd(), .events = POLLIN };
	ret = real(all, n + 1, &a_moment, mask);
	for (i = 0; i < n; i++)
		fds[i].revents = ret > 0 ? all[i].revents : 0;
	if (ret > 0 && all[n].revents) {
		if (read(all[n].fd, &count, sizeof(count)) > 0)
			ret--;
	}
	return ret;
}

EXPORT int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	static int (*real)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *);
	static const struct timespec at_once;
	struct fiber *f = running;
	static int64_t last_status;
	int ret;

	if (!real)
		real = next_symbol(ppoll, NULL);
	if (!on_fiber() || f != main_fiber() ||
	    (timeout && !timeout->tv_sec && !timeout->tv_nsec))
		return real(fds, n, timeout, mask);

	deadline = NEVER;
	if (timeout && timeout->tv_sec < NEVER / PS_PER_NS / 2000000000)
		deadline = global_time() +
			   (timeout->tv_sec * 1000000000LL + timeout->tv_nsec) * PS_PER_NS;
	for (;;) {
		notified = false;
		ret = real(fds, n, &at_once, mask);
		if (ret || global_time() >= deadline)
			return ret;

		if (host_ns() - last_status > STATUS_PERIOD) {
			last_status = host_ns();
			write_status(false);
		}
		next_check = global_time() + CHECK_PERIOD;
		polling = true;
		f->state = FIBER_WAITS;
		sim_stats.main_loop++;
		give_turn();
		polling = false;

		if (notified || vcpus_executing())
			continue;
		/* All vCPUs sleep. */
		if (deadline != NEVER) {
			sim_stats.warps++;
			advance_global_time(deadline);
			continue;
		}
		ret = wait_for_event(real, fds, n, mask);
		if (ret)
			return ret;
	}
}

/* Write to the file @path, from now on, how far the machine is. False if that cannot be done. */
bool open_status(const char *path)
{
	host_start = host_ns();
	start_time = global_time();
	if (!path)
		return true;
	status_fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	return status_fd >= 0;
}

/* Virtual, host and busy time in seconds; with @final also the counts. */
void write_status(bool final)
{
	char text[2048];
	struct cache_counts counts;
	struct timespec cpu;
	int64_t busy = 0;
	uint64_t insns = 0;
	int i, length;

	if (status_fd < 0)
		return;
	for (i = 0; i < fiber_count(); i++) {
		busy += fiber_at(i)->busy;
		insns += fiber_at(i)->insns;
	}
	length = snprintf(text, sizeof(text),
			  "virtual_seconds %.9f\nhost_seconds %.3f\nbusy_seconds %.9f\n",
			  (global_time() - start_time) / 1e12, (host_ns() - host_start) / 1e9,
			  busy / 1e12);
	if (final) {
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
		length += snprintf(text + length, sizeof(text) - length,
				   "host_cpu_seconds %.3f\ninstructions %lu\nslices %lu\nspins %lu\nwakes %lu\nexclusive %lu\n"
				   "main_loop %lu\nlate %lu\nwarps %lu\n",
				   cpu.tv_sec + cpu.tv_nsec / 1e9, insns, sim_stats.slices, sim_stats.spins, sim_stats.wakes,
				   sim_stats.exclusive, sim_stats.main_loop, sim_stats.late,
				   sim_stats.warps);
		counts = cache_count();
		length += cache_print(text + length, sizeof(text) - length, &counts);
	}
	if (pwrite(status_fd, text, length, 0) < 0)
		perror("sim: cannot write the status file");
}
