// SPDX-License-Identifier: GPL-2.0
/*
 * Fibers: threads of QEMU's that take turns on one host thread.
 *
 * A vCPU thread is adopted when QEMU has just created it and names it. QEMU's code depends on
 * thread-local storage, so a fiber keeps the storage of the thread that it was: a switch changes
 * the stack and the thread pointer. The thread itself is left parked on a small stack of its
 * own, where it sleeps until the process ends and touches no thread-local storage. A switch
 * takes some ten nanoseconds; between host threads it would take microseconds.
 *
 * QEMU ends a vCPU thread only when the vCPU is unplugged from the machine, which the simulator
 * does not support. (Hotplug inside the guest, by PSCI, only halts a vCPU.)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "sim.h"

#define PARK_STACK_SIZE	16384

struct fiber *running;

static struct fiber main_thread;
static struct fiber *fibers[SIM_MAX_VCPUS];
static atomic_int nr_fibers;
static pthread_mutex_t adopting = PTHREAD_MUTEX_INITIALIZER;
static int wake_fd = -1;
static bool enabled;

/* A fiber's, not the host thread's: it moves with the thread pointer. */
static __thread bool is_fiber __attribute__((tls_model("initial-exec")));

void fiber_switch_asm(void **save_sp, void *sp, void *tp);
void park_entry(void);
void park(struct fiber *f) __attribute__((noreturn));

#if defined(__x86_64__)

asm(".pushsection .text\n"
    ".globl fiber_switch_asm\n.type fiber_switch_asm, @function\n"
    "fiber_switch_asm:\n"
    "	push %rbp\n	push %rbx\n	push %r12\n	push %r13\n	push %r14\n	push %r15\n"
    "	mov %rsp, (%rdi)\n"
    "	wrfsbase %rdx\n"
    "	mov %rsi, %rsp\n"
    "	pop %r15\n	pop %r14\n	pop %r13\n	pop %r12\n	pop %rbx\n	pop %rbp\n"
    "	ret\n"
    ".size fiber_switch_asm, . - fiber_switch_asm\n"
    ".globl park_entry\n.type park_entry, @function\n"
    "park_entry:\n"
    "	mov %rbx, %rdi\n"
    "	call park\n"
    ".size park_entry, . - park_entry\n"
    ".popsection\n");

#define FRAME_WORDS	7	/* six registers and the return address */
#define FRAME_ARGUMENT	4	/* rbx */
#define FRAME_RETURN	6

#define HWCAP2_FSGSBASE_BIT	(1UL << 1)

static void check_host(void)
{
	if (getauxval(AT_HWCAP2) & HWCAP2_FSGSBASE_BIT)
		return;
	fputs("sim: error: this host cannot set the thread pointer in user space (FSGSBASE; needs Linux 5.9)\n",
	      stderr);
	exit(1);
}

static long raw_syscall(long nr, long a, long b, long c, long d)
{
	register long r10 asm("r10") = d;
	long ret;

	asm volatile("syscall"
		     : "=a"(ret)
		     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10)
		     : "rcx", "r11", "memory");
	return ret;
}

#elif defined(__aarch64__)

asm(".pushsection .text\n"
    ".globl fiber_switch_asm\n.type fiber_switch_asm, %function\n"
    "fiber_switch_asm:\n"
    "	sub sp, sp, #160\n"
    "	stp x19, x20, [sp]\n	stp x21, x22, [sp, #16]\n	stp x23, x24, [sp, #32]\n"
    "	stp x25, x26, [sp, #48]\n	stp x27, x28, [sp, #64]\n	stp x29, x30, [sp, #80]\n"
    "	stp d8, d9, [sp, #96]\n	stp d10, d11, [sp, #112]\n"
    "	stp d12, d13, [sp, #128]\n	stp d14, d15, [sp, #144]\n"
    "	mov x9, sp\n"
    "	str x9, [x0]\n"
    "	msr tpidr_el0, x2\n"
    "	mov sp, x1\n"
    "	ldp x19, x20, [sp]\n	ldp x21, x22, [sp, #16]\n	ldp x23, x24, [sp, #32]\n"
    "	ldp x25, x26, [sp, #48]\n	ldp x27, x28, [sp, #64]\n	ldp x29, x30, [sp, #80]\n"
    "	ldp d8, d9, [sp, #96]\n	ldp d10, d11, [sp, #112]\n"
    "	ldp d12, d13, [sp, #128]\n	ldp d14, d15, [sp, #144]\n"
    "	add sp, sp, #160\n"
    "	ret\n"
    ".size fiber_switch_asm, . - fiber_switch_asm\n"
    ".globl park_entry\n.type park_entry, %function\n"
    "park_entry:\n"
    "	mov x0, x19\n"
    "	bl park\n"
    ".size park_entry, . - park_entry\n"
    ".popsection\n");

