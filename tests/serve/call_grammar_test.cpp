// Calls of tools as grammars: each has what public templates write, and whatever it has is read as calls of the tools.
#include "../data/small_tokenizer.h"
#include "base/scratch_folder.h"
#include "data/tool_calls.h"
#include "serve/call_grammar.h"

#include <fstream>
#include <gmock/gmock.h>
#include <random>

namespace fvlm::serve {
namespace {

using Ordered = nlohmann::ordered_json;

// One token of each byte, and one of each mark of the form, which begins the list.
Tokenizer tokenizer_with(const ToolCallForm& form, const ScratchFolder& folder) {
  nlohmann::json json = test::small_tokenizer();
  std::vector<std::string> marks = {form.begin, form.end};
  marks.insert(marks.end(), form.marks.begin(), form.marks.end());
  for (const std::string& mark : marks)
    if (!mark.empty())
      json["added_tokens"].push_back({{"id", 259 + json["added_tokens"].size()}, {"content", mark}, {"special", true}});
  std::ofstream(folder.path() / "tokenizer.json") << json.dump();
  return Tokenizer::from_file(folder.path() / "tokenizer.json");
}

OfferedTools offered(bool parallel) {
  const Ordered list = Ordered::parse(R"([
    {"type": "function", "function": {"name": "forecast", "parameters": {"type": "object", "additionalProperties": false,
      "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
      "required": ["city", "days"]}}},
    {"type": "function", "function": {"name": "now"}},
    {"type": "function", "function": {"name": "tag", "parameters": {"type": "object", "properties": {
      "words": {"type": "array", "items": {"type": "string"}, "uniqueItems": true}}}}}])");
  return {list, {}, parallel};
}

struct Form {
  const char *name, *probe;       // what a template writes of a call of `probe`
  std::vector<std::string> valid; // behind the mark that begins calls
  std::vector<std::string> invalid;
  bool has_schemas;
};

class CallGrammar : public testing::TestWithParam<Form> {
 protected:
  const ToolCallForm& form = *tool_call_form(GetParam().probe, "probe");
  const ScratchFolder folder;
  const Tokenizer tokenizer = tokenizer_with(form, folder);
  const std::shared_ptr<const grammar::TokenTable> table = token_table_of_calls(tokenizer, form);

