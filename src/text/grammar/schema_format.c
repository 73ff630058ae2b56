/* text/grammar/schema_format.c - formats of strings as regular expressions.
 *
 * A length besides a format costs an automaton of their product, which for addresses grows beyond every budget
 * (pydantic's HttpUrl: uri of at most 2,083 characters). So each format tells its longest text, and those without one,
 * or with a long one, have a form that is written to fit: shorter labels, counted paths without %-escapes.
 */
#include <string.h>
#include "text/grammar/schema_state.h"

#define YEAR "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
#define LEAP "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                                           \
    "(?:" YEAR "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"              \
    "02-(?:0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define CLOCK "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?"
#define TIME  CLOCK "(?:Z|[-+](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define LABEL "[a-zA-Z0-9](?:-?[a-zA-Z0-9]){0,24}"
#define HOST  LABEL "(?:\\." LABEL "){0,4}" /* 249 characters at most; no "--", which punycode has */
#define BYTE  "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define IPV4  BYTE "(?:\\." BYTE "){3}"
#define H16   "[0-9a-fA-F]{1,4}"
#define LS32  "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                                           \
    "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32 "|(?:(?:" H16            \
    ":){0,1}" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16 ")?::(?:" H16 ":){2}" LS32 "|(?:(?:" H16      \
    ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16 ":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16 ":){0,5}" H16 ")?::" H16   \
    "|(?:(?:" H16 ":){0,6}" H16 ")?::)"
#define PORT  "(?::(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}))?" /* no 0, and none beyond 65499 */
#define PCHAR "(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"
#define QUERY "(?:" PCHAR "|[/?])*"
#define AUTH  "(?:(?:[a-zA-Z0-9._~!$&'()*+,;=-]|%[0-9a-fA-F]{2})*@)?(?:" HOST "|\\[" IPV6 "\\])" PORT
#define URI                                                                                                            \
    "[a-zA-Z][a-zA-Z0-9+.-]*:(?://" AUTH "(?:/" PCHAR "*)*|/?" PCHAR "+(?:/" PCHAR "*)*)(?:\\?" QUERY ")?(?:#" QUERY   \
    ")?"
#define REFER                                                                                                          \
    "(?:" URI "|(?:/" PCHAR "+|(?:[a-zA-Z0-9._~!$&'()*+,;=@-]|%[0-9a-fA-F]{2})+|/)?(?:/" PCHAR "*)*(?:\\?" QUERY       \
    ")?(?:#" QUERY ")?)"
#define POINT      "(?:/(?:[^/~\\x00-\\x1f]|~[01])*)*"
#define ATOM       "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
#define D_TIME     "T(?:[0-9]{1,6}H(?:[0-9]{1,6}M(?:[0-9]{1,6}S)?)?|[0-9]{1,6}M(?:[0-9]{1,6}S)?|[0-9]{1,6}S)"
#define D_DATE     "(?:[0-9]{1,6}D|[0-9]{1,6}M(?:[0-9]{1,6}D)?|[0-9]{1,4}Y(?:[0-9]{1,6}M(?:[0-9]{1,6}D)?)?)"
#define CHAR       "[a-zA-Z0-9._~!$&'()*+,;=:@/?-]" /* of paths and queries, one character each */
#define FIRST_CHAR "[a-zA-Z0-9._~!$&'()*+,;=@-]"
#define ATOM_CHAR  "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
#define UUID_OF(v) "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-" v "[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}"
#define UUID       "[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
#define BASE64     "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
#define NETWORK    "(?:" BYTE "\\.0\\.0\\.0/8|" BYTE "\\." BYTE "\\.0\\.0/16|(?:" BYTE "\\.){3}0/24|" IPV4 "/32)"
#define REGEX_ATOM                                                                                                     \
    "(?:[a-zA-Z0-9 _@:,/-]|\\.|\\\\[dwsDWS.*+?^$|()\\[\\]{}\\\\/-]|\\[\\^?(?:[a-zA-Z0-9_ .]|a-z|A-Z|0-9)+\\])"
#define EMAIL ATOM "(?:\\." ATOM ")*@" HOST
#define WEB   "https?://" HOST PORT "(?:/" PCHAR "*)*(?:\\?" QUERY ")?(?:#" QUERY ")?"

enum fitting { FIT_NONE, FIT_HOST, FIT_EMAIL, FIT_WEB, FIT_URI, FIT_REFERENCE };

static const struct format {
    const char *name, *regex;
    uint32_t longest; /* 0: no bound */
    enum fitting fitting;
} formats[] = {
    {"date", DATE, 10, FIT_NONE},
    {"time", TIME, 24, FIT_NONE},
    {"date-time", DATE "T" TIME, 35, FIT_NONE},
    {"duration", "P(?:" D_DATE "(?:" D_TIME ")?|" D_TIME "|[0-9]{1,6}W)", 48, FIT_NONE},
    {"email", EMAIL, 0, FIT_EMAIL},
    {"idn-email", EMAIL, 0, FIT_EMAIL},
    {"hostname", HOST, 249, FIT_HOST},
    {"idn-hostname", HOST, 249, FIT_HOST},
    {"ipv4", IPV4, 15, FIT_NONE},
    {"ipv6", IPV6, 45, FIT_NONE},
    {"uri", URI, 0, FIT_URI},
    {"iri", URI, 0, FIT_URI},
    {"url", WEB, 0, FIT_WEB},
    {"uri-reference", REFER, 0, FIT_REFERENCE},
    {"iri-reference", REFER, 0, FIT_REFERENCE},
    {"uuid", UUID, 36, FIT_NONE},
    {"json-pointer", POINT, 0, FIT_NONE},
    {"relative-json-pointer", "(?:0|[1-9][0-9]{0,8})(?:#|" POINT ")", 0, FIT_NONE},
    {"byte", BASE64, 0, FIT_NONE},
    {"regex", "\\^?(?:" REGEX_ATOM "[*+?]?)*\\$?", 0, FIT_NONE},
    /* what pydantic writes for types of its own */
    {"base64", BASE64, 0, FIT_NONE},
    {"base64url", "(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-]{2}==|[A-Za-z0-9_-]{3}=)?", 0, FIT_NONE},
    {"multi-host-uri", URI, 0, FIT_URI},
    {"uuid1", UUID_OF("1"), 36, FIT_NONE},
    {"uuid3", UUID_OF("3"), 36, FIT_NONE},
    {"uuid4", UUID_OF("4"), 36, FIT_NONE},
    {"uuid5", UUID_OF("5"), 36, FIT_NONE},
    {"uuid6", UUID_OF("6"), 36, FIT_NONE},
    {"uuid7", UUID_OF("7"), 36, FIT_NONE},
    {"uuid8", UUID_OF("8"), 36, FIT_NONE},
    {"ipvanyaddress", "(?:" IPV4 "|" IPV6 ")", 45, FIT_NONE},
    {"ipvanyinterface", "(?:" IPV4 "|" IPV6 ")", 45, FIT_NONE},
    {"ipvanynetwork", NETWORK, 18, FIT_NONE},
    {"ipv4interface", IPV4 "(?:/(?:[12]?[0-9]|3[0-2]))?", 18, FIT_NONE},
    {"ipv4network", NETWORK, 18, FIT_NONE},
    {"ipv6interface", IPV6, 45, FIT_NONE},
    {"ipv6network", IPV6 "/128", 49, FIT_NONE},
    {"color", "#[0-9a-fA-F]{6}", 7, FIT_NONE},
};

/* Of numbers (schema_number.c), or words about a string that do not say which strings they are. */
static const char *const notes[] = {"int32",  "int64",     "uint32",         "uint64",   "float",
                                    "double", "decimal",   "binary",         "password", "color-text",
                                    "path",   "file-path", "directory-path", "textarea"};

/* A host of at most `labels` labels of `first` letters and digits, and one '-' with `second` more. */
struct host {
    uint32_t labels, first, second, longest;
};

static struct host host_for(uint32_t room)
{
    static const struct host hosts[] = {
        {5, 32, 16, 249}, {4, 18, 10, 119}, {3, 16, 8, 77}, {3, 10, 4, 47}, {3, 8, 0, 26}};
    size_t i = 0;

    while (i + 1 < sizeof(hosts) / sizeof(*hosts) && hosts[i].longest > room) i++;
    return hosts[i];
}

static void write_label(struct buf *out, struct host h)
{
    buf_printf(out, "[a-zA-Z0-9]{1,%u}", h.first);
    if (h.second) buf_printf(out, "(?:-[a-zA-Z0-9]{1,%u})?", h.second);
}

static void write_host(struct buf *out, struct host h)
{
    write_label(out, h);
    buf_printf(out, "(?:\\.");
    write_label(out, h);
    buf_printf(out, "){0,%u}", h.labels - 1);
}

/* `//host` and what follows it within `room` characters; a quarter of them for what stands behind '#'. */
static void write_rest(struct buf *out, const char *other, uint32_t room)
{
    struct host h = host_for(room / 2);
    uint32_t left = room - h.longest - 2 - 6 - 2, tag = left / 4;

    buf_printf(out, "(?://");
    write_host(out, h);
    buf_printf(out, PORT "(?:[/?]" CHAR "{0,%u})?", left - tag);
    if (other) buf_printf(out, "|%s" CHAR "{0,%u}", other, left - tag);
    buf_printf(out, ")(?:#" CHAR "{0,%u})?", tag);
}

#define SCHEME      "[a-zA-Z][a-zA-Z0-9+.-]{0,10}:"
#define SCHEME_ROOM 12u
#define FITS_FROM   64u   /* characters: shorter ones are few enough to be counted */
#define FITS_TO     1024u /* longer ones are not written: every character costs a state */

#define OTHER_PATH "/?(?:" FIRST_CHAR "|:)" /* mailto:.., urn:.. */

static void write_fitting(enum fitting fitting, uint32_t max, struct buf *out)
{
    struct host h;

    switch (fitting) {
    case FIT_NONE:
        break;
    case FIT_HOST:
        write_host(out, host_for(max));
        break;
    case FIT_EMAIL: /* 63 characters before the @, or half of what there is */
        h = host_for(max - (max < 128 ? max / 2 : 64));
        buf_printf(out, "%s(?:\\.?%s){0,%u}@", ATOM_CHAR, ATOM_CHAR, ((max < 128 ? max / 2 : 64) - 2) / 2);
        write_host(out, h);
        break;
    case FIT_WEB:
        buf_printf(out, "https?:");
        write_rest(out, NULL, max - 6);
        break;
    case FIT_URI:
        buf_printf(out, SCHEME);
        write_rest(out, OTHER_PATH, max - SCHEME_ROOM);
        break;
    case FIT_REFERENCE:
        buf_printf(out, "(?:" SCHEME);
        write_rest(out, OTHER_PATH, max - SCHEME_ROOM);
        buf_printf(out, "|/?" FIRST_CHAR "(?:" FIRST_CHAR "|[/?]){0,%u}(?:#" CHAR "{0,%u})?)", max / 2, max / 2 - 4);
        break;
    }
}

enum format_kind schema_format(const char *name, uint32_t max, struct buf *regex, uint32_t *longest)
{
    for (size_t i = 0; i < sizeof(notes) / sizeof(*notes); i++)
        if (strcmp(name, notes[i]) == 0) return FORMAT_NOTE;
    for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++) {
        const struct format *f = &formats[i];
        bool fits = f->longest && f->longest <= max;

        if (strcmp(name, f->name) != 0) continue;
        if (!fits && f->fitting != FIT_NONE && max >= FITS_FROM && max != GRAMMAR_UNBOUNDED) {
            write_fitting(f->fitting, max < FITS_TO ? max : FITS_TO, regex);
            fits = true;
        } else {
            buf_append(regex, f->regex, strlen(f->regex));
        }
        if (fits) *longest = f->longest && f->longest <= max ? f->longest : max;
        return FORMAT_REGEX;
    }
    return FORMAT_UNKNOWN;
}
