"""The chat page in headless Chromium: with a real server, and with one that says what a bad model or a bad day would."""

import contextlib
import http.server
import json
import os
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from test_page import CONTRAST

PICTURES = os.environ.get("RADISH_PICTURES")  # a folder: what the page looks like goes there
# One pixel: PNG.
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Scripted(http.server.ThreadingHTTPServer):
    """The page of a real server, with answers that a test makes up. answer(handler, body) writes one."""

    daemon_threads = True

    def __init__(self, s):
        self.models = [{"id": "toy", "capabilities": ["completion"]}]
        self.seen, self.answer, self.page_of = [], None, f"http://127.0.0.1:{s.port}/chat"
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"  # the end of an answer is the end of its connection

            def log_message(self, *args):
                pass

            def give(self, status, headers, data):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def error(self, status, message, code=None, headers=None):
                body = {"error": {"message": message, "type": "x", "param": None, "code": code}}
                self.give(status, {"Content-Type": "application/json", **(headers or {})}, json.dumps(body).encode())

            def events(self, *deltas, done=True, pause=0.0, finish="stop"):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                for d in deltas:
                    self.event({"choices": [{"index": 0, "delta": d, "finish_reason": None}]})
                    time.sleep(pause)
                if not done:
                    return
                self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
                self.event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": len(deltas)}})
                self.wfile.write(b"data: [DONE]\n\n")

            def event(self, value):
                self.wfile.write(b"data: %s\n\n" % json.dumps(value).encode())
                self.wfile.flush()

            def do_GET(self):
                if self.path == "/v1/models":
                    return self.give(
                        200, {"Content-Type": "application/json"}, json.dumps({"data": outer.models}).encode()
                    )
                if self.path != "/chat":
                    return self.error(404, "no")
                with urllib.request.urlopen(outer.page_of) as r:
                    keep = ("Content-Type", "Content-Security-Policy", "Referrer-Policy")
                    self.give(200, {k: r.headers[k] for k in keep}, r.read())

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.seen.append(body)
                with contextlib.suppress(OSError):  # a page that stops
                    outer.answer(self, body)

        super().__init__(("127.0.0.1", 0), Handler)
        self.port = self.server_address[1]
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


@pytest.fixture
def fake(server):
    f = Scripted(server)
    yield f
    f.shutdown()
    f.server_close()


def show(p, s):
    p.open(f"http://127.0.0.1:{s.port}/chat")
    p.until("document.readyState === 'complete' && document.querySelector('#state').textContent === 'Ready'")


def type_in(p, text):
    p.run(f"document.querySelector('#say').value = {json.dumps(text)}")
    p.run("document.querySelector('#composer').requestSubmit()")


def ask(p, text, seconds=60):
    type_in(p, text)  # the button has changed when this is back
    p.until("!document.querySelector('#send').hidden", seconds)


def put_option(p, name, value):
    p.run(
        f"(e => {{ e.value = '{value}'; e.dispatchEvent(new Event('input', {{bubbles: true}})) }})"
        f"(document.querySelector('#p-{name}'))"
    )


def articles(p):
    return p.run(
        "[...document.querySelectorAll('#log article')].map(a => [a.className, a.querySelector('.body').textContent])"
    )


def last(p, what):
    return p.run(f"[...document.querySelectorAll('#log article')].at(-1).{what}")


def click(p, does, n=-1):
    p.run(f"[...document.querySelectorAll('#log article')].at({n}).querySelector('[data-does={does}]').click()")


def idle(p):
    p.until("!document.querySelector('#send').hidden")


def is_clean(p, s, *expected):
    """Nothing in the console but what a test expects there, nothing asked of anybody else."""
    assert [q for q in p.problems if not any(word in str(q) for word in expected)] == []
    hosts = {u.split("/")[2] for u in p.urls if u.startswith("http")}
    assert hosts == {f"127.0.0.1:{s.port}"}, hosts


# ---- with a model ----


