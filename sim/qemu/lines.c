// SPDX-License-Identifier: GPL-2.0
/*
 * Which lines of memory make CPUs wait for each other: in a section, the costs of accesses to lines that other CPUs have or
 * want, by line.
 *
 * A line's entry has a few pairs of code address and offset in the line, and their counts. If there are more pairs, a new
 * one replaces the one with the smallest count and inherits this count. So the pairs at the top are right, and a count is
 * too large by that of a pair that it replaced.
 *
 * To give an address a name, one must know where each CPU has its variables. The plugin's arguments say where to look:
 *
 *	variables=BEGIN:END:CPU_BEGIN:CPU_END:OFFSETS	the kernel's variables; those of CPUs; the array __per_cpu_offset
 *	pointers=ADDRESS:SIZE[:ADDRESS:SIZE...]		pointers among the variables of CPUs, such as a member of runqueues, and how
 *							much memory they point to
 *
 * Offsets and pointers are read in each section, while a vCPU is in the kernel.
 *
 * At the end of a section, after its counts (addresses and offsets are hexadecimal):
 *
 *	lines			how many lines of memory are told apart
 *	lines_moves lines_cost_ns  moves of all lines, and waits for them
 *	cpu CPU OFFSET		where this CPU has its variables: to be added to their addresses
 *	pointer VARIABLE CPU VALUE  to what the pointer VARIABLE of this CPU points
 *	line PHYSICAL VIRTUAL moves N cost_ns N queued_ns N upgrades N at PC:OFFSET:COUNT[,...]
 *				a line, with its virtual address at the last wait; how often a CPU took it from another core, LLC or node; how
 *				long CPUs waited for it; of this, while it was on its way to somebody else; stores that made copies elsewhere
 *				invalid; up to 4 places: code, offset in the line, and how many waits
 *	rest kernel|user lines N moves N cost_ns N queued_ns N upgrades N at PC
 *				the sum of lines that are not written one by one and have the same code address at the top
 *
 * The 64 lines with the most cost are written one by one, and up to 4096 with a name and more than 1/50000 of all cost.
 * Up to 256 sums follow.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "sim.h"

/* Lines that a section tells apart; the costs of others count only in its sums. A power of two. */
#define MAX_LINES	(1 << 18)
#define TABLE_SIZE	(MAX_LINES * sizeof(struct moving_line))
#define HUGE_PAGE	(2 << 20)
/* Lines that are written one by one: so many with the most cost, and those with a name and at least a share of the cost. */
#define ALWAYS_PRINTED	64
#define MOST_PRINTED	4096
#define LEAST_SHARE	50000
#define SUMS_PRINTED	256
#define NR_PLACES	5
#define PLACES_PRINTED	4
#define MAX_POINTERS	8

struct place {
	uint64_t pc;
	uint32_t offset;
	uint32_t count;
};

struct moving_line {
	/* the line's physical address plus 1; 0: no line */
	uint64_t physical;
	/* at its last costly access */
	uint64_t virtual;
	int64_t cost, queued;
	uint32_t moves, upgrades;
	struct place places[NR_PLACES];
	/* two lines of the host's */
} __attribute__((aligned(128)));

/* GLib's GByteArray, and functions that older versions of QEMU do not have. */
struct bytes {
	uint8_t *data;
	unsigned int length;
};

static bool (*read_memory)(uint64_t address, struct bytes *bytes, size_t length);
static struct bytes *buffer;

static struct moving_line *table;
static uint64_t nr_lines, moves;
static int64_t costs;
static bool active;

/* The kernel's variables; those of CPUs, without the offset of a CPU. */
static struct {
	uint64_t begin, end;
} image;
static uint64_t percpu_array, percpu_begin, percpu_end, percpu[SIM_MAX_VCPUS];
static struct {
	uint64_t variable, size;
	uint64_t values[SIM_MAX_VCPUS];
} pointers[MAX_POINTERS];
static int nr_pointers;
static bool wanted;

/* A vCPU in the kernel: the eight bytes at @address; 0 if there is no memory. */
static uint64_t read_word(uint64_t address)
{
	uint64_t word = 0;

	if (read_memory(address, buffer, sizeof(word)) && buffer->length >= sizeof(word))
		memcpy(&word, buffer->data, sizeof(word));
	return word;
}

/* The running vCPU is in the kernel. */
void lines_in_kernel(void)
{
	int i, p;

	if (!wanted)
		return;
	wanted = false;
	/* with one for the main loop; CPUs that cannot be have an offset of 0 */
	for (i = 0; i < fiber_count() && i < SIM_MAX_VCPUS; i++) {
		percpu[i] = read_word(percpu_array + i * sizeof(uint64_t));
		for (p = 0; percpu[i] && p < nr_pointers; p++)
			pointers[p].values[i] = read_word(pointers[p].variable + percpu[i]);
	}
}