  grammar::ConstrainedTexts texts(bool parallel) const {
    return {table, std::make_shared<const grammar::Grammar>(grammar_of_calls(tokenizer, form, offered(parallel)))};
  }
  bool has(const std::string& text, bool parallel = true) const {
    grammar::ConstrainedTexts all = texts(parallel);
    auto state = all.begin();
    for (const TokenId id : tokenizer.encode(text, SpecialTokens::parse))
      if (state != grammar::Automaton::none) state = all.next(state, static_cast<int64_t>(id));
    return all.accepts(state);
  }
};

TEST_P(CallGrammar, HasWhatTemplatesWrite) {
  for (const std::string& text : GetParam().valid) EXPECT_TRUE(has(text)) << text;
  for (const std::string& text : GetParam().invalid) EXPECT_FALSE(has(text)) << text;
  EXPECT_TRUE(has(GetParam().valid.front(), false));
}

TEST_P(CallGrammar, OfWhateverItHasCallsAreRead) {
  const Ordered tools = offered(true).list;
  std::mt19937 draw(3);
  int whole = 0;
  for (int walk = 0; walk < 200; ++walk) {
    const bool parallel = walk % 2 == 0;
    grammar::ConstrainedTexts all = texts(parallel);
    auto state = all.begin();
    std::string answer = form.begin;
    for (int length = 0; length < 400; ++length) {
      std::vector<int64_t> allowed;
      for (int64_t id = 0; id < all.tokens(); ++id)
        if (all.allowed(state)[static_cast<size_t>(id)]) allowed.push_back(id);
      if (allowed.empty() || (all.accepts(state) && draw() % 2 == 0)) break;
      // Marks are drawn as often as all else together: random texts would seldom end.
      std::vector<int64_t> marks;
      std::ranges::copy_if(allowed, std::back_inserter(marks), [](int64_t id) { return id >= 259; });
      const auto& drawn = !marks.empty() && draw() % 2 == 0 ? marks : allowed;
      const int64_t token = drawn[draw() % drawn.size()];
      answer += tokenizer.bytes_of(static_cast<TokenId>(token));
      state = all.next(state, token);
    }
    if (!all.accepts(state)) continue;
    ++whole;
    ToolCallReader reader(form, &tools);
    std::string said = reader.add(answer);
    said += reader.finish();
    const std::vector<ToolCall> calls = reader.take_calls();
    EXPECT_EQ(said, "") << answer;
    ASSERT_FALSE(calls.empty()) << answer;
    EXPECT_LE(calls.size(), parallel ? 100U : 1U) << answer;
    for (const ToolCall& call : calls) {
      EXPECT_THAT(call.name, testing::AnyOf("forecast", "now", "tag"));
      EXPECT_TRUE(call.name != "now" || call.arguments == "{}") << call.arguments;
      const auto arguments = nlohmann::json::parse(call.arguments);
      if (GetParam().has_schemas && call.name == "forecast") {
        EXPECT_EQ(arguments.size(), 2U) << call.arguments;
        EXPECT_LE(arguments.at("days"), 9);
      }
    }
  }
  EXPECT_GT(whole, 10) << "of 200 walks";
}

INSTANTIATE_TEST_SUITE_P(
    All, CallGrammar,
    testing::Values(
        Form{"hermes",
             "<tool_call>\n{\"name\": \"probe\"}",
             {"\n{\"name\": \"forecast\", \"arguments\": {\"city\": \"Oslo\", \"days\": 3}}\n</tool_call>",
              "{\"name\":\"now\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"name\": \"tag\", \"arguments\": "
              "{\"words\": "
              "[\"a\", \"a\"]}}\n</tool_call>"},
             {"now</tool_call>", "{\"name\": \"gone\", \"arguments\": {}}</tool_call>", "",
              "{\"name\": \"forecast\", \"arguments\": {}}</tool_call>", "{\"name\": \"now\", \"arguments\": {}}"},
             true},
        Form{"granite",
             "<|tool_call|>[{\"name\": \"probe\"}]",
             {"[{\"name\": \"forecast\", \"arguments\": {\"city\": \"Oslo\", \"days\": 3}}]",
              "[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"now\", \"arguments\": {}}]"},
             {"[]", "{\"name\": \"now\", \"arguments\": {}}"},
             true},
        Form{"mistral",
             "[TOOL_CALLS]probe[ARGS]{}",
             {"forecast[ARGS]{\"city\": \"Oslo\", \"days\": 3}", "now[CALL_ID]a1b2c3d4e[ARGS]{}[TOOL_CALLS]now[ARGS]{}",
              "[{\"name\": \"now\", \"arguments\": {}}]", " [{\"name\": \"now\", \"arguments\": {}}]"},
             {"forecast[ARGS]{}", "gone[ARGS]{}", "[{\"name\": \"now\", \"arguments\": {}}][TOOL_CALLS]now[ARGS]{}"},
             true},
        Form{"qwen35",
             "<tool_call>\n<function=probe>\n",
             {"\n<function=forecast>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>\n</"
              "function>\n"
              "</tool_call>",
              "\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>"},
             {"now</tool_call>", "<function=forecast><parameter=town>a</parameter></function></tool_call>"},
             false},
        Form{
            "glm",
            "<tool_call>probe\n",
            {"forecast\n<arg_key>city</arg_key>\n<arg_value>Oslo <b></arg_value>\n<arg_key>days</arg_key>\n<arg_value>3"
             "</arg_value>\n</tool_call>",
             "now</tool_call><tool_call>now\n</tool_call>"},
            {"now", "gone</tool_call>", "forecast<arg_key>town</arg_key><arg_value>a</arg_value></tool_call>"},
            false},
        Form{"gemma",
             "<|tool_call>call:probe{}",
             {"call:forecast{city:<|\"|>Oslo \"x\"<|\"|>,days:3}<tool_call|>",
              "call:tag{words:[<|\"|>a<|\"|>,{b:true,c:null}]}<tool_call|><|tool_call>call:now{}<tool_call|>"},
             {"call:forecast{town:3}<tool_call|>", "forecast{}<tool_call|>", "call:now{}"},
             false},
        Form{"lfm",
             "<|tool_call_start|>[probe()]",
             {"[forecast(city=\"Oslo\", days=3)]<|tool_call_end|>",
              "[tag(words=['a\\'', {\"b\": None}]), now()]<|tool_call_end|>"},
             {"forecast()<|tool_call_end|>", "[forecast(town=1)]<|tool_call_end|>", "[gone()]<|tool_call_end|>"},
             false}),
    [](const auto& tested) { return std::string(tested.param.name); });

} // namespace
} // namespace fvlm::serve
