# For those who type make; CMake does the work (CMakePresets.json).
#     make                       builds into build/
#     make install PREFIX=DIR    program, libradish.so and .a, headers, pkg-config file; default /usr/local; DESTDIR is respected
#     make check                 builds and runs all tests
PREFIX ?= /usr/local

.PHONY: all install check clean
all:
	cmake --preset release -DRADISH_TESTS=OFF
	cmake --build build

install: all
	cmake --install build --prefix $(PREFIX)

check:
	./check

clean:
	rm -rf build
