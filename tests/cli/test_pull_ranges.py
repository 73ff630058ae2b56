"""radish pull over several connections: what is asked for, what a killed one leaves, and servers that change, refuse and lie.

A file of 12 MiB has 12 pieces; the tests of one connection are in test_pull.py.
"""

import random
import signal
import time
from pathlib import Path

import pytest

from hub_server import cut, sha256, status, swap, whole
from test_pull import Pull

REPO = "org/big-GGUF"
MIB = 1 << 20
BIG = b"GGUF\x03\0\0\0" + random.Random(1).randbytes(12 * MIB + 12345)
NAME = "big-Q4_K_M.gguf"
PIECES = [(i * MIB, min((i + 1) * MIB, len(BIG)) - 1) for i in range(13)]


@pytest.fixture
def pull(radish, tmp_path):
    p = Pull(radish, tmp_path)
    p.commit = p.hub.add(REPO, {NAME: BIG})
    yield p
    p.hub.close()


def parts(pull):
    """Where a pull of pieces keeps what is there."""
    return pull.folder(REPO) / "blobs" / (sha256(BIG) + ".parts.incomplete")


def ranges(pull, part="/blob/"):
    asked = [s.headers.get("range") for s in pull.hub.requests(part)]
    return [tuple(int(n) for n in r.removeprefix("bytes=").split("-")) if r else None for r in asked]


def blobs(pull):
    return sorted(f.name for f in (pull.folder(REPO) / "blobs").iterdir())


def test_each_piece_is_asked_for_once_and_four_at_a_time(pull):
    pull.hub.pace = 0.002
    path = pull.ok(REPO)
    assert path.read_bytes() == BIG and blobs(pull) == [sha256(BIG)]
    assert sorted(ranges(pull)) == PIECES and ranges(pull)[0] == PIECES[0]
    assert pull.hub.most_at_once == 4
    assert len(pull.hub.requests("/resolve/")) <= 4  # the rest go straight to where the first were sent


def test_the_number_of_connections_is_chosen(pull):
    pull.hub.pace = 0.002
    assert pull.ok(REPO, "--connections", "1").read_bytes() == BIG
    assert ranges(pull) == [None] and pull.hub.most_at_once == 1
    (pull.folder(REPO) / "blobs" / sha256(BIG)).unlink()
    assert pull.ok(REPO, "--connections", "2").read_bytes() == BIG
    assert pull.hub.most_at_once == 2
    for wrong in ("0", "17", "x"):
        assert "--connections" in pull.fails(REPO, "--connections", wrong, code=2)


def test_the_token_stays_at_the_hub(pull):
    pull.hub.token = "hf_secret"
    assert pull.ok(REPO, HF_TOKEN="hf_secret").read_bytes() == BIG
    assert len(pull.hub.requests("/blob/")) == 13
    assert not any("authorization" in s.headers for s in pull.hub.seen if s.server == "store")


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_any_instant_it_goes_on_with_what_it_has(pull, seed):
    chance = random.Random(seed)
    pull.hub.pace = 0.03
    for i in range(6):
        n_before = pull.hub.n_sent
        p = pull.start(REPO)
        while i % 2 and pull.hub.n_sent == n_before:  # half of them before anything has come, maybe: on a busy machine
            assert p.poll() is None
            time.sleep(0.01)
        time.sleep(chance.uniform(0.02, 0.25))
        p.send_signal(signal.SIGKILL)
        p.communicate(timeout=60)
        pull.nothing_but_partials()
        size = parts(pull).stat().st_size if parts(pull).exists() else 0
        assert size in (0, len(BIG) + 32 + 4 * 13)  # the pieces, and the counts of what is there of each
    pull.hub.pace = 0
    n_sent, pull.hub.n_sent = pull.hub.n_sent, 0
    assert pull.ok(REPO).read_bytes() == BIG and blobs(pull) == [sha256(BIG)]
    # What the killed ones had received is not sent again: but for what lay in sockets when they died.
    assert n_sent + pull.hub.n_sent < len(BIG) + 6 * 4 * 6 * MIB
    assert pull.hub.n_sent < len(BIG)
    assert any(a % MIB for a, _ in ranges(pull))  # pieces are gone on with in their middle


def test_what_another_program_or_one_connection_left_is_taken_over(pull):
    beginning = pull.folder(REPO) / "blobs" / (sha256(BIG) + ".incomplete")
    beginning.parent.mkdir(parents=True)
    beginning.write_bytes(BIG[: 3 * MIB + 1000])
    assert pull.ok(REPO).read_bytes() == BIG and blobs(pull) == [sha256(BIG)]
    assert min(ranges(pull)) == (3 * MIB + 1000, 4 * MIB - 1) and len(ranges(pull)) == 10


def test_pieces_that_break_off_are_gone_on_with(pull):
    pull.hub.faults[NAME] = [cut(5000), None, cut(0), cut(MIB - 1), None, cut(70000)]
    r = pull(REPO)
    assert r.returncode == 0 and Path(r.out.strip()).read_bytes() == BIG
    assert (5000, MIB - 1) in ranges(pull) and "trying again in 1 s" in r.err


