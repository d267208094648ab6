// Which texts the grammar of a schema has.
#include "base/error.h"
#include "grammar/json_schema.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

namespace fvlm::grammar {
namespace {

using Json = nlohmann::ordered_json;

bool has(const Grammar& grammar, std::string_view text) {
  Automaton automaton(grammar);
  Automaton::State state = automaton.begin();
  for (const char c : text) {
    state = automaton.next(state, static_cast<uint8_t>(c));
    if (state == Automaton::none) return false;
  }
  return automaton.accepts(state);
}

struct Case {
  const char* schema;
  std::vector<const char*> valid, invalid;
};

TEST(JsonSchema, HasWhatFits) {
  const std::vector<Case> cases = {
      {R"({"type": "string"})",
       {R"("")", R"("a b")", R"("\n\"é")", "\"\xc3\xa9\xf0\x9f\x98\x80\""},
       {"a", R"("a)", "\"\n\"", R"("\x")", "\"\xc3\"", "\"\xed\xa0\x80\"", "\"\xc0\xaf\"", R"("a" )", ""}},
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
  for (const Case& one : cases) {
    SCOPED_TRACE(one.schema);
    const Grammar grammar = of_json_schema(Json::parse(one.schema));
    for (const char* text : one.valid) EXPECT_TRUE(has(grammar, text)) << text;
    for (const char* text : one.invalid) EXPECT_FALSE(has(grammar, text)) << text;
  }
}

TEST(JsonSchema, SaysWhatItDoesNotKeep) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"type": "string", "pattern": "a+"})", "the schema: 'pattern' is not supported here"},
      {R"({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0}}})",
       "the schema's properties.n: 'minimum' is not supported here"},
      {R"({"type": "strin"})", "the schema: type: expected object, array"},
      {R"({"type": "object", "required": ["x"], "properties": {}})", "required: 'x' is not among its properties"},
      {R"({"type": "integer", "enum": ["a", 1.5]})", "enum: expected a value of the schema's type"},
      {R"({"anyOf": []})", "anyOf: expected a list"},
      {R"({"$ref": "#/$defs/none"})", "$ref: there is no #/$defs/none"},
      {R"({"$ref": "other.json"})", "$ref: expected a place in the schema itself"},
      {R"({"$ref": "#"})", "the schema refers to itself where nothing stands between"},
      {R"({"anyOf": [{"type": "null"}, {"$ref": "#"}]})", "the schema refers to itself"},
      {R"({"type": "array", "items": {"type": "string", "maxLength": 10000}, "minItems": 10000})",
       "the schema is too large"},
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

TEST(Choices, AreTheTextsAlone) {
  const Grammar grammar = of_choices({"yes", "no", "not sure"});
  for (const char* text : {"yes", "no", "not sure"}) EXPECT_TRUE(has(grammar, text));
  for (const char* text : {"", "not", "yesno", "maybe"}) EXPECT_FALSE(has(grammar, text));
}

} // namespace
} // namespace fvlm::grammar
