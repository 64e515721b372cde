// SPDX-License-Identifier: GPL-2.0
/*
 * The QEMU plugin: counts the instructions of each vCPU and ends slices.
 *
 * Arguments (times in ns): quantum=, ips= (instructions per second), idle_exit=, spin=, smt=, threads= (of a core);
 * status=FILE, see write_status(); sections=FILE, see section.c; variables= and pointers=, see lines.c. For a machine with caches
 * also: domains= (LLCs of the machine), cores= (of an LLC), nodes=, memory= (in MiB), and the keys of a preset, see sim/presets.
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
/* HINT #0x70 and #0x71 */
#define SECTION_BEGIN	0xd5032e1f
#define SECTION_END	0xd5032e3f

/* MSR TTBR0_EL1 or TTBR1_EL1 */
#define IS_TTBR(opcode)	(((opcode) & 0xffffffc0) == 0xd5182000)
/* LDADD, SWP and the like, but not LDAPR, which only loads; CAS; CASP */
#define IS_ATOMIC(opcode)	((((opcode) & 0x3b200c00) == 0x38200000 && ((opcode) & 0x3ffffc00) != 0x38bfc000) || \
				 ((opcode) & 0x3fa07c00) == 0x08a07c00 || ((opcode) & 0xbfa07c00) == 0x08207c00)
/* in its two forms */
#define IS_TLBI(opcode)	(((opcode) & 0xfff8e000) == 0xd5088000)

EXPORT int qemu_plugin_version = QEMU_PLUGIN_API;

struct vcpu_score {
	uint64_t count;
};

static struct qemu_plugin_scoreboard *scoreboard;
/* By vCPU number; fibers are numbered in the order in which QEMU starts them. */
static struct fiber *vcpus[SIM_MAX_VCPUS];
/* By core: its threads that execute. */
static int busy_threads[SIM_MAX_VCPUS];
static bool caches, sections;

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

/* Where the access @info by the running vCPU to virtual address @address goes; false if not to memory. */
bool physical_address(uint32_t info, uint64_t address, uint64_t *physical)
{
	struct qemu_plugin_hwaddr *hw = qemu_plugin_get_hwaddr(info, address);

	if (!hw || qemu_plugin_hwaddr_is_io(hw))
		return false;
	*physical = qemu_plugin_hwaddr_phys_addr(hw);
	return true;
}

/* Calls for what concerns the caches. */
static void translate_for_caches(struct qemu_plugin_insn *insn, uint32_t opcode)
{
	void *pc = (void *)qemu_plugin_insn_vaddr(insn);

	/* an atomic instruction loads and then stores, and a core takes the line for both */
	qemu_plugin_register_vcpu_mem_cb(insn, IS_ATOMIC(opcode) ? cache_store : cache_load, QEMU_PLUGIN_CB_NO_REGS,
					 QEMU_PLUGIN_MEM_R, pc);
	qemu_plugin_register_vcpu_mem_cb(insn, cache_store, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_W, pc);
	if (IS_TTBR(opcode))
		qemu_plugin_register_vcpu_insn_exec_cb(insn, cache_tables_change, QEMU_PLUGIN_CB_NO_REGS, NULL);
	else if (IS_TLBI(opcode))
		qemu_plugin_register_vcpu_insn_exec_cb(insn, cache_tlb_invalid, QEMU_PLUGIN_CB_NO_REGS, NULL);
}