def test_damaged_pieces_are_found_and_fetched_again(pull):
    pull.hub.faults[NAME] = [None, None, None, status(503, {"Retry-After": "60"})]
    p = pull.start(REPO)
    while "trying again in 60 s" not in p.stderr.readline():
        assert p.poll() is None
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 130 and "goes on from here" in err
    with parts(pull).open("r+b") as f:
        f.seek(1000)
        f.write(b"damaged")
    pull.hub.faults[NAME] = []
    assert pull.ok(REPO).read_bytes() == BIG and blobs(pull) == [sha256(BIG)]


@pytest.mark.parametrize("head", [b"", b"radpart1", b"radpart1" + b"\xff" * 24, b"x" * 84])
def test_counts_that_make_no_sense_are_no_counts(pull, head):
    parts(pull).parent.mkdir(parents=True)
    parts(pull).write_bytes(b"?" * len(BIG) + head.ljust(84, b"\xff"))
    assert pull.ok(REPO).read_bytes() == BIG and blobs(pull) == [sha256(BIG)]


def test_a_server_without_ranges_is_asked_by_one(pull):
    pull.hub.faults[NAME] = [whole(), whole()]
    r = pull(REPO)
    assert r.returncode == 0 and Path(r.out.strip()).read_bytes() == BIG
    assert "gives no parts of a file; starting over with one connection" in r.err
    assert len(ranges(pull)) == 2 and ranges(pull)[1] is None


def test_a_file_that_changes_between_two_pieces_is_begun_anew(pull):
    pull.hub.etag = lambda: '"%d"' % (len(pull.hub.requests("/blob/")) // 6)
    r = pull(REPO)
    assert r.returncode == 0 and Path(r.out.strip()).read_bytes() == BIG
    assert "has changed at 127.0.0.1" in r.err and "starting over with one connection" in r.err


def test_other_bytes_in_a_piece_never_get_a_name(pull):
    pull.hub.faults[NAME] = [None, None, swap(BIG[: 2 * MIB] + b"?" + BIG[2 * MIB + 1 :]), swap(BIG[::-1])] + [
        swap(BIG[::-1])
    ] * 20
    assert "SHA-256" in pull.fails(REPO) and blobs(pull) == []


def test_refusals_are_waited_for_by_all(pull):
    pull.hub.faults[NAME] = [None, status(429, {"Retry-After": "2"}), None, status(503, {"Retry-After": "2"})]
    began = time.monotonic()
    r = pull(REPO)
    assert r.returncode == 0 and Path(r.out.strip()).read_bytes() == BIG
    assert "trying again in 2 s" in r.err and time.monotonic() - began >= 2
    at = [s.status for s in pull.hub.requests("/blob/")].index(429)
    assert len(ranges(pull)) - at < 20
    pull.hub.add("org/other-GGUF", {NAME: BIG + b"x"})
    pull.hub.faults[NAME] = [status(429, {"Retry-After": "1"})] * 99
    assert "429" in pull.fails("org/other-GGUF", "--retries", "1")


def test_an_address_that_holds_for_a_while_only_is_asked_for_again(pull):
    pull.hub.lives = 3
    assert pull.ok(REPO).read_bytes() == BIG
    assert len(pull.hub.requests("/resolve/")) > 4 and 403 in [s.status for s in pull.hub.requests("/blob/")]
    pull.hub.lives = None
    (pull.folder(REPO) / "blobs" / sha256(BIG)).unlink()
    pull.hub.faults[NAME] = [status(403)] * 9
    assert "403" in pull.fails(REPO)


def test_the_disk_is_full_in_the_middle(pull):
    def small_files():
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (5 * MIB, 5 * MIB))

    p = pull.start(REPO, preexec_fn=small_files)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 1 and "cannot be written" in err and out == ""
    pull.nothing_but_partials()
    assert pull.ok(REPO).read_bytes() == BIG


def test_a_url_whose_file_changes_is_begun_anew(pull):
    url = pull.hub.url + "/named/at/x.gguf"
    newer = BIG[: 9 * MIB + 77]
    pull.hub.named["x.gguf"] = lambda: BIG if len(pull.hub.requests("/named/")) < 7 else newer
    r = pull(url)
    assert r.returncode == 0, r.err
    assert Path(r.out.strip()).read_bytes() == newer
    assert "x.gguf has changed on the server; starting over" in r.err
    assert [f.name for f in pull.models.iterdir() if f.suffix == ".gguf"] == ["x.gguf"]


def test_a_url_without_an_etag_is_asked_by_one(pull):
    pull.hub.named["y.gguf"] = lambda: BIG
    pull.hub.etag = lambda: None
    assert pull.ok(pull.hub.url + "/named/at/y.gguf").read_bytes() == BIG
    assert ranges(pull, "/named/") == [None, None]  # HEAD and GET
    assert pull.ok(pull.hub.url + "/named/at/y.gguf", "--name", "z", "--sha256", sha256(BIG)).read_bytes() == BIG
    assert len(ranges(pull, "/named/")) == 2 + 1 + 13
