"""The man pages: readers take them without a warning, and they tell what --help tells."""

import os
import re
import subprocess

import pytest


@pytest.fixture(scope="module")
def pages(radish, tmp_path_factory):
    folder = tmp_path_factory.mktemp("man")
    r = radish("help", "--man", folder)
    assert r.returncode == 0 and r.out == r.err == ""
    return folder


def commands(radish):
    return re.findall(r"^  ([a-z]+) {2,}\S", radish("--help").out, re.M)


def read(page):
    env = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "1000", "MAN_KEEP_FORMATTING": ""}
    r = subprocess.run(["man", "--warnings", "-l", page], capture_output=True, text=True, env=env)
    assert r.returncode == 0 and r.stderr == "", (page, r.stderr)
    return r.stdout


def test_there_is_a_page_for_each_command(radish, pages, build):
    wanted = sorted(["radish.1", "radish.toml.5", *("radish-%s.1" % c for c in commands(radish))])
    assert sorted(os.listdir(pages)) == wanted == sorted(os.listdir(build / "man"))
    for name in wanted:
        assert (pages / name).read_bytes() == (build / "man" / name).read_bytes(), "%s is not the program's" % name


def test_readers_have_nothing_to_say(pages):
    files = sorted(pages.iterdir())
    r = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", *files], capture_output=True, text=True)
    assert r.stdout == "" and r.returncode == 0, r.stdout
    for page in files:
        assert len(read(page)) > 500


def test_a_warning_would_be_seen(tmp_path):
    bad = tmp_path / "bad.1"
    bad.write_text(".TH BAD 1\n.SH NAME\nbad\n.nonsense\n")
    with pytest.raises(AssertionError):
        read(bad)


def test_a_page_tells_each_flag_with_its_words(radish, pages):
    for command in commands(radish):
        text = re.sub(r"\s+", " ", read(pages / ("radish-%s.1" % command)))
        text = text.replace("‐", "-").replace("−", "-")
        helped = radish(command, "--help").out
        rows = re.findall(r"^  (?:-\w, )?(--[a-z-]+)(?: [A-Z|]+)?\b(.*(?:\n {26}.*)*)", helped, re.M)
        for flag, words in rows:
            if flag == "--help":
                continue
            assert flag in text and re.sub(r"\s+", " ", words).strip() in text, (command, flag)


def test_the_configuration_file_has_a_page_with_every_key(radish, pages):
    text = read(pages / "radish.toml.5").replace("‐", "-").replace("−", "-")
    keys = re.findall(r"^ +([a-z-]+) = ", text[text.index("KEYS") : text.index("EXAMPLES")], re.M)
    flags = re.findall(r"^  (?:-\w, )?--([a-z-]+)", radish("serve", "--help").out, re.M)
    assert keys == [flag for flag in flags if flag not in ("config", "print-config", "help")]
    assert re.search(r'^ +kv-bytes = "SIZE"', text, re.M) and re.search(r"^ +port = N\b", text, re.M)
    assert re.search(r"^ +isolate = true \| false", text, re.M) and re.search(r'^ +listen = \["', text, re.M)


def test_a_folder_that_cannot_be_written_is_named(radish, tmp_path):
    r = radish("help", "--man", tmp_path / "none")
    assert r.returncode == 1 and "none/radish.1 cannot be written: No such file or directory" in r.err
