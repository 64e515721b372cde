// SPDX-License-Identifier: GPL-2.0
/*
 * Sections: stretches of time that a program in the guest marks, and what the machine counted in them.
 *
 * The instructions "hint #0x70" and "hint #0x71", which do nothing on hardware, begin and end a section. At its end its counts
 * go into the file: a line for each, a key and a value, from "section N" to "end". A section that begins in another one
 * replaces it.
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
