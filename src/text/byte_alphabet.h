/* text/byte_alphabet.h - byte-level BPE's printable names for the 256 bytes (GPT-2's encoder).
 *
 * Bytes that are printable in Latin-1 are themselves, the 68 others are U+0100 .. U+0143 in order. Any thread.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

static inline bool byte_prints(uint32_t b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

/* byte -> code point of the alphabet. */
static inline uint32_t byte_alphabet_char(uint32_t b)
{
    if (byte_prints(b)) return b;
    if (b <= 0x20) return 0x100 + b;
    return b == 0xad ? 0x143 : 0x121 + b - 0x7f; /* 0x7f .. 0xa0 follow 0x00 .. 0x20, then 0xad */
}

/* code point -> byte, or -1. */
static inline int byte_alphabet_byte(uint32_t cp)
{
    if (cp < 0x100) return byte_prints(cp) ? (int)cp : -1;
    if (cp <= 0x120) return (int)(cp - 0x100);
    if (cp <= 0x142) return (int)(cp - 0x121 + 0x7f);
    return cp == 0x143 ? 0xad : -1;
}
