#pragma once
#define TCP_NODELAY          0x01
#define TCP_KEEPALIVE        0x10
#define TCP_RXT_CONNDROPTIME 0x80
#define TCP_KEEPINTVL        0x101
#define TCP_KEEPCNT          0x102
#define TCP_NOTSENT_LOWAT    0x201
