/* hub/fetch_hosts.h - where a server may look for what a client names by URL: a list of hosts, and which addresses are anyone's.
 *
 *     images.example.org            that host, http at port 80 and https at 443
 *     *.example.org                 every host below it, not itself
 *     example.org:8443              at that port, http or https
 *     private:nas.local:9000        likewise, and its addresses may be of this machine or its networks
 *     private:127.0.0.1:8080, private:[fd00::7]
 *
 * A name says nothing about its address, which whoever has the name may change at any time: so each address is looked at when
 * it is connected to. Without `private:` it must be one of the internet. private: has no wildcards: who has a name below it
 * would choose the address.
 *
 * Thread  read-only once made.
 * Errors  RD_E_INVALID says which entry is none; RD_E_NOMEM.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include "radish/status.h"

#define FETCH_HOSTS_MOST 256u
#define FETCH_HOST_BYTES 256u

struct fetch_host {
    char name[FETCH_HOST_BYTES]; /* lower case; of a wildcard what follows the star: ".example.org" */
    bool is_wild, is_private;
    uint16_t port; /* 0: the scheme's */
};
struct fetch_hosts {
    uint32_t n;
    struct fetch_host *list; /* [n] */
};

/* texts: entries, or several with commas between. *out: freed by fetch_hosts_deinit; zeroed on failure. */
rd_status fetch_hosts_init(const char *const *texts, uint32_t n, struct fetch_hosts *out, struct rd_error *err);
void fetch_hosts_deinit(struct fetch_hosts *h);
/* The entry that allows it; NULL: none. host: as a URL parser gives it, IPv6 in brackets. One with private: is preferred. */
const struct fetch_host *fetch_hosts_find(const struct fetch_hosts *h, const char *host, uint32_t port, bool is_https);
/* A unicast address of the internet: none of this machine, private networks, links, carriers (RFC 6598), tests, groups; none
 * that has a v4 address inside (mapped, 6to4, Teredo, NAT64); no service of a cloud to its own machines. */
bool fetch_address_is_public(const struct sockaddr *a);
