/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The interface of kernel/sched/sparsemask.h with the layout of a cpumask: one bit for each CPU number, in words that are
 * neighbours. With SPARSEMASK_PADDED, each word has a cache line of its own. SPARSEMASK_WORD_CPUS is the number of CPUs in
 * a word. Padded words of one CPU stand for no mask at all: each CPU has a line that it writes, as its runqueue's count of
 * tasks, and a search reads them one after the other.
 *
 * bench/masks compares it with sparsemask, both in a program and as a replacement of that file in the kernel. An element
 * is a CPU number. As in a cpumask, nothing remembers that the mask is empty.
 */
#ifndef _KERNEL_SCHED_SPARSEMASK_H
#define _KERNEL_SCHED_SPARSEMASK_H

#include <linux/bitops.h>
#include <linux/cache.h>
#include <linux/compiler.h>
#include <linux/cpumask.h>
#include <linux/math.h>
#include <linux/overflow.h>
#include <linux/slab.h>

#ifndef SPARSEMASK_WORD_CPUS
#define SPARSEMASK_WORD_CPUS	BITS_PER_LONG
#endif

#ifdef SPARSEMASK_PADDED
struct sparsemask_word {
	unsigned long	bits;
} ____cacheline_aligned;
#else
struct sparsemask_word {
	unsigned long	bits;
};
#endif

/* The words begin on a cache line: nr_elems never changes, as nr_cpu_ids. */
struct sparsemask {
	unsigned int		nr_elems;
	struct sparsemask_word	words[] ____cacheline_aligned;
};

static inline struct sparsemask *
sparsemask_alloc_node(unsigned int nr, gfp_t flags, int node)
{
	size_t size = struct_size_t(struct sparsemask, words,
				    DIV_ROUND_UP(nr_cpu_ids, SPARSEMASK_WORD_CPUS));

	/* kmalloc() aligns such sizes to a cache line. */
	return kzalloc_node(round_up(size, SMP_CACHE_BYTES), flags, node);
}

static inline void sparsemask_add_cpu(unsigned int cpu, struct sparsemask *mask)
{
	if (cpu >= mask->nr_elems)
		mask->nr_elems = cpu + 1;
}

static __always_inline unsigned int
sparsemask_cpu(unsigned int elem, const struct sparsemask *mask)
{
	return elem;
}

static inline unsigned int
sparsemask_find_cpu(unsigned int cpu, const struct sparsemask *mask)
{
	return cpu < mask->nr_elems ? cpu : mask->nr_elems;
}

static __always_inline bool
sparsemask_test_elem(unsigned int elem, const struct sparsemask *mask)
{
	return test_bit(elem % SPARSEMASK_WORD_CPUS, &mask->words[elem / SPARSEMASK_WORD_CPUS].bits);
}

static __always_inline void
sparsemask_set_elem(unsigned int elem, struct sparsemask *mask)
{
	if (!sparsemask_test_elem(elem, mask))
		set_bit(elem % SPARSEMASK_WORD_CPUS, &mask->words[elem / SPARSEMASK_WORD_CPUS].bits);
}

static __always_inline void
sparsemask_clear_elem(unsigned int elem, struct sparsemask *mask)
{
	if (sparsemask_test_elem(elem, mask))
		clear_bit(elem % SPARSEMASK_WORD_CPUS, &mask->words[elem / SPARSEMASK_WORD_CPUS].bits);
}

/* The first element set of [@elem, @end), else nr_elems. */
static __always_inline unsigned int
__sparsemask_find(const struct sparsemask *mask, unsigned int elem, unsigned int end)
{
	while (elem < end) {
		unsigned long bits = READ_ONCE(mask->words[elem / SPARSEMASK_WORD_CPUS].bits);

		bits >>= elem % SPARSEMASK_WORD_CPUS;
		if (bits) {
			elem += __ffs(bits);
			return elem < end ? elem : mask->nr_elems;
		}

		elem = round_down(elem, SPARSEMASK_WORD_CPUS) + SPARSEMASK_WORD_CPUS;
	}

	return mask->nr_elems;
}

static __always_inline bool sparsemask_empty(struct sparsemask *mask)
{
	return __sparsemask_find(mask, 0, mask->nr_elems) == mask->nr_elems;
}

/* The element to visit after @elem - 1 on a walk that began at @start. */
static __always_inline unsigned int
__sparsemask_next_wrap(const struct sparsemask *mask, unsigned int start, unsigned int elem)
{
	if (elem > start) {
		elem = __sparsemask_find(mask, elem, mask->nr_elems);
		if (elem < mask->nr_elems)
			return elem;

		elem = 0;
	}

	return __sparsemask_find(mask, elem, start);
}

static __always_inline unsigned int
__sparsemask_first_wrap(const struct sparsemask *mask, unsigned int start)
{
	unsigned int elem = __sparsemask_find(mask, start, mask->nr_elems);

	return elem < mask->nr_elems ? elem : __sparsemask_find(mask, 0, start);
}

#define sparsemask_for_each_wrap(elem, mask, start)			\
	for ((elem) = __sparsemask_first_wrap((mask), (start));		\
	     (elem) < (mask)->nr_elems;					\
	     (elem) = __sparsemask_next_wrap((mask), (start), (elem) + 1))

#endif /* _KERNEL_SCHED_SPARSEMASK_H */
