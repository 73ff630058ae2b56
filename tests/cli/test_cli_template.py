"""radish template: one template, and lines of JSON."""

import json


def lines(radish, *asked):
    data = b"".join(a if isinstance(a, bytes) else json.dumps(a).encode() + b"\n" for a in asked)
    r = radish("template", "--jsonl", stdin=data)
    assert r.returncode == 0, r.err
    return [json.loads(line) for line in r.out.split("\n") if line]


def test_a_template_from_a_file_or_standard_input(radish, tmp_path):
    path = tmp_path / "t.jinja"
    path.write_text("Hi {{ name }}!\n")
    assert radish("template", path, "--context", '{"name": "żółw"}').out == "Hi żółw!"
    assert radish("template", "--context", '{"name": "you"}', stdin="Hi {{ name }}").out == "Hi you"
    (tmp_path / "c.json").write_text('{"name": "file"}')
    assert radish("template", path, "--context", "@%s" % (tmp_path / "c.json")).out == "Hi file!"
    assert radish("template", "--now", "0", stdin="{{ strftime_now('%Y') }}").out in ("1970", "1969")


def test_errors_name_the_line_and_the_exit_status_is_1(radish):
    r = radish("template", stdin="a\n{{ x.y }}")
    assert r.returncode == 1 and "line 2" in r.err and "'x' is undefined" in r.err and r.out == ""
    assert (
        radish(
            "template",
            stdin="{{ 1 }}",
        ).returncode
        == 0
    )
    for bad in ("[1]", "nonsense", "3"):
        assert radish("template", "--context", bad, stdin="x").returncode == 1


def test_lines_are_answered_one_by_one(radish):
    good = {"template": "{{ a | tojson }}", "context": {"a": [1, 2.5, "é", None, {"k": 0.1}]}}
    bad = [
        b"nonsense\n",
        b"[1]\n",
        b"{}\n",
        b'{"template": 3}\n',
        b'{"template": "x", "context": 3}\n',
        b'{"template": "{{ raise_exception(\'no\') }}"}\n',
        b'{"template": "{% for %}"}\n',
        b"\xff\n",
    ]
    got = lines(radish, *[x for b in bad for x in (b, good)])
    assert len(got) == 2 * len(bad)
    assert all(list(g) == ["error"] and g["error"] for g in got[::2])
    assert all(g == {"text": '[1, 2.5, "é", null, {"k": 0.1}]'} for g in got[1::2])
    assert lines(radish, {"template": "a"}, {"template": "b\u2028{{ n }}", "context": None}) == [
        {"text": "a"},
        {"text": "b\u2028"},
    ]


NUMBERS = ["9223372036854775808", "-9223372036854775809", "1" * 60, "-0", "1e400", "-1e400", "1E5", "0.10", "-0.0"]
NUMBERS += ["0.10000000000000000000001", "1e22", "1e16", "123456789.0e-20", "4503599627370497"]


def test_numbers_are_pythons(radish):
    """Of any size, in tojson and as text; beyond 64 bits they are compared, not computed with."""
    template = (
        "{{ x | tojson }} {{ x }} {{ [x] }} {{ x is number }} {{ x is integer }} {{ x is float }} {{ x is string }} "
        "{{ x == y }} {{ x > y }} {{ x < 1.5 }} {{ x == x | float }} {{ {x: 1} | tojson }} {{ x | int == x }} {{ not x }} "
        "{{ x in [1, x] }} {{ x | string | length }}"
    )
    asked = [
        b'{"template":%s,"context":{"x":%s,"y":9223372036854775809}}' % (json.dumps(template).encode(), n.encode())
        for n in NUMBERS
    ]
    for n, got in zip(NUMBERS, lines(radish, *(a + b"\n" for a in asked)), strict=True):
        x, y = json.loads(n), 9223372036854775809
        finite = abs(x) != float("inf")
        want = [json.dumps(x), x, [x], True, isinstance(x, int), isinstance(x, float), False, x == y, x > y, x < 1.5]
        want += [x == float(x), json.dumps({x: 1}), finite and int(x) == x, not x, True, len(str(x))]
        assert got == {"text": " ".join(map(str, want))}, n
    for sum in ("x + 1", "-x", "x * x", "x % 7"):
        (got,) = lines(radish, b'{"template":"{{ %s }}","context":{"x":9223372036854775808}}\n' % sum.encode())
        assert "64 bits" in got["error"]


def test_the_chat_template_flag_takes_a_file_or_a_listed_name(radish, model, tmp_path):
    wrong = radish("run", model, "hi", "--chat-template", "nope", "--max-tokens", "1")
    assert wrong.returncode == 1 and "no built-in chat template 'nope'" in wrong.err
    names = wrong.err.split("there are ")[1].strip().split(", ")
    assert len(names) >= 18
    shown = " ".join(radish("run", "--help").out.split())
    assert all(name in shown for name in names)
    assert radish("run", model, "hi", "--chat-template", names[0], "--max-tokens", "1").returncode == 0
    path = tmp_path / "t.jinja"
    path.write_text("{{ messages[0].content }}")
    assert radish("run", model, "hi", "--chat-template", path, "--max-tokens", "1").returncode == 0