/* The next number of "HEX:HEX:..." at *@text; false if there is none. */
static bool next_number(const char **text, uint64_t *number)
{
	char *end;

	*number = strtoull(*text, &end, 16);
	if (end == *text || (*end && *end != ':'))
		return false;
	*text = *end ? end + 1 : end;
	return true;
}

/* Once: the plugin's arguments variables= and pointers=; "" for none. False if they make no sense. */
bool lines_init(const char *variables, const char *pointer_list)
{
	struct bytes *(*make)(void) = (struct bytes *(*)(void))dlsym(RTLD_DEFAULT, "g_byte_array_new");

	table = mmap(NULL, TABLE_SIZE + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (table == MAP_FAILED) {
		perror("sim: error: memory for the lines of sections");
		exit(1);
	}
	/* it is used all over: small pages would fill the TLB of the host */
	table = (struct moving_line *)(((uintptr_t)table + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
	madvise(table, TABLE_SIZE, MADV_HUGEPAGE);
	if (!*variables)
		return !*pointer_list;
	if (!next_number(&variables, &image.begin) || !next_number(&variables, &image.end) ||
	    !next_number(&variables, &percpu_begin) || !next_number(&variables, &percpu_end) ||
	    !next_number(&variables, &percpu_array) || *variables)
		return false;
	for (; *pointer_list && nr_pointers < MAX_POINTERS; nr_pointers++)
		if (!next_number(&pointer_list, &pointers[nr_pointers].variable) || !next_number(&pointer_list, &pointers[nr_pointers].size))
			return false;
	if (*pointer_list)
		return false;
	read_memory = (bool (*)(uint64_t, struct bytes *, size_t))dlsym(RTLD_DEFAULT, "qemu_plugin_read_memory_vaddr");
	if (!read_memory || !make) {
		fputs("sim: the variables of CPUs have no names in the sections, only addresses: this QEMU is older than 9.2\n", stderr);
		return true;
	}
	buffer = make();
	return true;
}

void lines_begin(void)
{
	if (!table)
		return;
	/* gives the memory back; it reads as zeros */
	madvise(table, TABLE_SIZE, MADV_DONTNEED);
	nr_lines = moves = costs = 0;
	active = true;
	wanted = buffer;
}

static struct moving_line *find(uint64_t physical)
{
	uint64_t i = (physical >> 6) * 0x9e3779b97f4a7c15ULL >> 40;

	for (i %= MAX_LINES; table[i].physical; i = (i + 1) % MAX_LINES)
		if (table[i].physical == physical + 1)
			return &table[i];
	if (nr_lines == MAX_LINES / 4 * 3)
		return NULL;
	nr_lines++;
	table[i].physical = physical + 1;
	return &table[i];
}

static void note_place(struct place *places, uint64_t pc, uint32_t offset)
{
	struct place *p, *least = places;

	for (p = places; p < places + NR_PLACES; p++) {
		if (p->count && p->pc == pc && p->offset == offset) {
			p->count++;
			return;
		}
		if (p->count < least->count)
			least = p;
	}
	*least = (struct place){ pc, offset, least->count + 1 };
}

/*
 * The instruction at @pc waited for @cost, of which @queued for a line on its way to somebody else, because other CPUs have or
 * want the line of this address. @event: UPGRADE, SIBLING, or where the line came from. LLC, MEMORY, OTHER_MEMORY: a store made copies
 * elsewhere invalid. L1: it only waited for the line.
 */
void lines_note(uint64_t physical, uint64_t virtual, uint64_t pc, enum cache_event event, int64_t cost, int64_t queued)
{
	bool moved = event == OTHER_CORE || event == OTHER_LLC || event == OTHER_NODE;
	bool upgrades = event == UPGRADE || event == LLC || event == MEMORY || event == OTHER_MEMORY;
	struct moving_line *line;

	if (!active)
		return;
	costs += cost;
	moves += moved;
	line = find(physical & ~63ULL);
	if (!line)
		return;
	line->virtual = virtual & ~63ULL;
	line->moves += moved;
	line->upgrades += upgrades;
	line->cost += cost;
	line->queued += queued;
	note_place(line->places, pc, physical & 63);
}

static int more_cost(const void *a, const void *b)
{
	const struct moving_line *x = *(struct moving_line *const *)a, *y = *(struct moving_line *const *)b;

	if (x->cost != y->cost)
		return x->cost < y->cost ? 1 : -1;
	return x->physical < y->physical ? -1 : 1;
}

static int higher_count(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	if (x->count != y->count)
		return x->count < y->count ? 1 : -1;
	if (x->pc != y->pc)
		return x->pc < y->pc ? -1 : 1;
	return x->offset < y->offset ? -1 : 1;
}

static void print_line(FILE *file, struct moving_line *line)
{
	struct place *p = line->places;
	int i;

	fprintf(file, "line %lx %lx moves %u cost_ns %lld queued_ns %lld upgrades %u at ", line->physical - 1, line->virtual,
		line->moves, line->cost / PS_PER_NS, line->queued / PS_PER_NS, line->upgrades);
	for (i = 0; i < PLACES_PRINTED && p[i].count; i++)
		fprintf(file, "%s%lx:%x:%u", i ? "," : "", p[i].pc, p[i].offset, p[i].count);
	fputc('\n', file);
}

/* Has the line a name, as it is in a variable? */
static bool is_named(const struct moving_line *line)
{
	uint64_t address = line->virtual;
	int i, p;

	if (address >= image.begin && address < image.end)
		return true;
	for (i = 0; i < SIM_MAX_VCPUS && percpu[i]; i++) {
		/* offsets may be negative: the sum wraps */
		if (address - (percpu_begin + percpu[i]) < percpu_end - percpu_begin)
			return true;
		for (p = 0; p < nr_pointers; p++)
			if (address - pointers[p].values[i] < pointers[p].size)
				return true;
	}
	return false;
}

static int by_place(const void *a, const void *b)
{
	const struct moving_line *x = *(struct moving_line *const *)a, *y = *(struct moving_line *const *)b;
	bool user = x->virtual >> 63;

	if (x->places[0].pc != y->places[0].pc)
		return x->places[0].pc < y->places[0].pc ? -1 : 1;
	if (user != y->virtual >> 63)
		return user ? 1 : -1;
	return x->physical < y->physical ? -1 : 1;
}

/* The sums of these lines by the code address and the kind of memory, written over them; returns how many. */
static uint64_t add_up(struct moving_line **lines, uint64_t n)
{
	struct moving_line *sum;
	uint64_t i, sums = 0;

	qsort(lines, n, sizeof(*lines), by_place);
	for (i = 0; i < n; i++) {
		sum = sums ? lines[sums - 1] : NULL;
		if (!sum || sum->places[0].pc != lines[i]->places[0].pc || sum->virtual >> 63 != lines[i]->virtual >> 63) {
			lines[sums++] = lines[i];
			/* from now on, the number of lines */
			lines[i]->places[0].count = 1;
			continue;
		}
		sum->places[0].count++;
		sum->moves += lines[i]->moves;
		sum->upgrades += lines[i]->upgrades;
		sum->cost += lines[i]->cost;
		sum->queued += lines[i]->queued;
	}
	qsort(lines, sums, sizeof(*lines), more_cost);
	return sums;
}

static void print_rest(FILE *file, const struct moving_line *sum)
{
	fprintf(file, "rest %s lines %u moves %u cost_ns %lld queued_ns %lld upgrades %u at %lx\n", sum->virtual >> 63 ? "kernel" : "user",
		sum->places[0].count, sum->moves, sum->cost / PS_PER_NS, sum->queued / PS_PER_NS, sum->upgrades, sum->places[0].pc);
}

/*
 * A section ends: write the CPUs, the lines with the most cost and all others that have names and some cost, and sums of the
 * rest. False if that failed.
 */
bool lines_end(FILE *file)
{
	struct moving_line **sorted;
	uint64_t i, n = 0, rest = 0;
	int p;

	if (!active)
		return true;
	active = wanted = false;
	sorted = malloc((nr_lines + 1) * sizeof(*sorted));
	if (!sorted) {
		perror("sim: error: memory for the lines of sections");
		exit(1);
	}
	for (i = 0; i < MAX_LINES; i++)
		if (table[i].physical)
			sorted[n++] = &table[i];
	qsort(sorted, n, sizeof(*sorted), more_cost);
	fprintf(file, "lines %lu\nlines_moves %lu\nlines_cost_ns %lld\n", n, moves, costs / PS_PER_NS);
	for (i = 0; i < SIM_MAX_VCPUS && percpu[i]; i++)
		fprintf(file, "cpu %lu %lx\n", i, percpu[i]);
	for (p = 0; p < nr_pointers; p++)
		for (i = 0; i < SIM_MAX_VCPUS && percpu[i]; i++)
			fprintf(file, "pointer %lx %lu %lx\n", pointers[p].variable, i, pointers[p].values[i]);
	for (i = 0; i < n; i++) {
		qsort(sorted[i]->places, NR_PLACES, sizeof(*sorted[i]->places), higher_count);
		if (i < ALWAYS_PRINTED || (i - rest < MOST_PRINTED && sorted[i]->cost > costs / LEAST_SHARE && is_named(sorted[i])))
			print_line(file, sorted[i]);
		else
			sorted[rest++] = sorted[i];
	}
	n = add_up(sorted, rest);
	for (i = 0; i < n && i < SUMS_PRINTED; i++)
		print_rest(file, sorted[i]);
	free(sorted);
	return !ferror(file);
}
