/* engine/events/event_replay.c - what a client asks to be told again. */
#include "engine/events/event_socket.h"

bool event_replay_parse(const void *request, size_t n, uint64_t *first)
{
    const uint8_t *p = request;

    if (n != 8) return false;
    *first = 0;
    for (int i = 0; i < 8; i++) *first = *first << 8 | p[i];
    return true;
}
