"""Small tokenizer.json files, one per component and flag, and random combinations of them.

for name, config in component_cases(): ...
"""

import random

CHARS = [chr(c) for c in range(0x21, 0x7F)] + list("éüßÀ中文字▁ĠĊčąĠ１２")
BYTES = [f"<0x{b:02X}>" for b in range(256)]


def alphabet():
    """byte -> character, as GPT-2's encoder has it."""
    prints = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table, other = {}, 0x100
    for b in range(256):
        if b in prints:
            table[b] = chr(b)
        else:
            table[b] = chr(other)
            other += 1
    return table


def merges_of(words, r, n):
    """Merges over characters, made by joining random neighbours in words; the vocabulary that they need."""
    merges, made = [], []
    for _ in range(n):
        parts = list(r.choice(words))
        for merge in merges:
            i = 0
            while i + 1 < len(parts):
                if (parts[i], parts[i + 1]) == merge:
                    parts[i : i + 2] = [parts[i] + parts[i + 1]]
                i += 1
        if len(parts) > 1:
            i = r.randrange(len(parts) - 1)
            merge = (parts[i], parts[i + 1])
            if merge not in merges:
                merges.append(merge)
                made.append(merge[0] + merge[1])
    return merges, list(dict.fromkeys(made))


def vocab(*groups):
    return {t: i for i, t in enumerate(dict.fromkeys(t for g in groups for t in g))}


def bpe(r, words=("▁hello", "▁world", "▁the", "ing", "tion", "中文", "1234", "▁▁▁", "hello"), **options):
    merges, made = merges_of(words, r, 60)
    if r.randrange(3) == 0:
        r.shuffle(merges)
    texts = [*CHARS, *made]
    if options.get("byte_fallback"):
        texts += BYTES
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **options,
        "vocab": vocab(["<unk>"], texts),
        "merges": [list(m) for m in merges] if r.randrange(2) else [" ".join(m) for m in merges],
    }
    return model


def byte_bpe(r, **options):
    table = alphabet()
    words = [
        "".join(table[b] for b in w.encode())
        for w in [" hello", " world", " the", "ing", "tion", "中文", "1234", "   ", "\n\n", "é"]
    ]
    merges, made = merges_of(words, r, 60)
    return {
        "type": "BPE",
        **options,
        "vocab": vocab(table.values(), made, words[:3]),
        "merges": [list(m) for m in merges],
    }


def suffix_bpe(r):
    texts = [
        "a",
        "b",
        "c",
        "ab",
        "##b",
        "##c",
        "##a",
        "a</w>",
        "##b</w>",
        "##c</w>",
        "b</w>",
        "ab</w>",
        "abc</w>",
        "##bc",
        "##bc</w>",
        "abc",
    ]
    merges = [
        ["a", "##b"],
        ["a", "##b</w>"],
        ["##b", "##c"],
        ["##b", "##c</w>"],
        ["a", "##bc</w>"],
        ["ab", "##c</w>"],
        ["ab", "##c"],
    ]
    return {
        "type": "BPE",
        "unk_token": "<unk>",
        "continuing_subword_prefix": "##",
        "end_of_word_suffix": "</w>",
        "fuse_unk": bool(r.randrange(2)),
        "vocab": vocab(["<unk>"], texts),
        "merges": merges,
    }


def unigram(r, byte_fallback=False):
    words = [
        "▁",
        "▁hello",
        "▁world",
        "hello",
        "he",
        "ll",
        "lo",
        "o",
        "w",
        "or",
        "ld",
        "▁the",
        "ing",
        "中",
        "文",
        "中文",
        "1",
        "12",
        "▁▁",
        "é",
        "e",
        "h",
        "l",
        "t",
        "a",
        "n",
        "g",
    ] + list("bcdfikmpqrsuvxyz.,!?'-23456789ABC")
    if byte_fallback:
        words += BYTES
    words = list(dict.fromkeys(words))
    return {
        "type": "Unigram",
        "unk_id": 0,
        "byte_fallback": byte_fallback,
        "vocab": [["<unk>", 0.0], *([w, round(-r.random() * 12, 3)] for w in words)],
    }


