// SPDX-License-Identifier: GPL-2.0
/*
 * The QEMU plugin: counts the instructions of each vCPU and ends slices.
 *
 * Arguments (all in ns but ips, instructions per second): quantum=, ips=, idle_exit=, spin=;
 * status=FILE, see write_status().
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "qemu-api.h"
#include "sim.h"

#define ARM64_YIELD	0xd503203f
#define ARM64_WFE	0xd503205f

EXPORT int qemu_plugin_version = QEMU_PLUGIN_API;

struct vcpu_score {
	uint64_t count;
};

static struct qemu_plugin_scoreboard *scoreboard;
/* By vCPU number; fibers are numbered in the order in which QEMU starts them. */
static struct fiber *vcpus[SIM_MAX_VCPUS];

static void slice_over(unsigned int vcpu, void *userdata)
{
	(void)vcpu;
	(void)userdata;
	end_slice(0);
}

/* WFE or YIELD: a spinning CPU lets the others go on, and looks again a moment later. */
static void spins(unsigned int vcpu, void *userdata)
{
	(void)vcpu;
	(void)userdata;
	sim_stats.spins++;
	end_slice(sim.spin);
}

static void translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	qemu_plugin_u64 count = { scoreboard, offsetof(struct vcpu_score, count) };
	size_t n = qemu_plugin_tb_n_insns(tb);
	struct qemu_plugin_insn *insn;
	uint32_t opcode;
	size_t i;

	(void)id;
	qemu_plugin_register_vcpu_tb_exec_cond_cb(tb, slice_over, QEMU_PLUGIN_CB_NO_REGS,
						  QEMU_PLUGIN_COND_GE, count, SLICE_END, NULL);
	qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, QEMU_PLUGIN_INLINE_ADD_U64, count, n);
	for (i = 0; i < n; i++) {
		insn = qemu_plugin_tb_get_insn(tb, i);
		if (qemu_plugin_insn_data(insn, &opcode, sizeof(opcode)) != sizeof(opcode))
			continue;
		if (opcode == ARM64_WFE || opcode == ARM64_YIELD)
			qemu_plugin_register_vcpu_insn_exec_cb(insn, spins, QEMU_PLUGIN_CB_NO_REGS,
							       NULL);
	}
}

/* A new vCPU's thread, before its first instruction. The scoreboard may have moved. */
static void vcpu_init(qemu_plugin_id_t id, unsigned int vcpu)
{
	struct vcpu_score *score;
	unsigned int i;

	(void)id;
	if (!on_fiber() || running == main_fiber()) {
		fputs("sim: error: a vCPU is not under the simulator's control; is its thread named (debug-threads=on)?\n",
		      stderr);
		exit(1);
	}
	vcpus[vcpu] = running;
	for (i = 0; i < SIM_MAX_VCPUS; i++) {
		if (!vcpus[i])
			continue;
		score = qemu_plugin_scoreboard_find(scoreboard, i);
		vcpus[i]->count = &score->count;
	}
	start_slice(running, 0);
}

static void at_exit(qemu_plugin_id_t id, void *userdata)
{
	(void)id;
	(void)userdata;
	write_status(true);
}

/* Positive number after the '=' of @arg in @value; false if it is none. */
static bool number(const char *arg, double *value)
{
	const char *text = strchr(arg, '=') + 1;
	char *end;

	errno = 0;
	*value = strtod(text, &end);
	return !errno && end != text && !*end && *value >= 0 && *value <= 1e12;
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
	double quantum = -1, ips = -1, idle_exit = -1, spin = -1;
	const char *status = NULL;
	bool good = true;
	int i;

	if (!sim_enabled()) {
		fputs("sim: error: the plugin works only if it is preloaded as well, with SIM_ENABLE=1\n",
		      stderr);
		return -1;
	}
	if (!info->system_emulation || strcmp(info->target_name, "aarch64")) {
		fprintf(stderr, "sim: error: only for qemu-system-aarch64, not for %s\n",
			info->target_name);
		return -1;
	}
	for (i = 0; i < argc && good; i++) {
		if (!strncmp(argv[i], "quantum=", 8))
			good = number(argv[i], &quantum);
		else if (!strncmp(argv[i], "ips=", 4))
			good = number(argv[i], &ips);
		else if (!strncmp(argv[i], "idle_exit=", 10))
			good = number(argv[i], &idle_exit);
		else if (!strncmp(argv[i], "spin=", 5))
			good = number(argv[i], &spin);
		else if (!strncmp(argv[i], "status=", 7))
			status = argv[i] + 7;
		else
			good = false;
		if (!good)
			fprintf(stderr, "sim: error: plugin argument '%s'\n", argv[i]);
	}
	if (!good)
		return -1;
	if (quantum < 1 || quantum > 1e9 || ips < 1e6 || idle_exit < 0 || idle_exit > 1e9 ||
	    spin < 0 || spin > 1e9) {
		fputs("sim: error: the plugin needs quantum= (1 to 1e9), ips= (1e6 to 1e12), idle_exit= and spin= (0 to 1e9)\n",
		      stderr);
		return -1;
	}
	sim.quantum = quantum * PS_PER_NS;
	sim.insn = 1e12 / ips;
	sim.idle_exit = idle_exit * PS_PER_NS;
	sim.spin = spin * PS_PER_NS;
	if (!open_status(status)) {
		fprintf(stderr, "sim: error: %s: %s\n", status, strerror(errno));
		return -1;
	}
	scoreboard = qemu_plugin_scoreboard_new(sizeof(struct vcpu_score));
	qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
	qemu_plugin_register_vcpu_init_cb(id, vcpu_init);
	qemu_plugin_register_atexit_cb(id, at_exit, NULL);
	return 0;
}
