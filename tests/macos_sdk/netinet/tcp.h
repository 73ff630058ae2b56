#pragma once
#define TCP_NODELAY   0x01
#define TCP_KEEPALIVE 0x10
