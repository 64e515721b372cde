// SPDX-License-Identifier: GPL-2.0
/*
 * LD_PRELOAD: delays a "switch" instance of stress-ng by LATE seconds before it forks, and by
 * AFTER milliseconds after that.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static void delay(time_t seconds, long ns)
{
	struct timespec t = { seconds, ns };

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

pid_t fork(void)
{
	pid_t (*next)(void) = dlsym(RTLD_NEXT, "fork");
	const char *late = getenv("LATE"), *after = getenv("AFTER");
	char name[17] = "";
	pid_t pid;

	prctl(PR_GET_NAME, name);
	if (!strstr(name, "switc"))
		return next();
	if (late)
		delay(atoi(late), 0);
	pid = next();
	if (pid > 0 && after)
		delay(0, atoi(after) * 1000000L);
	return pid;
}
