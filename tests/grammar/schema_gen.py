"""Random schemas, and values made for a schema: valid ones as far as a simple maker can, and mutated ones."""

import copy
import json
import random
import string

import text_gen

WORDS = ["id", "name", "kind", "tags", "größe", "x y", 'a"b', "count", "nested", "z"]
TEXTS = [
    "",
    "a",
    "ab",
    "abc",
    "hello world",
    "ünï",
    "line\nbreak",
    'q"uote',
    "back\\slash",
    "\t",
    "0",
    "2024-02-29",
    "日本",
]
PATTERNS = {
    "^[a-z]+$": ["a", "abc", "zz"],
    "^[A-Z]{2,3}-\\d+$": ["AB-1", "XYZ-42"],
    "\\d": ["a1", "7", "x9y"],
    "^(foo|bar)": ["foo", "barn", "foo bar"],
    "^.{1,4}$": ["a", "abcd", 'é"\\'],
    "^[^\\s@]+@[^\\s@]+$": ["a@b", "me@x.org"],
    "^(?=.*[0-9]).{2,}$": ["a1", "12", "abc9"],
}


def number(rng):
    return rng.choice(
        [0, 1, -1, 2, 3, 5, 7, 10, 12, 25, 99, 100, 101, -7, 1000, 0.5, 1.5, -2.25, 0.1, 3.14, 99.99, 1e6]
    )


def scalar(rng):
    return rng.choice(
        [None, True, False, number(rng), rng.choice(TEXTS), text_gen.any_text(rng), text_gen.any_number(rng)]
    )


def value(rng, depth=0):
    kind = rng.random()
    if depth < 3 and kind < 0.15:
        return [value(rng, depth + 1) for _ in range(rng.randrange(3))]
    if depth < 3 and kind < 0.35:
        return {rng.choice(WORDS): value(rng, depth + 1) for _ in range(rng.randrange(3))}
    return scalar(rng)


def schema(rng, depth=0):
    """A schema of the keywords that radish has."""
    if depth > 3 or rng.random() < 0.05:
        return rng.choice([True, {}, {"type": "string"}, {"type": "integer"}, {"type": "null"}])
    kind = rng.randrange(13)
    sub = lambda: schema(rng, depth + 1)
    if kind == 0:
        return {"enum": [value(rng) for _ in range(rng.randrange(1, 5))]}
    if kind == 1:
        return {"const": value(rng)}
    if kind == 2:
        s = {"type": "string"}
        low = rng.randrange(4)
        if rng.random() < 0.5:
            s["minLength"] = low
        if rng.random() < 0.5:
            s["maxLength"] = low + rng.randrange(5)
        if rng.random() < 0.5:
            s["pattern"] = rng.choice(list(PATTERNS))
        return s
    if kind in (3, 4):
        s = {"type": rng.choice(["integer", "number", ["integer", "null"]])}
        low, high = sorted([number(rng), number(rng)])
        if rng.random() < 0.6:
            s[rng.choice(["minimum", "exclusiveMinimum"])] = low
        if rng.random() < 0.6:
            s[rng.choice(["maximum", "exclusiveMaximum"])] = high
        if rng.random() < 0.2:
            s["multipleOf"] = rng.choice([1, 2, 3, 5, 7, 10])
        return s
    if kind in (5, 6, 7):
        names = rng.sample(WORDS, rng.randrange(4))
        s = {"type": "object", "properties": {n: sub() for n in names}}
        if names and rng.random() < 0.7:
            s["required"] = rng.sample(names, rng.randrange(1, len(names) + 1))
        if rng.random() < 0.1:
            s.setdefault("required", []).append("extra")
        choice = rng.random()
        if choice < 0.5:
            s["additionalProperties"] = False
        elif choice < 0.65:
            s["additionalProperties"] = sub()
        if rng.random() < 0.15:
            s["patternProperties"] = {rng.choice(["^x", "^[a-z]+$", "\\d"]): sub()}
        if rng.random() < 0.1:
            s["maxProperties"] = rng.randrange(1, 4)
        if rng.random() < 0.1:
            s["minProperties"] = 1
        if rng.random() < 0.1:
            s["propertyNames"] = {"maxLength": 5}
        if names and rng.random() < 0.1:
            s["dependentRequired"] = {names[0]: [rng.choice(WORDS)]}
        if rng.random() < 0.1:
            del s["type"]
        return s
    if kind in (8, 9):
        s = {"type": "array"}
        if rng.random() < 0.4:
            s["prefixItems"] = [sub() for _ in range(rng.randrange(1, 3))]
        if rng.random() < 0.7:
            s["items"] = sub()
        low = rng.randrange(3)
        if rng.random() < 0.4:
            s["minItems"] = low
        if rng.random() < 0.4:
            s["maxItems"] = low + rng.randrange(3)
        if rng.random() < 0.1:
            s["contains"] = sub()
        if rng.random() < 0.1:
            s["items"] = {"enum": [1, "a", None]}
            s["uniqueItems"] = True
            s.pop("prefixItems", None)
        return s
    if kind == 10:
        return {rng.choice(["anyOf", "oneOf"]): [sub() for _ in range(rng.randrange(1, 4))]}
    if kind == 11:
        a, b = sub(), sub()
        return rng.choice([{"allOf": [a, b]}, {"not": a, "type": "string"}, {"if": a, "then": b, "else": sub()}])
    return {"type": rng.sample(["string", "integer", "number", "boolean", "null", "array", "object"], 2)}


