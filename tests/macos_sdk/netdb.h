#pragma once
#include <netinet/in.h>
struct addrinfo {
    int ai_flags, ai_family, ai_socktype, ai_protocol;
    socklen_t ai_addrlen;
    char *ai_canonname;
    struct sockaddr *ai_addr;
    struct addrinfo *ai_next;
};
#define AI_PASSIVE     1
#define AI_NUMERICHOST 4
#define AI_NUMERICSERV 0x1000
#define NI_NUMERICHOST 2
#define NI_NUMERICSERV 8
#define NI_MAXHOST     1025
#define NI_MAXSERV     32
int getaddrinfo(const char *, const char *, const struct addrinfo *, struct addrinfo **);
void freeaddrinfo(struct addrinfo *);
const char *gai_strerror(int);
int getnameinfo(const struct sockaddr *, socklen_t, char *, socklen_t, char *, socklen_t, int);
