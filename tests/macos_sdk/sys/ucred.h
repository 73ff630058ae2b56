#pragma once
#include <sys/types.h>
struct xucred {
    unsigned cr_version;
    uid_t cr_uid;
    short cr_ngroups;
    gid_t cr_groups[16];
};
