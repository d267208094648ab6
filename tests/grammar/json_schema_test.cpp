// Which texts the grammar of a schema has.
#include "base/error.h"
#include "grammar/json_schema.h"
#include "grammar/pattern.h"
#include "texts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <tuple>

namespace fvlm::grammar {
namespace {

using Json = nlohmann::ordered_json;

void expect_schemas(const std::vector<Texts>& cases) {
  expect_texts(cases, [](const std::string& schema) { return of_json_schema(Json::parse(schema)); });
}

TEST(JsonSchema, HasWhatFits) {
  const std::vector<Texts> cases = {
      {R"({"type": "string"})",
       {R"("")", R"("a b")", R"("\n\"é")", "\"\xc3\xa9\xf0\x9f\x98\x80\"", R"("\u00e9\uD7fF\ue000")"},
       {R"("\ud800")", R"("\uDFFF")", "a", R"("a)", "\"\n\"", R"("\x")", "\"\xc3\"", "\"\xed\xa0\x80\"", "\"\xc0\xaf\"",
        R"("a" )", ""}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("ab")", "\"\xc3\xa9\xc3\xa9\xc3\xa9\"", R"("\n\nc")"},
       {R"("a")", R"("abcd")", R"("")"}},
      {R"({"type": "integer"})", {"0", "-7", "120"}, {"01", "1.5", "+1", "-", "1e3", "1234567890123456789"}},
      {R"({"type": "number"})", {"0", "-7.25", "1e-3", "12E+10", "0.5"}, {".5", "1.", "1e", "1e123", "01.5"}},
      {R"({"type": "boolean"})", {"true", "false"}, {"True", "null", "tru"}},
      {R"({"type": ["null", "integer"]})", {"null", "4"}, {"true", "nul"}},
      {R"({"enum": ["cat", "dog", 3, null]})", {R"("cat")", R"("dog")", "3", "null"}, {R"("cow")", "cat", "33"}},
      {R"({"type": "string", "enum": ["cat", 3, null]})", {R"("cat")"}, {"3", "null"}},
      {R"({"type": ["integer", "null"], "enum": ["cat", 3, 1.5, null]})", {"3", "null"}, {R"("cat")", "1.5"}},
      {R"({"const": {"a": [1, "é"]}})", {R"({"a":[1,"é"]})"}, {R"({"a": [1]})"}},
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
       {"[1]", "[ 1 , 2 ]", "[1,2,3]", "[\n  1,\n  2\n]"},
       {"[]", "[1,2,3,4]", "[1,]", "[,1]", "[1  ,2]", "[1", "[\t1]"}},
      {R"({"type": "array", "maxItems": 0})", {"[]", "[ ]"}, {"[1]"}},
      {R"({"type": "array", "items": {"type": "boolean"}})",
       {"[]", "[true]", "[true, false, true]"},
       {"[1]", "[true false]"}},
      {R"({"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}, "c": {"type": "null"}}, "required": ["b", "c"]})",
       {R"({"b":1,"c":null})", R"({"b": 1, "a": "x", "c": null})", "{\n    \"b\": 1,\n    \"c\": null\n}"},
       {R"({})", R"({"b":1})", R"({"c":null,"b":1})", R"({"b":1,"c":null,})", R"({"b":1 "c":null})",
        R"({"b":1,"d":2,"c":null})"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}})",
       {"{}", R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"},
       {R"({,"b":1})", R"({"a":1,})", R"({"b":1,"a":2})"}},
      {R"({"type": "object", "additionalProperties": {"type": "integer"}})",
       {"{}", R"({"x": 1, "y": 2})"},
       {R"({"x": "1"})", R"({x: 1})"}},
      {R"({"type": "object", "additionalProperties": false})", {"{}", "{ }"}, {R"({"a":1})"}},
      {R"({"type": "object"})", {"{}", R"({"a": {"b": [1, "c", {}]}})"}, {"[]", "{]"}},
      {R"({})", {"1", R"({"a":[]})", "null", "[[[[]]]]"}, {"[[[[]]]", "x"}},
      {R"({"anyOf": [{"type": "integer"}, {"type": "object", "properties": {"a": {"const": "z"}}, "required": ["a"]}], "default": null})",
       {"12", R"({"a":"z"})"},
       {"{}", R"("z")"}},
      // As pydantic writes a model with a list of itself.
      {R"({"$defs": {"Node": {"type": "object", "title": "Node", "properties": {"name": {"type": "string"},
           "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}}, "required": ["name", "children"]}}, "$ref": "#/$defs/Node"})",
       {R"({"name":"a","children":[]})",
        R"({"name":"a","children":[{"name":"b","children":[{"name":"c","children":[]}]}]})"},
       {R"({"name":"a","children":[1]})", R"({"name":"a","children":[{"name":"b","children":[}]})"}},
  };
  expect_schemas(cases);
}

