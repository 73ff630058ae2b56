"""The Debian packages: what they hold and want, lintian's opinion, and how they come and go on a machine."""

import os
import re
import subprocess

import pytest
import throwaway
from throwaway import run

# What lintian warns about and we leave as it is.
KNOWN = {
    "maintscript-calls-ldconfig",  # CPack writes it, beside the trigger that we add
    "no-manual-page",  # until the man pages are built
    "pkg-config-unavailable-for-cross-compilation",  # /usr/lib: one folder for every distribution
}


@pytest.fixture(scope="module")
def machine(debs):
    """Installed as a user would, by apt, with nothing to download."""
    with throwaway.machine(debs.values()) as m:
        m.said = m("apt-get install -y ./*.deb")
        yield m


def field(deb, name):
    return run(["dpkg-deb", "-f", deb, name]).strip()


def files(deb):
    lines = run(["dpkg-deb", "-c", deb]).splitlines()
    return {re.split(r" \./", line)[1].split(" -> ")[0] for line in lines if not line.startswith("d")}


def test_three_packages_of_one_version(root, debs):
    assert sorted(debs) == ["libradish-dev", "libradish0", "radish"]
    version = re.search(r"^project\(radish VERSION ([0-9.]+)", (root / "CMakeLists.txt").read_text(), re.M)[1]
    architecture = run(["dpkg", "--print-architecture"]).strip()
    for name, deb in debs.items():
        assert deb.name == f"{name}_{version}_{architecture}.deb"
        assert field(deb, "Version") == version and field(deb, "Package") == name


def test_what_they_want_is_what_is_linked(debs):
    assert {"libc6", "libjansson4", "libpcre2-8-0"} <= set(
        re.findall(r"lib[\w.-]+", field(debs["libradish0"], "Depends"))
    )
    assert {"libevent-2.1-7", "libcurl4"} <= set(re.findall(r"lib[\w.-]+", field(debs["radish"], "Depends")))
    assert "libcurl4" not in field(debs["libradish0"], "Depends")  # whoever links the library needs none
    assert f"libradish0 (= {field(debs['libradish0'], 'Version')})" in field(debs["libradish-dev"], "Depends")


def test_every_file_of_an_install_is_in_one_package(build, debs, tmp_path):
    run(["cmake", "--install", build, "--prefix", "/usr"], env={**os.environ, "DESTDIR": str(tmp_path)})
    installed = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_symlink() or not p.is_dir()}
    packed = [f for deb in debs.values() for f in files(deb)]
    assert len(packed) == len(set(packed))
    plain = {re.sub(r"^(usr/share/man/.*)\.gz$", r"\1", f) for f in packed}
    plain = {re.sub("^lib/systemd", "usr/lib/systemd", f) for f in plain}
    of_debian = {f for f in plain if re.search(r"/(copyright|changelog\.gz)$", f) or "/lintian/" in f}
    assert installed - {"usr/share/doc/radish/LICENSE"} == plain - of_debian


def test_lintian_finds_no_error(debs):
    words = ["lintian", "--allow-root", "--fail-on", "none", *map(str, debs.values())]
    said = subprocess.run(words, capture_output=True, text=True).stdout
    found = re.findall(r"^([EW]): \S+: (\S+)", said, re.M)
    assert [tag for kind, tag in found if kind == "E" or tag not in KNOWN] == [], said


def test_apt_installs_them_and_the_program_runs(machine):
    assert "3 newly installed" in machine.said and "Setting up radish" in machine.said
    assert machine("command -v radish; radish --version").split()[:2] == ["/usr/bin/radish", "radish"]
    assert "smollm2" in machine("radish fetch --list")
    assert "instruction set" in machine("radish doctor")
    assert machine("dpkg --verify radish libradish0 libradish-dev") == ""


def test_a_program_is_built_against_the_package(machine):
    machine("""
cat >hello.c <<END
#include <radish/radish.h>
#include <stdio.h>
int main(void)
{
    printf("%s", rd_version());
    return 0;
}
END
cc -Wall -Werror hello.c -o hello $(pkg-config --cflags --libs radish)
""")
    version = machine("dpkg-query -W -f '${Version}' libradish0")
    assert machine("./hello") == version
    assert "/lib/libradish.so.0" in machine("ldconfig -p")  # the trigger ran
    assert "RUNPATH" not in machine("readelf -d hello")


def test_units_start_the_program_that_is_installed(machine):
    """As the units come with their own install rules; each names a program that is there, and no user who is not."""
    for unit in machine("dpkg -L radish | grep '/systemd/system/.*[.]service$' || true").split():
        text = machine(f"cat {unit}")
        assert machine(f"test -x {re.search('^ExecStart=([^ ]+)', text, re.M)[1]} && echo yes") == "yes\n"
        assert "DynamicUser=yes" in text and "StateDirectory=" in text and "\nUser=" not in text


def test_it_comes_and_goes_beside_systemd(debs):
    """The scripts of the package, told from what they call: a server stops when its package goes, not when it is replaced."""
    with throwaway.machine([debs["radish"]]) as m:
        m("""
mkdir -p bin /run/systemd/system
for name in systemctl deb-systemd-invoke; do
    printf '#!/bin/sh\\necho "%s $*" >>%s/calls\\n' $name "$PWD" >bin/$name
    chmod 755 bin/$name
done
dpkg -i radish_*.deb
echo installed >>calls
dpkg -i radish_*.deb
echo replaced >>calls
mkdir -p /var/lib/private/radish/models /etc/systemd/system/sockets.target.wants
ln -s private/radish /var/lib/radish
ln -s /lib/systemd/system/radish.socket /etc/systemd/system/sockets.target.wants/radish.socket
dpkg -r radish
echo removed >>calls
test -d /var/lib/radish/models
dpkg -P radish
test ! -e /var/lib/private/radish
test ! -L /var/lib/radish
test ! -L /etc/systemd/system/sockets.target.wants/radish.socket
""")
        calls = m("cat calls")
        before, rest = calls.split("installed\n")
        assert "daemon-reload" in before and "stop" not in before
        replaced, rest = rest.split("replaced\n")
        assert "stop" not in replaced and "daemon-reload" in replaced
        removed, rest = rest.split("removed\n")
        assert removed.index("deb-systemd-invoke stop radish.socket radish.service") < removed.index("daemon-reload")


def test_nothing_is_left_when_they_are_purged(debs):
    with throwaway.machine(debs.values()) as m:
        look = "find /usr /etc /var /lib /opt -xdev -newer before ! -type d -path '*radish*' | sort"
        m("touch before; sleep 0.01; apt-get install -y ./*.deb")
        assert "radish" in m("dpkg -L radish libradish0 libradish-dev")
        m("apt-get purge -y radish libradish0 libradish-dev")
        assert m(look + " | grep -v '^/var/lib/dpkg/info/format$' || true") == ""
        assert m("ldconfig -p | grep radish || true") == ""


def test_this_machine_is_as_it_was(machine):
    assert machine("dpkg-query -W radish").startswith("radish")
    assert subprocess.run(["dpkg-query", "-W", *throwaway.PACKAGES], capture_output=True).stdout == b""
