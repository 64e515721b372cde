// SPDX-License-Identifier: GPL-2.0
/*
 * What the guest's accesses to memory cost on a machine with coherent caches.
 *
 * Each core has an L1 data cache, an L1 instruction cache and an L2, which its threads share; the L2 contains what
 * the L1s do. Each LLC domain has a last-level cache of what the L2s of its cores evicted and of what moved between
 * its cores. Each node has memory. All caches are set-associative and evict what was looked up least
 * recently. A line is 64 bytes of physical memory.
 *
 * For each line of memory there is an entry in a directory: which cores have a copy, which LLCs do, and who has
 * the only valid one. A store makes all other copies invalid. So an access looks into no cache but its own
 * core's and, if it misses there, its own LLC; all others are known from the directory.
 *
 * Most accesses are to lines that the vCPU has just used. The filter finds these, by virtual address, without any
 * of the above: it has lines that are in the L1 and that the vCPU may read or write at no cost. A line
 * that the L1 loses, or that the other thread of the core writes, goes out of the filter. So do all lines of a vCPU that is about
 * to use other page tables, and those of all vCPUs when one of them invalidates TLBs.
 *
 * Not modelled: page table walks, devices' accesses, DC ZVA, bandwidth, prefetching, stores and loads that overlap.
 * An access counts for the line of its first byte.
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
#define FETCH_FILTER	1024
#define MAX_WAYS	64
#define CORE_WORDS	(SIM_MAX_VCPUS / 64)
#define MAX_DOMAINS	64
/* Pages of instructions that are told apart: 256 MiB. */
#define CODE_PAGES	65536

/* A filter's entry is the line's virtual address, with this bit if the vCPU may write. 0: none. */
#define WRITABLE	1ULL

enum line_state {
	SHARED,		/* memory and all copies are valid */
	EXCLUSIVE,	/* the holder, a core, has the only copy but perhaps its own LLC's */
	MODIFIED,	/* the holder, a core, has the only valid copy */
	LLC_MODIFIED,	/* the holder, an LLC, has a newer one than memory; cores of its domain may, too */
};

/* The directory's entry. */
struct line {
	/* when the core or LLC that took it last has it, or when its last writer began to write it */
	int64_t arrives;
	/* which LLCs have a copy */
	uint64_t llcs;
	uint16_t holder;
	/* MODIFIED: the thread of the core that wrote it last, or BOTH_THREADS */
	uint16_t writer;
	/* the core that took it last */
	uint16_t taker;
	uint8_t state;
	/* which cores have a copy; core_words of them */
	uint64_t cores[];
};

#define BOTH_THREADS	UINT16_MAX

/* A line that moves again within this time is contended. A write that is as young is still on its way to the L1. */
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
	struct cache l1, l1i, l2;
	int number;
	int domain;
	int node;
	/* its bit in struct line's cores */
	int word;
	uint64_t bit;
};

struct domain {
	struct cache llc;
	int node;
	uint64_t bit;
	/* the bits in struct line of its cores */
	uint64_t cores[CORE_WORDS];
};

/* What a vCPU sees. */
struct view {
	uint64_t filter[PAGE_LINES][FILTER_WAYS];
	/* lines of instructions that are in the L1I, plus 1 */
	uint32_t fetched[FETCH_FILTER];
	struct core *core;
	struct fiber *fiber;
	int thread;
	uint64_t flushes;
	uint64_t accesses, fetches;
};

enum access { LOAD, STORE, FETCH };

struct cache_parameters cache;

static struct view views[SIM_MAX_VCPUS] __attribute__((aligned(64)));
static struct core cores[SIM_MAX_VCPUS];
static struct domain domains[MAX_DOMAINS];
static int nr_cores, nr_domains, core_words;
static struct shape l1_shape, l1i_shape, l2_shape, llc_shape;

static char *lines;
static int line_bits;
static uint64_t nr_lines, lines_per_node;

static struct cache_counts counts;
static uint64_t flushes;
/* The last access: what other CPUs made it wait for. L1: nothing, or only for a line on its way. */
static enum cache_event from_others;

static inline struct line *line_at(uint32_t n)
{
	return (struct line *)(lines + ((uint64_t)n << line_bits));
}

static inline uint64_t *filter_entry(struct view *v, uint64_t address)
{
	uint64_t page = address >> PAGE_SHIFT;

	return &v->filter[(address >> LINE_SHIFT) % PAGE_LINES][(page ^ page >> 3) % FILTER_WAYS];
}

