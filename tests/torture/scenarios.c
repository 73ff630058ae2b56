/* tests/torture/scenarios.c - the table. The model knows 96 characters and answers noise, the same each time. */
#include "scenarios.h"
#include <stdio.h>
#include <string.h>

const char scenario_template[] =
    "{% if tools %}T{% for t in tools %}{{ t.function.name }}{% endfor %};{% endif %}"
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content if m.content else '' }}"
    "{% for c in m.tool_calls %}<tool_call>{{ c.function.name }}</tool_call>{% endfor %};{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}";

#define GREEDY "\"max_tokens\":6,\"temperature\":0,\"ignore_eos\":true"
#define STREAM ",\"stream\":true"
#define ASK    "\"messages\":[{\"role\":\"system\",\"content\":\"be kind\"},{\"role\":\"user\",\"content\":\"hi there\"}]"
#define TOOLS                                                                                                          \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"look\",\"description\":\"looks\",\"parameters\":"     \
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}}}}]"
#define CALLED                                                                                                         \
    "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{"  \
    "\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"look\",\"arguments\":\"{\\\"b\\\":1,\\\"a\\\":2}\"}" \
    "}]},"                                                                                                             \
    "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"seen\"}]"
#define CHAT "/v1/chat/completions"
#define TEXT "/v1/completions"
#define LONG_A                                                                                                         \
    "the long and winding tale of a clerk who counts boxes and never sleeps nor guesses any number at all so that "    \
    "they are known"
#define LONG_B                                                                                                         \
    "another tale of a river that runs up the hill each morning and comes back each evening to sleep in its bed of "   \
    "round stones"
#define LONG_C                                                                                                         \
    "one more tale about a wheel and a garden in winter where music was heard by those who had put paper before "      \
    "their windows"

#pragma GCC diagnostic ignored "-Wmissing-field-initializers" /* flags that are left out are 0 */