TEST(JsonSchema, HasListsWhoseFirstItemsHaveSchemasOfTheirOwn) {
  expect_schemas({
      // As pydantic writes tuple[int, str].
      {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2})",
       {R"([1,"a"])", R"([ -2, "" ])", "[\n  1,\n  \"a\"\n]"},
       {"[]", "[1]", R"(["a",1])", R"([1,"a",2])", R"([1 "a"])", R"([1,"a",])", R"([,1,"a"])"}},
      {R"({"prefixItems": [{"type": "integer"}, {"type": "null"}], "items": {"type": "boolean"}, "minItems": 1, "maxItems": 4})",
       {"[1]", "[1,null]", "[1,null,true]", "[1,null,true,false]"},
       {"[]", "[null]", "[1,true]", "[1,null,2]", "[1,null,true,true,true]"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "null"}, "minItems": 3})",
       {"[1,null,null]", "[1,null,null,null]"},
       {"[1,null]", "[1]", "[1,1,1]"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "items": false})",
       {"[]", "[ ]", "[1]", "[1,null]"},
       {"[1,null,2]", "[null]"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "maxItems": 1})",
       {"[]", "[1]"},
       {"[1,null]"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}]})",
       {"[]", "[1]", R"([1,"a",[]])"},
       {R"(["a"])", "[1,]"}},
  });
}

TEST(JsonSchema, HasNumbersWithinTheirBounds) {
  expect_schemas({
      {R"({"type": "integer", "minimum": -3, "exclusiveMaximum": 120})",
       {"-3", "-1", "-0", "0", "9", "10", "99", "100", "119"},
       {"-4", "-10", "120", "200", "1000", "5.0", "05", "+1", "-"}},
      {R"({"type": "integer", "minimum": 0.5})", {"1", "17", "999999999999999999"}, {"0", "-1", "1000000000000000000"}},
      {R"({"type": "integer", "exclusiveMaximum": 0})", {"-1", "-50"}, {"0", "-0", "1"}},
      {R"({"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991})",
       {"9007199254740991", "-9007199254740991", "8999999999999999"},
       {"9007199254740992", "-9007199254740992"}},
      {R"({"type": "integer", "maximum": 9223372036854775807, "minimum": 98})", {"98", "99", "100"}, {"97", "9"}},
      {R"({"type": "number", "minimum": 0, "maximum": 1})",
       {"0", "0.0", "1", "1.00", "0.25", "0.99999999999999"},
       {"1.01", "2", "-0.1", "-0", "1e-3", ".5", "1.", "0.999999999999999"}},
      {R"({"type": "number", "exclusiveMinimum": 0.25, "exclusiveMaximum": 12.5})",
       {"0.26", "0.250001", "1", "12", "12.4", "12.49", "9.9"},
       {"0.25", "0.250", "0.2", "0.24999", "12.5", "12.50", "12.51", "13", "-1"}},
      {R"({"type": ["number", "null"], "minimum": -2.5, "maximum": -1, "exclusiveMaximum": -1})",
       {"-2.5", "-2", "-1.001", "null"},
       {"-2.6", "-1", "-1.0", "-0.5", "2"}},
      {R"({"type": "number", "minimum": 1e-7, "maximum": 1e21})", {"0.0000001", "1", "120"}, {"0", "0.00000001"}},
  });
}

