// SPDX-License-Identifier: GPL-2.0
/*
 * What the guest's accesses to memory cost on a machine with coherent caches.
 *
 * Each core has an L1 data cache and an L2, which its threads share; the L2 contains what the L1 does.
 * Each LLC domain has a last-level cache of what the L2s of its cores evicted and of what moved between
 * its cores. Each node has memory. All caches are set-associative and evict what was used least
 * recently. A line is 64 bytes of physical memory.
 *
 * For each line of memory there is an entry in a directory: which cores have a copy, which LLCs do, and who has
 * the only valid one. A store makes all other copies invalid. So an access looks into no cache but its own
 * core's and, if it misses there, its own LLC; all others are known from the directory.
 *
 * Most accesses are to lines that the vCPU has just used. The filter finds these, by virtual address, without any
 * of the above: it has lines that are in the L1 and that the vCPU may read or write at no cost. A line
 * that the core loses, or that its other thread writes, goes out of the filter; so do all when the
 * guest changes its page tables.
 *
 * Not modelled: instruction fetches, page table walks, devices' accesses, bandwidth, prefetching, stores and
 * loads that overlap. An access counts for the line of its first byte.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "sim.h"

#define LINE_SHIFT	6
#define PAGE_SHIFT	12
/* Lines of a page: a virtual and a physical address have the same place in it. */
#define PAGE_LINES	(1 << (PAGE_SHIFT - LINE_SHIFT))
/* Where the memory of QEMU's "virt" machine begins. */
#define MEMORY_BASE	0x40000000ULL
#define FILTER_WAYS	8
#define MAX_WAYS	64

/* A filter's entry is the line's virtual address, with this bit if the vCPU may write. 0: none. */
#define WRITABLE	1ULL

enum line_state {
	SHARED,		/* memory is valid; all copies are */
	EXCLUSIVE,	/* the holder, a core, has the only copy but perhaps its own LLC's */
	MODIFIED,	/* the holder, a core, has the only valid copy */
	LLC_MODIFIED,	/* the holder, an LLC, has a newer one than memory; cores of its domain may, too */
};

/* The directory's entry. With more cores or LLCs than bits, each bit is for several; see struct group. */
struct line {
	uint64_t cores;
	uint32_t llcs;
	uint16_t holder;
	uint8_t state;
	/* MODIFIED: the thread of the core that wrote it last, or BOTH_THREADS */
	uint8_t writer;
};

#define BOTH_THREADS	255

/* A line that moves again within this time is contended. */
#define CONTENDED	(500 * PS_PER_NS)

struct cache {
	/* each set's line numbers plus 1, in the order of their last use; 0: empty */
	uint32_t *tags;
};

struct shape {
	uint32_t set_mask;
	int ways;
};

struct core {
	struct cache l1, l2;
	int number;
	int domain;
	int node;
	uint64_t bit;
};

struct domain {
	struct cache llc;
	int node;
	uint32_t bit;
	int first_core;
	/* the bits in struct line of its cores */
	uint64_t cores;
};

/* What a vCPU sees. */
struct view {
	uint64_t filter[PAGE_LINES][FILTER_WAYS];
	struct core *core;
	struct fiber *fiber;
	int thread;
	uint64_t flushes;
	uint64_t accesses;
};

struct cache_parameters cache;

static struct view views[SIM_MAX_VCPUS] __attribute__((aligned(64)));
static struct core cores[SIM_MAX_VCPUS];
static struct domain domains[SIM_MAX_VCPUS];
static int nr_cores, nr_domains, cores_per_bit, domains_per_bit;
static struct shape l1_shape, l2_shape, llc_shape;

static struct line *lines;
static uint64_t nr_lines, lines_per_node;
/* For each line: when the last core that took it from another has it. */
static int64_t *arrives;

static uint64_t counts[NR_CACHE_EVENTS];
static int64_t stalled, queued;
static uint64_t flushes;

static inline uint64_t *filter_entry(struct view *v, uint64_t address)
{
	uint64_t page = address >> PAGE_SHIFT;

	return &v->filter[(address >> LINE_SHIFT) % PAGE_LINES][(page ^ page >> 3) % FILTER_WAYS];
}

