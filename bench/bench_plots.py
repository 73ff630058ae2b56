"""The plots of docs/performance.md: results (bench/report's JSON) on standard input, folder as argument.

    prefill.svg   tokens per second over the prompt's length, radish and llama.cpp, a panel per model
    decode.svg    the same over the depth
    agent.svg     milliseconds to the first text, turn by turn
Of several result files of a kind the first is drawn. Text stays text and ids are fixed: a new run changes only what it
must.
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

plt.rcParams.update(
    {
        "svg.fonttype": "none",
        "svg.hashsalt": "radish",
        "font.size": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.family": "sans-serif",
    }
)
COLOURS = {"radish": "#c2185b", "llama.cpp": "#546e7a"}


def store(figure, path):
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def over_n(rows, what, label, path):
    models = list(dict.fromkeys(r["model"] for r in rows))
    figure, panels = plt.subplots(1, len(models), figsize=(2.2 * len(models), 2.2), squeeze=False)
    for panel, model in zip(panels[0], models):
        mine = [r for r in rows if r["model"] == model and r["what"] == what and r["kv"] == "f16"]
        for program, colour in COLOURS.items():
            points = [(r["n"], r[program]) for r in mine if r.get(program)]
            panel.plot(
                [str(n) for n, _ in points],
                [v for _, v in points],
                color=colour,
                marker="o",
                markersize=3,
                label=program,
            )
        panel.set_title(model, fontsize=8)
        panel.set_xlabel(label)
        panel.set_ylim(bottom=0)
    panels[0][0].set_ylabel("tokens per second")
    panels[0][0].legend(frameon=False)
    store(figure, path)


def agent(rows, path):
    figure, panel = plt.subplots(figsize=(5, 2.4))
    for program, colour in COLOURS.items():
        turns = [r for r in rows if r["server"] == program and r["turn"] > 0 and r["phase"] == "session"]
        if turns:
            panel.plot(
                [r["turn"] for r in turns],
                [r["ttft_ms"] for r in turns],
                color=colour,
                marker="o",
                markersize=3,
                label=program,
            )
    panel.set_xlabel("turn")
    panel.set_ylabel("ms to the first text")
    panel.set_ylim(bottom=0)
    panel.legend(frameon=False)
    store(figure, path)


def main():
    results, folder = json.load(sys.stdin), Path(sys.argv[1])
    if results["cpu"]:
        over_n(results["cpu"][0]["rows"], "prefill", "prompt tokens", folder / "prefill.svg")
        over_n(results["cpu"][0]["rows"], "decode", "tokens before", folder / "decode.svg")
    if results["agent"]:
        agent(results["agent"][0]["rows"], folder / "agent.svg")


if __name__ == "__main__":
    main()
