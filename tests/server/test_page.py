"""The monitor page in headless Chromium: it draws, it follows, it cancels; by keyboard, in the dark, on a phone, with a key."""

import contextlib
import os
import threading
from pathlib import Path

import pytest
from radish_server import Server, token_ids

TEXT = "/v1/completions"
PICTURES = os.environ.get("RADISH_PICTURES")  # a folder: what the pages look like goes there


def show(p, s, name=None):
    p.open(f"http://127.0.0.1:{s.port}/")
    p.until("document.querySelectorAll('figure path.line, figure path.area').length > 5")
    if name and PICTURES:
        p.picture(Path(PICTURES) / f"{name}.png")


def is_clean(p, s):
    """Nothing in the console, nothing asked of anybody else."""
    assert p.problems == []
    assert {u.split("/")[2] for u in p.urls if u.startswith("http")} == {f"127.0.0.1:{s.port}"}


def talk(s):
    """Some requests that share a beginning, and one that does not."""
    head = "You are a helpful assistant that answers in one sentence. "
    for q in ("What is a tree?", "What is a page?", "What is a tree? Think."):
        s.ok(TEXT, {"prompt": head + q, "max_tokens": 12, "ignore_eos": True})
    s.ok(TEXT, {"prompt": "Once upon a time <b>in</b> a land & \u4e2d", "max_tokens": 12, "ignore_eos": True})


def test_it_shows_what_happens_and_follows(page, small):
    talk(small)
    show(page, small)
    page.until("document.querySelectorAll('#recent tr').length >= 4")
    page.until("document.querySelectorAll('#tree rect').length >= 4")
    assert page.run("document.querySelector('#state').textContent") == "Live"
    assert page.run("document.title").startswith("radish · ")
    totals = small.stats()["tokens"]
    shown = page.run(
        "[...document.querySelectorAll('#totals div')].map(d => [d.children[0].textContent, d.children[1].textContent])"
    )
    shown = {name: value.replace(",", "") for name, value in shown}
    assert int(shown["of them computed"]) + int(shown["saved by the cache"]) == int(shown["prompt tokens"])
    assert int(shown["prompt tokens"]) == totals["prompt_computed"] + totals["prompt_cached"]
    before = page.run("document.querySelectorAll('#recent tr').length")
    small.ok(TEXT, {"prompt": token_ids(700, seed=3), "max_tokens": 30, "ignore_eos": True})
    page.until(f"document.querySelectorAll('#recent tr').length > {before}")
    assert page.run("document.querySelector('#recent tr').children[4].textContent") == "700"
    page.run("document.querySelector('input[value=\"86400\"]').click()")
    page.until("document.querySelector('figure svg').textContent.includes('24 h')")
    page.run("document.querySelector('input[value=\"600\"]').click()")
    page.run("price.value = '3'; price.dispatchEvent(new Event('input'))")
    assert page.run("money.textContent").endswith("saved")
    is_clean(page, small)


def test_a_running_request_is_seen_and_cancelled_by_keyboard(page, small):
    show(page, small)
    ask = {"prompt": token_ids(40, seed=8), "max_tokens": 6000, "ignore_eos": True}
    answers = []
    t = threading.Thread(target=lambda: answers.append(small.post(TEXT, ask)))
    t.start()
    page.until("!!document.querySelector('#running button')")
    page.until("document.querySelector('#running tr').children[0].textContent === 'decode'")
    for _ in range(400):
        if page.run("document.activeElement.closest('#running') !== null"):
            break
        page.key("Tab", 9)
    assert page.run("document.activeElement.getAttribute('aria-label')").startswith("Cancel ")
    page.run("document.activeElement.dispatchEvent(new KeyboardEvent('keydown')); document.activeElement.click()")
    t.join(60)
    assert answers[0][0] == 503
    page.until("document.querySelector('#recent td').textContent === 'cancelled in decode'")
    small.wait_idle()
    is_clean(page, small)


def test_the_tree_is_walked_by_keyboard_and_text_stays_text(page, small):
    talk(small)
    show(page, small)
    page.until("document.querySelectorAll('#tree rect').length >= 4")
    page.run("document.querySelector('#tree rect').focus()")
    texts = []
    for _ in range(page.run("document.querySelectorAll('#tree rect').length")):
        page.key("Enter", 13)
        page.until("!document.querySelector('#node').hidden")
        texts.append(page.run("document.querySelector('#node pre').textContent"))
        page.key("ArrowDown", 40)
    assert any("helpful assistant" in t for t in texts)
    assert any("<b>in</b>" in t for t in texts)
    assert page.run("document.querySelectorAll('main b i, #node b b').length") == 0
    is_clean(page, small)


def test_what_is_stored_is_a_table_too(page, make_server):
    small = make_server("--threads", "1", "--kv-tokens", "4096")  # nothing of other tests is stored
    talk(small)
    show(page, small)
    page.until("document.querySelectorAll('#tree rect').length >= 4")
    page.run("document.querySelector('#entries summary').click()")
    page.until("document.querySelectorAll('#entry-rows tr').length >= 4")
    rows = "[...document.querySelectorAll('#entry-rows tr')].map(r => [...r.children].map(c => c.textContent))"
    nodes = small.get("/v1/cache")[1]["nodes"]
    table = page.run(rows)
    assert len(table) == len(nodes)
    assert [int(r[4]) for r in table] == sorted((n["hits"] for n in nodes), reverse=True)
    assert int(table[0][4]) >= 2 and "helpful assistant" in table[0][0]  # the beginning of three prompts
    assert page.run("document.querySelector('#entry-head [aria-sort]').textContent") == "Hits"
    for name, column in (("Tokens", 2), ("Text", 0)):
        page.run(f"document.querySelectorAll('#entry-head button')[{column}].click()")
        page.until(f"document.querySelector('#entry-head [aria-sort]').textContent === '{name}'")
        values = [int(r[column]) if column else r[column] for r in page.run(rows)]
        assert values == sorted(values, reverse=column > 0)
    page.run("document.querySelector('#tree rect').focus()")
    page.key("Enter", 13)
    page.until("!document.querySelector('#node').hidden")
    told = page.run("document.querySelector('#node').textContent")
    assert "hit" in told and "last used" in told and "B · " in told
    assert "<b>in</b>" in page.run("document.querySelector('#entry-rows').textContent")
    assert page.run("document.querySelectorAll('#entry-rows b').length") == 0
    is_clean(page, small)


