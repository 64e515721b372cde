// SPDX-License-Identifier: GPL-2.0
/*
 * Usage: ext FILE
 *
 * While FILE exists, gives all fair tasks to a sched_ext scheduler and takes them back, in turn. The scheduler
 * has a name and no program: whatever sched_ext does by default, it does. So all that it takes is a map of
 * its type, found in the kernel's own BTF.
 *
 * When it has done so STORM_OPERATIONS times (environment; 1), or never will, it makes the file FILE.ext. At the end it
 * prints "storm ext operations N". Exit status: 0; 1 a scheduler was refused or cannot be taken away; 2 wrong call; 3 this kernel has no
 * sched_ext, or says nothing of its types: "unsupported" is printed.
 */
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The kernel's wrapper of struct sched_ext_ops, which is its member "data". */
#define VALUE "bpf_struct_ops_sched_ext_ops"

static void make_file(const char *name)
{
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "%s.ext", name);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	if (fd >= 0)
		close(fd);
}

/* The offset in bytes of a member, and its type; exits if there is none. */
static unsigned int offset_of(const struct btf *btf, int id, const char *name, int *type)
{
	const struct btf_type *t = btf__type_by_id(btf, id);
	const struct btf_member *m = btf_members(t);
	int i;

	for (i = 0; i < btf_vlen(t); i++) {
		if (!strcmp(btf__name_by_offset(btf, m[i].name_off), name)) {
			*type = m[i].type;
			return btf_member_bit_offset(t, i) / 8;
		}
	}
	fprintf(stderr, "ext: error: the kernel's %s has no member %s\n", VALUE, name);
	exit(1);
}

int main(int argc, char **argv)
{
	LIBBPF_OPTS(bpf_map_create_opts, opts);
	unsigned int size, name_at;
	struct btf *btf, *own;
	const char *wanted = getenv("STORM_OPERATIONS");
	long count = 0, enough = wanted ? atol(wanted) : 1;
	char *value;
	int id, type;

	if (argc != 2) {
		fprintf(stderr, "Usage: ext FILE\n");
		return 2;
	}

	btf = btf__load_vmlinux_btf();
	id = btf ? btf__find_by_name_kind(btf, VALUE, BTF_KIND_STRUCT) : -1;
	if (id < 0) {
		make_file(argv[1]);
		printf("storm ext unsupported\n");
		return 3;
	}
	/* A map of a kernel's type is refused unless its owner has types as well, whichever. */
	own = btf__new_empty();
	if (!own || btf__add_int(own, "int", 4, BTF_INT_SIGNED) < 0 || btf__load_into_kernel(own)) {
		fprintf(stderr, "FAIL: ext: no types: %s\n", strerror(errno));
		return 1;
	}
	opts.btf_fd = btf__fd(own);
	opts.btf_vmlinux_value_type_id = id;
	size = btf__type_by_id(btf, id)->size;
	name_at = offset_of(btf, id, "data", &type);
	name_at += offset_of(btf, type, "name", &type);
	value = calloc(1, size);
	if (!value)
		return 1;
	strcpy(value + name_at, "storm");

	while (!access(argv[1], F_OK)) {
		int map, key = 0;

		map = bpf_map_create(BPF_MAP_TYPE_STRUCT_OPS, "storm", sizeof(key), size, 1, &opts);
		if (map < 0 || bpf_map_update_elem(map, &key, value, 0)) {
			fprintf(stderr, "FAIL: ext: no scheduler: %s\n", strerror(errno));
			return 1;
		}
		usleep(30000);
		if (bpf_map_delete_elem(map, &key)) {
			fprintf(stderr, "FAIL: ext: the scheduler stays: %s\n", strerror(errno));
			return 1;
		}
		close(map);
		if (++count == enough)
			make_file(argv[1]);
		usleep(30000);
	}

	printf("storm ext operations %ld\n", count);
	return 0;
}
