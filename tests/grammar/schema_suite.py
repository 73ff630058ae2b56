"""The JSON-Schema-Test-Suite's cases, from the source archive of the jsonschema package (PyPI); kept in the cache, never here."""

import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

VERSION = "4.26.0"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "radish" / "json-schema-suite"


def fetch():
    """The folder with draft7/ and draft2020-12/; downloaded once, by pip."""
    tests = CACHE / VERSION
    if tests.is_dir():
        return tests
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
            + ["--no-binary", "jsonschema", "-d", folder, "jsonschema==" + VERSION],
            check=True,
        )
        archive = next(pathlib.Path(folder).glob("*.tar.gz")).read_bytes()
    CACHE.mkdir(parents=True, exist_ok=True)
    fresh = pathlib.Path(tempfile.mkdtemp(prefix=VERSION, dir=CACHE))  # of this process: others may be at it, too
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            parts = pathlib.PurePosixPath(member.name).parts
            if not member.isfile() or parts[1:3] != ("json", "tests") or parts[3] not in ("draft7", "draft2020-12"):
                continue
            to = fresh / pathlib.Path(*parts[3:])
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(tar.extractfile(member).read())
    try:
        os.replace(fresh, tests)
    except OSError:  # another one was first
        shutil.rmtree(fresh)
        assert tests.is_dir()
    return tests


def cases(draft):
    """(file's name, description, schema, tests) of every group of a draft, optional ones left out."""
    for path in sorted((fetch() / draft).glob("*.json")):
        for group in json.loads(path.read_text()):
            yield path.stem, group["description"], group["schema"], group["tests"]


def formats(draft):
    for path in sorted((fetch() / draft / "optional" / "format").glob("*.json")):
        for group in json.loads(path.read_text()):
            yield "format/" + path.stem, group["description"], group["schema"], group["tests"]