def test_what_is_nearly_used_up_is_told(page, make_server):
    s = make_server("--threads", "1", "--kv-tokens", "1024", "--ctx", "1024")
    show(page, s)
    assert page.run("document.querySelector('#pressure').hidden && document.querySelector('#full').hidden")
    charts = "[...document.querySelectorAll('#charts figure')].filter(f => !f.hidden).map(f => f.textContent)"
    assert not [c for c in page.run(charts) if c.startswith(("Disk cache", "Host memory"))]  # there are none
    ask = {"prompt": token_ids(860, seed=8), "max_tokens": 160, "ignore_eos": True}
    t = threading.Thread(target=lambda: s.ok(TEXT, ask))
    t.start()
    page.until("!document.querySelector('#pressure').hidden", 60)
    assert "--kv-bytes" in page.run("document.querySelector('#pressure').textContent")
    if PICTURES:
        page.picture(Path(PICTURES) / "pressure.png")
    t.join()
    s.ok(TEXT, ask | {"prompt": token_ids(300, seed=9), "max_tokens": 4})  # the first one's end gives way
    page.until("document.querySelector('#pressure').hidden && !document.querySelector('#full').hidden")
    page.until("document.querySelector('#full').textContent.includes('give way')")
    totals = s.get("/v1/monitor")[1]["totals"]
    assert totals["evicted_bytes"] > 0 and totals["above"] == ["kv"]
    assert totals["budgets"]["kv"]["used"] > 0.7 * totals["budgets"]["kv"]["limit"]
    assert totals["budgets"]["memory"]["limit"] == totals["budgets"]["disk"]["limit"] == 0
    is_clean(page, s)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_and_can_be_read(page, small, scheme, width):
    talk(small)
    stop = threading.Event()

    def load():
        seed = 100
        while not stop.is_set():
            small.post(TEXT, {"prompt": token_ids(300, seed=seed // 2), "max_tokens": 20, "ignore_eos": True})
            seed += 1

    worker = threading.Thread(target=load)
    worker.start()
    try:
        page.size(width, 900)
        page.colours(scheme)
        show(page, small)
        page.until("document.querySelectorAll('#tree rect').length >= 4")
        page.run("document.querySelector('#entries summary').click()")
        page.until("document.querySelectorAll('#entry-rows tr').length >= 4")
        page.until("[...document.querySelectorAll('.tile b')].every(b => b.textContent !== '–')", 60)
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.run(CONTRAST) >= 4.5
        assert page.run(
            "[...document.querySelectorAll('button, input, [role=img], [role=button]')].every(e => "
            "(e.labels && e.labels.length) || e.getAttribute('aria-label') || e.textContent)"
        )
        if PICTURES:
            page.picture(Path(PICTURES) / f"monitor-{scheme}-{width}.png")
    finally:
        stop.set()
        worker.join()
    is_clean(page, small)


# the least of text against what is behind it, as WCAG 2 has it, where both are plain colours
CONTRAST = """(() => {
  const rgb = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = (c) => c.slice(0, 3).map((v) => (v /= 255, v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  let least = 21;
  for (const e of document.querySelectorAll('h1, h2, p, td, th, dt, dd, b, span, label, li, figcaption, button')) {
    if (!e.textContent.trim() || !e.offsetParent) continue;
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    least = Math.min(least, (a + .05) / (b + .05));
  }
  return least;
})()"""


def test_it_asks_for_the_key(page, make_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice-key\n")
    s = make_server("--api-key", "own-key", "--api-key-file", str(keys), "--threads", "1", "--kv-tokens", "4096")
    page.open(f"http://127.0.0.1:{s.port}/")
    page.until("document.querySelector('#login') && !document.querySelector('#login').hidden")
    for wrong in ("nobody", "alice-key"):
        page.run(f"key.value = '{wrong}'; document.querySelector('#login button').click()")
        page.until("document.querySelector('#refused').textContent.includes('may not')")
        page.run("document.querySelector('#refused').textContent = ''")
    page.run("key.value = 'own-key'; document.querySelector('#login button').click()")
    page.until("document.querySelector('#state').textContent === 'Live'")
    assert page.run("document.querySelector('#login').hidden")
    page.problems = [p for p in page.problems if "401" not in str(p) and "403" not in str(p)]
    is_clean(page, s)


def test_it_comes_back_when_the_server_does(page, make_server):
    s = make_server("--threads", "1", "--kv-tokens", "4096")
    show(page, s)
    s.stop()
    page.until("document.querySelector('#state').className === 'lost'")
    again = Server("--threads", "1", "--kv-tokens", "4096", wait=False, port=s.port)
    with contextlib.ExitStack() as stack:
        stack.callback(again.stop)
        again.wait_ready()
        page.until("document.querySelector('#state').className === 'live'", 60)
