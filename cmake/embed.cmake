# Writes files as arrays into a C file: cmake -DOUT=file.c "-DFILES=a.html;b.js" -P embed.cmake
# a.html becomes: const char page_a_html[]; const size_t page_a_html_n;
set(text "/* made by cmake/embed.cmake */\n#include \"server/routes/page.h\"\n")
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  string(MAKE_C_IDENTIFIER page_${name} symbol)
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${hex}")
  string(APPEND text "const char ${symbol}[] = {${bytes}0};\nconst size_t ${symbol}_n = sizeof(${symbol}) - 1;\n")
endforeach()
file(WRITE ${OUT} "${text}")
