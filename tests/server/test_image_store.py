"""What encoders made of images, on the disk (docs/vision.md): after a restart a new conversation about an old image runs no
encoder, and answers the same; what is damaged, or another tenant's, is encoded anew."""

import contextlib
import json
import random
import re
import subprocess

import pytest

from radish_server import BUILD, ROOT, Server
from test_images import FAMILIES, ask, image, logprobs, user, words
from vision_model import make_model

SIZE = {"width": 140, "height": 90}


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("m"), request.param)


@pytest.fixture(scope="module")
def one_model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("m"), "qwen25vl")


@contextlib.contextmanager
def serving(model, folder=None, **more):
    flags = ["--cache-dir", str(folder)] if folder else ["--no-disk-cache"]
    s = Server("--threads", "2", "--kv-tokens", "16384", *flags, model=model, **more)
    try:
        yield s
        assert s.stats()["engine"]["accounting_errors"] == 0
        assert s.stop() == 0
    finally:
        if s.process.poll() is None:
            s.process.kill()


OLD = [user(image(70, **SIZE), words("What?"))]
NEW = [user(words("Another conversation, with more words in front of it."), image(70, **SIZE), words("Why?"))]


def fill(model, folder, **more):
    with serving(model, folder) as s:
        ask(s, OLD, **more)
        assert s.stats()["images"]["encoded"] == 1


def test_an_old_image_is_not_encoded_after_a_restart(model, tmp_path):
    with serving(model) as s:
        wanted = logprobs(ask(s, NEW))
    fill(model, tmp_path / "kv")
    for i in range(2):  # the second time its keys and values are on the disk, too
        with serving(model, tmp_path / "kv") as s:
            a = ask(s, NEW)
            b = ask(s, [user(words("And"), image(70, **SIZE), words("twice"), image(70, **SIZE))])
            images = s.stats()["images"]
            assert logprobs(a) == wanted and images["encoded"] == 0 and a["timings"]["images_encoded_n"] == 0
            assert b["timings"]["images_n"] == 2 and s.stats()["disk"]["damaged"] == 0
            assert images["stored"] == (i == 0)


def test_a_flipped_bit_is_encoded_anew(one_model, tmp_path):
    with serving(one_model) as s:
        wanted = logprobs(ask(s, NEW))
    rng = random.Random(71)
    anew = 0
    for i in range(8):
        folder = tmp_path / f"kv{i}"
        fill(one_model, folder)
        for path in folder.glob("*.pages"):
            data = bytearray(path.read_bytes())
            full = [k for k, byte in enumerate(data) if byte]  # a segment is longer than what is in it
            for k in rng.sample(full, 40):
                data[k] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
        with serving(one_model, folder) as s:
            assert logprobs(ask(s, NEW)) == wanted
            anew += s.stats()["images"]["encoded"]
    assert anew > 0


def test_a_folder_says_which_entries_are_images(one_model, tmp_path):
    with serving(one_model, tmp_path / "kv") as s:
        ask(s, [user(image(41, **SIZE), words("What is it? " * 20))])
    command = [BUILD / "radish", "cache", "list", "--cache-dir", str(tmp_path / "kv")]
    listed = json.loads(subprocess.run([*command, "--json"], capture_output=True, check=True).stdout)
    assert sorted(e["what"] for e in listed["entries"]) == ["ends", "images", "pages"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert len(re.findall(r" images  used ", lines)) == 1 and len(re.findall(r"\d tokens  used ", lines)) == 1, lines


def test_another_tenant_another_image_another_encoder(one_model, tmp_path):
    fill(one_model, tmp_path / "kv", cache_salt="a")
    with serving(one_model, tmp_path / "kv") as s:
        for more, n in (({"cache_salt": "a"}, 0), ({}, 1), ({"cache_salt": "b"}, 2)):
            ask(s, NEW, **more)
            assert s.stats()["images"]["encoded"] == n, more
        ask(s, [user(image(71, **SIZE), words("What?"))], cache_salt="a")
        assert s.stats()["images"]["encoded"] == 3
        assert s.request("DELETE", "/v1/cache")[0] == 200
    with serving(one_model, tmp_path / "kv") as s:
        ask(s, NEW, cache_salt="a")
        assert s.stats()["images"]["encoded"] == 1  # it was cleared, too


def test_a_disk_that_fails(one_model, tmp_path):
    """Reads and writes of the store fail, one in two and more: answers stay."""
    library = tmp_path / "disk_faults.so"
    source = ROOT / "tests/server/disk_faults.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, source, "-ldl"], check=True)
    with serving(one_model) as s:
        wanted = logprobs(ask(s, NEW))
    fill(one_model, tmp_path / "kv")
    failed = 0
    for one_in in (1, 2, 3, 5):
        with serving(one_model, tmp_path / "kv", env={"LD_PRELOAD": str(library), "DISK_FAULTS": str(one_in)}) as s:
            for _ in range(3):
                assert logprobs(ask(s, NEW)) == wanted
            disk = s.stats()["disk"]
            failed += disk["read_errors"] + disk["write_errors"] + disk["damaged"]
    assert failed > 0
