"""tools/check-includes, check-sizes and check-faults find what they promise to find, and nothing else (in this tree: ctest's check_*)."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def check(tool, root):
    r = subprocess.run([ROOT / "tools" / tool, root], capture_output=True, text=True, timeout=120)
    return r.returncode, r.stdout


def tree(root, files):
    clean = {
        "include/radish/radish.h": "#pragma once\n",
        "src/base/mem.h": "#pragma once\n",
        "src/kv/radix.h": '#include "base/mem.h"\n',
        "src/engine/engine.h": '#include "kv/radix.h"\n',
        "src/backend/a.h": "",
        "src/backend/cuda/c.h": "",
        "src/backend/cuda/linear/d.h": "",
        "src/format/hub/b.h": "",
    }
    for name, text in {**clean, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    "path,text,wanted",
    [
        ("src/kv/up.c", '#include "engine/engine.h"\n', "src/kv/up.c:1: includes"),
        ("src/text/side.c", '\n\n#include "kv/radix.h"\n', "src/text/side.c:3: includes"),
        ("src/hub/deep.c", '#include "kv/radix.h"\n', "hub/ sees base/ only"),
        ("src/server/deep.c", '#include "engine/engine.h"\n', "server/ sees include/radish/, base/ and hub/ only"),
        ("src/kv/lost.c", '#include "kv/none.h"\n', "not in the tree"),
        ("src/kv/heap.c", "void f(void) { g(malloc (3)); }\n", "calls malloc()"),
        ("src/kv/lock.c", "#include <pthread.h>\n", "<pthread.h>"),
        ("src/kv/json.c", "#include <jansson.h>\n", "<jansson.h>"),
        ("src/kv/loud.c", 'void f(void)\n{\n    fprintf(stderr, "x");\n}\n', "src/kv/loud.c:3: stderr"),
        ("src/text/radix.h", "", "the name is taken"),
        ("src/other/x.c", "", "no number"),
        ("src/backend/cpu/a.c", '#include "backend/cuda/c.h"\n', "backend/cpu is 1, backend/cuda is 1"),
        ("src/backend/cpu/linear/a.c", '#include "backend/cuda/linear/d.h"\n', "backend/cpu is 1, backend/cuda is 1"),
        (
            "src/backend/cuda/attention/a.c",
            '#include "backend/cuda/linear/d.h"\n',
            "cuda/attention is 2, backend/cuda/linear",
        ),
        (
            "src/backend/cuda/a.c",
            '#include "backend/cuda/linear/d.h"\n',
            "backend/cuda/ is 0, backend/cuda/linear is 2",
        ),
        ("src/backend/cuda/new/a.c", '#include "backend/cuda/c.h"\n', "room backend/cuda/new has no number"),
        ("src/format/gguf/a.c", '#include "format/hub/b.h"\n', "format/gguf is 1, format/hub is 2"),
        ("src/format/a.c", '#include "format/hub/b.h"\n', "format/ is 0, format/hub is 2"),
        ("src/backend/new/a.c", '#include "backend/a.h"\n', "room backend/new has no number"),
        ("tests/kv/t.c", '#include "../../src/kv/radix.c"\n', "not in the tree"),
    ],
)
def test_a_breach_is_named(tmp_path, path, text, wanted):
    tree(tmp_path, {path: text})
    code, out = check("check-includes", tmp_path)
    assert code == 1 and wanted in out and out.endswith("1 problems\n"), out


def test_what_is_allowed_passes(tmp_path):
    tree(
        tmp_path,
        {
            "src/kv/fine.c": '/* free(it) */ // malloc(1)\n#include "kv/radix.h"\nint f(void) { o->free(x); '
            'mem_free(p); return g("malloc(1) /*"); }\n',
            "src/cli/run.c": '#include "server/serve.h"\n#include "radish/radish.h"\n',
            "src/server/serve.h": "",
            "src/backend/cuda/linear/a.c": '#include "backend/cuda/c.h"\n#include "backend/a.h"\n',
            "tests/test.h": "",
            "tests/kv/test_x.c": '#include "test.h"\n#include "kv/radix.h"\n',
        },
    )
    code, out = check("check-includes", tmp_path)
    assert code == 0, out


def test_sizes_are_counted_to_the_line(tmp_path):
    def function(name, n):
        return "static int %s(int a,\n    int b)\n{\n" % name + "    a;\n" * (n - 4) + "}\n"

    tree(tmp_path, {"src/kv/fits.c": "struct s {\n" + "int x;\n" * 200 + "};\nint t[] = {1};\n" + function("f", 150)})
    code, out = check("check-sizes", tmp_path)
    assert code == 0, out
    tree(
        tmp_path,
        {
            "src/kv/fits.c": function("f", 150) + function("too_long", 151),
            "src/kv/big.h": "\n" * 1201,
            "src/kv/big_data.h": "\n" * 5000,
            "tests/kv/big.py": "\n" * 1201,
        },
    )
    code, out = check("check-sizes", tmp_path)
    assert code == 1 and "too_long() has 151 lines" in out and out.endswith("3 problems\n"), out


@pytest.mark.parametrize(
    "row,wanted",
    [
        ("| F01 | a | b | `test_x/is_there`, `test_y.py/there`, `test_x` | - |", None),
        ("| F01 | a | b | None | - |", None),
        ("| F01 | a | b | | - |", "names no test"),
        ("| F01 | a | b | `test_x/gone` | - |", "no test gone in test_x"),
        ("| F01 | a | b | `test_z` | - |", "no file test_z"),
        ("| F01 | a | `test_x` | - |", "4 columns"),
        ("| F02 | a | b | `test_x` | - |\n| F01 | a | b | `test_x` | - |", "F01 does not come after F2"),
    ],
)
def test_a_row_of_faults_names_a_test_that_is_there(tmp_path, row, wanted):
    tree(
        tmp_path,
        {
            "tests/kv/test_x.c": "TEST(is_there) {}\n",
            "tests/server/test_y.py": "def test_there():\n    pass\n",
            "docs/faults.md": "## Area\n\n| id | fault | promise | tests | figure |\n" + row + "\n",
        },
    )
    code, out = check("check-faults", tmp_path)
    assert (code == 1 and wanted in out) if wanted else code == 0, out


def test_a_circle_is_found(tmp_path):
    tree(tmp_path, {})
    assert check("include-graph", tmp_path)[1].endswith("0 circles, 0 files in the largest\n")
    tree(
        tmp_path,
        {
            "src/kv/a.h": '#include "kv/b.h"\n',
            "src/kv/b.h": "",
            "src/kv/b.c": '#include "kv/b.h"\n#include "kv/c.h"\n',
            "src/kv/c.h": '/* #include "kv/none.h" */\n#include "kv/a.h"\n',
            "src/kv/d.h": '#include "kv/a.h"\n',
        },
    )
    code, out = check("include-graph", tmp_path)
    assert code == 0 and out.startswith("circle of 4 files: src/kv/a src/kv/b src/kv/c\n"), out
    for most, want in (("3", 1), ("4", 0)):
        r = subprocess.run([ROOT / "tools/include-graph", "--most", most, tmp_path], capture_output=True, timeout=120)
        assert r.returncode == want
