/* SPDX-License-Identifier: GPL-2.0 */
/* What the masks use of the kernel, for a program. bench/masks makes each header that they include of this file. */
#ifndef MASKS_KERNEL_H
#define MASKS_KERNEL_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define BITS_PER_LONG		(8 * (int)sizeof(long))
#define SMP_CACHE_BYTES		64
#define ____cacheline_aligned	__attribute__((aligned(SMP_CACHE_BYTES)))
#undef __always_inline
#define __always_inline		inline __attribute__((always_inline))

#define READ_ONCE(x)		(*(const volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, value)	(*(volatile __typeof__(x) *)&(x) = (value))
#define DIV_ROUND_UP(n, d)	(((n) + (d) - 1) / (d))
#define round_down(n, to)	((n) & ~((__typeof__(n))(to) - 1))
#define round_up(n, to)		round_down((n) + (to) - 1, to)
#define struct_size_t(type, member, n) (offsetof(type, member) + (n) * sizeof(((type *)0)->member[0]))

#define smp_mb()		__atomic_thread_fence(__ATOMIC_SEQ_CST)
#ifdef __x86_64__
/* A locked instruction is a full barrier. */
#define smp_mb__after_atomic()	__asm__ volatile("" : : : "memory")
#else
#define smp_mb__after_atomic()	smp_mb()
#endif

typedef unsigned int gfp_t;

/* The trial sets it to the number of its CPUs. */
extern unsigned int nr_cpu_ids;

static __always_inline unsigned long __ffs(unsigned long word)
{
	return __builtin_ctzl(word);
}

static __always_inline bool test_bit(unsigned int nr, const unsigned long *word)
{
	return READ_ONCE(*word) >> nr & 1;
}

static __always_inline void set_bit(unsigned int nr, unsigned long *word)
{
	__atomic_fetch_or(word, 1UL << nr, __ATOMIC_RELAXED);
}

static __always_inline void clear_bit(unsigned int nr, unsigned long *word)
{
	__atomic_fetch_and(word, ~(1UL << nr), __ATOMIC_RELAXED);
}

static inline void *kzalloc_node(size_t size, gfp_t flags, int node)
{
	void *p = aligned_alloc(4096, round_up(size, 4096));

	(void)flags;
	(void)node;
	return p ? memset(p, 0, size) : NULL;
}

#endif
