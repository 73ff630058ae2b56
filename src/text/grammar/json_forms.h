/* text/grammar/json_forms.h - what JSON texts are made of, as nodes: strings, numbers, any value, a given value.
 *
 * Characters of a string have one canonical form, json.dumps's: themselves, or \" \\ \n \t \r \b \f \u00XX. Where a string is
 * held to a pattern, a length and a pattern, or to other names, only that form is accepted, so that languages of JSON texts
 * can be cut and subtracted as those of the strings they mean. A free string takes every escape of JSON.
 *
 * Each node is made when it is first asked for.
 * Thread  as the builder.
 */
#pragma once
#include <jansson.h>
#include "text/grammar/grammar_languages.h"

struct json_forms {
    struct grammar_builder *b;
    enum json_spaces spaces;
    grammar_node made[24];
};

void json_forms_init(struct json_forms *f, struct grammar_builder *b, const struct schema_options *o);

grammar_node json_form_space(struct json_forms *f); /* where JSON allows spaces and there need be none */
grammar_node json_form_comma(struct json_forms *f); /* "," and ":" with the spaces around them */
grammar_node json_form_colon(struct json_forms *f);
/* "{" inner "}", "[" inner "]". */
grammar_node json_form_braces(struct json_forms *f, grammar_node inner);
grammar_node json_form_brackets(struct json_forms *f, grammar_node inner);
grammar_node json_form_quotes(struct json_forms *f, grammar_node inner);

grammar_node json_form_free_char(struct json_forms *f);  /* one character, any escape */
grammar_node json_form_plain_char(struct json_forms *f); /* one, in its canonical form */
grammar_node json_form_name_char(struct json_forms *f);  /* canonical, or \uXXXX beyond ASCII */
grammar_node json_form_string(struct json_forms *f);     /* with its quotes */
grammar_node json_form_integer(struct json_forms *f);
grammar_node json_form_number(struct json_forms *f);   /* exponents up to 299: a double holds it */
grammar_node json_form_fraction(struct json_forms *f); /* a number that is no integer */
grammar_node json_form_object(struct json_forms *f);   /* any */
grammar_node json_form_array(struct json_forms *f);
grammar_node json_form_value(struct json_forms *f);

/* The inside of a string: canonical, and where it has characters beyond ASCII also with these as \uXXXX. */
grammar_node json_form_text(struct json_forms *f, const char *s, size_t n);
grammar_node json_form_canonical_text(struct json_forms *f, const char *s, size_t n);
/* A value as json.dumps writes it, members in their order. Nesting is bounded by the reader's (2048). */
grammar_node json_form_of(struct json_forms *f, const json_t *value);

/* A double as Python writes it: the fewest digits that give it back; "1.0", "1e+16". */
void json_real_text(double v, char out[40]);