def test_a_conversation_is_streamed_counted_and_kept(page, server):
    show(page, server)
    page.run("document.querySelector('#options').open = true")
    for name, value in (("max_tokens", "24"), ("temperature", "0"), ("seed", "7")):
        put_option(page, name, value)
    page.run(
        "(e => { e.value = 'You are terse.'; e.dispatchEvent(new Event('input', {bubbles: true})) })"
        "(document.querySelector('#system'))"
    )
    ask(page, "Name three colours of a garden in spring, please.")
    first = articles(page)
    assert [a[0] for a in first] == ["user", "assistant"] and len(first[1][1]) > 10
    foot = last(page, "querySelector('.foot').textContent")
    assert "of them cached" in foot and "24 tokens" in foot and "tokens/s" in foot and "first after" in foot
    put_option(page, "max_tokens", 8)
    ask(page, "And one more?")
    foot = last(page, "querySelector('.foot').textContent")
    cached = int(foot.split(" of them cached")[0].rsplit(", ", 1)[1].replace(",", ""))
    prompt = int(foot.split(" prompt tokens")[0].replace(",", ""))
    assert 24 < cached < prompt  # the first turn was there, answer included
    # a reload keeps the conversation, and another one begins beside it with the same parameters
    page.reload()
    page.until(
        "document.querySelectorAll('#chats button').length === 1 && document.querySelector('#state').textContent"
    )
    assert page.run("document.querySelector('#p-max_tokens').value") == "8"
    page.run("document.querySelector('#chats button').click()")
    assert articles(page)[:2] == first and len(articles(page)) == 4
    assert page.run("document.querySelector('#system').value") == "You are terse."
    # an answer that was cut is gone on with
    cut = articles(page)[3][1]
    assert "Ended at the most tokens" in last(page, "textContent")
    click(page, "go-on")
    idle(page)
    assert (
        len(articles(page)) == 4
        and articles(page)[3][1].startswith(cut.strip())
        and len(articles(page)[3][1]) > len(cut)
    )
    # the same question, the same seed: the same answer, as another version
    put_option(page, "max_tokens", 24)
    click(page, "again", 1)
    idle(page)
    assert articles(page) == first
    assert "2 of 2" in last(page, "querySelector('.foot').textContent")
    click(page, "before")
    assert len(articles(page)) == 4  # the old version has its continuation
    server.wait_idle()
    is_clean(page, server)


def test_it_answers_while_others_load_the_server(page, small):
    stop = threading.Event()

    def load(i):
        while not stop.is_set():
            small.post("/v1/completions", {"prompt": f"{i}: once upon a time", "max_tokens": 30, "ignore_eos": True})

    others = [threading.Thread(target=load, args=(i,)) for i in range(4)]
    for t in others:
        t.start()
    try:
        show(page, small)
        put_option(page, "max_tokens", 12)
        for question in ("Who are you?", "And what do you do?"):
            ask(page, question, 120)
            assert "tokens/s" in last(page, "querySelector('.foot').textContent")
        assert len(articles(page)) == 4 and all(text for _, text in articles(page))
    finally:
        stop.set()
        for t in others:
            t.join()
    is_clean(page, small)


def test_stop_ends_the_request_and_an_edit_goes_on_from_there(page, small):
    show(page, small)
    put_option(page, "temperature", 0)
    put_option(page, "max_tokens", 4000)
    type_in(page, "Write a very long story about a river.")
    page.until("[...document.querySelectorAll('#log article')].at(-1).querySelector('.body').textContent.length > 20")
    page.key("Escape", 27)
    idle(page)
    small.wait_idle()
    assert page.run("document.querySelector('#state').textContent") == "Stopped"
    assert "about" in last(page, "querySelector('.foot').textContent")
    kept = last(page, "querySelector('.body').textContent")
    assert len(kept) > 20
    click(page, "edit", 0)
    page.until("!!document.activeElement.closest('article textarea')")
    put_option(page, "max_tokens", 8)
    page.run("document.activeElement.value = 'Say yes.'; document.activeElement.form.requestSubmit()")
    page.until("document.querySelector('#send').hidden")
    idle(page)
    assert articles(page)[0][1] == "Say yes." and len(articles(page)) == 2
    click(page, "before", 0)
    assert articles(page)[1][1] == kept
    is_clean(page, small)