const struct scenario scenarios[] = {
    {"chat", {{"POST", CHAT, "{" ASK "," GREEDY "}"}}},
    {"chat streamed", {{"POST", CHAT, "{" ASK "," GREEDY STREAM ",\"stream_options\":{\"include_usage\":true}}"}}},
    {"chat with tools", {{"POST", CHAT, "{" ASK "," GREEDY TOOLS ",\"tool_choice\":\"auto\"}"}}},
    {"chat with tools streamed", {{"POST", CHAT, "{" CALLED "," GREEDY TOOLS STREAM "}"}}},
    {"chat with a call forced", {{"POST", CHAT, "{" ASK "," GREEDY TOOLS ",\"tool_choice\":\"required\"}"}}},
    {"chat n=3 with logprobs", {{"POST", CHAT, "{" ASK "," GREEDY ",\"n\":3,\"logprobs\":true,\"top_logprobs\":2}"}}},
    {"chat n=2 streamed with logprobs",
     {{"POST", CHAT, "{" ASK "," GREEDY ",\"n\":2,\"logprobs\":true,\"top_logprobs\":1" STREAM "}"}}},
    {"chat sampled with a seed",
     {{"POST", CHAT,
       "{" ASK ",\"max_tokens\":6,\"seed\":7,\"top_p\":0.9,\"top_k\":9,\"ignore_eos\":true,"
       "\"logit_bias\":{\"5\":2},\"stop\":[\"\\u0001\"],\"presence_penalty\":0.5}"}}},
    {"chat cached before",
     {{"POST", CHAT, "{" ASK "," GREEDY ",\"user\":\"u\"}", STEP_SETUP},
      {"POST", CHAT, "{" ASK "," GREEDY ",\"user\":\"u\"}"}}},
    {"chat without the cache", {{"POST", CHAT, "{" ASK "," GREEDY ",\"cache_prompt\":false}"}}},
    {"chat salted", {{"POST", CHAT, "{" ASK "," GREEDY ",\"cache_salt\":\"pepper\"}"}}},
    {"chat left",
     {{"POST", CHAT, "{" ASK ",\"max_tokens\":60,\"temperature\":0,\"ignore_eos\":true" STREAM "}", STEP_LEAVE}}},
    {"chat counted", {{"POST", CHAT "/input_tokens", "{" ASK TOOLS "}"}}},
    {"completion", {{"POST", TEXT, "{\"prompt\":\"the thing\"," GREEDY "}"}}},
    {"completion streamed with logprobs",
     {{"POST", TEXT, "{\"prompt\":\"the thing\"," GREEDY ",\"logprobs\":2" STREAM "}"}}},
    {"completions of many prompts",
     {{"POST", TEXT, "{\"prompt\":[\"a\",\"b\",\"c\"]," GREEDY ",\"echo\":true,\"n\":2,\"best_of\":2}"}}},
    {"completion of tokens, its prompt scored",
     {{"POST", TEXT, "{\"prompt\":[1,2,3,4],\"echo\":true,\"logprobs\":1," GREEDY "}"}}},
    {"messages",
     {{"POST", "/v1/messages",
       "{\"max_tokens\":6,\"temperature\":0,\"ignore_eos\":true,\"system\":\"s\",\"messages\":[{\"role\":\"user\","
       "\"content\":\"hi\"}]}"}}},
    {"messages streamed",
     {{"POST", "/v1/messages",
       "{\"max_tokens\":6,\"temperature\":0,\"ignore_eos\":true,\"messages\":[{\"role\":\"user\",\"content\":"
       "[{\"type\":\"text\",\"text\":\"hi\",\"cache_control\":{\"type\":\"ephemeral\"}}]}]" STREAM "}"}}},
    {"messages counted",
     {{"POST", "/v1/messages/count_tokens", "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"}}},
    {"response",
     {{"POST", "/v1/responses",
       "{\"input\":\"hi\",\"max_output_tokens\":6,\"temperature\":0,\"ignore_eos\":true,\"store\":false}"}}},
    {"response streamed",
     {{"POST", "/v1/responses",
       "{\"input\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_output_tokens\":6,\"temperature\":0,\"ignore_eos\":"
       "true" STREAM "}"}}},
    {"response stored, read, followed, deleted",
     {{"POST", "/v1/responses", "{\"input\":\"hi\",\"max_output_tokens\":6,\"temperature\":0,\"ignore_eos\":true}"},
      {"GET", "/v1/responses/{id}", NULL},
      {"POST", "/v1/responses",
       "{\"input\":\"more\",\"previous_response_id\":\"{id}\",\"max_output_tokens\":4,\"temperature\":0,\"ignore_eos\":"
       "true}",
       STEP_ANY},
      {"DELETE", "/v1/responses/{id}", NULL, STEP_ANY}}},
    {"response in the background, cancelled",
     {{"POST", "/v1/responses",
       "{\"input\":\"hi\",\"background\":true,\"max_output_tokens\":90,\"temperature\":0,\"ignore_eos\":true}",
       STEP_ANY},
      {"POST", "/v1/responses/{id}/cancel", "{}", STEP_ANY}}},
    {"response counted", {{"POST", "/v1/responses/input_tokens", "{\"input\":\"hi\"}"}}},
    {"embeddings", {{"POST", "/v1/embeddings", "{\"input\":[\"a\",\"bc\"]}"}}},
    {"embeddings in base64", {{"POST", "/embeddings", "{\"input\":\"a\",\"encoding_format\":\"base64\"}"}}},
    {"embedding as llama-server's", {{"POST", "/embedding", "{\"content\":[\"a\",\"bc\"]}"}}},
    {"rerank", {{"POST", "/v1/rerank", "{\"query\":\"a\",\"documents\":[\"b\",\"c\"],\"return_documents\":true}"}}},
    {"score", {{"POST", "/score", "{\"text_1\":[\"a\",\"b\"],\"text_2\":[\"b\",\"c\"]}"}}},
    {"classify", {{"POST", "/v1/classify", "{\"input\":[\"a\",\"b\"],\"labels\":[\"b\",\"c\"]}"}}},
    {"completion as llama-server's",
     {{"POST", "/completion",
       "{\"prompt\":[[1,\"the "
       "thing\",2],{\"prompt_string\":\"b\"}],\"n_predict\":4,\"temperature\":0,\"ignore_eos\":true,"
       "\"n_probs\":1,\"return_tokens\":true}"}}},
    {"completion as llama-server's, streamed",
     {{"POST", "/completion",
       "{\"prompt\":\"the thing\",\"n_predict\":4,\"temperature\":0,\"ignore_eos\":true,\"timings_per_token\":true,"
       "\"response_fields\":[\"content\",\"generation_settings/seed\",\"prompt\"]" STREAM "}"}}},
    {"infill",
     {{"POST", "/infill",
       "{\"input_prefix\":\"a\",\"input_suffix\":\"c\",\"prompt\":\"b\",\"n_predict\":4,\"temperature\":0,\"ignore_"
       "eos\":true,\"n_probs\":1}"}}},
    {"tokenize", {{"POST", "/tokenize", "{\"content\":\"the thing\",\"with_pieces\":true}"}}},
    {"tokenize messages", {{"POST", "/tokenize", "{" ASK "}"}}},
    {"detokenize", {{"POST", "/detokenize", "{\"tokens\":[1,2,3]}"}}},
    {"apply-template", {{"POST", "/apply-template", "{" CALLED TOOLS "}"}}},
    {"explain", {{"POST", "/v1/cache/explain", "{" ASK "}", STEP_ANY}}},
    {"cache listed",
     {{"POST", TEXT, "{\"prompt\":\"zzz\"," GREEDY "}", STEP_SETUP}, {"GET", "/v1/cache", NULL, STEP_ANY}}},
    {"cache cleared",
     {{"POST", TEXT, "{\"prompt\":\"zzz\"," GREEDY "}", STEP_SETUP}, {"DELETE", "/v1/cache", NULL, STEP_ANY}}},
    {"cache cleared behind",
     {{"POST", CHAT, "{" ASK "," GREEDY "}", STEP_SETUP}, {"DELETE", "/v1/cache", "{" ASK "}", STEP_ANY}}},
    {"pages to disk and back",
     {{"POST", TEXT, "{\"prompt\":\"" LONG_A "\"," GREEDY "}"},
      {"POST", TEXT, "{\"prompt\":\"" LONG_B "\"," GREEDY "}"},
      {"POST", TEXT, "{\"prompt\":\"" LONG_C "\"," GREEDY "}"},
      {"POST", TEXT, "{\"prompt\":\"" LONG_A "\"," GREEDY "}"}}},
    {"landing page", {{"GET", "/", NULL, STEP_ANY}}},
    {"health", {{"GET", "/health", NULL}}},
    {"models", {{"GET", "/v1/models", NULL}, {"GET", "/v1/models/torture", NULL}}},
    {"stats", {{"GET", "/stats", NULL, STEP_ANY}}},
    {"props", {{"GET", "/props", NULL, STEP_ANY}}},
    {"slots", {{"GET", "/slots", NULL, STEP_ANY}}},
    {"ollama chat",
     {{"POST", "/api/chat",
       "{\"model\":\"torture\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"options\":{\"num_predict\":5,"
       "\"temperature\":0}}"}}},
    {"ollama generate",
     {{"POST", "/api/generate",
       "{\"model\":\"torture\",\"prompt\":\"hi\",\"stream\":false,\"options\":{\"num_predict\":5,\"temperature\":0}"
       "}"}}},
    {"ollama embed",
     {{"POST", "/api/embed", "{\"model\":\"torture\",\"input\":[\"a\",\"b\"]}"},
      {"POST", "/api/embeddings", "{\"model\":\"torture\",\"prompt\":\"a\"}"}}},
    {"ollama models",
     {{"GET", "/api/tags", NULL},
      {"GET", "/api/ps", NULL, STEP_ANY},
      {"POST", "/api/show", "{\"model\":\"torture\"}", STEP_ANY},
      {"GET", "/api/version", NULL}}},
    {"ollama pull and push",
     {{"POST", "/api/pull", "{\"model\":\"torture\",\"stream\":false}"},
      {"POST", "/api/push", "{\"model\":\"x\"}", STEP_ANY}}},
    {"a body in chunks",
     {{NULL,
       "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: "
       "close\r\nTransfer-Encoding: chunked\r\n\r\n"
       "8\r\n{\"conten\r\n9\r\nt\":\"the\"}\r\n0\r\n\r\n",
       NULL, STEP_RAW}}},
    {"three requests at once",
     {{NULL,
       "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
       "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
       NULL, STEP_RAW | STEP_ANY}}},
    {"refused bodies",
     {{"POST", CHAT, "{\"messages\":3}", STEP_ANY},
      {"POST", TEXT, "{\"prompt\":", STEP_ANY},
      {"GET", "/v1/responses/resp_none", NULL, STEP_ANY},
      {"GET", "/nothing", NULL, STEP_ANY}}},
};
const uint32_t n_scenarios = sizeof(scenarios) / sizeof(scenarios[0]);

static size_t put(const char *text, const char *id, char *out, size_t cap)
{
    size_t n = 0;

    for (const char *s = text; *s && n + 1 < cap;) {
        if (strncmp(s, "{id}", 4)) {
            out[n++] = *s++;
            continue;
        }
        n += (size_t)snprintf(out + n, cap - n, "%s", id);
        s += 4;
    }
    if (n >= cap) n = cap - 1;
    out[n] = 0;
    return n;
}

size_t scenario_request(const struct step *s, const char *id, char *out, size_t cap)
{
    char path[256], body[4096];
    size_t n_body;
    int n;

    if (s->flags & STEP_RAW) return put(s->path, "", out, cap);
    put(s->path, id, path, sizeof(path));
    n_body = s->body ? put(s->body, id, body, sizeof(body)) : 0;
    body[n_body] = 0;
    n = snprintf(out, cap, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%sContent-Length: %zu\r\n\r\n%s",
                 s->method, path, n_body ? "Content-Type: application/json\r\n" : "", n_body, body);
    return n > 0 && (size_t)n < cap ? (size_t)n : 0;
}
