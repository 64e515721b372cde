// SPDX-License-Identifier: GPL-2.0
/*
 * A QEMU plugin beside the simulator's: counts the instructions, and the virtual time, between two places.
 *
 * Arguments: points=FILE with lines "KIND HEX_ADDRESS", where KIND is "enter", "leave" or the name of an
 * event; out=FILE. For each way from "enter" to "leave" on a vCPU it writes a line: the number of instructions, from the
 * one at "enter" to the last before "leave", the ns that they took, waits for memory included, and how often each event was
 * passed on the way. The first line names the columns.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "qemu-api.h"
#include "sim.h"

#define MAX_POINTS	32
#define MAX_EVENTS	8

EXPORT int qemu_plugin_version = QEMU_PLUGIN_API;

enum { ENTER = -2, LEAVE = -1 };	/* others are numbers of events */

struct vcpu_count {
	uint64_t count;
	uint64_t entered;
	int64_t entered_ps;
	uint64_t events[MAX_EVENTS];
	bool inside;
};

/* An instruction to be noticed, and how many of its block come after it: the count is that of the block's end. */
struct place {
	int kind;
	unsigned int left;
};

static struct qemu_plugin_scoreboard *scoreboard;
static struct {
	uint64_t address;
	int kind;
} points[MAX_POINTS];
static unsigned int nr_points, nr_events;
static char *events[MAX_EVENTS];
static FILE *out;

static void pass(unsigned int vcpu, void *userdata)
{
	struct vcpu_count *c = qemu_plugin_scoreboard_find(scoreboard, vcpu);
	const struct place *place = userdata;
	uint64_t insns = c->count - place->left;
	int64_t ps = time_before(place->left);
	unsigned int i;

	if (place->kind == ENTER) {
		c->inside = true;
		c->entered = insns;
		c->entered_ps = ps;
		memset(c->events, 0, sizeof(c->events));
	} else if (!c->inside) {
		return;
	} else if (place->kind == LEAVE) {
		c->inside = false;
		fprintf(out, "%llu %lld", (unsigned long long)(insns - c->entered),
			(long long)((ps - c->entered_ps + PS_PER_NS / 2) / PS_PER_NS));
		for (i = 0; i < nr_events; i++)
			fprintf(out, " %llu", (unsigned long long)c->events[i]);
		putc('\n', out);
	} else {
		c->events[place->kind]++;
	}
}

static void translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	qemu_plugin_u64 count = { scoreboard, offsetof(struct vcpu_count, count) };
	size_t n = qemu_plugin_tb_n_insns(tb);
	unsigned int p;
	size_t i;

	(void)id;
	qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, QEMU_PLUGIN_INLINE_ADD_U64, count, n);
	for (i = 0; i < n; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		uint64_t address = qemu_plugin_insn_vaddr(insn);

		for (p = 0; p < nr_points; p++) {
			struct place *place;

			if (points[p].address != address)
				continue;
			/* As long as the translation, and QEMU does not say how long that is. */
			place = malloc(sizeof(*place));
			if (!place) {
				fputs("cost: error: no memory\n", stderr);
				exit(1);
			}
			place->kind = points[p].kind;
			place->left = n - i;
			qemu_plugin_register_vcpu_insn_exec_cb(insn, pass, QEMU_PLUGIN_CB_NO_REGS, place);
		}
	}
}

static void at_exit(qemu_plugin_id_t id, void *userdata)
{
	(void)id;
	(void)userdata;
	if (fclose(out)) {
		fprintf(stderr, "cost: error: the results could not be written: %s\n", strerror(errno));
		exit(1);
	}
}

/* The number of an event, a new one if it is not known yet; false if there are too many. */
static bool event(const char *name, int *number)
{
	unsigned int i;

	for (i = 0; i < nr_events && strcmp(events[i], name); i++)
		;
	*number = i;
	if (i < nr_events)
		return true;
	if (nr_events == MAX_EVENTS)
		return false;
	events[nr_events] = strdup(name);

	return events[nr_events++];
}

static bool read_points(const char *file)
{
	FILE *in = fopen(file, "r");
	unsigned long long address;
	char name[64];
	bool good = in;
	int fields;

	while (good && (fields = fscanf(in, "%63s %llx", name, &address)) != EOF) {
		good = fields == 2 && nr_points < MAX_POINTS;
		if (!good)
			break;
		points[nr_points].address = address;
		if (!strcmp(name, "enter"))
			points[nr_points].kind = ENTER;
		else if (!strcmp(name, "leave"))
			points[nr_points].kind = LEAVE;
		else
			good = event(name, &points[nr_points].kind);
		nr_points++;
	}
	if (in)
		fclose(in);

	return good && nr_points;
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
	const char *file = NULL;
	unsigned int e;
	int i;

	(void)info;
	for (i = 0; i < argc; i++) {
		if (!strncmp(argv[i], "points=", 7)) {
			file = argv[i] + 7;
		} else if (!strncmp(argv[i], "out=", 4)) {
			out = fopen(argv[i] + 4, "w");
		} else {
			fprintf(stderr, "cost: error: plugin argument '%s'\n", argv[i]);
			return -1;
		}
	}
	if (!file || !read_points(file)) {
		fputs("cost: error: points=FILE is missing, or not of lines \"KIND HEX_ADDRESS\"\n", stderr);
		return -1;
	}
	if (!out) {
		fputs("cost: error: out=FILE is missing, or cannot be written\n", stderr);
		return -1;
	}
	fputs("instructions ns", out);
	for (e = 0; e < nr_events; e++)
		fprintf(out, " %s", events[e]);
	putc('\n', out);
	scoreboard = qemu_plugin_scoreboard_new(sizeof(struct vcpu_count));
	qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
	qemu_plugin_register_atexit_cb(id, at_exit, NULL);

	return 0;
}
