// SPDX-License-Identifier: GPL-2.0
/*
 * LD_PRELOAD: each read() of the type of cpu0's first cache fails with ENODEV, as it does when the CPU
 * goes away after the file was opened.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

ssize_t read(int fd, void *buf, size_t size)
{
	ssize_t (*next)(int, void *, size_t) = dlsym(RTLD_NEXT, "read");
	char link[64], path[256] = "";

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (readlink(link, path, sizeof(path) - 1) > 0 && strstr(path, "/cpu/cpu0/cache/index0/type")) {
		errno = ENODEV;
		return -1;
	}
	return next(fd, buf, size);
}
