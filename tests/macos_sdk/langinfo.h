#pragma once
typedef int nl_item;
#define CODESET 0
char *nl_langinfo(nl_item);
