"""The order of the files: the longest first, so that none of them runs alone at the end (check: --no-loadscope-reorder); and what
the programs that tests start inherit."""

import signal

# A shell's background has SIGINT ignored, nohup SIGHUP: a program that inherits that is deaf. A handler is no child's.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST = [  # by the processor time they took, and some that wait long
    "test_routers.py",
    "test_shared_store.py",
    "test_deb.py",
    "test_chat.py",
    "test_hub_tokenizer.py",
    "test_wheel.py",
    "test_kv_events.py",
    "test_page.py",
    "test_sharing.py",
    "test_models_at_once.py",
    "test_forced_calls.py",
    "test_structured.py",
    "test_client_memory.py",
    "test_first_minutes.py",
    "test_disk_cache.py",
    "test_http.py",
    "test_bench.py",
    "test_conn_memory.py",
    "test_several_models.py",
    "test_systemd.py",
    "test_pull.py",
]


def pytest_collection_modifyitems(items):
    place = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))  # stable: the rest stay as they are