TEST(JsonSchema, HasTextsThatMatch) {
  expect_schemas({
      {R"({"type": "string", "pattern": "^[A-Z]{2}-\\d{3,4}$"})",
       {R"("AB-123")", R"("AB-1234")"},
       {R"("AB-12")", R"("AB-12345")", R"("aB-123")", R"(" AB-123")", R"("AB-123 ")"}},
      {R"({"type": "string", "pattern": "(cat|dogs?)+"})",
       {R"("cat")", R"("dog")", R"("dogscat")"},
       {R"("")", R"("catx")", R"("xcat")"}},
      {R"({"type": "string", "pattern": "^a.?$|^[^a\\d]*?b$"})",
       {R"("a")", R"("a\"")", "\"a\xc3\xa9\"", R"("b")", R"("xyb")", R"("\tb")"},
       {R"("a\n")", R"("1b")",
        "\"\xc3\xa9"
        "b\"",
        R"("axb")", "\"a\"\"", "\"a\xc3\""}},
      {R"({"type": "string", "pattern": "[äé.\\]_-]+ \\\\ \\w\\W(?:/|\\n){2,}"})",
       {R"("é-ä]_. \\ a!/\n/")"},
       {R"("e \\ a!//")", R"("é \\ a!/")", R"("é \ a!//")", R"("é \\ ab//")"}},
  });
}