/* Take the line @n, and others that may be neighbours in the filter, out of the filter of vCPU @v. */
static void forget(struct view *v, uint32_t n)
{
	memset(v->filter[n % PAGE_LINES], 0, sizeof(v->filter[0]));
}

static void forget_in_core(struct core *c, uint32_t n)
{
	int i;

	for (i = 0; i < cache.threads; i++)
		forget(&views[c->number * cache.threads + i], n);
}

static void forget_in_siblings(struct view *v, uint32_t n)
{
	int i;

	for (i = 0; i < cache.threads; i++)
		if (i != v->thread)
			forget(v - v->thread + i, n);
}

static inline uint32_t *set_of(const struct cache *c, const struct shape *shape, uint32_t n)
{
	return c->tags + (uint64_t)(n & shape->set_mask) * shape->ways;
}

/* Is line @n in that set? If so, it was used last from now on. */
static inline bool look_up(uint32_t *set, int ways, uint32_t n)
{
	int i;

	for (i = 0; i < ways; i++) {
		if (set[i] == n + 1) {
			memmove(set + 1, set, i * sizeof(*set));
			set[0] = n + 1;
			return true;
		}
	}
	return false;
}

/* Put line @n, which is not there, into the set. Returns the evicted line's number plus 1, or 0. */
static inline uint32_t insert(uint32_t *set, int ways, uint32_t n)
{
	uint32_t evicted = set[ways - 1];

	memmove(set + 1, set, (ways - 1) * sizeof(*set));
	set[0] = n + 1;
	return evicted;
}

static bool drop(uint32_t *set, int ways, uint32_t n)
{
	int i;

	for (i = 0; i < ways; i++) {
		if (set[i] == n + 1) {
			memmove(set + i, set + i + 1, (ways - 1 - i) * sizeof(*set));
			set[ways - 1] = 0;
			return true;
		}
	}
	return false;
}

static bool in_l2(struct core *c, uint32_t n)
{
	uint32_t *set = set_of(&c->l2, &l2_shape, n);
	int i;

	for (i = 0; i < l2_shape.ways; i++)
		if (set[i] == n + 1)
			return true;
	return false;
}

static void put_into_llc(int d, uint32_t n)
{
	uint32_t *set = set_of(&domains[d].llc, &llc_shape, n);
	struct line *evicted;
	uint32_t e;

	if (look_up(set, llc_shape.ways, n))
		return;
	lines[n].llcs |= domains[d].bit;
	e = insert(set, llc_shape.ways, n);
	if (!e)
		return;
	evicted = &lines[e - 1];
	if (domains_per_bit == 1)
		evicted->llcs &= ~domains[d].bit;
	if (evicted->state == LLC_MODIFIED && evicted->holder == d)
		evicted->state = SHARED;
}

/* The L1 has no room for @n any more. */
static void put_into_l1(struct core *c, uint32_t n)
{
	uint32_t e = insert(set_of(&c->l1, &l1_shape, n), l1_shape.ways, n);

	if (e)
		forget_in_core(c, e - 1);
}

/* Core @c evicts or loses line @n. */
static void leave_core(struct core *c, uint32_t n)
{
	if (drop(set_of(&c->l1, &l1_shape, n), l1_shape.ways, n))
		forget_in_core(c, n);
}

static void put_into_l2(struct core *c, uint32_t n)
{
	uint32_t e = insert(set_of(&c->l2, &l2_shape, n), l2_shape.ways, n);
	struct line *evicted;

	if (!e)
		return;
	e--;
	leave_core(c, e);
	evicted = &lines[e];
	if (cores_per_bit == 1)
		evicted->cores &= ~c->bit;
	if (evicted->state == MODIFIED && evicted->holder == c->number) {
		evicted->state = LLC_MODIFIED;
		evicted->holder = c->domain;
	} else if (evicted->state == EXCLUSIVE && evicted->holder == c->number) {
		evicted->state = SHARED;
	}
	put_into_llc(c->domain, e);
}

