/* server/routes/page.h - the files of page/, which cmake/embed.cmake puts into the program: the monitor page is served
 * without any file, and asks nothing of any other server. */
#pragma once
#include <stddef.h>

extern const char page_monitor_html[], page_monitor_css[], page_monitor_js[];
extern const size_t page_monitor_html_n, page_monitor_css_n, page_monitor_js_n;
