#pragma once
#include <sys/socket.h>
typedef uint32_t in_addr_t;
typedef uint16_t in_port_t;
struct in_addr {
    in_addr_t s_addr;
};
struct in6_addr {
    union {
        uint8_t __u6_addr8[16];
        uint16_t __u6_addr16[8];
        uint32_t __u6_addr32[4];
    } __u6_addr;
};
#define s6_addr __u6_addr.__u6_addr8
struct sockaddr_in {
    uint8_t sin_len;
    sa_family_t sin_family;
    in_port_t sin_port;
    struct in_addr sin_addr;
    char sin_zero[8];
};
struct sockaddr_in6 {
    uint8_t sin6_len;
    sa_family_t sin6_family;
    in_port_t sin6_port;
    uint32_t sin6_flowinfo;
    struct in6_addr sin6_addr;
    uint32_t sin6_scope_id;
};
extern const struct in6_addr in6addr_any, in6addr_loopback;
#define INADDR_ANY       ((in_addr_t)0)
#define INADDR_LOOPBACK  ((in_addr_t)0x7f000001)
#define IPPROTO_TCP      6
#define IPPROTO_IPV6     41
#define IPV6_V6ONLY      27
#define INET_ADDRSTRLEN  16
#define INET6_ADDRSTRLEN 46
#define IN6_IS_ADDR_LOOPBACK(a)                                                                                        \
    (!(a)->__u6_addr.__u6_addr32[0] && !(a)->__u6_addr.__u6_addr32[1] && !(a)->__u6_addr.__u6_addr32[2] &&             \
     (a)->__u6_addr.__u6_addr32[3] == htonl(1))
#define IN6_IS_ADDR_V4MAPPED(a)                                                                                        \
    (!(a)->__u6_addr.__u6_addr32[0] && !(a)->__u6_addr.__u6_addr32[1] && (a)->__u6_addr.__u6_addr32[2] == htonl(0xffff))
#define htons(x) __builtin_bswap16((uint16_t)(x))
#define ntohs(x) __builtin_bswap16((uint16_t)(x))
#define htonl(x) __builtin_bswap32((uint32_t)(x))
#define ntohl(x) __builtin_bswap32((uint32_t)(x))
