"""Strings that tokenizers disagree about: the same 5,000 for the same seed and added tokens.

for text in hard_strings(added): ...        added: the contents of the tokenizer's added tokens
"""

import random

WORDS = """the of and to in is that it for was hello world internationalization Straße naïve façade coöperate don't I'll we've
they're it's SHE'S can'T o'clock foo_bar fooBar HTTPServer XMLHttpRequest snake_case CamelCase __init__ 3.14159 1,234,567 0xDEADBEEF
2024-01-31T12:34:56Z user@example.com https://example.com/a?b=c&d=%20e C:\\path\\file \\n <div class="x"> </div> {"a":[1,2]} #include
std::vector<int> a->b !=== ... --- ***bold*** `code` $x^2$ \u201cquoted\u201d l\u2019été \u017fs '\u017f 'LL 're'VE""".split()
SCRIPTS = [
    "中文字符测试语言模型你好世界",
    "ひらがなカタカナ漢字・ー゛",
    "한국어형태소분석가각힣",
    "русскийязыкпривет",
    "ελληνικάΣίσυφος",
    "العربيةمرحبابالعالم",
    "עבריתשלום",
    "हिन्दीनमस्ते",
    "ไทยสวัสดี",
    "தமிழ்",
    "ខ្មែរ",
    "ქართული",
    "Հայերեն",
    "አማርኛ",
    "ⅣⅫ½²³①㊿",
    "ǅǈΐΰﬁﬂſ",
    "ﾊﾝｶｸＡＢＣ１２３",
    "᠎ᠮᠣᠩ",
    "𝒜𝓑𝔠𝟘𝟙",
    "𠀀𠮷𪚥",
    "İıŞşĞğ",
    "ộệửữậ",
]
EMOJI = ["😀", "👨‍👩‍👧‍👦", "🇩🇪", "👍🏽", "❤️", "🏳️‍🌈", "1️⃣", "☃", "™", "€", "£", "→", "∑", "█", "■"]
MARKS = [
    "\u0301",
    "\u0300",
    "\u0327",
    "\u0323",
    "\u20dd",
    "\u0345",
    "\u093f",
    "\u094d",
    "\u064b",
    "\u05b0",
    "\u3099",
    "\u1161",
    "\u11a8",
]
SPACES = [
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\r\n",
    "\n\n",
    " \n",
    "\n ",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u200b",
    "\u2028",
    "\u0085",
    "\x0b",
    "\x0c",
    "\u180e",
    "\ufeff",
    "\u1680",
    " " * 17,
    "\n" * 9,
    "\t\t\t",
]
CONTROLS = [
    "\x00",
    "\x01",
    "\x1b[0m",
    "\x7f",
    "\x1c",
    "\u00ad",
    "\u200d",
    "\u2060",
    "\ufffd",
    "\ufffe",
    "\U0010ffff",
    "\ue000",
    "\u0378",
]
PUNCT = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + [
    "¿",
    "¡",
    "…",
    "—",
    "«",
    "»",
    "。",
    "、",
    "「",
    "」",
    "‰",
    "§",
    "▁",
    "▁▁",
    "Ġ",
    "Ċ",
    "##",
    "</w>",
]
LOOKALIKES = [
    "<0x41>",
    "<0xE4>",
    "<unk>",
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|",
    "<|endoftext|>",
    "<bos>",
    "[INST]",
    "<|begin_of_text|>",
    "<｜User｜>",
    "<｜begin▁of▁sentence｜>",
    "<think>",
    "<|",
    "|>",
    "<unused5>",
    "[UNK]",
    "[CLS]",
]
LONG = [
    "a",
    "ab",
    "1",
    " ",
    "\n",
    "é",
    "e\u0301",
    "中",
    "-",
    "=",
    "A",
    "aA",
    "!?",
    "\u0300",
    "😀",
    "x ",
    " x",
    "0 ",
    "ha",
]


def char(r):
    kind = r.randrange(8)
    if kind == 0:
        return r.choice(r.choice(SCRIPTS))
    if kind == 1:
        return chr(r.randrange(0x20, 0x7F))
    if kind == 2:
        return chr(r.randrange(0x80, 0x250))
    if kind == 3:
        cp = r.randrange(0x250, 0x3100)
        return chr(cp)
    if kind == 4:
        return r.choice(MARKS)
    if kind == 5:
        return r.choice(SPACES)
    if kind == 6:
        return r.choice(CONTROLS + EMOJI)
    return r.choice(PUNCT)


def piece(r, added):
    kind = r.randrange(11)
    if kind < 3:
        return r.choice(WORDS)
    if kind == 3:
        script = r.choice(SCRIPTS)
        return "".join(r.choice(script) for _ in range(r.randrange(1, 8)))
    if kind == 4:
        return str(r.randrange(10 ** r.randrange(1, 12)))
    if kind == 5:
        return r.choice(PUNCT) * r.randrange(1, 4)
    if kind == 6:
        return r.choice(EMOJI + CONTROLS)
    if kind == 7:
        return "".join(char(r) for _ in range(r.randrange(1, 6)))
    if kind == 8:
        return r.choice(added) if added and r.randrange(2) else r.choice(LOOKALIKES)
    if kind == 9:
        return r.choice("aeiouAEOnN中の") + r.choice(MARKS) * r.randrange(1, 3)
    word = r.choice(WORDS)
    return r.choice([word.upper(), word.capitalize(), word[::-1], word + "'s", word.swapcase()])


def one(r, added, i):
    if i < len(SPACES):
        return SPACES[i]
    if i % 50 == 0:
        return r.choice(LONG) * r.randrange(2, 700)
    if i % 50 == 1:
        return "".join(char(r) for _ in range(r.randrange(200, 800)))
    if i % 10 == 3 and added:
        text = r.choice(added)
        return text[: r.randrange(len(text)) + 1] + r.choice(["", " ", "x"]) + r.choice(added) + piece(r, added)
    parts = []
    for _ in range(r.randrange(1, 14)):
        parts.append(piece(r, added))
        parts.append(r.choice(SPACES) if r.randrange(5) == 0 else r.choice(["", " "]))
    return "".join(parts)


def hard_strings(added, n=5000, seed=20261121):
    """None holds a surrogate. The first few dozen are short."""
    r = random.Random(seed)
    return ["", *(one(r, added, i) for i in range(n - 1))]