def make(rng, s, root, depth=0):
    """A value that is likely to be valid."""
    if s is True or not isinstance(s, dict) or depth > 8:
        return scalar(rng) if depth > 3 else value(rng)
    if "$ref" in s:
        target = root
        for part in s["$ref"].lstrip("#").split("/")[1:]:
            target = target[part.replace("~1", "/").replace("~0", "~")]
        return make(rng, target, root, depth + 1)
    if "const" in s:
        return copy.deepcopy(s["const"])
    if "enum" in s:
        return copy.deepcopy(rng.choice(s["enum"]))
    for word in ("anyOf", "oneOf"):
        if word in s:
            way = rng.choice(s[word])
            rest = {k: v for k, v in s.items() if k != word}
            if isinstance(way, dict) and rest:
                return make(rng, merged(rest, way), root, depth + 1)
            return make(rng, way, root, depth + 1)
    if "allOf" in s:
        rest = {k: v for k, v in s.items() if k != "allOf"}
        for part in s["allOf"]:
            while isinstance(part, dict) and "$ref" in part and len(part) == 1:
                target = root
                for step in part["$ref"].lstrip("#").split("/")[1:]:
                    target = target[step]
                part = target
            if isinstance(part, dict):
                rest = merged(rest, part)
        return make(rng, rest, root, depth + 1)
    if "then" in s and isinstance(s.get("if"), dict) and rng.random() < 0.5:
        rest = {k: v for k, v in s.items() if k not in ("if", "then", "else")}
        rest = merged(rest, s["if"])
        return make(rng, merged(rest, s["then"]) if isinstance(s["then"], dict) else rest, root, depth + 1)
    kind = s.get("type")
    if isinstance(kind, list):
        kind = rng.choice(kind)
    if kind is None:
        kind = guess(rng, s)
    return of_type(rng, s, kind, root, depth)


def merged(a, b):
    out = dict(a)
    for k, v in b.items():
        if k == "properties" and k in out:
            out[k] = {**out[k], **v}
        elif k == "required" and k in out:
            out[k] = list(dict.fromkeys(out[k] + v))
        else:
            out[k] = v
    return out


def guess(rng, s):
    if "properties" in s or "required" in s or "additionalProperties" in s:
        return "object"
    if "items" in s or "prefixItems" in s:
        return "array"
    if "minimum" in s or "maximum" in s:
        return "number"
    if "pattern" in s or "minLength" in s or "format" in s:
        return "string"
    return rng.choice(["string", "integer", "null", "boolean", "object", "array"])


