"""Values as texts that a grammar of a schema knows: members in the schema's order, as json.dumps writes them.

A member's place is that of its name among the `properties` of the schemas that apply there, then among what they only require,
then among the members of the value; whole numbers are written without a point or an exponent.
"""

import json
import re

import jsonschema

CHOICES = ("anyOf", "oneOf")


def target(root, ref):
    if not isinstance(ref, str) or not ref.startswith("#"):
        return True
    at = root
    for part in ref[1:].split("/")[1:]:
        part = part.replace("%25", "%").replace("%22", '"').replace("~1", "/").replace("~0", "~")
        at = at[int(part)] if isinstance(at, list) else at.get(part) if isinstance(at, dict) else None
    return at


def holds(validator, schema, v):
    try:
        return validator.evolve(schema=schema).is_valid(v)
    except Exception:
        return True


def applied(root, schemas, v, validator):
    """The schemas and those that they apply at the same place, in the order in which members are asked of them."""
    todo, choices, out = list(schemas), [], []
    while todo and len(out) < 300:
        s = todo.pop(0)
        if isinstance(s, dict):
            out.append(s)
            if "$ref" in s:
                todo.append(target(root, s["$ref"]))
            todo += s.get("allOf") or []
            todo += [s.get(word) for word in ("if", "then", "else")]
            for word in ("dependentSchemas", "dependencies"):
                todo += (s.get(word) or {}).values()
            choices += [x for word in CHOICES for x in s.get(word) or []]
        if not todo:
            todo, choices = [x for x in choices if holds(validator, x, v)], []
    return out


def ordered(root, schemas, v, validator):
    here = applied(root, schemas, v, validator)
    listed = [x for s in here for x in [s.get("const"), *(s.get("enum") or [])]]
    given = [x for x in listed if json.dumps(x, sort_keys=True) == json.dumps(v, sort_keys=True)]
    if given:
        return given[0]
    if isinstance(v, float) and v.is_integer():
        return int(v)
    if isinstance(v, list):
        return [ordered(root, list(below_item(here, i)), x, validator) for i, x in enumerate(v)]
    if not isinstance(v, dict):
        return v
    rank = {}
    for word in ("properties", "required"):
        for s in here:
            for name in s.get(word) or []:
                rank.setdefault(name, len(rank))
    for s in here:
        for needed in (s.get("dependentRequired") or {}).values():
            for name in needed:
                rank.setdefault(name, len(rank))
    names = sorted(v, key=lambda n: rank.get(n, len(rank)))
    return {n: ordered(root, list(below_member(here, n)), v[n], validator) for n in names}


def below_item(here, i):
    for s in here:
        prefix = s.get("prefixItems") or (s["items"] if isinstance(s.get("items"), list) else [])
        rest = s.get("additionalItems") if isinstance(s.get("items"), list) else s.get("items")
        yield prefix[i] if i < len(prefix) else rest
        yield s.get("contains")


def below_member(here, name):
    for s in here:
        named = [p for p in [(s.get("properties") or {}).get(name)] if p is not None]
        for pattern, sub in (s.get("patternProperties") or {}).items():
            try:
                named += [sub] if re.search(pattern, name) else []
            except re.error:
                named.append(sub)
        yield from named or [s.get("additionalProperties")]


def texts(schema, values):
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return [json.dumps(ordered(schema, [schema], v, kind(schema)), ensure_ascii=False) for v in values]
