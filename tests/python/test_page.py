"""The code in docs/python.md runs, in its order, and prints what stands behind it. RADISH_PAGE: that page."""

import os
import re
import shutil
from pathlib import Path

import pytest

BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def test_the_page(capsys, tmp_path, monkeypatch):
    shutil.copy(os.environ["RADISH_MODEL"], tmp_path / "smollm2.gguf")
    monkeypatch.chdir(tmp_path)
    names, n_compared = {}, 0
    for code, wanted in BLOCK.findall(Path(os.environ["RADISH_PAGE"]).read_text()):
        exec(code, names)
        printed = capsys.readouterr().out
        if wanted:
            assert printed == wanted, code
            n_compared += 1
    assert n_compared >= 5 and names["engine"].closed


def test_an_engine_finds_a_fetched_model_by_name(tmp_path, monkeypatch):
    import radish

    monkeypatch.setenv("RADISH_MODELS", str(tmp_path))
    os.symlink(os.environ["RADISH_MODEL"], tmp_path / "small.gguf")
    with radish.Engine("small", n_ctx=256, kv_tokens=1024) as e:
        assert e.info.arch == "llama" and e.info.n_ctx == 256
    with pytest.raises(radish.Error):
        radish.Engine("other")
