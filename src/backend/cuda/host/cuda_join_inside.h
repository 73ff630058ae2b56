/* backend/cuda/host/cuda_join_inside.h - what a rank knows of the others (cuda_join.c, cuda_nccl.c). Thread  the rank's. */
#pragma once
#include "backend/cuda/host/cuda_backend.h"
#include "backend/cuda/nccl_probe.h"
#include "backend/cuda/rows/join_ranks.h"
#include "backend/ranks.h"
#include "base/thread.h"

/* What a rank shows at a meeting. */
struct shown {
    int device;
    char name[64], apart[256]; /* apart: join_facts' */
    struct cuda_joint *joint;
    const struct cuda_join_stage *stage;
    const struct nccl_library *nccl; /* rank 0's; NULL, why not in apart */
    struct nccl_id id;
    void *out;   /* of a join */
    bool copies; /* it can be begun */
};

struct cuda_joins {
    struct rank_group *group;
    uint32_t rank, n_ranks;
    enum join_way way;
    struct shown own[2]; /* the last two meetings' */
    uint32_t n_shown, most_blocks;
    bool begins, has_begun;                       /* joins with their columns; the next one has */
    struct cuda_joint *joint, *joints[RANKS_MAX]; /* on the devices, or of the host: its own, and all */
    struct cuda_join_counts *counts;
    struct cuda_join_stage *stage; /* of the host; else NULL */
    const struct cuda_join_stage *stages[RANKS_MAX];
    struct rank_words *host_words;
    uint32_t *words; /* on the device */
    bool owns_words; /* this rank mapped them */
    /* NCCL */
    struct nccl_library library; /* rank 0's; */
    const struct nccl_library *nccl;
    struct nccl_id id;
    void *comm; /* NULL: ended; under comm_lock */
    struct mutex comm_lock;
    struct thread watcher;
    bool is_watched;
    atomic_bool is_closing; /* for the watcher */
    uint8_t *parts;         /* [n_ranks, NCCL_PART_BYTES] on the device */
    cudaEvent_t ended;      /* to be waited for: cuda_wait_all */
};

rd_status cuda_joins_meet(struct cuda_joins *j, const struct shown *what, const void *all[RANKS_MAX]);

/* cuda_nccl.c. All ranks call these. find: rank 0 looks for the library; why [cap] "": it is there. */
rd_status cuda_nccl_find(struct cuda_joins *j, char *why, size_t cap, struct rd_error *err);
rd_status cuda_nccl_open(struct backend *be, struct rd_error *err);
void cuda_nccl_close(struct backend *be);
rd_status cuda_nccl_join(struct backend *be, const struct cuda_join_args *a);
