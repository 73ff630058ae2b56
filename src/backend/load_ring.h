/* backend/load_ring.h - bytes of files to a device: threads fill stages, which are sent in order.
 *
 *     mapped file --slices of 1 MiB, by all threads--> stage k % n_stages --send, piece by piece--> device
 *
 * A piece is what one stage holds. Slices are taken in the order in which pieces were put, so that a disk is read
 * forwards; while a piece is sent, those behind it are filled. Whoever fills a piece's last slice sends it, and what is
 * filled behind it: the device need not wait until a certain thread wakes up. Instead of waiting for others to fill, the
 * putting thread fills slices, too; so no thread but it is needed.
 *
 * The ring knows no device: struct load_target does. Codes of target are its own, 0 is success; after the first other
 * one nothing more is sent, and take and drain give it.
 *
 * Owns    its threads. Stages and target are the caller's, and stay.
 * Thread  the putting thread, one; send: any, never two at once, each after what came before it.
 * Errors  RD_E_NOMEM from create, which takes fewer threads where they are refused.
 * Faults  a file cut short while it is mapped: file_map_watch() mends it in any thread; ask file_map_broken() after
 *         drain.
 */
#pragma once
#include <stdint.h>
#include "radish/status.h"

struct load_ring;

struct load_target {
    int (*send)(void *arg, uint32_t stage, uint64_t n_bytes); /* the stage is filled; it must return soon */
    int (*wait)(void *arg, uint32_t stage);                   /* returns when what was sent of it has been read */
    void *arg;
};

#ifndef LOAD_SLICE_BYTES /* tests/sched has small ones */
#define LOAD_SLICE_BYTES (1u << 20)
#endif

/* stages [n_stages]: a piece has no more bytes than each of them. n_threads: beside the putting one, 0 is fine. */
rd_status load_ring_create(char *const *stages, uint32_t n_stages, uint32_t n_threads, const struct load_target *target,
                           struct load_ring **out);
/* Pieces that are not sent yet are dropped: drain first. NULL is fine. */
void load_ring_destroy(struct load_ring *ring);

/* Waits until the next stage may be filled again; *stage is the one that the next put goes to. */
int load_ring_take(struct load_ring *ring, uint32_t *stage);
/* After take. The bytes stay until drain. n_bytes > 0. */
void load_ring_put(struct load_ring *ring, const void *bytes, uint64_t n_bytes);
/* Waits until every piece is sent (not until it has been read on the device). */
int load_ring_drain(struct load_ring *ring);
uint32_t load_ring_n_threads(const struct load_ring *ring);
