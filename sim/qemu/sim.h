/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A many-CPU machine in virtual time: what the parts of the simulator know of each other.
 *
 * QEMU runs unmodified. All of its vCPU threads and its main loop are made fibers of one host
 * thread, so that exactly one of them runs at a time and the simulator decides which: the one
 * whose virtual time is the smallest. A vCPU's virtual time is the number of instructions it has
 * executed, divided by the speed of the simulated CPU, plus the time that it slept or waited for memory.
 * The clock that QEMU shows to the guest is this virtual time.
 *
 *	plugin.c	counts the guest's instructions and stops a vCPU at the end of its slice
 *	cache.c		what accesses to memory cost, if the machine has caches
 *	section.c	counts for stretches of time that the guest marks
 *	lines.c		the lines of memory that cost most in these
 *	vcpu.c		decides who runs, and for how long
 *	clock.c		virtual time, and the clock that QEMU reads
 *	fiber.c		makes fibers of QEMU's threads and switches between them
 *	wait.c		condition variables: how vCPUs sleep, are woken and wait for each other
 *	mainloop.c	QEMU's main loop: its timers, in virtual time, and its file descriptors
 *
 * Times are in picoseconds (ps) of virtual time unless a name says otherwise.
 */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define SIM_MAX_VCPUS	512
#define PS_PER_NS	1000LL
#define NEVER		INT64_MAX

/* What QEMU finds: its plugin's entry points, and C library functions in the place of the real ones. */
#define EXPORT		__attribute__((visibility("default")))

/* What a fiber is doing. */
enum fiber_state {
	/* on a condition variable, or the main loop in ppoll(): somebody has to wake it */
	FIBER_WAITS,
	/* has work outside the guest, which takes no virtual time: goes first */
	FIBER_HOST,
	/* a vCPU between two slices: its turn comes when its time is the smallest */
	FIBER_READY,
	FIBER_RUNS,
};

/* A thread of QEMU's that runs on the simulator's one host thread. */
struct fiber {
	/* fiber.c: the stack pointer and the thread pointer (thread-local storage) */
	void *sp;
	void *tp;

	enum fiber_state state;
	/* vcpu.c: the next of those in FIBER_HOST, and of those that were kicked while READY */
	struct fiber *next_host;
	struct fiber *next_kicked;
	bool kicked;
	/* its index in the heap of executing vCPUs plus 1; 0: not there */
	int place;

	/* wait.c: what it waits on, if it does; the first one ever is a vCPU's halt condition */
	_Atomic(pthread_cond_t *) cond;
	pthread_cond_t *halt_cond;
	/* woken from outside the simulator's host thread */
	atomic_bool woken;
	/* it slept on its halt condition, and has not executed an instruction since */
	bool slept;

	/* virtual time up to the begin of the present slice */
	int64_t time;
	/* time of its instructions since the start, for the statistics */
	int64_t busy;
	/* the threads of its core that execute, if threads share a core's speed; NULL if not */
	int *busy_threads;
	/* time of one instruction in this slice */
	int64_t insn;
	/* time in this slice that it waited for memory */
	int64_t stall;
	/* instructions executed before this slice, for the statistics */
	uint64_t insns;
	/* until then it keeps close to the others: it competes for a line */
	int64_t close_until;
	/* cache.c: what it sees of the caches; NULL if there are none */
	struct view *view;
	/* plugin.c: instructions of the slice, counted upwards to SLICE_END; NULL in the main loop */
	uint64_t *count;
	uint64_t slice_start;
};

/* The count at which a slice is over; far from 0, so that any slice fits below it. */
#define SLICE_END	(1ULL << 62)

/* The machine's parameters; set once, before the first vCPU runs. */
struct sim_parameters {
	int64_t quantum;	/* how far a slice may take a vCPU ahead of the slowest */
	int64_t close_quantum;	/* the same, while it competes for a line of memory */
	int64_t insn;		/* time of one instruction */
	int64_t idle_exit;	/* from the wake-up of a sleeping vCPU to its next instruction */
	int64_t spin;		/* time of one WFE or YIELD: how often a spinning CPU looks again */
	int threads;		/* of a core */
	/* speed of each of two busy threads of a core, alone: 1. More than two share the speed of two. */
	double smt;
};