/* Make all copies of line @n but those of @c and its LLC invalid. Returns what that costs. */
static int64_t invalidate(struct core *c, uint32_t n, struct line *line)
{
	uint64_t bits = line->cores;
	uint32_t llcs = line->llcs;
	bool own_node = false, other_node = false;
	int i, first;

	while (bits) {
		first = __builtin_ctzll(bits) * cores_per_bit;
		bits &= bits - 1;
		for (i = first; i < first + cores_per_bit && i < nr_cores; i++) {
			if (i == c->number || !drop(set_of(&cores[i].l2, &l2_shape, n), l2_shape.ways, n))
				continue;
			leave_core(&cores[i], n);
			own_node |= cores[i].domain != c->domain;
			other_node |= cores[i].node != c->node;
		}
	}
	while (llcs) {
		first = __builtin_ctz(llcs) * domains_per_bit;
		llcs &= llcs - 1;
		for (i = first; i < first + domains_per_bit && i < nr_domains; i++) {
			if (i == c->domain || !drop(set_of(&domains[i].llc, &llc_shape, n), llc_shape.ways, n))
				continue;
			own_node = true;
			other_node |= domains[i].node != c->node;
		}
	}
	line->cores = c->bit;
	line->llcs &= domains[c->domain].bit;
	return other_node ? cache.cost[OTHER_NODE] : own_node ? cache.cost[OTHER_LLC] : 0;
}

/* Another core of the domain has a copy. */
static bool core_of_domain_has(struct domain *d, uint32_t n, struct line *line)
{
	int i;

	if (!(line->cores & d->cores))
		return false;
	if (cores_per_bit == 1)
		return true;
	for (i = d->first_core; i < d->first_core + cache.cores; i++)
		if ((line->cores & cores[i].bit) && in_l2(&cores[i], n))
			return true;
	return false;
}

/* Nobody has a copy of line @n but core @c and perhaps its LLC, as far as the directory knows. */
static bool alone(struct core *c, uint32_t n, struct line *line)
{
	int i, first = c->number / cores_per_bit * cores_per_bit;

	if (line->cores != c->bit || (line->llcs & ~domains[c->domain].bit))
		return false;
	for (i = first; cores_per_bit > 1 && i < first + cores_per_bit && i < nr_cores; i++)
		if (i != c->number && in_l2(&cores[i], n))
			return false;
	return true;
}

static enum cache_event distance(struct core *c, int domain)
{
	if (domain == c->domain)
		return OTHER_CORE;
	return domains[domain].node == c->node ? OTHER_LLC : OTHER_NODE;
}

/*
 * Line @n is not in core @c's caches: where does it come from? Afterwards it is valid there or in memory, and
 * no core holds it alone.
 */
static enum cache_event fetch(struct core *c, uint32_t n, struct line *line)
{
	struct domain *d = &domains[c->domain];
	enum cache_event from;

	switch (line->state) {
	case MODIFIED:
		from = distance(c, cores[line->holder].domain);
		forget_in_core(&cores[line->holder], n);
		line->state = SHARED;
		if (from == OTHER_CORE) {
			put_into_llc(c->domain, n);
			line->state = LLC_MODIFIED;
			line->holder = c->domain;
		}
		return from;
	case LLC_MODIFIED:
		if (line->holder != c->domain) {
			line->state = SHARED;
			return distance(c, line->holder);
		}
		break;
	case EXCLUSIVE:
		line->state = SHARED;
		break;
	}
	if ((line->llcs & d->bit) && look_up(set_of(&d->llc, &llc_shape, n), llc_shape.ways, n))
		return LLC;
	if (core_of_domain_has(d, n, line)) {
		put_into_llc(c->domain, n);
		return OTHER_CORE;
	}
	return (int)(n / lines_per_node) == c->node ? MEMORY : OTHER_MEMORY;
}

static int64_t event(enum cache_event e)
{
	counts[e]++;
	return cache.cost[e];
}

/* Core @c, which has a copy of line @n, gets the only one. */
static int64_t own(struct core *c, uint32_t n, struct line *line)
{
	int64_t far = invalidate(c, n, line);
	int64_t cost = event(UPGRADE);

	line->state = EXCLUSIVE;
	line->holder = c->number;
	return far > cost ? far : cost;
}

/*
 * vCPU @v, which runs, takes line @n from another. It waits until that one has it, and then for the line itself.
 * Then its turn ends: the other may want the line back at once. Returns the whole cost.
 */
static int64_t take_over(struct view *v, uint32_t n, int64_t cost)
{
	int64_t t = now();

	if (arrives[n] > t - CONTENDED)
		v->fiber->close_until = t + CONTENDED;
	if (arrives[n] > t) {
		queued += arrives[n] - t;
		cost += arrives[n] - t;
	}
	arrives[n] = t + cost;
	cut_slice();
	return cost;
}

