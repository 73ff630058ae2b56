/* base/status.c - names and texts of the status list in radish/status.h. */
#include "radish/status.h"

#define STATUS_NAME(name, value, text)                                                                                 \
    case name:                                                                                                         \
        return #name;
#define STATUS_TEXT(name, value, text)                                                                                 \
    case name:                                                                                                         \
        return text;

const char *rd_status_name(rd_status st)
{
    switch (st) {
        RD_STATUS_LIST(STATUS_NAME)
    }
    return "RD_E_?";
}

const char *rd_status_text(rd_status st)
{
    switch (st) {
        RD_STATUS_LIST(STATUS_TEXT)
    }
    return "unknown status";
}