FORMATS = {
    "date": ["2024-02-29", "1999-12-31"],
    "time": ["12:00:00Z", "23:59:59.5+01:00"],
    "date-time": ["2024-02-29T12:00:00Z", "1999-12-31T23:59:59.999-05:00"],
    "email": ["a.b+c@example.org", "joe@example.com"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "ipv4": ["127.0.0.1", "255.255.255.255"],
    "ipv6": ["::1", "2001:db8::8a2e:370:7334"],
    "uri": ["https://example.org/a?b=c#d", "urn:isbn:1"],
    "url": ["https://example.org/a?b=c"],
    "hostname": ["example.org", "localhost"],
    "duration": ["P1D", "PT2H30M"],
}


def of_type(rng, s, kind, root, depth):
    if kind == "null":
        return None
    if kind == "boolean":
        return rng.random() < 0.5
    if kind in ("integer", "number"):
        return a_number(rng, s, kind)
    if kind == "string":
        if "format" in s and s["format"] in FORMATS:
            return rng.choice(FORMATS[s["format"]]) if rng.random() < 0.2 else text_gen.of_format(rng, s["format"])
        low, high = s.get("minLength", 0), s.get("maxLength", s.get("minLength", 0) + 8)
        if "pattern" in s:
            return example_of(rng, s["pattern"])
        if rng.random() < 0.8:
            return text_gen.any_text(rng, low, s.get("maxLength"))
        text = rng.choice(TEXTS)
        while len(text) < low:
            text += rng.choice(string.ascii_letters + 'é"\\/\n ')
        return text[:high]
    if kind == "array":
        prefix = s.get("prefixItems", [])
        rest = s.get("items", True)
        low, high = s.get("minItems", 0), s.get("maxItems", s.get("minItems", 0) + 3)
        n = rng.randrange(low, high + 1) if high >= low else low
        if rest is False:
            n = min(n, len(prefix))
        out = [make(rng, prefix[i] if i < len(prefix) else rest, root, depth + 1) for i in range(n)]
        if "contains" in s and out:
            out[-1] = make(rng, s["contains"], root, depth + 1)
        if s.get("uniqueItems"):
            seen = []
            out = [x for x in out if json.dumps(x) not in seen and not seen.append(json.dumps(x))]
        return out
    out = {}
    for name, part in s.get("properties", {}).items():
        if part is not False and (name in s.get("required", []) or rng.random() < (0.6 if depth < 3 else 0.2)):
            out[name] = make(rng, part, root, depth + 1)
    for name in s.get("required", []):
        if name not in out:
            out[name] = make(rng, s.get("additionalProperties", True), root, depth + 1)
    more = s.get("additionalProperties", True)
    if more is not False and rng.random() < 0.3:
        name = rng.choice(WORDS)
        if name not in s.get("properties", {}):
            out[name] = make(rng, more, root, depth + 1)
    for pattern, part in s.get("patternProperties", {}).items():
        if rng.random() < 0.5:
            out[example_of(rng, pattern)] = make(rng, part, root, depth + 1)
    return out


def a_number(rng, s, kind):
    low = s.get("minimum", s.get("exclusiveMinimum", -1000))
    high = s.get("maximum", s.get("exclusiveMaximum", max(low, 0) + 1000))
    step = s.get("multipleOf", 1)
    if kind == "integer" or step != 1:
        v = rng.randint(int(low), max(int(low), int(high)))
        return v - v % step if isinstance(step, int) else round(v - v % step, 6)
    return rng.choice([low, high, rng.uniform(low, high), round(rng.uniform(low, high), 2)])


EXAMPLES = {"^x": ["x", "x-y", "xyz"], "^[a-z]+$": ["abc", "id"], "\\d": ["a1", "7"], "^[a-z_]+$": ["ab_c"]}


def example_of(rng, pattern):
    if rng.random() < 0.7:
        return text_gen.of_pattern(rng, pattern)
    if pattern in PATTERNS:
        return rng.choice(PATTERNS[pattern])
    return rng.choice(EXAMPLES.get(pattern, TEXTS))


def mutated(rng, v):
    """v with one small change."""
    v = copy.deepcopy(v)
    if isinstance(v, dict) and v:
        name = rng.choice(list(v))
        choice = rng.random()
        if choice < 0.3:
            del v[name]
        elif choice < 0.7:
            v[name] = mutated(rng, v[name])
        else:
            v[rng.choice(WORDS)] = scalar(rng)
        return v
    if isinstance(v, list) and v and rng.random() < 0.8:
        i = rng.randrange(len(v))
        choice = rng.random()
        if choice < 0.3:
            del v[i]
        elif choice < 0.7:
            v[i] = mutated(rng, v[i])
        else:
            v.append(scalar(rng))
        return v
    if isinstance(v, bool) or v is None:
        return scalar(rng)
    if isinstance(v, (int, float)):
        return rng.choice([v + 1, v - 1, -v, v * 10, v + 0.5, str(v)])
    if isinstance(v, str):
        return rng.choice([v + "x", v[:-1], v.upper(), v + "é", "", 0])
    return scalar(rng)


def ordered(v):
    return json.dumps(v, ensure_ascii=False)


def seeded(seed):
    return random.Random(seed)
