// SPDX-License-Identifier: GPL-2.0
/*
 * Sections: stretches of time that a program in the guest marks, and what the machine counted in them.
 *
 * The instructions "hint #0x70" and "hint #0x71", which do nothing on hardware, begin and end a section. A section that begins
 * in another one replaces it. At its end its counts go into the file, a line for each, a key and a value:
 *
 *	section			its number, from 1 on
 *	begin_ns end_ns		the machine's time
 *	instructions busy_ns	of all vCPUs together, as all that follow; busy_ns includes waits for memory
 *
 * With caches also:
 *
 *	stalled_ns		waits for memory; of these:
 *	queued_ns		waits for lines on their way to somebody else
 *	accesses		loads and stores of memory; of these:
 *	filtered		found by the filter, which is in front of the L1
 *	from_l1 from_l2 from_llc  found in the core's own L1 or L2, or in its LLC
 *	from_core		in another core of the LLC
 *	from_other_llc from_other_node  modified in another LLC of the node, or in another node
 *	from_memory from_other_memory	in the memory of the own node, or of another
 *	upgrades		stores to lines of the own core that others have, or had when it took them
 *	sibling_waits		accesses to lines that another thread of the core had just written
 *	fetch_stalled_ns	waits for instructions, a part of stalled_ns
 *	fetches			lines of instructions that blocks began to use; of these:
 *	fetches_from_l2 fetches_from_llc fetches_from_beyond  not in the L1I, but there; or further away
 *
 * The lines of memory follow, see lines.c, and then "end".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "sim.h"

struct counts {
	int64_t time;
	int64_t busy;
	uint64_t insns;
	struct cache_counts cache;
};

static FILE *file;
static int sections;
static bool open_section;
static struct counts began;

/* Make @path, empty. False if that cannot be done; errno says why. */
bool open_sections(const char *path)
{
	file = fopen(path, "we");
	return file;
}

static struct counts count(void)
{
	struct counts c = { .time = now(), .cache = cache_count() };
	int i;

	for (i = 0; i < fiber_count(); i++) {
		c.busy += fiber_at(i)->busy;
		c.insns += fiber_at(i)->insns;
	}
	/* and what the caller has executed of its slice */
	c.busy += now() - running->time;
	c.insns += *running->count - running->slice_start;
	return c;
}

static struct cache_counts difference(const struct cache_counts *a, const struct cache_counts *b)
{
	struct cache_counts d = {
		.stalled = a->stalled - b->stalled,
		.queued = a->queued - b->queued,
		.fetch_stalled = a->fetch_stalled - b->fetch_stalled,
		.accesses = a->accesses - b->accesses,
		.fetches = a->fetches - b->fetches,
	};
	int i;

	for (i = 0; i < NR_CACHE_EVENTS; i++) {
		d.found[i] = a->found[i] - b->found[i];
		d.fetched[i] = a->fetched[i] - b->fetched[i];
	}
	return d;
}

void section_begin(unsigned int vcpu, void *userdata)
{
	(void)vcpu;
	(void)userdata;
	began = count();
	open_section = true;
	lines_begin();
}

void section_end(unsigned int vcpu, void *userdata)
{
	struct counts ended = count();
	struct cache_counts cache;
	char text[2048] = "";

	(void)vcpu;
	(void)userdata;
	if (!open_section)
		return;
	open_section = false;
	cache = difference(&ended.cache, &began.cache);
	cache_print(text, sizeof(text), &cache);
	if (fprintf(file, "section %d\nbegin_ns %lld\nend_ns %lld\ninstructions %lu\nbusy_ns %lld\n%s", ++sections,
		    began.time / PS_PER_NS, ended.time / PS_PER_NS, ended.insns - began.insns,
		    (ended.busy - began.busy) / PS_PER_NS, text) < 0 || !lines_end(file) || fputs("end\n", file) < 0 || fflush(file)) {
		fprintf(stderr, "sim: error: the file of sections cannot be written: %s\n", strerror(errno));
		exit(1);
	}
}