def test_it_says_what_the_server_says(page, make_server):
    s = make_server("--api-key", "own-key", "--threads", "1", "--kv-tokens", "1024")
    page.open(f"http://127.0.0.1:{s.port}/chat")
    page.until("document.readyState === 'complete' && !document.querySelector('#login').hidden")
    page.run("document.querySelector('#key').value = 'wrong'; document.querySelector('#login').requestSubmit()")
    page.until("document.querySelector('#refused').textContent.includes('not one of')")
    page.run("document.querySelector('#key').value = 'own-key'; document.querySelector('#login').requestSubmit()")
    page.until("document.querySelector('#state').textContent === 'Ready'")
    assert page.run("document.querySelector('#login').hidden")
    ask(page, "word " * 3000)
    assert "no longer fits" in last(page, "querySelector('[role=alert]').textContent")
    s.stop()
    click(page, "again")
    page.until("document.querySelector('#log').textContent.includes('cannot be reached')")
    is_clean(page, s, "401", "400", "ERR_CONNECTION", "ERR_EMPTY")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_and_can_be_read(page, fake, scheme, width):
    text = (
        "## Plan\n\n1. **Read** the file\n   - line by line\n2. *Count* its words, see [the manual](https://example.org/x)\n\n"
        "```python\nimport sys\n\nwords = sum(len(line.split()) for line in open(sys.argv[1], encoding='utf-8'))  # all of them\n"
        "print(words)\n```\n\n| way | time |\n|:--|--:|\n| `split` | 1 ms |\n| regex | 7 ms |\n\n> Short, and quick enough."
    )
    fake.answer = lambda h, body: h.events(
        {"reasoning_content": "They want it short. "},
        {"reasoning_content": "Python."},
        *({"content": text[i : i + 7]} for i in range(0, len(text), 7)),
        pause=0.02,
    )
    page.size(width, 800)
    page.colours(scheme)
    show(page, fake)
    assert page.run(CONTRAST) >= 4.5
    ask(page, "How do I count the words of a file?")
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run(CONTRAST) >= 4.5
    assert page.run("document.querySelector('details.thinking summary').textContent").startswith("Thought for")
    assert not page.run("document.querySelector('details.thinking').open")
    assert page.run("document.querySelector('.code code').textContent").startswith("import sys\n\nwords")
    assert page.run(
        "[...document.querySelectorAll('button, input, select, textarea, [role=log]')].every(e => "
        "(e.labels && e.labels.length) || e.getAttribute('aria-label') || e.textContent)"
    )
    page.run("document.querySelector('#log').scrollTop = 0")
    if PICTURES:
        page.picture(Path(PICTURES) / f"chat-{scheme}-{width}.png")
    is_clean(page, fake)


# ---- with a model that means ill ----

HOSTILE = [
    "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'><svg onload=pwned=3>",
    "[click](javascript:window.pwned=4) [d](data:text/html,<script>parent.pwned=5</script>) [v](vbscript:x) <javascript:pwned=6>",
    "[tab](java\tscript:pwned=7) [e](JaVaScRiPt:pwned=8) [h](&#106;avascript:pwned=9) ![i](javascript:pwned=10)",
    "![data](data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9ImFsZXJ0KDEpIi8+) ![far](http://192.0.2.1/pixel.png?secret)",
    "```html\n<script>window.pwned = 11</script>\n```\n`<b onclick=pwned=12>`\n\n| <i>a | b |\n|--|--|\n| <script>pwned=13</script> | x |",
    '[x](https://example.org/"onmouseover="pwned=14) [constructor](__proto__) __proto__ <a href=javascript:pwned=15>x</a>',
]
FLOODS = {
    "line": "x" * (1 << 20),
    "quotes": "> " * 20000 + "deep",
    "lists": "\n".join("  " * (i % 400) + "- item" for i in range(3000)),
    "marks": "*a **b _c ~~d " * 8000,
    "brackets": "[" * 50000 + "](" * 20000,
    "ticks": " ".join("`" * n for n in range(1, 500)),
    "table": "|a|b|\n|-|-|\n" + "|x|y|\n" * 20000,
    "fence": "```\n" + "code\n" * 50000,
    "paragraphs": "*a* `b`\n\n" * 20000,
}


def test_hostile_text_is_text(page, fake):
    fake.answer = lambda h, body: h.events(*({"content": t + "\n\n"} for t in HOSTILE), {"content": "end"})
    show(page, fake)
    ask(page, "<img src=x onerror='pwned=1'>")
    assert page.run("window.pwned") is None
    assert (
        page.run("document.querySelectorAll('#log script, #log img, #log svg, #log iframe, #log i, #log b').length")
        == 0
    )
    links = page.run("[...document.querySelectorAll('#log a')].map(a => a.protocol)")
    assert links and set(links) <= {"https:", "http:"}
    assert page.run(
        "[...document.querySelectorAll('#log *')].every(e => [...e.attributes].every(a => !a.name.startsWith('on')))"
    )
    text = last(page, "querySelector('.body').textContent")
    assert "<script>window.pwned = 1</script>" in text and "end" in text
    for a in range(page.run("document.querySelectorAll('#log a').length")):
        assert page.run(f"document.querySelectorAll('#log a')[{a}].rel").startswith("noopener noreferrer")
    # what was stored is foreign when it comes back
    page.reload()
    page.until("document.querySelectorAll('#chats button').length === 1")
    page.run("document.querySelector('#chats button').click()")
    assert page.run("window.pwned") is None and "end" in last(page, "querySelector('.body').textContent")
    # and html that is set as such would be refused by the page's policy
    assert page.run(
        "(() => { try { document.body.innerHTML = '<b>x</b>'; return false } catch (e) { return true } })()"
    )
    is_clean(page, fake, "TrustedHTML")


