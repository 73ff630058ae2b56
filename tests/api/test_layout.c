/* tests/api/test_layout.c - structs that begin with their size grow at their end alone (radish/radish.h): a program that was built
 * with another version finds every member that it knows where it was. Where the last ones of 2026-11-27 are, on 64-bit systems;
 * one that is moved by a new member before it belongs back, and the new one behind it.
 */
#include <stddef.h>
#include <stdio.h>
#include "radish/flat.h"
#include "radish/radish.h"
#include "radish/train.h"
#include "test.h"

#define LAST(s, member, at)                                                                                            \
    {                                                                                                                  \
#s "." #member, offsetof(struct s, member), at                                                                 \
    }

TEST(members_are_added_at_the_end)
{
    static const struct {
        const char *name;
        size_t is_at, was_at;
    } members[] = {
        LAST(rd_backend_info, images, 912),
        LAST(rd_options, cancelled, 432),
        LAST(rd_info, on_host, 737),
        LAST(rd_convert_options, cancelled, 64),
        LAST(rd_request_options, parse_special, 464),
        LAST(rd_usage, images_ready_ms, 128),
        LAST(rd_event, usage, 248),
        LAST(rd_classify_item, status, 60),
        LAST(rd_stats, encoder_ms, 1672),
        LAST(rd_memory, library_limit_bytes, 56),
        LAST(rd_cache_explanation, stored, 352),
        LAST(rd_sampling, n_bad_words, 168),
        LAST(rd_trainer_options, device, 152),
        LAST(rd_train_options, progress_user, 288),
        LAST(rd_train_summary, max_tokens, 76),
        LAST(rd_flat_info, backend, 73),
    };

    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
        if (members[i].is_at != members[i].was_at) fprintf(stderr, "%s has moved\n", members[i].name);
        CHECK_EQ(members[i].is_at, members[i].was_at);
    }
}
