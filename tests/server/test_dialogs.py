"""The chat page's dialogs in headless Chromium: settings of the next load, and downloads from a hub on this machine."""

import json
import os
from pathlib import Path

import pytest
from hub_rig import MODEL, REPO, Hub, stall
from radish_server import ROOT, TINY
from test_chat import ask, is_clean, show
from test_page import CONTRAST

QWEN = ROOT / "tests/golden/qwen2/tiny-qwen2.gguf"
PICTURES = os.environ.get("RADISH_PICTURES")


@pytest.fixture
def hub(make_server, tmp_path):
    h = Hub(make_server, tmp_path)
    yield h
    h.hub.close()


def press(p, selector):
    p.run(f"document.querySelector({json.dumps(selector)}).click()")


def put(p, name, value):
    p.run(f"document.querySelector('#s-{name}').value = {json.dumps(value)}")


def open_settings(p):
    press(p, "#settings-button")
    p.until("document.querySelectorAll('#fields .field').length > 5")


def told(p, which="settings"):
    return p.run(f"document.querySelector('#{which}-told').textContent")


def test_settings_are_read_set_and_loaded(page, make_server):
    s = make_server("--threads", "1", "--kv-tokens", "1024", model=TINY)
    show(page, s)
    open_settings(page)
    assert page.run("document.querySelector('#s-kv-tokens').value") == "1024"
    assert page.run("document.activeElement.id") == "s-ctx"
    assert page.run("document.querySelector('#s-thinking').tagName") == "SELECT"
    assert "--port" in page.run("document.querySelector('#fixed').textContent")
    put(page, "ctx", "128")
    put(page, "kv-type", "bf16")
    press(page, "#settings-form button")
    page.until("document.querySelector('#settings-told').textContent.includes('next load on')")
    assert "--ctx from default" in told(page) and "to 128" in told(page)
    assert page.run("document.querySelector('#keep-flags').textContent") == "--ctx 128 --kv-type bf16"
    assert s.get("/v1/models")[1]["data"][0]["max_model_len"] == 256
    press(page, "#settings-load")
    page.until("document.querySelector('#settings-told').textContent.includes('loaded again')")
    assert s.get("/v1/models")[1]["data"][0]["max_model_len"] == 128
    put(page, "ctx", "-1")
    press(page, "#settings-load")
    assert "--ctx:" in told(page) and page.run("document.activeElement.id") == "s-ctx"
    put(page, "ctx", "64")
    put(page, "kv-type", "q9")
    press(page, "#settings-load")
    page.until("document.querySelector('#settings-told').textContent.includes('wanted f16')")
    assert page.run("document.activeElement.id") == "s-kv-type"
    put(page, "kv-type", "q8_0")  # a load that fails: what was there before is back
    press(page, "#settings-load")
    page.until("document.querySelector('#settings-told').textContent.includes('The last load could not have them')")
    assert s.get("/v1/models")[1]["data"][0]["max_model_len"] == 128
    press(page, "#settings-start")
    assert page.run("document.querySelector('#s-ctx').value") == ""
    page.key("Escape", 27)
    assert not page.run("document.querySelector('#settings').open")
    is_clean(page, s, "400")


def test_settings_are_kept_for_the_next_start_if_asked(page, make_server, tmp_path):
    config = tmp_path / "radish.toml"
    config.write_text("threads = 1\nkv-tokens = 1024 # not many\n")
    s = make_server("--config", str(config), model=TINY)
    show(page, s)
    open_settings(page)
    assert page.run("document.querySelector('#save-note').textContent") == str(config)
    assert not page.run("document.querySelector('#settings-save').checked")  # nothing is kept by surprise
    put(page, "ctx", "128")
    press(page, "#settings-form button")
    page.until("document.querySelector('#settings-told').textContent.includes('next load on')")
    assert page.run("!document.querySelector('#keep').hidden") and "ctx" not in config.read_text()
    press(page, "#settings-save")
    press(page, "#settings-form button")  # what was set before is kept, too
    page.until("document.querySelector('#settings-told').textContent.includes('next start has it')")
    assert config.read_text() == "threads = 1\nkv-tokens = 1024 # not many\nctx = 128\n"
    assert page.run("document.querySelector('#keep').hidden")
    config.chmod(0o440)
    page.key("Escape", 27)
    open_settings(page)
    page.until("document.querySelector('#settings-save').disabled")
    assert "read-only" in page.run("document.querySelector('#save-note').textContent")
    is_clean(page, s)
    s.stop()
    s = make_server("--config", str(config), model=TINY)
    assert s.get("/v1/models")[1]["data"][0]["max_model_len"] == 128


