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
