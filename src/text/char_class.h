/* text/char_class.h - the general category of a code point (Unicode 16.0), as tokenizers count it.
 *
 * One byte per code point: category in the low five bits, and three flags for the components of tokenizer.json that go
 * by older Unicode versions. Generated: tests/golden/tokenizer/make_char_class.py.
 * Thread  any thread: constant tables.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum char_category {
    CHAR_CN,
    CHAR_LU,
    CHAR_LL,
    CHAR_LT,
    CHAR_LM,
    CHAR_LO,
    CHAR_MN,
    CHAR_MC,
    CHAR_ME,
    CHAR_ND,
    CHAR_NL,
    CHAR_NO,
    CHAR_PC,
    CHAR_PD,
    CHAR_PS,
    CHAR_PE,
    CHAR_PI,
    CHAR_PF,
    CHAR_PO,
    CHAR_SM,
    CHAR_SC,
    CHAR_SK,
    CHAR_SO,
    CHAR_ZS,
    CHAR_ZL,
    CHAR_ZP,
    CHAR_CC,
    CHAR_CF,
    CHAR_CO
};
#define CHAR_CATEGORY_MASK    31u
#define CHAR_FLAG_PUNCTUATION 32u  /* Punctuation, BertPreTokenizer */
#define CHAR_FLAG_MARK        64u  /* StripAccents */
#define CHAR_FLAG_NONSPACING  128u /* BertNormalizer's strip_accents */

#define CHAR_CLASS_BLOCK  128
#define CHAR_CLASS_BLOCKS (0x110000 / CHAR_CLASS_BLOCK)
extern const uint16_t char_class_index[CHAR_CLASS_BLOCKS];
extern const uint8_t char_class_blocks[][CHAR_CLASS_BLOCK];

/* Sets of categories: bit c is category c. */
#define CHARS_LETTER ((uint32_t)0x1f << CHAR_LU)
#define CHARS_MARK   ((uint32_t)0x7 << CHAR_MN)
#define CHARS_NUMBER ((uint32_t)0x7 << CHAR_ND)
#define CHARS_PUNCT  ((uint32_t)0x7f << CHAR_PC)
#define CHARS_SYMBOL ((uint32_t)0xf << CHAR_SM)

/* Above U+10FFFF: unassigned. */
static inline uint8_t char_class_bits(uint32_t cp)
{
    return cp < 0x110000 ? char_class_blocks[char_class_index[cp / CHAR_CLASS_BLOCK]][cp % CHAR_CLASS_BLOCK] : CHAR_CN;
}

static inline bool char_in(uint32_t cp, uint32_t categories)
{
    return categories >> (char_class_bits(cp) & CHAR_CATEGORY_MASK) & 1;
}

/* White_Space. */
static inline bool char_is_space(uint32_t cp)
{
    if (cp < 0x80) return cp == ' ' || cp - 9 < 5;
    return cp == 0x85 || char_in(cp, (uint32_t)0x7 << CHAR_ZS);
}