def test_only_who_runs_the_server_sees_them(page, make_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice-key\n")
    s = make_server(
        "--api-key", "own", "--api-key-file", str(keys), "--threads", "1", "--kv-tokens", "1024", model=TINY
    )
    page.open(f"http://127.0.0.1:{s.port}/chat")
    page.until("document.readyState === 'complete' && !document.querySelector('#login').hidden")
    page.run("document.querySelector('#key').value = 'alice-key'; document.querySelector('#login').requestSubmit()")
    page.until("document.querySelector('#state').textContent === 'Ready'")
    press(page, "#settings-button")
    page.until("document.querySelector('#settings-told').textContent.includes('only its own key')")
    page.key("Escape", 27)
    press(page, "#models-button")
    page.until("document.querySelector('#hub-told').textContent.includes('only its own key')")
    is_clean(page, s, "401", "403")


def test_a_model_is_found_and_fetched_with_progress(page, hub):
    hub.hub.faults["tiny-Q4_K_M.gguf"] = [stall(100000, 60)]
    show(page, hub.server)
    press(page, "#models-button")
    page.run("document.querySelector('#words').value = 'tiny'; document.querySelector('#hub-form').requestSubmit()")
    page.until("document.querySelectorAll('#found > li').length === 1")
    assert "GGUF" in page.run("document.querySelector('#found').textContent") and hub.hub.url in told(page, "hub")
    press(page, "#found [data-does=look]")
    page.until("document.querySelectorAll('#found ul li').length === 2")
    assert "best that fits" in page.run("document.querySelector('#found ul').textContent")
    press(page, f"#found li[data-model='{REPO}:Q4_K_M'] button")
    page.until(
        "document.querySelector('#downloads progress') && document.querySelector('#downloads progress').value === 100000"
    )
    assert page.run("document.querySelector('#downloads progress').max") == len(MODEL)
    if PICTURES:
        page.picture(Path(PICTURES) / "models.png")
    press(page, "#downloads [data-does=cancel]")
    page.until("document.querySelector('#downloads').textContent.includes('cancelled')")
    press(page, "#downloads [data-does=start]")
    page.until("document.querySelector('#downloads').textContent.includes('cannot be served')")  # it is no model
    assert hub.blob().read_bytes() == MODEL and not page.run("!!document.querySelector('#downloads [data-does=use]')")
    is_clean(page, hub.server)


@pytest.mark.parametrize("width", [360, 1280])
def test_a_fetched_model_is_talked_to_without_a_restart(page, hub, width):
    page.size(width, 900)
    hub.hub.add("acme/tiny-GGUF", {"tiny-Q8_0.gguf": QWEN.read_bytes()})
    show(page, hub.server)
    assert page.run("document.querySelector('#model').options.length") == 1
    press(page, "#models-button")
    page.run("document.querySelector('#words').value = 'acme'; document.querySelector('#hub-form').requestSubmit()")
    page.until("document.querySelectorAll('#found > li').length === 1")
    press(page, "#found [data-does=look]")
    page.until("document.querySelectorAll('#found ul li').length === 1")
    press(page, "#found ul button")
    page.until("document.querySelector('#model').options.length === 2")  # while the dialog is open
    assert page.run("document.querySelector('#model').value") == "tiny-llama"
    page.until("!!document.querySelector('#downloads [data-does=use]')")
    assert page.run(
        "document.querySelector('dialog[open]').scrollWidth <= document.querySelector('dialog[open]').clientWidth"
    )
    assert page.run(CONTRAST) >= 4.5
    if PICTURES:
        page.picture(Path(PICTURES) / f"fetched-{width}.png")
    press(page, "#downloads [data-does=use]")
    page.until("!document.querySelector('dialog[open]')")
    assert page.run("document.querySelector('#model').value") == "acme/tiny-GGUF:Q8_0"
    ask(page, "Hello")
    assert hub.get("/v1/models")["data"][1]["status"]["value"] == "loaded"
    is_clean(page, hub.server)


def test_what_a_hub_says_is_text(page, hub):
    hub.hub.faults["api/search"] = [("status", (503, {"X-Error-Message": "<img src=x onerror=pwned=1>"}))]
    show(page, hub.server)
    press(page, "#models-button")
    page.run("document.querySelector('#words').value = '<b>x</b>'; document.querySelector('#hub-form').requestSubmit()")
    page.until("document.querySelector('#hub-told').className.includes('wrong')")
    hub.hub.close()
    page.run("document.querySelector('#hub-form').requestSubmit()")
    page.until("document.querySelector('#hub-told').textContent.includes('hub')")
    assert page.run("document.querySelectorAll('dialog img, dialog b b').length") == 0
    is_clean(page, hub.server, "503")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_they_fit_and_can_be_read(page, hub, scheme, width):
    page.size(width, 900)
    page.colours(scheme)
    show(page, hub.server)
    open_settings(page)
    fits = "document.querySelector('dialog[open]').scrollWidth <= document.querySelector('dialog[open]').clientWidth"
    assert page.run(fits) and page.run("document.documentElement.scrollWidth") <= width
    assert page.run(CONTRAST) >= 4.5
    assert page.run("[...document.querySelectorAll('#fields input, #fields select')].every(e => e.labels.length === 1)")
    if PICTURES:
        page.picture(Path(PICTURES) / f"settings-{scheme}-{width}.png")
    page.key("Escape", 27)
    press(page, "#models-button")
    page.run("document.querySelector('#words').value = 'tiny'; document.querySelector('#hub-form').requestSubmit()")
    page.until("document.querySelectorAll('#found > li').length === 1")
    press(page, "#found [data-does=look]")
    page.until("document.querySelectorAll('#found ul li').length === 2")
    assert page.run(fits) and page.run(CONTRAST) >= 4.5
    if PICTURES:
        page.picture(Path(PICTURES) / f"models-{scheme}-{width}.png")
    is_clean(page, hub.server)