TEST(JsonSchema, SaysWhatItDoesNotKeep) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"type": "array", "uniqueItems": true})", "the schema: 'uniqueItems' is not supported here"},
      {R"({"type": "array", "prefixItems": []})", "the schema: prefixItems: expected a list of schemas"},
      {R"({"type": "array", "prefixItems": [true], "items": false, "minItems": 2})",
       "no list has 2 items or more, and 1 at most"},
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 5, "maxItems": 3})",
       "the schema: no list has 5 items or more, and 3 at most"},
      {R"({"type": "string", "minLength": 5, "maxLength": 3})",
       "the schema: no text has 5 characters or more, and 3 at most"},
      {R"({"type": "object", "properties": {"n": {"type": "string", "minimum": 0}}})",
       "the schema's properties.n: 'minimum' is not supported here"},
      {R"({"type": "integer", "minimum": "0"})", "the schema: minimum: expected a number"},
      {R"({"type": "integer", "minimum": 5, "maximum": 4})", "the schema: no number is within its bounds"},
      {R"({"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 6})", "no number is within its bounds"},
      {R"({"type": "integer", "minimum": 1e18})",
       "minimum: expected at most 15 digits, or 18 of a whole number, got 1e+18"},
      {R"({"type": "number", "minimum": 0.12345678901234567})", "minimum: expected at most 15 digits"},
      {R"({"type": "string", "pattern": "a+", "maxLength": 3})", "'maxLength' is not supported here"},
      {R"({"type": "string", "pattern": 3})", "the schema: pattern: expected a text"},
      {R"({"type": "string", "pattern": ""})", "pattern, character 1: expected something to match"},
      {R"x({"type": "string", "pattern": "é(|b)"})x", "pattern, character 3: expected something to match"},
      {R"({"type": "string", "pattern": "(ab"})", "pattern, character 4: expected a ) that ends the group"},
      {R"x({"type": "string", "pattern": "ab)"})x", "pattern, character 3: there is no group that it closes"},
      {R"({"type": "string", "pattern": "(?=a)b"})", "pattern, character 2: of groups, those that look around"},
      {R"({"type": "string", "pattern": "a^b"})",
       "pattern, character 2: an anchor inside of a pattern is not supported"},
      {R"({"type": "string", "pattern": "a$b"})", "an anchor inside of a pattern is not supported"},
      {R"({"type": "string", "pattern": "(a)\\1"})", "pattern, character 4: such an escape is not supported"},
      {R"({"type": "string", "pattern": "\\bA"})", "pattern, character 1: such an escape is not supported"},
      {R"({"type": "string", "pattern": "a++"})", "pattern, character 3: a count of a count is not supported"},
      {R"({"type": "string", "pattern": "*a"})", "pattern, character 1: expected something to count"},
      {R"({"type": "string", "pattern": "a{3,2}"})", "expected a count from the least to the most"},
      {R"({"type": "string", "pattern": "(a{0}){2}"})", "expected a count from the least to the most, above 0"},
      {R"({"type": "string", "pattern": "a{1001}"})", "pattern, character 3: expected a count from 0 to 1000"},
      {R"({"type": "string", "pattern": "a{2"})", "pattern, character 4: expected a count, {2}"},
      {R"({"type": "string", "pattern": "[z-a]"})", "pattern, character 2: expected a range from a character"},
      {R"({"type": "string", "pattern": "[à-é]"})", "expected a range from a character of ASCII"},
      {R"({"type": "string", "pattern": "[^é]"})", "all but characters beyond ASCII is not supported"},
      {R"({"type": "string", "pattern": "[a"})", "pattern, character 3: it is not complete"},
      {R"({"type": "string", "pattern": "[]"})", "write \\ before a bracket in a class"},
      {R"({"type": "string", "pattern": "\\"})", "pattern, character 2: it is not complete"},
      {R"({"type": "string", "pattern": "\u0001"})", "no character is one of these"},
      {R"({"type": "string", "pattern": "(a?){600}"})", "pattern: it has more than 1000 places"},
      {R"({"type": "string", "pattern": "(((a{1000}){1000}){1000})+"})", "the form is too large"},
      {R"({"type": "strin"})", "the schema: type: expected object, array"},
      {R"({"type": "object", "required": ["x"], "properties": {}})", "required: 'x' is not among its properties"},
      {R"({"type": "integer", "enum": ["a", 1.5]})", "enum: expected a value of the schema's type"},
      {R"({"const": 12345678901234567890123})",
       "the schema: const: 1.2345678901234568e+22 has a number of more than 64"},
      {R"({"properties": {"n": {"enum": [1, {"a": [-9223372036854775809]}]}}})",
       "the schema's properties.n: enum: {\"a\":[-9.223372036854776e+18]} has a number of more than 64 bits"},
      {R"({"type": "integer", "enum": [1, 18446744073709551616]})",
       "enum: 1.8446744073709552e+19 has a number of more"},
      {R"({"anyOf": []})", "anyOf: expected a list"},
      {R"({"$ref": "#/$defs/none"})", "$ref: there is no #/$defs/none"},
      {R"({"$ref": "other.json"})", "$ref: expected a place in the schema itself"},
      {R"({"$ref": "#"})", "the schema refers to itself where nothing stands between"},
      {R"({"anyOf": [{"type": "null"}, {"$ref": "#"}]})", "the schema refers to itself"},
      {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})",
       "the schema asks for a value that never ends: it requires itself"},
      {R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})", "the schema asks for a value that never ends"},
      {R"({"type": "array", "items": {"type": "string", "maxLength": 10000}, "minItems": 10000})",
       "the form is too large"},
      {R"({"type": "array", "minItems": -1})", "minItems: expected a whole number"},
      {R"({"type": "array", "items": 3})", "the schema's items: expected an object, or true"},
      {R"(7)", "the schema: expected an object, or true"},
      {R"({"allOf": [{"type": "string"}, {"type": "integer"}]})", "allOf of several schemas"},
  };
  for (const auto& [schema, message] : cases) try {
      (void)of_json_schema(Json::parse(schema));
      ADD_FAILURE() << schema;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
}

// A text that begins one of these could not end.
TEST(JsonSchema, LeavesOutOptionalPartsThatNeverEnd) {
  const std::string endless =
      R"("$defs": {"x": {"type": "object", "properties": {"x": {"$ref": "#/$defs/x"}}, "required": ["x"]}})";
  expect_schemas({
      {R"({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"type": "null"}}, )" + endless + "}",
       {"{}", R"({"b":null})"},
       {R"({"a":{)"}},
      {R"({"anyOf": [{"$ref": "#/$defs/x"}, {"type": "null"}], )" + endless + "}", {"null"}, {}},
      {R"({"type": "array", "items": {"$ref": "#/$defs/x"}, )" + endless + "}", {"[]"}, {}},
  });
  const Grammar grammar =
      of_json_schema(Json::parse(R"({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, )" + endless + "}"));
  Automaton automaton(grammar);
  EXPECT_EQ(automaton.next(automaton.next(automaton.begin(), '{'), '"'), Automaton::none);
}

TEST(JsonSchema, LimitsSchemasInEachOther) {
  Json schema = {{"$ref", "#/$defs/0"}, {"$defs", Json::object()}};
  for (int i = 0; i < 1000; ++i)
    schema["$defs"][std::to_string(i)] = {{"type", "array"}, {"items", {{"$ref", fmt::format("#/$defs/{}", i + 1)}}}};
  schema["$defs"]["1000"] = {{"type", "null"}};
  EXPECT_THROW((void)of_json_schema(schema), Error);
}

// Walks that choose among the bytes that may follow give texts that a parser reads.
TEST(JsonSchema, EveryTextIsJson) {
  const Grammar grammar = of_json_object();
  std::mt19937 random(3);
  int whole = 0;
  for (int walk = 0; walk < 400; ++walk) {
    Automaton automaton(grammar);
    Automaton::State state = automaton.begin();
    std::string text;
    while (!automaton.accepts(state) && text.size() < 400) {
      std::vector<uint8_t> choices;
      for (int byte = 0; byte < 256; ++byte)
        if (automaton.next(state, static_cast<uint8_t>(byte)) != Automaton::none)
          choices.push_back(static_cast<uint8_t>(byte));
      ASSERT_FALSE(choices.empty());
      const bool closes = std::ranges::find(choices, '}') != choices.end() && random() % 2;
      const uint8_t byte = closes ? '}' : choices[random() % choices.size()];
      text.push_back(static_cast<char>(byte));
      state = automaton.next(state, byte);
    }
    if (!automaton.accepts(state)) continue;
    ++whole;
    EXPECT_FALSE(Json::parse(text, nullptr, false).is_discarded()) << text;
  }
  EXPECT_GT(whole, 100);
}

TEST(Patterns, AreOfTextsAsTheyAre) {
  const std::vector<std::tuple<const char*, std::vector<std::string>, std::vector<std::string>>> cases = {
      {R"(^\d{3}-[a-c]+$)", {"555-abc", "000-a"}, {"\"555-abc\"", "555-", "555-abc\n", "x555-a", ""}},
      {R"("\\.\n\t")", {"\"\\\xc3\xa9\n\t\"", "\"\\x\n\t\""}, {"\"\\\n\n\t\"", R"("\x\n\t")", "\\\"x"}},
      {R"([^\s"]+)", {"a\\", "_\x7f"}, {"", "a b", "\"", "\x1c", "\x0b", "\xc3\xa9"}},
      {"[^a]*", {"", "b\b\f", "\xe2\x82\xac"}, {"a", "\x01", "\xe2\x82", "\xff"}},
  };
  for (const auto& [pattern, valid, invalid] : cases) {
    SCOPED_TRACE(pattern);
    const Grammar grammar = of_pattern(pattern);
    for (const std::string& text : valid) EXPECT_TRUE(has(grammar, text)) << text;
    for (const std::string& text : invalid) EXPECT_FALSE(has(grammar, text)) << text;
  }
  EXPECT_THROW((void)of_pattern("\x01"), Error) << "a control character";
}

TEST(Choices, AreTheTextsAlone) {
  const Grammar grammar = of_choices({"yes", "no", "not sure"});
  for (const char* text : {"yes", "no", "not sure"}) EXPECT_TRUE(has(grammar, text));
  for (const char* text : {"", "not", "yesno", "maybe"}) EXPECT_FALSE(has(grammar, text));
}

} // namespace
} // namespace fvlm::grammar