def word_piece(r):
    words = [
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "hello",
        "world",
        "un",
        "##aff",
        "##able",
        "the",
        "##s",
        ",",
        ".",
        "!",
        "'",
        "中",
        "文",
        "a",
        "##b",
        "##c",
        "i",
        "##t",
        "##ing",
        "1",
        "##2",
        "##34",
        "e",
        "##e",
        "cafe",
        "naive",
        "do",
        "not",
        "don",
        "t",
    ]
    return {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": r.choice([100, 6]),
        "vocab": vocab(words),
    }


def word_level(r):
    return {
        "type": "WordLevel",
        "unk_token": "<unk>",
        "vocab": vocab(["<unk>", "hello", "world", "the", "▁hello", ",", "中", "12", " ", "a"]),
    }


NORMALIZERS = [
    None,
    *({"type": t} for t in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt")),
    {"type": "Strip", "strip_left": True, "strip_right": False},
    {"type": "Strip", "strip_left": False, "strip_right": True},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    {"type": "Replace", "pattern": {"Regex": "\\s+$"}, "content": ""},
    {"type": "Prepend", "prepend": "▁"},
    *(
        {"type": "BertNormalizer", "clean_text": a, "handle_chinese_chars": b, "strip_accents": c, "lowercase": d}
        for a, b, c, d in ((True, True, None, True), (False, False, True, False), (True, False, None, False))
    ),
    {"type": "ByteLevel"},
]
# Strip and ByteLevel beside other normalizers make the `tokenizers` package (0.23) take all memory for some strings.
SAFE_NORMALIZERS = [n for n in NORMALIZERS if not n or n["type"] not in ("Strip", "ByteLevel")]
BEHAVIOURS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
SPLITTERS = [
    None,
    {"type": "Whitespace"},
    {"type": "WhitespaceSplit"},
    {"type": "BertPreTokenizer"},
    {"type": "CharDelimiterSplit", "delimiter": "-"},
    *({"type": "Digits", "individual_digits": b} for b in (True, False)),
    {"type": "FixedLength", "length": 3},
    *({"type": "Punctuation", "behavior": b} for b in BEHAVIOURS),
    *(
        {"type": "Split", "pattern": p, "behavior": b, "invert": i}
        for b in BEHAVIOURS
        for i in (True, False)
        for p in ({"String": " "}, {"Regex": "\\d{1,2}|l+"}, {"Regex": "[^\\s\\p{L}]+|\\h"})
    ),
    *(
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": s, "split": b}
        for s in ("always", "first", "never")
        for b in (True, False)
    ),
    {
        "type": "Split",
        "pattern": {"Regex": "\\p{N}{1,3}+|(?i:HELLO)|[[:alpha:]]+?o"},
        "behavior": "Isolated",
        "invert": False,
    },
]
BYTE_LEVELS = [
    {"type": "ByteLevel", "add_prefix_space": a, "trim_offsets": True, "use_regex": u}
    for a in (True, False)
    for u in (True, False)
]
DECODERS = [
    None,
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "WordPiece", "prefix": "##", "cleanup": True},
    {"type": "WordPiece", "prefix": "##", "cleanup": False},
    {"type": "BPEDecoder", "suffix": "</w>"},
    *(
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": s, "split": True}
        for s in ("always", "first", "never")
    ),
    {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    },
    {"type": "Sequence", "decoders": [{"type": "Strip", "content": "▁", "start": 2, "stop": 1}, {"type": "Fuse"}]},
]
ADDED = ["<s>", "</s>", "<mask>", "[X]", "hello!", "ÀB", "   ", "<|a|>", "<|a|>b", "ing"]


