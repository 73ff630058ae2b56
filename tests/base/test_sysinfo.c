/* tests/base/test_sysinfo.c - limits of control groups, version 1 and 2, of the own group and of those above. */
#include "base/sysinfo.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "base/linux/cgroup.h"
#include "test.h"

static char root[64];

static void put(const char *group, const char *file, const char *text)
{
    char path[256], command[300];
    FILE *f;

    snprintf(command, sizeof(command), "mkdir -p '%s%s'", root, group);
    CHECK_EQ(system(command), 0);
    snprintf(path, sizeof(path), "%s%s/%s", root, group, file);
    f = fopen(path, "w");
    CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

TEST(the_least_limit_of_the_own_group_and_those_above_counts)
{
    char command[100];

    snprintf(root, sizeof(root), "/tmp/radish-sysinfo-XXXXXX");
    CHECK(mkdtemp(root) != NULL);
    put("/system.slice/radish.service", "memory.max", "4294967296\n");
    put("/system.slice", "memory.max", "max\n");
    put("/memory/docker/1", "memory.limit_in_bytes", "1000\n");
    put("/memory", "memory.limit_in_bytes", "2000\n");
    CHECK_EQ(cgroup_memory("0::/system.slice/radish.service\n", root), 4294967296u);
    CHECK_EQ(cgroup_memory("0::/system.slice/radish.service/below\n", root), 4294967296u);
    CHECK_EQ(cgroup_memory("0::/system.slice\n", root), UINT64_MAX);
    CHECK_EQ(cgroup_memory("0::/\n", root), UINT64_MAX);
    CHECK_EQ(cgroup_memory("9:cpu,memory:/docker/1\n0::/\n", root), 1000);
    CHECK_EQ(cgroup_memory("9:memory:/not/seen/here\n", root), 2000);
    CHECK_EQ(cgroup_memory("9:memoryx:/docker/1", root), UINT64_MAX);
    CHECK_EQ(cgroup_memory("9:name=systemd:/docker/1", root), UINT64_MAX);
    CHECK_EQ(cgroup_memory("", root), UINT64_MAX);
    CHECK_EQ(cgroup_memory(":\n::\n0::\n\n4:memory\n", root), UINT64_MAX);
    put("", "memory.max", "500"); /* a container that sees its own group as the root */
    CHECK_EQ(cgroup_memory("0::/", root), 500);
    CHECK(sysinfo_memory() > 0);
    snprintf(command, sizeof(command), "rm -r '%s'", root);
    CHECK_EQ(system(command), 0);
}
