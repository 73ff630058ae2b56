"""A model that is fetched while the server runs is served from then on: listed, chosen by a request, swapped in; a file that
goes, one that is replaced, one that cannot be loaded, names that are there already, and tenants."""

import threading

import openai
import pytest
from hub_rig import Hub
from lora_files import write_peft
from radish_server import ROOT, TINY

QWEN = ROOT / "tests/golden/qwen2/tiny-qwen2.gguf"
GEMMA = ROOT / "tests/golden/gemma3/tiny-gemma3.gguf"
REPO, NAME = "acme/tiny-qwen-GGUF", "acme/tiny-qwen-GGUF:Q8_0"
ASK = {"prompt": [3, 4, 5, 6], "max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
HELLO = [{"role": "user", "content": "Hi"}]
FEW = {"options": {"num_predict": 4}}


@pytest.fixture
def make_hub(make_server, tmp_path):
    made = []

    def make(*flags, **more):
        made.append(Hub(make_server, tmp_path, *flags, **more))
        made[-1].hub.add(REPO, {"tiny-qwen-Q8_0.gguf": QWEN.read_bytes()})
        return made[-1]

    yield make
    for h in made:
        h.hub.close()


def fetch(hub, model=NAME):
    code, answer = hub.start(model)
    assert code == 200, answer
    return hub.until(answer["id"], "done", "failed")


def names(hub):
    return {m["id"]: m["status"]["value"] for m in hub.get("/v1/models")["data"]}


def ids(hub, model):
    body = hub.server.ok("/v1/completions", ASK | {"model": model})
    assert body["model"] == model
    return body["choices"][0]["token_ids"]


def test_a_fetched_model_is_listed_and_answers(make_hub):
    hub = make_hub()
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{hub.server.port}/v1", api_key="none")
    before = ids(hub, "tiny-llama")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": "Hi"}], max_tokens=4)
    d = fetch(hub)
    assert (d["state"], d["served"], d["model"]) == ("done", NAME, NAME)
    assert [m.id for m in client.models.list()] == ["tiny-llama", NAME]
    assert names(hub) == {"tiny-llama": "loaded", NAME: "unloaded"}
    answer = client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": "Hi"}], max_tokens=4)
    assert answer.model == NAME and answer.usage.completion_tokens > 0
    text = "".join(
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": "Hi"}], max_tokens=4, stream=True
        )
        if chunk.choices
    )
    assert text == answer.choices[0].message.content or text
    assert names(hub) == {"tiny-llama": "unloaded", NAME: "loaded"}
    assert ids(hub, "tiny-llama") == before != ids(hub, NAME)
    assert client.models.retrieve(NAME).id == NAME
    code, answer = hub.server.post("/v1/completions", ASK | {"model": "acme/other"})
    assert code == 404 and NAME in answer["error"]["message"]
    assert fetch(hub)["served"] == NAME and list(names(hub)) == ["tiny-llama", NAME]  # again: nothing new
    tags, ps = ([m["name"] for m in hub.get(p)["models"]] for p in ("/api/tags", "/api/ps"))  # Ollama's clients
    assert tags == ["tiny-llama:latest", NAME] and ps == [NAME]
    code, answer = hub.server.post("/api/chat", {"model": tags[0], "stream": False, "messages": HELLO} | FEW)
    assert code == 200 and answer["model"] == "tiny-llama", answer
    code, answer = hub.server.post("/api/chat", {"model": NAME, "stream": False, "messages": HELLO} | FEW)
    assert code == 200 and answer["model"] == NAME, answer
    assert hub.server.stats()["engine"]["accounting_errors"] == 0
    assert hub.server.stop() == 0


def test_a_request_that_runs_is_not_disturbed(make_hub):
    hub = make_hub("--max-models", "2")
    got = []
    long = ASK | {"model": "tiny-llama", "max_tokens": 200}
    thread = threading.Thread(target=lambda: got.append(hub.server.ok("/v1/completions", long)))
    thread.start()
    fetch(hub)
    assert len(ids(hub, NAME)) == 12
    thread.join()
    assert got[0]["usage"]["completion_tokens"] == 200
    assert names(hub) == {"tiny-llama": "loaded", NAME: "loaded"}


def test_one_that_cannot_be_loaded_is_not_offered(make_hub):
    hub = make_hub()
    hub.hub.add("acme/new-GGUF", {"new-Q8_0.gguf": TINY.read_bytes().replace(b"llama", b"mamba")})
    hub.hub.add("acme/no-GGUF", {"no-Q8_0.gguf": b"GGUF\x03\0\0\0" + b"x" * 900})
    for repo, why in (("acme/new-GGUF", "mamba"), ("acme/no-GGUF", "")):
        d = fetch(hub, repo)
        assert d["state"] == "done" and d["served"] == "" and "cannot be served" in d["text"], d
        assert why in d["text"] and str(hub.home) not in d["text"], d
    assert len(hub.get("/v1/models")["data"]) == 1
    assert hub.server.post("/v1/completions", ASK | {"model": "acme/new-GGUF:Q8_0"})[0] == 404
    ids(hub, "tiny-llama")


