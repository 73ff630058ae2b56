"""Texts of a given number of tokens, reproducible and different for every seed."""

import random

import bench_http

WORDS = (
    "time year people way day man thing woman life child world school state family student group country "
    "problem hand part place case week company system program question work government number night point home "
    "water room mother area money story fact month lot right study book eye job word business issue side kind "
    "head house service friend father power hour game line end member law car city community name president "
    "team minute idea body information back parent face others level office door health person art war history "
    "party result change morning reason research girl guy moment air teacher force education foot boy age "
    "policy process music market sense nation plan college interest death experience effect class control care "
    "field development role effort rate heart drug show leader light voice wife police mind price report "
    "decision son view relationship town road arm difference value building action season society tax director "
    "position player record paper space ground form event official matter center couple site project activity "
    "star table need court produce oil situation cost industry figure street image phone data picture practice "
    "piece land product doctor wall"
).split()


def words(n, seed):
    r = random.Random(seed)
    return " ".join(r.choice(WORDS) for _ in range(n))


def of_tokens(port, n, seed):
    """A text of n tokens, within 1 %, by the server's own tokenizer."""
    text = words(n + 50, seed).split()
    per_word = len(bench_http.tokenize(port, " ".join(text))) / len(text)
    return " ".join(text[: max(1, round(n / per_word))])
