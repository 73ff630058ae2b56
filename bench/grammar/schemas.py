"""Schemas, and instances of them: the project's own of tools and APIs, the public suite's, and those that packages carry.

own     tests/grammar/real_schemas.jsonl
draft7, draft2020-12    the JSON-Schema-Test-Suite (tests/grammar/schema_suite.py), with its own instances
ocpp    messages of the Open Charge Point Protocol, which the package `ocpp` carries
apis    parameters and answers of public APIs: the models of `openai`, `anthropic` and `mcp`, as pydantic writes them
"""

import importlib
import inspect
import json
import pkgutil
import random
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/grammar"))
import schema_gen  # noqa: E402
import schema_order  # noqa: E402
import schema_suite  # noqa: E402

SOURCES = ("own", "draft7", "draft2020-12", "ocpp", "apis")


def dialect(draft, schema):
    if draft == "draft7" and isinstance(schema, dict) and "$schema" not in schema:
        return {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    return schema


def own():
    for i, line in enumerate((ROOT / "tests/grammar/real_schemas.jsonl").read_text().splitlines()):
        schema = json.loads(line)
        yield "own/%d %s" % (i, schema.get("title", "")), schema, None


def suite(draft):
    for keyword, group, schema, tests in schema_suite.cases(draft):
        yield "%s/%s/%s" % (draft, keyword, group), dialect(draft, schema), [t["data"] for t in tests]


def ocpp():
    folder = Path(importlib.import_module("ocpp").__file__).parent
    for path in sorted(folder.rglob("schemas/*.json")):
        schema = json.loads(path.read_text(encoding="utf-8-sig"))
        schema.pop("$id", None), schema.pop("id", None)
        yield "ocpp/%s" % path.relative_to(folder), schema, None


def apis(packages=("openai", "anthropic", "mcp")):
    import pydantic

    seen = set()
    for package in packages:
        module = importlib.import_module(package + ".types")
        names = [module.__name__]
        if hasattr(module, "__path__"):
            names += sorted(m.name for m in pkgutil.walk_packages(module.__path__, module.__name__ + "."))
        for name in names:
            try:
                members = vars(importlib.import_module(name))
            except Exception:
                continue
            for key in sorted(members):
                cls = members[key]
                if not (inspect.isclass(cls) and issubclass(cls, pydantic.BaseModel) and cls.__module__ == name):
                    continue
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        schema = cls.model_json_schema()
                except Exception:
                    continue
                text = json.dumps(schema)
                if text not in seen and schema.get("properties"):
                    seen.add(text)
                    yield "apis/%s.%s" % (name, key), schema, None


def load(sources):
    """[(name, schema, instances or None)]; "apis:100" is a hundred of them, spread over all."""
    out = []
    for source in sources:
        source, _, n = source.partition(":")
        found = list(suite(source) if source.startswith("draft") else globals()[source]())
        n = min(int(n or len(found)), len(found))
        out += [found[i * len(found) // n] for i in range(n)]
    return out


def made(schema, seed, n):
    """n values likely to be valid, and n changed a little."""
    rng = random.Random(seed)
    good, changed = [], []
    for _ in range(n):
        v = schema_gen.make(rng, schema, schema)
        good.append(v)
        changed.append(schema_gen.mutated(rng, v))
    return good, changed