def test_a_file_that_goes_and_comes_back(make_hub):
    hub = make_hub()
    fetch(hub)
    first = ids(hub, NAME)
    for path in (hub.home / "hf/hub").rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_size == QWEN.stat().st_size:
            path.unlink()
    assert ids(hub, NAME) == first  # it is open: it stays until another one comes
    ids(hub, "tiny-llama")
    code, answer = hub.server.post("/v1/completions", ASK | {"model": NAME})
    assert code == 503 and "cannot be loaded" in answer["error"]["message"], answer
    assert names(hub) == {"tiny-llama": "loaded", NAME: "failed"}  # nothing was closed for it
    assert fetch(hub)["served"] == NAME
    assert ids(hub, NAME) == first


def test_another_revision_is_what_the_next_load_takes(make_hub):
    hub = make_hub()
    fetch(hub)
    old = ids(hub, NAME)
    hub.hub.add(REPO, {"tiny-qwen-Q8_0.gguf": GEMMA.read_bytes()})
    assert fetch(hub)["served"] == NAME
    assert ids(hub, NAME) == old  # in use: it stays what it was
    ids(hub, "tiny-llama")
    assert ids(hub, NAME) != old
    assert list(names(hub)) == ["tiny-llama", NAME]


def test_names_that_the_server_began_with(make_hub, make_server):
    hub = make_hub("--model-id", NAME)  # TINY is called so: the next load of that name takes what is fetched
    mine = ids(hub, NAME)
    assert fetch(hub)["served"] == NAME and list(names(hub)) == [NAME] and ids(hub, NAME) == mine
    hub.server.stop()
    own = {"HOME": str(hub.home), "HF_HOME": str(hub.home / "hf"), "HF_ENDPOINT": hub.hub.url, "no_proxy": "*"}
    hub.server = make_server("--threads", "1", "--kv-tokens", "1024", REPO, model=None, env=own)
    assert fetch(hub)["served"] == REPO  # the same file
    assert list(names(hub)) == [REPO]
    hub.hub.add(REPO, {"tiny-qwen-Q8_0.gguf": QWEN.read_bytes(), "tiny-qwen-F16.gguf": GEMMA.read_bytes()})
    assert fetch(hub, REPO + ":F16")["served"] == REPO + ":F16"
    assert ids(hub, REPO + ":F16") != ids(hub, REPO)  # its name begins with the other one's


def test_a_folder_is_served_and_more(make_hub, tmp_path, make_server):
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "one.gguf").symlink_to(TINY)
    (folder / "two.gguf").symlink_to(GEMMA)
    hub = make_hub()
    hub.server.stop()
    own = {"HOME": str(hub.home), "HF_HOME": str(hub.home / "hf"), "HF_ENDPOINT": hub.hub.url, "no_proxy": "*"}
    hub.server = make_server("--threads", "1", "--kv-tokens", "1024", model=folder, env=own)
    fetch(hub)
    assert list(names(hub)) == ["one", "two", NAME]
    assert len({str(ids(hub, n)) for n in ("one", "two", NAME)}) == 3


def test_flags_of_the_first_model_are_not_the_fetched_ones(make_hub, tmp_path):
    lora = write_peft(tmp_path / "pirate", 1)
    hub = make_hub("--lora", f"pirate={lora}", "--chat-template", "chatml", "--model-id", "mine")
    pirate, plain = ids(hub, "pirate"), ids(hub, "mine")
    assert pirate != plain
    fetch(hub)
    assert ids(hub, "pirate") == pirate  # a plain name is still an adapter's
    got = ids(hub, NAME)  # the adapter does not fit this one, and is not loaded with it
    assert "pirate" not in [m["id"] for m in hub.get(f"/v1/models?model={NAME}")["data"] if m.get("parent") == NAME]
    assert ids(hub, "pirate") == pirate and ids(hub, "mine") == plain and ids(hub, NAME) == got


def test_a_tenant_uses_what_the_owner_fetched(make_hub, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice-key\n")
    hub = make_hub("--api-key", "own-key", "--api-key-file", str(keys))
    alice = {"Authorization": "Bearer alice-key"}
    assert hub.server.post("/v1/downloads", {"model": NAME}, alice)[0] == 403
    hub.headers = {"Authorization": "Bearer own-key"}
    fetch(hub)
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{hub.server.port}/v1", api_key="alice-key")
    assert [m.id for m in client.models.list()] == ["tiny-llama", NAME]
    answer = client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": "Hi"}], max_tokens=4)
    assert answer.model == NAME