/* Take the line @n, and others that may be neighbours in the filter, out of the filters of vCPU @v. */
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

/* The L1I of core @c does not have line @n any more. */
static void forget_fetched(struct core *c, uint32_t n)
{
	struct view *v = &views[c->number * cache.threads];
	int i;

	for (i = 0; i < cache.threads; i++)
		if (v[i].fetched[n % FETCH_FILTER] == n + 1)
			v[i].fetched[n % FETCH_FILTER] = 0;
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

static void put_into_llc(int d, uint32_t n)
{
	uint32_t *set = set_of(&domains[d].llc, &llc_shape, n);
	struct line *evicted;
	uint32_t e;

	if (look_up(set, llc_shape.ways, n))
		return;
	line_at(n)->llcs |= domains[d].bit;
	e = insert(set, llc_shape.ways, n);
	if (!e)
		return;
	evicted = line_at(e - 1);
	evicted->llcs &= ~domains[d].bit;
	if (evicted->state == LLC_MODIFIED && evicted->holder == d)
		evicted->state = SHARED;
}

static void put_into_l1(struct core *c, uint32_t n)
{
	uint32_t e = insert(set_of(&c->l1, &l1_shape, n), l1_shape.ways, n);

	if (e)
		forget_in_core(c, e - 1);
}

static void put_into_l1i(struct core *c, uint32_t n)
{
	uint32_t e = insert(set_of(&c->l1i, &l1i_shape, n), l1i_shape.ways, n);

	if (e)
		forget_fetched(c, e - 1);
}

/* The L2 of core @c loses line @n, so its L1s do. */
static void leave_core(struct core *c, uint32_t n)
{
	if (drop(set_of(&c->l1, &l1_shape, n), l1_shape.ways, n))
		forget_in_core(c, n);
	if (drop(set_of(&c->l1i, &l1i_shape, n), l1i_shape.ways, n))
		forget_fetched(c, n);
}

static void put_into_l2(struct core *c, uint32_t n)
{
	uint32_t e = insert(set_of(&c->l2, &l2_shape, n), l2_shape.ways, n);
	struct line *evicted;

	if (!e)
		return;
	e--;
	leave_core(c, e);
	evicted = line_at(e);
	evicted->cores[c->word] &= ~c->bit;
	if (evicted->state == MODIFIED && evicted->holder == c->number) {
		evicted->state = LLC_MODIFIED;
		evicted->holder = c->domain;
	} else if (evicted->state == EXCLUSIVE && evicted->holder == c->number) {
		evicted->state = SHARED;
	}
	put_into_llc(c->domain, e);
}

static inline bool holds(struct core *c, struct line *line)
{
	return (line->state == EXCLUSIVE || line->state == MODIFIED) && line->holder == c->number;
}

/*
 * Make all copies of line @n but those of @c and its LLC invalid. Returns what that costs; *@dropped: there was one.
 * The LLC's own copy is old until the line passes through the LLC again, which it does before anybody else gets it.
 */
static int64_t invalidate(struct core *c, uint32_t n, struct line *line, bool *dropped)
{
	bool own_node = false, other_node = false;
	uint64_t bits, llcs = line->llcs & ~domains[c->domain].bit;
	struct core *other;
	int i, w;

	for (w = 0; w < core_words; w++) {
		bits = line->cores[w];
		if (w == c->word)
			bits &= ~c->bit;
		line->cores[w] ^= bits;
		for (; bits; bits &= bits - 1) {
			other = &cores[w * 64 + __builtin_ctzll(bits)];
			drop(set_of(&other->l2, &l2_shape, n), l2_shape.ways, n);
			leave_core(other, n);
			*dropped = true;
			own_node |= other->domain != c->domain;
			other_node |= other->node != c->node;
		}
	}
	line->llcs ^= llcs;
	for (; llcs; llcs &= llcs - 1) {
		i = __builtin_ctzll(llcs);
		drop(set_of(&domains[i].llc, &llc_shape, n), llc_shape.ways, n);
		*dropped = true;
		own_node = true;
		other_node |= domains[i].node != c->node;
	}
	return other_node ? cache.cost[OTHER_NODE] : own_node ? cache.cost[OTHER_LLC] : 0;
}

/* A core of the domain has a copy. */
static bool core_of_domain_has(struct domain *d, struct line *line)
{
	int w;

	for (w = 0; w < core_words; w++)
		if (line->cores[w] & d->cores[w])
			return true;
	return false;
}

/* Nobody has a copy of the line but core @c, which has one, and perhaps its LLC. */
static bool alone(struct core *c, struct line *line)
{
	int w;

	if (line->llcs & ~domains[c->domain].bit)
		return false;
	for (w = 0; w < core_words; w++)
		if (line->cores[w] != (w == c->word ? c->bit : 0))
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
	int node;

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
	if (core_of_domain_has(d, line)) {
		put_into_llc(c->domain, n);
		return OTHER_CORE;
	}
	node = n < nr_lines ? n / lines_per_node : 0;
	return node == c->node ? MEMORY : OTHER_MEMORY;
}

/*
 * vCPU @v, which runs, needs the line for itself or brings it to where it was not. It waits until the one who took the line
 * before has it, and then for the line itself. Returns the whole cost. If @others have or want the line, its turn ends, and if
 * that is so more than once in a short time, it keeps close to them.
 */
static int64_t take(struct view *v, struct line *line, int64_t cost, bool others)
{
	int64_t t = now(), wait = line->arrives - t;

	if (wait > 0) {
		counts.queued += wait;
		cost += wait;
	}
	line->arrives = t + cost;
	line->taker = v->core->number;
	if (!others)
		return cost;
	if (wait > -CONTENDED)
		v->fiber->close_until = t + cost + CONTENDED;
	cut_slice();
	return cost;
}

/* An access by vCPU @v to line @n, which its filter does not have. Returns what it costs. */
static int64_t access_line(struct view *v, uint32_t n, enum access access)
{
	struct core *c = v->core;
	struct line *line = line_at(n);
	uint64_t *events = access == FETCH ? counts.fetched : counts.found;
	bool fetches = access == FETCH, store = access == STORE, others = false, missed = false;
	int64_t cost = 0, far, wait;
	enum cache_event from = L1;

	if (look_up(fetches ? set_of(&c->l1i, &l1i_shape, n) : set_of(&c->l1, &l1_shape, n),
		    fetches ? l1i_shape.ways : l1_shape.ways, n))
		goto found;
	if (!look_up(set_of(&c->l2, &l2_shape, n), l2_shape.ways, n)) {
		from = fetch(c, n, line);
		missed = true;
		others = from == OTHER_CORE || from == OTHER_LLC || from == OTHER_NODE;
		put_into_l2(c, n);
		line->cores[c->word] |= c->bit;
	} else {
		from = L2;
	}
	cost = cache.cost[from];
	if (fetches)
		put_into_l1i(c, n);
	else
		put_into_l1(c, n);
	if (missed && store) {
		/* what has to be made invalid is on the way of the line itself */
		far = invalidate(c, n, line, &others);
		if (far > cost)
			cost = far;
		line->state = EXCLUSIVE;
		line->holder = c->number;
	} else if (missed && alone(c, line)) {
		line->writer = BOTH_THREADS;
		line->state = line->state == LLC_MODIFIED ? MODIFIED : EXCLUSIVE;
		line->holder = c->number;
	}
found:
	events[from]++;
	from_others = others ? from : L1;
	if (store && !holds(c, line)) {
		others = true;
		far = invalidate(c, n, line, &others);
		cost += far > cache.cost[UPGRADE] ? far : cache.cost[UPGRADE];
		events[UPGRADE]++;
		from_others = UPGRADE;
		line->state = EXCLUSIVE;
		line->holder = c->number;
	}
	if (line->state == MODIFIED && line->holder == c->number && line->writer != v->thread && line->writer != BOTH_THREADS) {
		if (line->arrives > now() - CONTENDED) {
			others = true;
			cost += cache.cost[SIBLING];
			events[SIBLING]++;
			from_others = SIBLING;
		}
		if (!store) {
			forget(v - v->thread + line->writer, n);
			line->writer = BOTH_THREADS;
		}
	}
	if (others || (missed && (store || from != LLC))) {
		cost = take(v, line, cost, others);
	} else if (line->taker == c->number || (missed && cores[line->taker].domain == c->domain)) {
		/* on its way to the other thread, or to the LLC */
		wait = line->arrives - now();
		if (wait > 0) {
			counts.queued += wait;
			cost += wait;
		}
	}
	if (store) {
		if (line->state != MODIFIED || line->writer != v->thread) {
			forget_in_siblings(v, n);
			if (line->arrives < now())
				line->arrives = now();
		}
		line->state = MODIFIED;
		line->writer = v->thread;
	}
	return cost;
}

static void __attribute__((noinline)) not_in_filter(struct view *v, uint32_t info, uint64_t address, uint64_t pc, enum access access)
{
	uint64_t n, physical, *entry = filter_entry(v, address);
	int64_t cost, queued = counts.queued;
	struct line *line;

	if (!physical_address(info, address, &physical) || (n = (physical - MEMORY_BASE) >> LINE_SHIFT) >= nr_lines) {
		v->accesses--;
		return;
	}
	cost = access_line(v, n, access);
	queued = counts.queued - queued;
	if (from_others != L1 || queued)
		lines_note(physical, address, pc, from_others, from_others == L1 ? queued : cost, queued);
	line = line_at(n);
	*entry = address >> LINE_SHIFT << LINE_SHIFT;
	if (line->state == MODIFIED && line->holder == v->core->number && line->writer == v->thread)
		*entry |= WRITABLE;
	if (cost) {
		counts.stalled += cost;
		stall(v->fiber, cost);
	}
}

void cache_load(unsigned int vcpu, uint32_t info, uint64_t address, void *pc)
{
	struct view *v = &views[vcpu];

	v->accesses++;
	if ((*filter_entry(v, address) ^ (address >> LINE_SHIFT << LINE_SHIFT)) > WRITABLE)
		not_in_filter(v, info, address, (uint64_t)pc, LOAD);
}

void cache_store(unsigned int vcpu, uint32_t info, uint64_t address, void *pc)
{
	struct view *v = &views[vcpu];

	v->accesses++;
	if (*filter_entry(v, address) != ((address >> LINE_SHIFT << LINE_SHIFT) | WRITABLE))
		not_in_filter(v, info, address, (uint64_t)pc, STORE);
}

/* vCPU @v executes instructions of line @n. */
static void __attribute__((noinline)) fetch_line(struct view *v, uint32_t n)
{
	int64_t cost = access_line(v, n, FETCH);

	v->fetched[n % FETCH_FILTER] = n + 1;
	if (cost) {
		counts.stalled += cost;
		counts.fetch_stalled += cost;
		stall(v->fiber, cost);
	}
}

/*
 * A number for the page of instructions at @host in QEMU's memory. QEMU does not tell its physical address. Such lines have
 * numbers of their own, behind those of the memory: nobody writes them.
 */
static uint32_t code_page(uint64_t host)
{
	static uint64_t known[2 * CODE_PAGES];
	static uint32_t number[2 * CODE_PAGES], next;
	uint32_t i = (host >> PAGE_SHIFT) * 0x9e3779b97f4a7c15ULL >> 40;

	for (i %= 2 * CODE_PAGES; known[i]; i = (i + 1) % (2 * CODE_PAGES))
		if (known[i] == host >> PAGE_SHIFT)
			return number[i];
	/* more pages than anybody executes: the rest has one number */
	if (next == CODE_PAGES)
		return CODE_PAGES - 1;
	known[i] = host >> PAGE_SHIFT;
	number[i] = next;
	return next++;
}

/*
 * What cache_fetch() wants for a block whose first and last instruction are at these addresses in QEMU's memory. Of a block
 * that goes on in another page, it has the lines in the first.
 */
void *cache_block(const void *first, const void *last)
{
	uint64_t begin = (uint64_t)first, end = (uint64_t)last, n;

	if (!first)
		return NULL;
	n = nr_lines + (uint64_t)code_page(begin) * PAGE_LINES + (begin >> LINE_SHIFT) % PAGE_LINES;
	if (begin >> PAGE_SHIFT != end >> PAGE_SHIFT)
		end = begin | ((1 << PAGE_SHIFT) - 1);
	return (void *)(n << 8 | ((end >> LINE_SHIFT) - (begin >> LINE_SHIFT) + 1));
}

void cache_fetch(unsigned int vcpu, void *block)
{
	struct view *v = &views[vcpu];
	uint32_t n = (uint64_t)block >> 8, end = n + ((uint64_t)block & 255);

	v->fetches += end - n;
	for (; n < end; n++)
		if (v->fetched[n % FETCH_FILTER] != n + 1)
			fetch_line(v, n);
}

static void flush(struct view *v)
{
	memset(v->filter, 0, sizeof(v->filter));
}

/* The vCPU is about to use other page tables. */
void cache_tables_change(unsigned int vcpu, void *userdata)
{
	(void)userdata;
	flush(&views[vcpu]);
	lines_in_kernel();
}

/* The guest is about to change page tables that others may use, too: they flush when their turn comes. */
void cache_tlb_invalid(unsigned int vcpu, void *userdata)
{
	(void)userdata;
	flushes++;
	flush(&views[vcpu]);
}

/*
 * @f begins a slice. In one of a single @block it may still use the old page tables: it was asked to leave the guest for the
 * change. So it flushes again in the next.
 */
void cache_turn(struct fiber *f, bool block)
{
	if (f->view->flushes == flushes)
		return;
	flush(f->view);
	if (!block)
		f->view->flushes = flushes;
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

	if (cache.domains < 1 || cache.domains > MAX_DOMAINS || cache.cores < 1 || cache.threads < 1 || vcpus > SIM_MAX_VCPUS ||
	    cache.nodes < 1 || cache.domains % cache.nodes || cache.memory_mib < 1 || cache.memory_mib > 128 * 1024 ||
	    !make_shape(&l1_shape, &cache.l1) || !make_shape(&l1i_shape, &cache.l1i) || !make_shape(&l2_shape, &cache.l2) ||
	    !make_shape(&llc_shape, &cache.llc))
		return false;
	nr_domains = cache.domains;
	nr_cores = cache.domains * cache.cores;
	core_words = (nr_cores + 63) / 64;
	while (1ULL << line_bits < sizeof(struct line) + core_words * sizeof(uint64_t))
		line_bits++;
	nr_lines = (uint64_t)cache.memory_mib << (20 - LINE_SHIFT);
	lines_per_node = nr_lines / cache.nodes;
	lines = allocate((nr_lines + CODE_PAGES * PAGE_LINES) << line_bits);
	for (i = 0; i < nr_domains; i++) {
		domains[i].llc = make_cache(&llc_shape);
		domains[i].node = i / (cache.domains / cache.nodes);
		domains[i].bit = 1ULL << i;
	}
	for (i = 0; i < nr_cores; i++) {
		cores[i].l1 = make_cache(&l1_shape);
		cores[i].l1i = make_cache(&l1i_shape);
		cores[i].l2 = make_cache(&l2_shape);
		cores[i].number = i;
		cores[i].domain = i / cache.cores;
		cores[i].node = domains[cores[i].domain].node;
		cores[i].word = i / 64;
		cores[i].bit = 1ULL << i % 64;
		domains[cores[i].domain].cores[cores[i].word] |= cores[i].bit;
	}
	for (i = 0; i < vcpus; i++) {
		views[i].core = &cores[i / cache.threads];
		views[i].thread = i % cache.threads;
	}
	return true;
}

/* What was counted since the start. */
struct cache_counts cache_count(void)
{
	int i;

	counts.accesses = counts.fetches = 0;
	for (i = 0; i < SIM_MAX_VCPUS; i++) {
		counts.accesses += views[i].accesses;
		counts.fetches += views[i].fetches;
	}
	return counts;
}

/* Write these counts as text. */
int cache_print(char *text, size_t size, const struct cache_counts *c)
{
	static const char *const places[] = {
		[L1] = "l1", [L2] = "l2", [LLC] = "llc", [OTHER_CORE] = "core", [OTHER_LLC] = "other_llc", [OTHER_NODE] = "other_node",
		[MEMORY] = "memory", [OTHER_MEMORY] = "other_memory",
	};
	uint64_t filtered = c->accesses, beyond = 0;
	size_t i;
	int length;

	if (!lines)
		return 0;
	for (i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		filtered -= c->found[i];
		if (i > LLC)
			beyond += c->fetched[i];
	}
	length = snprintf(text, size, "stalled_ns %lld\nqueued_ns %lld\naccesses %lu\nfiltered %lu\n",
			  c->stalled / PS_PER_NS, c->queued / PS_PER_NS, c->accesses, filtered);
	for (i = 0; i < sizeof(places) / sizeof(places[0]); i++)
		length += snprintf(text + length, size - length, "from_%s %lu\n", places[i], c->found[i]);
	length += snprintf(text + length, size - length, "upgrades %lu\nsibling_waits %lu\nfetch_stalled_ns %lld\nfetches %lu\n"
			   "fetches_from_l2 %lu\nfetches_from_llc %lu\nfetches_from_beyond %lu\n",
			   c->found[UPGRADE], c->found[SIBLING], c->fetch_stalled / PS_PER_NS, c->fetches, c->fetched[L2],
			   c->fetched[LLC], beyond);
	return length;
}