/* An access by vCPU @v to line @n, which its filter does not have. Returns what it costs. */
static int64_t access_line(struct view *v, uint32_t n, bool store)
{
	struct core *c = v->core;
	struct line *line = &lines[n];
	int64_t cost = 0;
	bool moves = false;
	enum cache_event from;

	if (look_up(set_of(&c->l1, &l1_shape, n), l1_shape.ways, n)) {
		counts[L1]++;
	} else if (look_up(set_of(&c->l2, &l2_shape, n), l2_shape.ways, n)) {
		cost = event(L2);
		put_into_l1(c, n);
	} else {
		from = fetch(c, n, line);
		moves = from == OTHER_CORE || from == OTHER_LLC || from == OTHER_NODE;
		cost = event(from);
		put_into_l2(c, n);
		put_into_l1(c, n);
		line->cores |= c->bit;
		if (store) {
			/* what has to be made invalid is on the way of the line itself */
			int64_t far = invalidate(c, n, line);

			if (far > cost)
				cost = far;
			line->state = EXCLUSIVE;
			line->holder = c->number;
		} else if (alone(c, n, line)) {
			line->writer = BOTH_THREADS;
			line->state = line->state == LLC_MODIFIED ? MODIFIED : EXCLUSIVE;
			line->holder = c->number;
		}
	}
	if (store && !((line->state == EXCLUSIVE || line->state == MODIFIED) && line->holder == c->number)) {
		moves = true;
		cost += own(c, n, line);
	}
	if (line->state == MODIFIED && line->writer != v->thread && line->writer != BOTH_THREADS) {
		moves = true;
		cost += event(SIBLING);
		if (!store) {
			forget(&views[c->number * cache.threads + line->writer], n);
			line->writer = BOTH_THREADS;
		}
	}
	if (store) {
		if (line->state != MODIFIED || line->writer != v->thread)
			forget_in_siblings(v, n);
		line->state = MODIFIED;
		line->writer = v->thread;
	}
	return moves ? take_over(v, n, cost) : cost;
}

static void __attribute__((noinline)) not_in_filter(struct view *v, uint32_t info, uint64_t address, bool store)
{
	uint64_t n, physical, *entry = filter_entry(v, address);
	int64_t cost;

	if (!physical_address(info, address, &physical))
		return;
	n = (physical - MEMORY_BASE) >> LINE_SHIFT;
	if (n >= nr_lines)
		return;
	cost = access_line(v, n, store);
	*entry = address >> LINE_SHIFT << LINE_SHIFT;
	if (lines[n].state == MODIFIED && lines[n].holder == v->core->number && lines[n].writer == v->thread)
		*entry |= WRITABLE;
	if (cost) {
		stalled += cost;
		stall(v->fiber, cost);
	}
}

void cache_load(unsigned int vcpu, uint32_t info, uint64_t address, void *userdata)
{
	struct view *v = &views[vcpu];

	(void)userdata;
	v->accesses++;
	if ((*filter_entry(v, address) ^ (address >> LINE_SHIFT << LINE_SHIFT)) > WRITABLE)
		not_in_filter(v, info, address, false);
}

void cache_store(unsigned int vcpu, uint32_t info, uint64_t address, void *userdata)
{
	struct view *v = &views[vcpu];

	(void)userdata;
	v->accesses++;
	if (*filter_entry(v, address) != ((address >> LINE_SHIFT << LINE_SHIFT) | WRITABLE))
		not_in_filter(v, info, address, true);
}

static void flush(struct view *v)
{
	memset(v->filter, 0, sizeof(v->filter));
	v->flushes = flushes;
}

/* The vCPU is about to use other page tables. */
void cache_tables_change(unsigned int vcpu, void *userdata)
{
	(void)userdata;
	flush(&views[vcpu]);
}

/* The guest is about to change page tables that others may use, too: they flush when their turn comes. */
void cache_tlb_invalid(unsigned int vcpu, void *userdata)
{
	(void)userdata;
	flushes++;
	flush(&views[vcpu]);
}

void cache_turn(struct fiber *f)
{
	if (f->view && f->view->flushes != flushes)
		flush(f->view);
}

