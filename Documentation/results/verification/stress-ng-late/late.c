// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <time.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <errno.h>
#include <stdlib.h>
pid_t fork(void)
{
	pid_t (*f)(void) = dlsym(RTLD_NEXT, "fork");
	char name[17] = "";
	const char *s = getenv("LATE");
	prctl(PR_GET_NAME, name);
	if (s && strstr(name, "switc")) {
		struct timespec t = { atoi(s), 0 };
		while (nanosleep(&t, &t) && errno == EINTR) ;
	}
	pid_t pid = f();
	if (pid > 0 && getenv("AFTER") && strstr(name, "switc")) {
		struct timespec t = { 0, atoi(getenv("AFTER")) * 1000000L };
		while (nanosleep(&t, &t) && errno == EINTR) ;
	}
	return pid;
}
