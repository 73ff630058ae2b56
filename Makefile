# For those who type make; CMake does the work (CMakePresets.json).
#     make                       builds into build/
#     make install PREFIX=DIR    program, libradish.so and .a, headers, pkg-config file; default /usr/local; DESTDIR is respected
#     make deb                   Debian packages into build/deb/: radish, libradish0, libradish-dev (docs/install.md)
#     make static                one file that wants glibc alone: build/static/radish
#     make check                 builds and runs all tests
#     make crash                 cuts the power of the disk cache's folder and kills its writers; prints its figures
#                                RADISH_LONG=1: 10,000,000 cuts
#     make soak                  100,000 requests to a small server, and 100,000 of which no two are alike; prints its
#                                figures: tests/attack/soak.py
#     make coverage              lines and branches of src/kv, store, server that tests come to: tools/coverage
#     make mutate                how many faults put into src/kv the tests notice (half an hour of a core): tools/mutate
#     make sched                 explores schedules of what threads share, and finds faults put there; prints its figures
#     make torture               fails every allocation and every system call behind every route, of lives and of starts; a
#                                sample of them, RADISH_LONG=1: all; prints its figures
#     make fuzz SECONDS=60       each fuzz target that long under libFuzzer (clang); figures to bench/results/fuzz.json
#     make msan                  parsers and what else is instrumented as a whole under the memory sanitizer (clang)
#     make clients               libraries that ask for objects (openai, instructor, langchain, ..) against a radish server
#     make server-asan           tests/server with the program built with sanitizers (server-tsan: for threads)
PREFIX ?= /usr/local
SECONDS ?= 60
PYTHON ?= $(shell tools/install-needs --tests | tail -n 1)

.PHONY: all install deb static check clean crash sched soak coverage mutate
.PHONY: torture fuzz msan server-asan server-tsan clients
all:
	cmake --preset release -DRADISH_TESTS=OFF
	cmake --build build

install: all
	cmake --install build --prefix $(PREFIX)
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ] && command -v ldconfig >/dev/null; then ldconfig; fi
	@echo "Programs find libradish.so through pkg-config (its --libs carry the path), or ldconfig, or LD_LIBRARY_PATH."

deb: all
	cpack --config build/CPackConfig.cmake -B build/deb
	@rm -rf build/deb/_CPack_Packages

static:
	cmake --preset static
	cmake --build --preset static

check:
	./check

# TESTS one after the other, with what they print; all of them run, and one that fails fails the target.
define run_tests
	cmake --preset release -DRADISH_TESTS=ON >/dev/null
	cmake --build build --target $(1) >/dev/null
	@failed=0; for t in $(1); do echo "== $$t"; build/tests/$$t || failed=1; done; exit $$failed
endef

torture:
	$(call run_tests,test_torture_server test_torture_life)

FUZZERS = $(basename $(notdir $(wildcard tests/fuzz/fuzz_*.c)))
fuzz:
	cmake --preset fuzz >/dev/null
	cmake --build build/fuzz --target $(FUZZERS) >/dev/null
	tests/fuzz/run_fuzz --seconds $(SECONDS)

msan server-asan server-tsan:
	tools/run-sanitized $@ $(PYTHON)

crash:
	$(call run_tests,test_store_power test_memory_power test_store_crash)

SCHED_MUTANTS = signal_before_push close_wakes_one bell_forgets full_is_asked_too_early pushed_before_written \
	two_senders submit_rings_first
sched:
	$(call run_tests,test_sched $(addprefix sched_mutant_,$(SCHED_MUTANTS)))

PYTHON = $$(tools/install-needs --tests | tail -n 1)
soak:
	cmake --preset release -DRADISH_TESTS=ON >/dev/null
	cmake --build build --target radish >/dev/null
	@python=$(PYTHON); failed=0; $$python tests/attack/soak.py || failed=1; \
	$$python tests/attack/soak.py --bodies 0 || failed=1; \
	$$python tests/attack/damaged_folders.py || failed=1; exit $$failed

clients:
	cmake --preset release -DRADISH_TESTS=OFF >/dev/null
	cmake --build build --target radish >/dev/null
	@$$(tools/install-needs --tests | tail -n 1) tests/clients/run

coverage:
	@python=$(PYTHON); $$python tools/coverage --server --uncovered

mutate:
	@tools/mutate

clean:
	rm -rf build