def added_tokens(r, entries):
    """Ids as the `tokenizers` package gives them: the vocabulary's, else the next ones."""
    tokens = []
    known = entries if isinstance(entries, dict) else {text: i for i, (text, _) in enumerate(entries)}
    new = len(known)
    for text in r.sample(ADDED, r.randrange(0, 7)):
        number = known.get(text, new)
        new += number == new
        tokens.append(
            {
                "id": number,
                "content": text,
                "single_word": r.randrange(4) == 0,
                "lstrip": r.randrange(4) == 0,
                "rstrip": r.randrange(4) == 0,
                "normalized": bool(r.randrange(2)),
                "special": bool(r.randrange(2)),
            }
        )
    return tokens


def processor(r, tokens):
    if not tokens:
        return None
    one = lambda: r.choice(tokens)
    a, b = one(), one()
    kind = r.randrange(4)
    if kind == 0:
        return {"type": "BertProcessing", "sep": [b["content"], b["id"]], "cls": [a["content"], a["id"]]}
    if kind == 1:
        return {
            "type": "RobertaProcessing",
            "sep": [b["content"], b["id"]],
            "cls": [a["content"], a["id"]],
            "trim_offsets": True,
            "add_prefix_space": True,
        }
    special = {t["content"]: {"id": t["content"], "ids": [t["id"]], "tokens": [t["content"]]} for t in (a, b)}
    template = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": a["content"], "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": b["content"], "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": special,
    }
    if kind == 2:
        return template
    return {
        "type": "Sequence",
        "processors": [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
            template,
        ],
    }


def sequence(kind, key, items):
    items = [i for i in items if i]
    return {"type": "Sequence", key: items} if len(items) != 1 else items[0]


def component_cases(n_random=60, seed=11):
    r = random.Random(seed)
    models = [
        lambda: bpe(r),
        lambda: bpe(r, unk_token="<unk>"),
        lambda: bpe(r, unk_token="<unk>", fuse_unk=True),
        lambda: bpe(r, ignore_merges=True),
        lambda: bpe(r, unk_token="<unk>", byte_fallback=True, fuse_unk=True),
        lambda: byte_bpe(r),
        lambda: byte_bpe(r, ignore_merges=True),
        lambda: suffix_bpe(r),
        lambda: unigram(r),
        lambda: unigram(r, True),
        lambda: word_piece(r),
        lambda: word_level(r),
    ]

    def case(normalizer, splitter, decoder, model):
        tokens = added_tokens(r, model["vocab"])
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": tokens,
            "normalizer": normalizer,
            "pre_tokenizer": splitter,
            "post_processor": processor(r, tokens),
            "decoder": decoder,
            "model": model,
        }

    for i, model in enumerate(models):
        yield f"model{i}", case(None, r.choice(SPLITTERS[:4]), r.choice(DECODERS), model())
    for i, normalizer in enumerate(NORMALIZERS):
        yield f"normalizer{i}", case(normalizer, None, None, bpe(r, unk_token="<unk>", byte_fallback=True))
    for i, splitter in enumerate(SPLITTERS):
        yield f"splitter{i}", case(None, splitter, None, bpe(r, unk_token="<unk>", byte_fallback=True))
    for i, splitter in enumerate(BYTE_LEVELS):
        yield f"byte_level{i}", case(None, splitter, DECODERS[1], byte_bpe(r))
    for i, decoder in enumerate(DECODERS):
        yield f"decoder{i}", case(None, SPLITTERS[2], decoder, bpe(r, unk_token="<unk>", byte_fallback=True))
    for i in range(n_random):
        normalizer = sequence("normalizer", "normalizers", [r.choice(SAFE_NORMALIZERS) for _ in range(r.randrange(3))])
        chain = [r.choice(SPLITTERS) for _ in range(r.randrange(3))] + (
            [r.choice(BYTE_LEVELS)] if r.randrange(2) else []
        )
        if r.randrange(6) == 0:
            chain.reverse()
        yield (
            f"random{i}",
            case(normalizer, sequence("pre", "pretokenizers", chain), r.choice(DECODERS), r.choice(models)()),
        )
