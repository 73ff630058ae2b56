"""Writes src/text/char_class_table.c: what tokenizer.json's components think of each code point.

    python make_char_class.py ../../../src/text/char_class_table.c

Asked of the `tokenizers` package itself, since its parts carry Unicode versions of their own: general categories from
its regular expressions (Unicode 16.0 in 0.23), punctuation and marks from the normalizers and pre-tokenizers.
"""

import sys

from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
PUNCTUATION, MARK, NONSPACING = 32, 64, 128
BLOCK = 128
POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def removed_by(normalizer):
    gone = set()
    for i in range(0, len(POINTS), 8192):
        part = POINTS[i : i + 8192]
        left = set(normalizer.normalize_str("".join(map(chr, part))))
        gone |= {c for c in part if chr(c) not in left}
    return gone


def punctuation():
    split, found = pre_tokenizers.Punctuation("isolated"), set()
    for i in range(0, len(POINTS), 2048):
        text = "".join("a" + chr(c) + "a" for c in POINTS[i : i + 2048])
        found |= {ord(piece) for piece, _ in split.pre_tokenize_str(text) if len(piece) == 1} - {ord("a")}
    return found


def marks(normalizer):
    return {c for c in POINTS if normalizer.normalize_str("a" + chr(c)) == "a"}


def rows(values):
    line = "   "
    for v in values:
        if len(line) + len(str(v)) + 2 > 118:
            yield line
            line = "   "
        line += f" {v},"
    yield line


def main(path):
    table = bytearray(0x110000)
    for i, name in enumerate(CATEGORIES):
        for c in removed_by(normalizers.Replace(Regex(r"\p{%s}" % name), "")):
            table[c] = i
    bert = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    old = bytes(table)
    flags = [(PUNCTUATION, punctuation()), (MARK, marks(normalizers.StripAccents())), (NONSPACING, marks(bert))]
    for flag, points in flags:
        for c in points:
            table[c] |= flag
    assert bytes(v & 31 for v in table) == old
    blocks, index = {}, []
    for i in range(0, len(table), BLOCK):
        index.append(blocks.setdefault(bytes(table[i : i + BLOCK]), len(blocks)))
    with open(path, "w") as out:
        out.write(
            "/* text/char_class_table.c - written by tests/golden/tokenizer/make_char_class.py; not by hand.\n"
            " *\n * Unicode 16.0 categories and flags in blocks of 128 code points: text/char_class.h. */\n"
            '#include "text/char_class.h"\n\n/* clang-format off */\n'
        )
        out.write("const uint16_t char_class_index[CHAR_CLASS_BLOCKS] = {\n")
        out.write("\n".join(rows(index)) + "\n};\n\n")
        out.write(f"const uint8_t char_class_blocks[][CHAR_CLASS_BLOCK] = {{\n")
        for block in blocks:
            out.write("{\n" + "\n".join(rows(block)) + "\n},\n")
        out.write("};\n")


main(sys.argv[1])