/* Where an access finds its line; and what it may wait for besides. */
enum cache_event {
	L1,
	L2,
	LLC,
	OTHER_CORE,	/* in another core of the LLC's domain */
	OTHER_LLC,	/* in another LLC's domain of the node, modified */
	OTHER_NODE,	/* in another node, modified */
	MEMORY,
	OTHER_MEMORY,	/* of another node */
	SIBLING,	/* another thread of the core has just written it */
	UPGRADE,	/* a store finds its line in the core's caches, but others have copies */
	NR_CACHE_EVENTS
};

struct cache_counts {
	/* times in ps: all waits; of these, for lines on their way to somebody else, and for instructions */
	int64_t stalled, queued, fetch_stalled;
	uint64_t accesses, fetches;
	/* accesses that the filter did not serve, and instructions, by where they found their line */
	uint64_t found[NR_CACHE_EVENTS], fetched[NR_CACHE_EVENTS];
};

struct cache_size {
	uint64_t kib;
	int ways;
};

struct cache_parameters {
	struct cache_size l1, l1i, l2, llc;
	int64_t cost[NR_CACHE_EVENTS];
	/* LLCs of the machine, cores of an LLC, threads of a core */
	int domains, cores, threads;
	int nodes;
	/* which the nodes share evenly, one after the other */
	int memory_mib;
};

struct sim_statistics {
	uint64_t slices;	/* times that a vCPU got its turn */
	uint64_t spins;		/* turns ended by WFE or YIELD */
	uint64_t wakes;		/* vCPUs woken from their halt condition */
	uint64_t exclusive;	/* waits of vCPUs for each other (TLB maintenance) */
	uint64_t main_loop;	/* turns of the main loop */
	uint64_t late;		/* turns that began before the machine's time: such a wait was too long */
	uint64_t warps;		/* all vCPUs asleep: time jumped to the next timer */
};

extern struct sim_parameters sim;
extern struct cache_parameters cache;
extern struct sim_statistics sim_stats;

/* The fiber that runs. Only for code on the simulator's host thread: see on_fiber(). */
extern struct fiber *running;

/* fiber.c */
bool on_fiber(void);
bool sim_enabled(void);
struct fiber *main_fiber(void);
int fiber_count(void);
struct fiber *fiber_at(int i);
void fiber_switch(struct fiber *from, struct fiber *to);
void wake_host_thread(void);
int host_wake_fd(void);

/* vcpu.c */
void make_host(struct fiber *f);
void kick(struct fiber *f);
void remote_wake(struct fiber *f);
void give_turn(void);
void end_slice(int64_t extra);
void leave_guest(struct fiber *f);
bool vcpus_executing(void);

/* clock.c */
int64_t host_ns(void);
int64_t now(void);
int64_t time_before(uint64_t insns);
int64_t global_time(void);
void advance_global_time(int64_t to);
void charge_slice(struct fiber *f);
void start_slice(struct fiber *f, int64_t length);
void cut_slice(void);
void stall(struct fiber *f, int64_t cost);

/* plugin.c */
bool physical_address(uint32_t info, uint64_t address, uint64_t *physical);

/* cache.c */
bool cache_init(void);
void cache_add_vcpu(unsigned int vcpu, struct fiber *f);
void cache_turn(struct fiber *f, bool block);
void *cache_block(const void *first, const void *last);
void cache_fetch(unsigned int vcpu, void *block);
void cache_load(unsigned int vcpu, uint32_t info, uint64_t address, void *pc);
void cache_store(unsigned int vcpu, uint32_t info, uint64_t address, void *pc);
void cache_tables_change(unsigned int vcpu, void *userdata);
void cache_tlb_invalid(unsigned int vcpu, void *userdata);
struct cache_counts cache_count(void);
int cache_print(char *text, size_t size, const struct cache_counts *c);

/* section.c */
bool open_sections(const char *path);
void section_begin(unsigned int vcpu, void *userdata);
void section_end(unsigned int vcpu, void *userdata);

/* lines.c */
bool lines_init(const char *variables, const char *pointers);
void lines_in_kernel(void);
void lines_begin(void);
void lines_note(uint64_t physical, uint64_t virtual, uint64_t pc, enum cache_event event, int64_t cost, int64_t queued);
bool lines_end(FILE *file);

/* wait.c */
bool waits_for_others(void);
void end_wait(struct fiber *f, int64_t time);

/* mainloop.c */
bool main_loop_due(int64_t earliest);
int64_t main_loop_next(void);
bool open_status(const char *path);
void write_status(bool final);

#define next_symbol(name, version) find_symbol(#name, version)
void *find_symbol(const char *name, const char *version);

#endif
