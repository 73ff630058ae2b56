/* bench/grammar/llama_grammar.cpp - what llama.cpp makes of JSON schemas: its converter and its grammar, which llama-server
 * uses. No part of radish: built against llama.cpp's sources S and its build B (static libraries), whatever their version:
 *
 *     g++ -O1 -std=c++17 -I$S/common -I$S/src -I$S/include -I$S/ggml/include -I$S/vendor bench/grammar/llama_grammar.cpp \
 *         -o llama_grammar -Wl,--start-group $(find $B -name 'lib*.a' | grep -E 'common|llama.a|ggml|hash|httplib') \
 *         -Wl,--end-group -lpthread -ldl -lgomp
 *
 * Lines of {"schema", "texts"} on standard input; each is answered by {"accept": [..]} or {"error"}.
 */
#include <iostream>
#include <string>
#include <vector>
#include <nlohmann/json.hpp>
#include "json-schema-to-grammar.h"
#include "json.h"
#include "llama-grammar.h"
#include "../src/unicode.h"

static bool matches(llama_grammar *grammar, const std::string &text)
{
    auto &stacks = llama_grammar_get_stacks(grammar);
    for (uint32_t c : unicode_cpts_from_utf8(text)) {
        llama_grammar_accept(grammar, c);
        if (stacks.empty()) return false;
    }
    for (const auto &stack : stacks)
        if (stack.empty()) return true;
    return false;
}

int main()
{
    std::string line;
    while (std::getline(std::cin, line)) {
        nlohmann::ordered_json out;
        try {
            auto asked = nlohmann::ordered_json::parse(line);
            std::string gbnf = json_schema_to_grammar(common_json::parse(asked["schema"].dump()));
            auto accept = nlohmann::ordered_json::array();
            for (const auto &text : asked["texts"]) {
                llama_grammar *g = llama_grammar_init_impl(nullptr, gbnf.c_str(), "root", false, nullptr, 0, nullptr, 0);
                if (!g) throw std::runtime_error("the grammar that it makes is not one");
                accept.push_back(matches(g, text.get<std::string>()));
                llama_grammar_free_impl(g);
            }
            out["accept"] = accept;
        } catch (const std::exception &e) {
            out = {{"error", e.what()}};
        }
        std::cout << out.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) << std::endl;
    }
}