@pytest.mark.parametrize("kind", FLOODS)
def test_floods_leave_the_page_alive(page, fake, kind):
    flood = FLOODS[kind]
    fake.answer = lambda h, body: h.events(*({"content": flood[i : i + 8192]} for i in range(0, len(flood), 8192)))
    show(page, fake)
    ask(page, "Go", 120)
    page.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    n = last(page, "querySelector('.body').textContent.length")
    assert n > len(flood) * 0.5 or kind in ("lists", "paragraphs", "table", "ticks")
    assert page.run("document.querySelectorAll('#log *').length") < 25000
    depth = page.run(
        "Math.max(...[...document.querySelectorAll('#log *')].map(e => { let n = 0; for (; e; e = e.parentElement) n++; return n }))"
    )
    assert depth < 40
    assert page.run("document.documentElement.scrollWidth") <= 1280
    fake.answer = lambda h, body: h.events({"content": "still here"})
    ask(page, "And now?")
    assert last(page, "querySelector('.body').textContent") == "still here"
    is_clean(page, fake)


def test_damaged_storage_is_passed_over(page, fake):
    fake.answer = lambda h, body: h.events({"content": "fine"})
    show(page, fake)
    bad = [
        "{",
        "null",
        "[]",
        '{"id":"a","root":{"children":["x"]},"nodes":{}}',
        '{"id":5,"root":{"children":[]},"nodes":{}}',
        '{"id":"b","root":{"children":["n"]},"nodes":{"n":{"text":"t","children":[],"images":["javascript:1"]}}}',
        '{"id":"c","root":{"children":["__proto__"]},"nodes":{}}',
    ]
    page.run(f"{json.dumps(bad)}.forEach((t, i) => localStorage.setItem('radish-chat:' + i, t))")
    page.run("localStorage.setItem('radish-chat-params', '{')")
    page.reload()
    page.until("document.querySelector('#state').textContent === 'Ready'")
    ask(page, "Well?")
    assert last(page, "querySelector('.body').textContent") == "fine"
    is_clean(page, fake)


# ---- with a server that has a bad day ----


@pytest.mark.parametrize(
    "answer, words",
    [
        (
            lambda h, b: h.error(429, "queue full", headers={"Retry-After": "7"}),
            "busy with other requests. Try again in 7 seconds",
        ),
        (lambda h, b: h.error(503, "Loading model"), "still being loaded"),
        (lambda h, b: h.error(503, "The server is shutting down"), "cannot answer now"),
        (lambda h, b: h.error(404, "The model `toy` does not exist", "model_not_found"), "does not have this model"),
        (lambda h, b: h.error(413, "too long"), "more than the server takes"),
        (lambda h, b: h.give(502, {"Content-Type": "text/html"}, b"<h1>Bad gateway</h1>"), "refused (502)"),
        (lambda h, b: h.events({"content": "half an "}, done=False), "broke off before the answer had ended"),
        (
            lambda h, b: (h.events({"content": "a"}, done=False), h.event({"error": {"message": "device lost"}})),
            "device lost",
        ),
        (lambda h, b: h.connection.close(), "cannot be reached"),
        (lambda h, b: (h.events({"content": "x"}, done=False), h.wfile.write(b"data: {broken\n\n")), "broke off"),
    ],
)
def test_errors_are_in_plain_words_and_can_be_tried_again(page, fake, answer, words):
    fake.answer = answer
    show(page, fake)
    ask(page, "Hello?")
    page.until(f"document.querySelector('#log').textContent.includes({json.dumps(words)})")
    fake.answer = lambda h, body: h.events({"content": "at last"})
    page.run("document.querySelector('.problem [data-does=again]').click()")
    page.until("[...document.querySelectorAll('#log article')].at(-1).textContent.includes('at last')")
    assert page.run("document.querySelectorAll('#log article').length") == 2
    is_clean(page, fake, "Failed to load resource")