static void translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	qemu_plugin_u64 count = { scoreboard, offsetof(struct vcpu_score, count) };
	size_t n = qemu_plugin_tb_n_insns(tb);
	struct qemu_plugin_insn *insn;
	uint32_t opcode;
	void *block;
	size_t i;

	(void)id;
	qemu_plugin_register_vcpu_tb_exec_cond_cb(tb, slice_over, QEMU_PLUGIN_CB_NO_REGS,
						  QEMU_PLUGIN_COND_GE, count, SLICE_END, NULL);
	qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, QEMU_PLUGIN_INLINE_ADD_U64, count, n);
	if (caches) {
		block = cache_block(qemu_plugin_insn_haddr(qemu_plugin_tb_get_insn(tb, 0)),
				    qemu_plugin_insn_haddr(qemu_plugin_tb_get_insn(tb, n - 1)));
		if (block)
			qemu_plugin_register_vcpu_tb_exec_cb(tb, cache_fetch, QEMU_PLUGIN_CB_NO_REGS, block);
	}
	for (i = 0; i < n; i++) {
		insn = qemu_plugin_tb_get_insn(tb, i);
		if (qemu_plugin_insn_data(insn, &opcode, sizeof(opcode)) != sizeof(opcode))
			continue;
		if (opcode == ARM64_WFE || opcode == ARM64_YIELD)
			qemu_plugin_register_vcpu_insn_exec_cb(insn, spins, QEMU_PLUGIN_CB_NO_REGS,
							       NULL);
		if (sections && opcode == SECTION_BEGIN)
			qemu_plugin_register_vcpu_insn_exec_cb(insn, section_begin, QEMU_PLUGIN_CB_NO_REGS, NULL);
		if (sections && opcode == SECTION_END)
			qemu_plugin_register_vcpu_insn_exec_cb(insn, section_end, QEMU_PLUGIN_CB_NO_REGS, NULL);
		if (caches)
			translate_for_caches(insn, opcode);
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
	if (sim.smt < 1 && sim.threads > 1)
		running->busy_threads = &busy_threads[vcpu / sim.threads];
	if (caches)
		cache_add_vcpu(vcpu, running);
	start_slice(running, 0);
}

static void at_exit(qemu_plugin_id_t id, void *userdata)
{
	(void)id;
	(void)userdata;
	write_status(true);
}

/* The arguments that are numbers; all but the first four describe the caches and the cores. */
static const struct argument {
	const char *name;
	double least, most;
} arguments[] = {
	{ "quantum", 1, 1e9 }, { "ips", 1e6, 1e12 }, { "idle_exit", 0, 1e9 }, { "spin", 0, 1e9 },
	{ "smt", 0.5, 1 }, { "threads", 1, SIM_MAX_VCPUS }, { "domains", 1, SIM_MAX_VCPUS }, { "cores", 1, SIM_MAX_VCPUS },
	{ "nodes", 1, SIM_MAX_VCPUS }, { "memory", 1, 131072 },
	{ "l1_kib", 1, 1e7 }, { "l1_ways", 1, 64 },
	{ "l1i_kib", 1, 1e7 }, { "l1i_ways", 1, 64 }, { "l2_kib", 1, 1e7 }, { "l2_ways", 1, 64 }, { "llc_kib", 1, 1e7 }, { "llc_ways", 1, 64 },
	{ "l2_ns", 0, 1e6 }, { "llc_ns", 0, 1e6 }, { "sibling_ns", 0, 1e6 }, { "core_ns", 0, 1e6 }, { "other_llc_ns", 0, 1e6 },
	{ "other_node_ns", 0, 1e6 }, { "memory_ns", 0, 1e6 }, { "other_memory_ns", 0, 1e6 }, { "upgrade_ns", 0, 1e6 },
};

#define NR_ARGUMENTS	(sizeof(arguments) / sizeof(arguments[0]))

static double values[NR_ARGUMENTS];
static bool is_given[NR_ARGUMENTS];

static const struct argument *find(const char *name, size_t length)
{
	size_t i;

	for (i = 0; i < NR_ARGUMENTS; i++)
		if (strlen(arguments[i].name) == length && !strncmp(arguments[i].name, name, length))
			return &arguments[i];
	return NULL;
}

static double value(const char *name)
{
	return values[find(name, strlen(name)) - arguments];
}

static int64_t cost(const char *name)
{
	return value(name) * PS_PER_NS + 0.5;
}

/* Take the argument @arg, a number; false if it is none or out of bounds. */
static bool take_number(const char *arg)
{
	const char *equals = strchr(arg, '=');
	const struct argument *a = equals ? find(arg, equals - arg) : NULL;
	double number;
	char *end;

	if (!a)
		return false;
	errno = 0;
	number = strtod(equals + 1, &end);
	values[a - arguments] = number;
	is_given[a - arguments] = true;
	return !errno && end != equals + 1 && !*end && number >= a->least && number <= a->most;
}