#define FRAME_WORDS	20
#define FRAME_ARGUMENT	0	/* x19 */
#define FRAME_RETURN	11	/* x30 */

static void check_host(void)
{
}

static long raw_syscall(long nr, long a, long b, long c, long d)
{
	register long x8 asm("x8") = nr;
	register long x0 asm("x0") = a;
	register long x1 asm("x1") = b;
	register long x2 asm("x2") = c;
	register long x3 asm("x3") = d;

	asm volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}

#else
#error "the simulator runs on x86-64 and arm64 hosts"
#endif

void *find_symbol(const char *name, const char *version)
{
	void *symbol = version ? dlvsym(RTLD_NEXT, name, version) : NULL;

	if (!symbol)
		symbol = dlsym(RTLD_NEXT, name);
	if (!symbol) {
		fprintf(stderr, "sim: error: no %s in the C library\n", name);
		exit(1);
	}
	return symbol;
}

/*
 * Other libraries' constructors may call what is interposed here before this one has run; until
 * then nothing is enabled and the C library's own functions are called.
 */
static void __attribute__((constructor)) init(void)
{
	const char *wanted = getenv("SIM_ENABLE");

	if (!wanted || strcmp(wanted, "1"))
		return;
	/* children are no simulators */
	unsetenv("SIM_ENABLE");
	unsetenv("LD_PRELOAD");
	check_host();
	wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (wake_fd < 0) {
		perror("sim: error: eventfd");
		exit(1);
	}
	main_thread.tp = __builtin_thread_pointer();
	main_thread.state = FIBER_RUNS;
	running = &main_thread;
	is_fiber = true;
	enabled = true;
}

bool sim_enabled(void)
{
	return enabled;
}

bool on_fiber(void)
{
	return is_fiber;
}

struct fiber *main_fiber(void)
{
	return &main_thread;
}

int fiber_count(void)
{
	return atomic_load_explicit(&nr_fibers, memory_order_acquire);
}

struct fiber *fiber_at(int i)
{
	return fibers[i];
}

int host_wake_fd(void)
{
	return wake_fd;
}

/* Wake the simulator's host thread if it sleeps; may be called from anywhere. */
void wake_host_thread(void)
{
	static const uint64_t one = 1;

	raw_syscall(SYS_write, wake_fd, (long)&one, sizeof(one), 0);
}

void fiber_switch(struct fiber *from, struct fiber *to)
{
	running = to;
	fiber_switch_asm(&from->sp, to->sp, to->tp);
}

/* The rest of an adopted thread's life; its fiber has left it. No thread-local storage here. */
void park(struct fiber *f)
{
	static uint32_t forever;

	remote_wake(f);
	for (;;)
		raw_syscall(SYS_futex, (long)&forever, FUTEX_WAIT_PRIVATE, 0, 0);
}

/* Make a fiber of the calling thread. Returns on the simulator's host thread. */
static void adopt(void)
{
	struct fiber *f = calloc(1, sizeof(*f));
	void **stack = aligned_alloc(16, PARK_STACK_SIZE);
	void **frame;
	sigset_t all;
	int n;

	if (!f || !stack) {
		perror("sim: error: memory for a vCPU");
		exit(1);
	}
	/* a handler would need the storage that the fiber uses elsewhere */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);

	f->tp = __builtin_thread_pointer();
	f->state = FIBER_WAITS;
	is_fiber = true;
	pthread_mutex_lock(&adopting);
	n = atomic_load(&nr_fibers);
	if (n == SIM_MAX_VCPUS) {
		fprintf(stderr, "sim: error: more than %d vCPUs\n", SIM_MAX_VCPUS);
		exit(1);
	}
	fibers[n] = f;
	atomic_store_explicit(&nr_fibers, n + 1, memory_order_release);
	pthread_mutex_unlock(&adopting);

	frame = stack + PARK_STACK_SIZE / sizeof(*stack) - FRAME_WORDS;
	memset(frame, 0, FRAME_WORDS * sizeof(*frame));
	frame[FRAME_ARGUMENT] = f;
	frame[FRAME_RETURN] = (void *)park_entry;
	fiber_switch_asm(&f->sp, frame, f->tp);
}

/* The first thing that a vCPU thread of QEMU does (with -name debug-threads=on). */
EXPORT int pthread_setname_np(pthread_t thread, const char *name)
{
	static int (*real)(pthread_t, const char *);
	int vcpu, end = 0;
	int ret;

	if (!real)
		real = next_symbol(pthread_setname_np, NULL);
	ret = real(thread, name);
	if (enabled && !is_fiber && pthread_equal(thread, pthread_self()) &&
	    sscanf(name, "CPU %d/TCG%n", &vcpu, &end) == 1 && end && !name[end])
		adopt();
	return ret;
}