def test_conversations_are_renamed_deleted_brought_back_and_exported(page, fake):
    fake.answer = lambda h, body: h.events({"content": "**bold** answer"})
    show(page, fake)
    page.run("URL.createObjectURL = (blob) => { (window.blobs ||= []).push(blob); return 'blob:none' }")
    page.run("HTMLAnchorElement.prototype.click = function () { (window.names ||= []).push(this.download) }")
    ask(page, "First question")
    page.run("document.querySelector('#new').click()")
    ask(page, "Second question")
    titles = "[...document.querySelectorAll('#chats button')].map(b => b.textContent)"
    assert page.run(titles) == ["Second question", "First question"]
    page.run("document.querySelector('#rename-button').click()")
    page.run(
        "document.querySelector('#name').value = '<b>New</b> name'; document.querySelector('#rename').requestSubmit()"
    )
    assert page.run(titles)[0] == "<b>New</b> name"
    page.run("document.querySelector('#export').click(); document.querySelector('#export-json').click()")
    assert page.run("window.names") == ["bNewb name.md", "bNewb name.json"]
    text = page.run("window.blobs[0].text()")
    assert "## You\n\nSecond question" in text and "**bold** answer" in text
    assert len(json.loads(page.run("window.blobs[1].text()"))["nodes"]) == 2
    page.run("document.querySelector('#delete').click()")
    assert page.run(titles) == ["First question"]
    page.run("document.querySelector('#undo button').click()")
    assert page.run(titles)[0] == "<b>New</b> name" and articles(page)[1][1] == "bold answer"
    is_clean(page, fake)


def test_parameters_are_sent_and_wrong_ones_are_not(page, fake):
    fake.answer = lambda h, body: h.events({"content": "ok"})
    show(page, fake)
    for name, value in (("temperature", "0.5"), ("top_p", "7"), ("seed", "3"), ("thinking", "off")):
        put_option(page, name, value)
    assert page.run("document.querySelector('#p-top_p').getAttribute('aria-invalid')") == "true"
    ask(page, "Hi")
    sent = fake.seen[-1]
    assert (sent["temperature"], sent["seed"], sent["enable_thinking"]) == (0.5, 3, False)
    assert "top_p" not in sent and sent["stream"] and sent["model"] == "toy"
    is_clean(page, fake)


def test_pictures_only_for_a_model_that_sees(page, fake):
    fake.answer = lambda h, body: h.events({"content": "a dot"})
    drop = (
        "(() => { const t = new DataTransfer(); t.items.add(new File([Uint8Array.from(atob('%s'), c => c.charCodeAt(0))], "
        "'a.png', {type: 'image/png'})); document.querySelector('#composer').dispatchEvent(new DragEvent('drop', "
        "{bubbles: true, cancelable: true, dataTransfer: t})) })()" % PIXEL
    )
    show(page, fake)
    assert page.run("document.querySelector('#attach').hidden")
    page.run(drop)
    page.until("document.querySelector('#state').textContent.includes('does not see')")
    fake.models = [{"id": "toy", "capabilities": ["completion", "vision"]}]
    show(page, fake)
    assert not page.run("document.querySelector('#attach').hidden")
    page.run(drop)
    page.until("document.querySelectorAll('#images img').length === 1")
    ask(page, "What is it?")
    parts = fake.seen[-1]["messages"][0]["content"]
    assert parts[0] == {"type": "text", "text": "What is it?"}
    assert parts[1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert page.run("document.querySelector('#log img').naturalWidth") == 1
    is_clean(page, fake)


def test_all_of_it_by_keyboard(page, fake):
    fake.answer = lambda h, body: h.events({"content": "one"}, {"content": " two"})
    show(page, fake)
    assert page.run("document.activeElement.id") == "say"
    page.call("Input.insertText", text="By hand")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13)
    page.until("document.querySelectorAll('#log article').length === 2")
    idle(page)
    reached = set()
    for _ in range(60):
        page.key("Tab", 9)
        reached.add(
            page.run(
                "document.activeElement.id || document.activeElement.dataset.does || document.activeElement.textContent"
            )
        )
    assert {"model", "new", "rename-button", "export", "delete", "log", "again", "edit", "say", "send"} <= reached, (
        reached
    )
    assert page.run("document.querySelector('#state').getAttribute('role')") == "status"
    is_clean(page, fake)