/* The caches that the arguments describe; false if they are no machine's. */
static bool make_caches(void)
{
	cache.domains = value("domains");
	cache.cores = value("cores");
	cache.threads = sim.threads;
	cache.nodes = value("nodes");
	cache.memory_mib = value("memory");
	cache.l1 = (struct cache_size){ value("l1_kib"), value("l1_ways") };
	cache.l1i = (struct cache_size){ value("l1i_kib"), value("l1i_ways") };
	cache.l2 = (struct cache_size){ value("l2_kib"), value("l2_ways") };
	cache.llc = (struct cache_size){ value("llc_kib"), value("llc_ways") };
	cache.cost[L2] = cost("l2_ns");
	cache.cost[LLC] = cost("llc_ns");
	cache.cost[SIBLING] = cost("sibling_ns");
	cache.cost[OTHER_CORE] = cost("core_ns");
	cache.cost[OTHER_LLC] = cost("other_llc_ns");
	cache.cost[OTHER_NODE] = cost("other_node_ns");
	cache.cost[MEMORY] = cost("memory_ns");
	cache.cost[OTHER_MEMORY] = cost("other_memory_ns");
	cache.cost[UPGRADE] = cost("upgrade_ns");
	return cache_init();
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
	const char *status = NULL, *section_file = NULL;
	const char *variables = "", *pointers = "";
	size_t i, given = 0;
	int n;

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
	for (n = 0; n < argc; n++) {
		if (!strncmp(argv[n], "status=", 7)) {
			status = argv[n] + 7;
		} else if (!strncmp(argv[n], "sections=", 9)) {
			section_file = argv[n] + 9;
		} else if (!strncmp(argv[n], "pointers=", 9)) {
			pointers = argv[n] + 9;
		} else if (!strncmp(argv[n], "variables=", 10)) {
			variables = argv[n] + 10;
		} else if (!take_number(argv[n])) {
			fprintf(stderr, "sim: error: plugin argument '%s'\n", argv[n]);
			return -1;
		}
	}
	for (i = 0; i < NR_ARGUMENTS; i++) {
		/* the first six always, the others together or not at all */
		if (i >= 6)
			given += is_given[i];
		else if (!is_given[i])
			break;
	}
	if (i < NR_ARGUMENTS || (given && given != NR_ARGUMENTS - 6)) {
		fputs("sim: error: the plugin needs quantum=, ips=, idle_exit=, spin=, smt= and threads=, and for caches all the others\n",
		      stderr);
		return -1;
	}
	sim.quantum = value("quantum") * PS_PER_NS;
	sim.close_quantum = sim.quantum / 10;
	sim.insn = 1e12 / value("ips");
	sim.idle_exit = value("idle_exit") * PS_PER_NS;
	sim.spin = value("spin") * PS_PER_NS;
	sim.smt = value("smt");
	sim.threads = value("threads");
	caches = given > 0;
	if (caches && !make_caches()) {
		fputs("sim: error: the plugin's arguments describe no caches of a machine\n", stderr);
		return -1;
	}
	if (!open_status(status)) {
		fprintf(stderr, "sim: error: %s: %s\n", status, strerror(errno));
		return -1;
	}
	sections = section_file;
	if (sections && !open_sections(section_file)) {
		fprintf(stderr, "sim: error: %s: %s\n", section_file, strerror(errno));
		return -1;
	}
	if (sections && caches && !lines_init(variables, pointers)) {
		fputs("sim: error: variables= or pointers= is wrong\n", stderr);
		return -1;
	}
	scoreboard = qemu_plugin_scoreboard_new(sizeof(struct vcpu_score));
	qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
	qemu_plugin_register_vcpu_init_cb(id, vcpu_init);
	qemu_plugin_register_atexit_cb(id, at_exit, NULL);
	return 0;
}
