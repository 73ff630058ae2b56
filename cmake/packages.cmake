# Debian packages of what an install holds: `cpack --config build/CPackConfig.cmake -B DIR` makes them of a built tree.
#     radish          the program, documents; man pages, completions, systemd units as their install rules come
#     libradish0      libradish.so.0
#     libradish-dev   headers, libradish.a, libradish.so, the pkg-config file
# Dependencies are what dpkg-shlibdeps finds. deb_files.cmake adds what Debian alone wants to see.
set(RADISH_MAINTAINER "radish maintainers <maintainers@radish.invalid>" CACHE STRING "who publishes the packages")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME radish)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "${RADISH_MAINTAINER}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL radish libradish0 libradish-dev)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/cmake/deb_files.cmake)
set(CPACK_RADISH_SOURCE ${CMAKE_SOURCE_DIR})            # for that script: CPack hands CPACK_ names on

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${RADISH_MAINTAINER}")
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)

set(CPACK_DEBIAN_RADISH_PACKAGE_NAME radish)
set(CPACK_DEBIAN_RADISH_PACKAGE_SECTION net)
set(CPACK_DEBIAN_RADISH_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_RADISH_PACKAGE_RECOMMENDS ca-certificates)                 # radish pull
set(CPACK_DEBIAN_RADISH_PACKAGE_SUGGESTS "python3, python3-pip")            # radish fetch
set(CPACK_DEBIAN_RADISH_PACKAGE_CONTROL_EXTRA ${CMAKE_SOURCE_DIR}/cmake/debian/postinst
  ${CMAKE_SOURCE_DIR}/cmake/debian/prerm ${CMAKE_SOURCE_DIR}/cmake/debian/postrm)
set(CPACK_COMPONENT_RADISH_DESCRIPTION "inference engine and OpenAI-compatible server for language models
Runs language models (GGUF files, safetensors) on the CPU, with a radix tree
of everything it has computed: a second turn, a second client and a restart
compute only what is new. Serves OpenAI's, Anthropic's and Ollama's APIs.")
set(CPACK_DEBIAN_RADISH_DESCRIPTION "${CPACK_COMPONENT_RADISH_DESCRIPTION}")

set(CPACK_DEBIAN_LIBRADISH0_PACKAGE_NAME libradish0)
set(CPACK_DEBIAN_LIBRADISH0_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRADISH0_PACKAGE_SHLIBDEPS ON)
file(WRITE ${CMAKE_BINARY_DIR}/debian/shlibs "libradish 0 libradish0 (>= ${PROJECT_VERSION})\n")
file(WRITE ${CMAKE_BINARY_DIR}/debian/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_LIBRADISH0_PACKAGE_CONTROL_EXTRA ${CMAKE_BINARY_DIR}/debian/shlibs ${CMAKE_BINARY_DIR}/debian/triggers)
set(CPACK_DEBIAN_LIBRADISH0_DESCRIPTION "language models in a program: the shared library
Inference with a radix tree of tokens over a paged KV cache, behind a C API.
This is what programs need that were built with libradish-dev.")

set(CPACK_DEBIAN_LIBRADISH-DEV_PACKAGE_NAME libradish-dev)
set(CPACK_DEBIAN_LIBRADISH-DEV_PACKAGE_SECTION libdevel)
if(HIREDIS_FOUND)
  set(optional_dev ", libhiredis-dev")
endif()
if(pictures)
  string(APPEND optional_dev ", libjpeg-dev, libpng-dev, libwebp-dev")
endif()
if(ZMQ_FOUND)
  string(APPEND optional_dev ", libzmq3-dev")
endif()
set(CPACK_DEBIAN_LIBRADISH-DEV_PACKAGE_DEPENDS "libradish0 (= ${PROJECT_VERSION}), libjansson-dev, libpcre2-dev, libutf8proc-dev, libxxhash-dev${optional_dev}")
set(CPACK_DEBIAN_LIBRADISH-DEV_DESCRIPTION "language models in a program: headers and static library
Inference with a radix tree of tokens over a paged KV cache, behind a C API.
This is what building a program with it needs.")
include(CPack)