void cache_add_vcpu(unsigned int vcpu, struct fiber *f)
{
	views[vcpu].fiber = f;
	f->view = &views[vcpu];
}

static void *allocate(uint64_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED) {
		perror("sim: error: memory for the caches");
		exit(1);
	}
	return p;
}

static bool make_shape(struct shape *shape, const struct cache_size *size)
{
	uint64_t sets = size->kib * 1024 >> LINE_SHIFT;

	if (size->ways < 1 || size->ways > MAX_WAYS || !sets || sets % size->ways)
		return false;
	sets /= size->ways;
	shape->set_mask = sets - 1;
	shape->ways = size->ways;
	return sets < 1U << 31 && !(sets & (sets - 1));
}

static struct cache make_cache(const struct shape *shape)
{
	return (struct cache){ allocate((uint64_t)(shape->set_mask + 1) * shape->ways * sizeof(uint32_t)) };
}

/* Make the caches that "cache" describes. False if it makes no sense. */
bool cache_init(void)
{
	int i, vcpus = cache.domains * cache.cores * cache.threads;

	if (cache.domains < 1 || cache.cores < 1 || cache.threads < 1 || vcpus > SIM_MAX_VCPUS || cache.nodes < 1 ||
	    cache.domains % cache.nodes || cache.memory_mib < 1 || cache.memory_mib > 128 * 1024 ||
	    !make_shape(&l1_shape, &cache.l1) || !make_shape(&l2_shape, &cache.l2) ||
	    !make_shape(&llc_shape, &cache.llc))
		return false;
	nr_domains = cache.domains;
	nr_cores = cache.domains * cache.cores;
	cores_per_bit = (nr_cores + 63) / 64;
	domains_per_bit = (nr_domains + 31) / 32;
	nr_lines = (uint64_t)cache.memory_mib << (20 - LINE_SHIFT);
	lines_per_node = nr_lines / cache.nodes;
	lines = allocate(nr_lines * sizeof(*lines));
	arrives = allocate(nr_lines * sizeof(*arrives));
	for (i = 0; i < nr_domains; i++) {
		domains[i].llc = make_cache(&llc_shape);
		domains[i].node = i / (cache.domains / cache.nodes);
		domains[i].bit = 1U << i / domains_per_bit;
		domains[i].first_core = i * cache.cores;
	}
	for (i = 0; i < nr_cores; i++) {
		cores[i].l1 = make_cache(&l1_shape);
		cores[i].l2 = make_cache(&l2_shape);
		cores[i].number = i;
		cores[i].domain = i / cache.cores;
		cores[i].node = domains[cores[i].domain].node;
		cores[i].bit = 1ULL << i / cores_per_bit;
		domains[cores[i].domain].cores |= cores[i].bit;
	}
	for (i = 0; i < vcpus; i++) {
		views[i].core = &cores[i / cache.threads];
		views[i].thread = i % cache.threads;
	}
	return true;
}

/* Counts of accesses by where they found their line, for the status file. */
int cache_status(char *text, size_t size)
{
	static const char *const names[NR_CACHE_EVENTS] = {
		[L1] = NULL, [L2] = "l2", [LLC] = "llc", [SIBLING] = "sibling", [OTHER_CORE] = "core", [OTHER_LLC] = "other_llc",
		[OTHER_NODE] = "other_node", [MEMORY] = "memory", [OTHER_MEMORY] = "other_memory", [UPGRADE] = "upgrade",
	};
	uint64_t accesses = 0, filtered;
	int i, length;

	if (!lines)
		return 0;
	for (i = 0; i < SIM_MAX_VCPUS; i++)
		accesses += views[i].accesses;
	filtered = accesses;
	for (i = 0; i < NR_CACHE_EVENTS; i++)
		if (i != SIBLING && i != UPGRADE)
			filtered -= counts[i];
	length = snprintf(text, size, "stalled_seconds %.9f\nqueued_seconds %.9f\naccesses %lu\nfiltered %lu\n",
			  stalled / 1e12, queued / 1e12, accesses, filtered);
	for (i = 0; i < NR_CACHE_EVENTS; i++)
		if (names[i])
			length += snprintf(text + length, size - length, "from_%s %lu\n", names[i], counts[i]);
	return length;
}
