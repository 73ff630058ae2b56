"""llama.cpp as a peer: built outside the tree from the source package of llama-cpp-python, once per instruction set.

    folder/src            the package's llama.cpp
    folder/build-native   its programs for this machine
    folder/build-avx2     the same with AVX2 and no more
    folder/build-avx512   with AVX-512 as Zen 4 and Ice Lake have it      (these three are made on any machine,
    folder/build-amx      for Xeons from Sapphire Rapids on                for others: bench/pack)
    folder/build-cuda     for Hopper GPUs (bench/gpu/build_peer)
    folder/*.log          what pip and cmake said

An existing folder with llama-bench in it (or in its bin/) is used as it is.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = Path(os.environ.get("RADISH_PEERS") or Path.home() / ".cache/radish/peers")
PROGRAMS = ("llama-bench", "llama-batched-bench", "llama-server")
PACKAGE = "llama-cpp-python"

CMAKE = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_CURL=OFF",
    "-DCMAKE_BUILD_RPATH=$ORIGIN/..",  # where bench/pack lays the compiler's libraries
    "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags",
    "-DCMAKE_CXX_FLAGS=-include %s" % (HERE / "peer_amx.h"),
]
AVX2 = ["-DGGML_NATIVE=OFF", "-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON", "-DGGML_BMI2=ON"]
AVX512 = [*AVX2, *("-DGGML_AVX512%s=ON" % part for part in ("", "_VBMI", "_VNNI", "_BF16"))]
ISA = {
    "native": ["-DGGML_NATIVE=ON"],
    "avx2": AVX2,
    "avx512": AVX512,
    "amx": [*AVX512, "-DGGML_AMX_TILE=ON", "-DGGML_AMX_INT8=ON", "-DGGML_AMX_BF16=ON"],
    "cuda": [
        *AVX2,
        "-DGGML_CUDA=ON",
        "-DGGML_CUDA_GRAPHS=ON",
        "-DGGML_CUDA_NCCL=OFF",
        "-DCMAKE_CUDA_ARCHITECTURES=90a-real",
    ],
}


def _logged(folder, name, args):
    log = folder / (name + ".log")
    print("peer: %s (log: %s)" % (name, log), file=sys.stderr)
    with open(log, "w") as out:
        rc = subprocess.run([str(a) for a in args], stdout=out, stderr=subprocess.STDOUT).returncode
    if rc:
        sys.exit("peer: %s failed, the end of %s:\n%s" % (name, log, log.read_text(errors="replace")[-3000:]))


def _fetch(folder, version):
    """The package's llama.cpp in folder/src."""
    source = folder / "src"
    if (source / "CMakeLists.txt").is_file():
        return source
    package = folder / "package"
    shutil.rmtree(package, ignore_errors=True)
    _logged(
        folder,
        "download",
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-binary",
            ":all:",
            PACKAGE + ("==" + version if version else ""),
            "-d",
            package,
        ],
    )
    archive = next(package.glob("*.tar.gz"))
    (folder / "version").write_text(re.sub(r".*-([\d.]+)\.tar\.gz$", r"\1", archive.name) + "\n")
    part = folder / "unpacked"
    shutil.rmtree(part, ignore_errors=True)
    with tarfile.open(archive) as tar:
        members = [m for m in tar.getmembers() if "/vendor/llama.cpp/" in m.name and (m.isfile() or m.isdir())]
        tar.extractall(part, members, filter="data")
    shutil.move(str(next(part.glob("*/vendor/llama.cpp"))), source)
    shutil.rmtree(part)
    shutil.rmtree(package)
    return source


def _programs_in(folder, wanted):
    for place in (folder, folder / "bin"):
        if all((place / name).is_file() for name in wanted):
            return place
    return None


def find_or_build(folder=None, isa="native", version=None, jobs=None, wanted=PROGRAMS):
    """The folder with the peer's programs, built if need be. isa: a key of ISA."""
    folder = Path(folder or FOLDER).resolve()
    ready = _programs_in(folder, wanted) if isa == "native" else None
    ready = ready or _programs_in(folder / ("build-" + isa), wanted)
    if ready:
        return ready
    folder.mkdir(parents=True, exist_ok=True)
    source = _fetch(folder, version)
    build = folder / ("build-" + isa)
    ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
    _logged(folder, "configure-" + isa, ["cmake", "-S", source, "-B", build, *ninja, *CMAKE, *ISA[isa]])
    _logged(folder, "build-" + isa, ["cmake", "--build", build, "-j", jobs or os.cpu_count(), "--target", *wanted])
    return _programs_in(build, wanted) or sys.exit("peer: no programs in %s" % build)


def version_of(programs):
    """ "0.3.36, build 1234 (abcdef)" as far as it is known."""
    said = subprocess.run([str(programs / "llama-server"), "--version"], capture_output=True, text=True)
    found = re.search(r"version: (.*)", said.stdout + said.stderr)
    for folder in (programs.parent, programs.parent.parent, programs.parent.parent.parent):
        if (folder / "version").is_file():
            return "llama-cpp-python %s" % (folder / "version").read_text().strip()
    return found.group(1).strip() if found else "unknown version"


if __name__ == "__main__":
    for name in sys.argv[1:] or ["native", "avx2"]:
        print(find_or_build(isa=name))
