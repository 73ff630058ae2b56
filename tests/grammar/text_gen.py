"""Random strings and numbers for values of schemas: any text, texts of a pattern, of a format; numbers of all sizes."""

import ipaddress
import re._constants as op
import re._parser
import string
import uuid

LETTERS = string.ascii_letters + string.digits
ALPHABETS = [
    LETTERS,
    string.printable,
    " \"\\/\b\f\n\r\t\x00\x1f\x7f{}[]:,'",
    "aé€ß\u0301\u2028\u2029\ufeff\uffff日本語",
    "😀👍🏽\U0010ffff\U00010000x",
]


def any_text(rng, low=0, high=None):
    n = rng.choice([0, 1, 2, 3, 5, 8, 13, 40]) if high is None else rng.randint(low, min(high, low + 40))
    alphabet = rng.choice(ALPHABETS)
    return "".join(rng.choice(alphabet) for _ in range(max(n, low)))


def any_number(rng):
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice([-1, 1]) * rng.randrange(10 ** rng.randrange(1, 22))
    if kind == 1:
        return round(rng.uniform(-1000, 1000), rng.randrange(5))
    if kind == 2:
        return rng.uniform(-1, 1) * 10.0 ** rng.randrange(-30, 30)
    return rng.choice([0, 1, -1, 0.5, -0.0, 1e16, 1e-7, 2**53, 2**63, 255, 100])


def of_pattern(rng, pattern):
    """A text that matches, as far as its parts can be followed; whoever asks checks it."""
    try:
        return "".join(parts(rng, re._parser.parse(pattern)))
    except (re.error, KeyError):
        return ""


def parts(rng, parsed):
    for kind, arg in parsed:
        if kind == op.LITERAL:
            yield chr(arg)
        elif kind in (op.ANY, op.NOT_LITERAL):
            yield rng.choice(LETTERS + " é日😀-")
        elif kind == op.IN:
            yield one_of(rng, arg)
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            low, high, inner = arg
            for _ in range(rng.randint(low, min(high, low + rng.choice([0, 1, 2, 5])))):
                yield from parts(rng, inner)
        elif kind == op.BRANCH:
            yield from parts(rng, rng.choice(arg[1]))
        elif kind == op.SUBPATTERN:
            yield from parts(rng, arg[-1])


def one_of(rng, choices):
    if choices[0][0] == op.NEGATE:
        refused = re.compile("[%s]" % "".join(spelling(c) for c in choices[1:]))
        return next(c for c in iter(lambda: rng.choice(LETTERS + " é日-_.:/"), None) if not refused.match(c))
    kind, arg = rng.choice(choices)
    if kind == op.LITERAL:
        return chr(arg)
    if kind == op.RANGE:
        return chr(rng.randint(*arg))
    return rng.choice({op.CATEGORY_DIGIT: string.digits, op.CATEGORY_SPACE: " \t"}.get(arg, LETTERS))


def spelling(choice):
    kind, arg = choice
    if kind == op.LITERAL:
        return re.escape(chr(arg))
    if kind == op.RANGE:
        return "%s-%s" % (re.escape(chr(arg[0])), re.escape(chr(arg[1])))
    return {op.CATEGORY_DIGIT: "\\d", op.CATEGORY_SPACE: "\\s", op.CATEGORY_WORD: "\\w"}[arg]


def of_format(rng, name):
    """As the grammars of formats have them (docs/structured-output.md); None: no format that is made here."""
    label = lambda: rng.choice(string.ascii_lowercase) + any_of(rng, string.ascii_lowercase + string.digits, 0, 8)
    host = lambda: ".".join(label() for _ in range(rng.randint(1, 3)))
    date = lambda: "%04d-%02d-%02d" % (rng.randint(1, 9999), rng.randint(1, 12), rng.randint(1, 28))
    zone = lambda: rng.choice(["Z", "+00:00", "-12:30", "+%02d:%02d" % (rng.randrange(24), rng.randrange(60))])
    part = lambda: rng.choice(["", "." + any_of(rng, string.digits, 1, 9)])
    time = lambda: "%02d:%02d:%02d%s%s" % (rng.randrange(24), rng.randrange(60), rng.randrange(60), part(), zone())
    path = lambda: "".join("/" + any_of(rng, LETTERS + "-._~", 0, 6) for _ in range(rng.randrange(4)))
    query = lambda: rng.choice(["", "?a=%d&b=%%20" % rng.randrange(99)]) + rng.choice(["", "#x-1"])
    makers = {
        "date": date,
        "time": time,
        "date-time": lambda: date() + "T" + time(),
        "email": lambda: any_of(rng, LETTERS + "_+-", 1, 9) + rng.choice(["", ".b"]) + "@" + host(),
        "uuid": lambda: str(uuid.UUID(int=rng.getrandbits(128))),
        "ipv4": lambda: str(ipaddress.IPv4Address(rng.getrandbits(32))),
        "ipv6": lambda: str(ipaddress.IPv6Address(rng.choice([1, rng.getrandbits(128), rng.getrandbits(40)]))),
        "uri": lambda: rng.choice(["http", "https", "ftp+x"]) + "://" + host() + path() + query(),
        "url": lambda: "https://" + host() + path() + query(),
        "hostname": host,
        "duration": lambda: rng.choice(["P%dD", "PT%dH", "P%dW", "P1Y2M%dD", "PT1M%dS"]) % rng.randrange(100),
    }
    return makers[name]() if name in makers else None


def any_of(rng, alphabet, low, high):
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(low, high)))
