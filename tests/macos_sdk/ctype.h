#pragma once
int isalnum(int), isalpha(int), isdigit(int), isxdigit(int), isspace(int), isupper(int), islower(int), ispunct(int),
    isprint(int), iscntrl(int), isgraph(int), tolower(int), toupper(int);
