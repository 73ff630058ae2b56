"""GET /metrics: what Prometheus reads is what happened, what docs/metrics.md says, and nobody else's."""

import json
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from radish_server import ROOT, TINY, Server

FOREIGN = ("vllm:", "sglang:", "llamacpp:")


@pytest.fixture
def tiny(make_server):
    s = make_server("--threads", "1", "--kv-tokens", "4096", model=TINY)
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0


def scrape(s, headers=None):
    """{(sample name, labels): value}; the text is read by Prometheus's own parser."""
    status, head, body = s.request("GET", "/metrics", headers=headers)
    assert status == 200 and head["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    out = {}
    for family in parse(body.decode()):
        assert family.documentation and family.type != "unknown", family
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in out, key
            out[key] = sample.value
    return out


def get(m, name, **labels):
    return m[name, tuple(sorted(labels.items()))]


def total(m, name):
    values = [v for (n, _), v in m.items() if n == name]
    assert values, name
    return sum(values)


def complete(s, prompt, n=8, **more):
    body = {"prompt": prompt, "max_tokens": n, "ignore_eos": True, "temperature": 0}
    return s.ok("/v1/completions", body | more)["usage"]


def test_what_is_counted_is_what_the_answers_say(tiny):
    used = [complete(tiny, [5, 6, 7, *(10 + i % 80 for i in range(k))], n=4 + k % 3) for k in (20, 20, 40, 90, 3)]
    tiny.wait_idle()
    m = scrape(tiny)
    n_prompt = sum(u["prompt_tokens"] for u in used)
    n_cached = sum(u["prompt_tokens_details"]["cached_tokens"] for u in used)
    n_out = sum(u["completion_tokens"] for u in used)
    assert n_cached > 40
    assert get(m, "radish_prompt_tokens_total") == n_prompt
    assert get(m, "radish_prompt_tokens_cached_total") == n_cached
    assert get(m, "radish_prompt_tokens_computed_total") == n_prompt - n_cached
    assert total(m, "radish_cached_tokens_total") == n_cached
    assert get(m, "radish_generated_tokens_total") == n_out
    assert get(m, "radish_request_prompt_tokens_sum") == n_prompt  # counted whole, request by request
    assert get(m, "radish_request_computed_tokens_sum") == n_prompt - n_cached
    assert get(m, "radish_request_generated_tokens_sum") == n_out
    assert get(m, "radish_requests_ended_total", outcome="length") == len(used)
    assert total(m, "radish_matches_total") == total(m, "radish_misses_total") == len(used)
    assert total(m, "radish_requests") == 0
    pages = [get(m, "radish_pages", state=s) for s in ("free", "ready", "locked", "pending", "quarantined")]
    assert sum(pages) * get(m, "radish_page_tokens") == get(m, "radish_kv_capacity_tokens")
    stats = tiny.stats()
    assert stats["tokens"]["prompt_computed"] + stats["tokens"]["prompt_cached"] == n_prompt


def test_each_request_is_in_each_histogram_once(tiny):
    used = [complete(tiny, [5, 6, 7, *(10 + i % 80 for i in range(k))], n=6) for k in (20, 30, 40)]
    tiny.ok("/v1/embeddings", {"input": [[5, 6, 7]]})
    tiny.wait_idle()
    m = scrape(tiny)

    def count(name):
        return get(m, f"radish_{name}_count")

    for name in (
        "time_to_first_token_seconds",
        "request_decode_seconds",
        "request_seconds_per_token",
        "request_generated_tokens",
        "request_max_tokens",
        "request_decode_tokens_per_second",
    ):
        assert count(name) == 3, name
    for name in ("request_prepare_seconds", "request_queue_seconds", "request_prefill_seconds", "request_seconds"):
        assert count(name) == 4, name  # the embedding, too
    assert count("inter_token_seconds") == sum(u["completion_tokens"] - 1 for u in used)
    assert count("step_rows") == get(m, "radish_steps_total")
    assert get(m, "radish_step_rows_sum") == get(m, "radish_step_tokens_total")
    assert get(m, "radish_request_seconds_sum") >= get(m, "radish_request_run_seconds_sum") > 0
    for name, labels in list(m):
        if not name.endswith("_bucket"):
            continue
        rest = {k: v for k, v in labels if k != "le"}
        ladder = [
            (float(dict(other)["le"]), m[n, other])
            for n, other in m
            if n == name and {k: v for k, v in other if k != "le"} == rest
        ]
        assert ladder == sorted(ladder) and [v for _, v in ladder] == sorted(v for _, v in ladder), name
        assert ladder[-1] == (float("inf"), get(m, name.removesuffix("_bucket") + "_count", **rest)), name


def test_other_servers_names_tell_the_same(tiny):
    for k in (20, 20, 40):
        complete(tiny, [5, 6, 7, *(10 + i % 80 for i in range(k))])
    tiny.wait_idle()
    m = scrape(tiny)
    model = {"model_name": tiny.get("/v1/models")[1]["data"][0]["id"]}
    vllm = model | {"engine": "0"}
    assert get(m, "vllm:num_requests_running", **vllm) == get(m, "vllm:num_requests_waiting", **vllm) == 0
    assert get(m, "vllm:kv_cache_usage_perc", **vllm) == get(m, "sglang:token_usage", **model) == 0
    n_prompt = get(m, "radish_prompt_tokens_total")
    assert n_prompt == get(m, "vllm:prompt_tokens_total", **vllm) == get(m, "sglang:prompt_tokens_total", **model)
    assert n_prompt == total(m, "vllm:prompt_tokens_by_source_total")
    assert get(m, "radish_prompt_tokens_cached_total") == total(m, "sglang:cached_tokens_total")
    assert get(m, "radish_prompt_tokens_computed_total") == get(m, "llamacpp:prompt_tokens_total")
    assert get(m, "vllm:time_to_first_token_seconds_count", **vllm) == 3
    assert get(m, "vllm:cache_config_info", block_size="16", num_gpu_blocks="256", **vllm) == 1
    assert get(m, "llamacpp:tokens_predicted_total") == 24


def shape(m_text):
    """{family name as written: (type, label names, help)}"""
    out = {}
    for line in m_text.splitlines():
        if found := re.match(r"# HELP (\S+) (.*)", line):
            out[found[1]] = ["", set(), found[2]]
        elif found := re.match(r"# TYPE (\S+) (\S+)", line):
            out[found[1]][0] = found[2]
        else:
            name = re.match(r"[^{ ]+", line)[0]
            owner = name if name in out else re.sub(r"_(bucket|sum|count)$", "", name)
            out[owner][1] |= set(re.findall(r'([a-z_]+)="', line)) - {"le"}
    return {k: (t, frozenset(labels), text) for k, (t, labels, text) in out.items()}


def documented():
    out = {}
    for line in (ROOT / "docs/metrics.md").read_text().splitlines():
        if found := re.match(r"\| `([a-z][a-z0-9_:]*)` \| (counter|gauge|histogram) \| (.*?) \| (.*?) \|$", line):
            assert found[1] not in out, found[1]
            out[found[1]] = (found[2], frozenset(re.findall(r"`([a-z_]+)`", found[3])), found[4])
    return out


def test_the_document_names_what_is_told_and_nothing_else(make_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice-key\n")
    s = make_server("--api-key", "own", "--api-key-file", str(keys), "--kv-tokens", "1024", model=TINY)
    told = shape(s.request("GET", "/metrics", headers={"Authorization": "Bearer own"})[2].decode())
    told |= shape(s.request("GET", "/metrics", headers={"Authorization": "Bearer alice-key"})[2].decode())
    written = documented()
    for name, (kind, labels, text) in told.items():
        row = f"| `{name}` | {kind} | {', '.join(f'`{x}`' for x in sorted(labels))} | {text} |"
        assert written.get(name) == (kind, labels, text), f"docs/metrics.md lacks\n{row}"
    assert set(written) == set(told)


def test_the_dashboard_asks_for_what_there_is(tiny):
    told = shape(tiny.request("GET", "/metrics")[2].decode())
    board = json.loads((ROOT / "docs/grafana.json").read_text())
    asked = [t["expr"] for p in board["panels"] for t in p["targets"]]
    assert len(asked) > 20
    for expr in asked:
        for name in re.findall(r"radish_[a-z_]+", expr):
            family = name.removesuffix("_bucket")
            kind, labels, _ = told[family]
            assert (kind == "histogram") == (family != name), name
            assert ("rate(" in expr) == (kind != "gauge") or "_total" in name and "sum(" in expr, expr
        for label in re.findall(r"sum by \(([a-z]+)\)", expr):
            assert label == "le" or label in labels, expr


def test_a_key_sees_its_own_numbers_alone(tenants):
    s, alice, bob, own = tenants
    for _ in range(2):
        assert s.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 2, "ignore_eos": True}, alice)[0] == 200
    assert s.request("GET", "/metrics")[0] == 401
    m = scrape(s, alice)
    assert {name for name, _ in m} == {
        "radish_tenant_requests",
        "radish_tenant_requests_ended_total",
        "radish_tenant_prompt_tokens_total",
        "radish_tenant_generated_tokens_total",
    }
    assert get(m, "radish_tenant_requests_ended_total", outcome="done") == 2
    assert get(m, "radish_tenant_prompt_tokens_total", source="cached") == 3
    assert total(m, "radish_tenant_prompt_tokens_total") == 6
    assert set(scrape(s, bob).values()) == {0}
    assert get(scrape(s, own), "radish_generated_tokens_total") == 4


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", 'x" 1\n# TYPE y counter\ny 1', "\u00fc\u4e2d"])
def test_a_name_with_odd_characters_stays_one_label(tmp_path, name):
    link = tmp_path / f"{name}.gguf"
    link.symlink_to(TINY)
    s = Server("--kv-tokens", "1024", model=link)
    try:
        id = s.get("/v1/models")[1]["data"][0]["id"]
        found = [dict(labels)["model"] for n, labels in scrape(s) if n == "radish_info"]
        assert found == [id]
    finally:
        assert s.stop() == 0


def test_head_and_other_methods(tiny):
    status, head, body = tiny.request("HEAD", "/metrics")
    assert (status, body) == (200, b"") and int(head["content-length"]) > 10_000
    assert tiny.request("POST", "/metrics", {})[0] == 405
    assert json.loads(tiny.request("GET", "/metrics/x")[2])["error"]
