// Calls of tools in answers: what public templates write is read again, whole or byte by byte, and what is no call is
// said.
#include "base/file.h"
#include "base/scratch_folder.h"
#include "data/own_template.h"
#include "data/tool_call_texts.h"
#include "small_tokenizer.h"

#include <nlohmann/json.hpp>

#include <fstream>
#include <gmock/gmock.h>

using namespace fvlm;
using Ordered = nlohmann::ordered_json;

namespace {

struct Heard {
  std::string said;
  std::vector<ToolCall> calls;
};

Heard hear(const ToolCallForm& form, std::string_view answer, size_t step, const Ordered* tools = nullptr) {
  ToolCallReader reader(form, tools);
  Heard heard;
  const auto take = [&] {
    for (ToolCall& call : reader.take_calls()) heard.calls.push_back(std::move(call));
  };
  for (; !answer.empty(); answer.remove_prefix(std::min(step, answer.size()))) {
    heard.said += reader.add(answer.substr(0, step));
    take();
  }
  heard.said += reader.finish();
  take();
  return heard;
}

class PublicTemplate : public testing::TestWithParam<const char*> {};

TEST_P(PublicTemplate, CallsThatItWritesAreRead) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "tokenizer.json") << test::small_tokenizer().dump();
  std::ofstream(folder.path() / "tokenizer_config.json")
      << R"({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})";
  std::ofstream(folder.path() / "chat_template.jinja")
      << read_file(std::string(FVLM_CHAT_TEMPLATES) + "/" + GetParam() + ".jinja");
  const Tokenizer tokenizer = Tokenizer::from_file(folder.path() / "tokenizer.json");
  const OwnTemplate chat(tokenizer, "default");
  ASSERT_NE(chat.tool_call_form(), nullptr);

  const Ordered arguments = {{"city", "Paris, \"Île\"; {1}"}, {"days", 3}, {"exact", true}, {"at", {1, 2.5}}};
  const Ordered call = {
      {"id", "callprobe"}, {"type", "function"}, {"function", {{"name", "get_weather"}, {"arguments", arguments}}}};
  const Ordered tools = {
      {{"type", "function"},
       {"function",
        {{"name", "get_weather"},
         {"description", "The weather."},
         {"parameters",
          {{"type", "object"}, {"properties", {{"city", {{"type", "string"}, {"description", "Where."}}}}}}}}}}};
  const auto text_with = [&](const std::vector<Turn>& turns, bool prompt) {
    return chat.render(turns, prompt, {.tools = &tools}).text;
  };
  const std::vector<Turn> asked = {{"user", "How is it?"}};
  std::vector<Turn> answered = asked;
  answered.push_back(
      {"assistant", "", 0, {}, std::make_shared<const Ordered>(Ordered{{"tool_calls", Ordered::array({call})}})});
  const std::string all = text_with(answered, false), before = text_with(asked, true);
  size_t begin = 0; // templates may end a prompt with more than they put before an earlier answer
  while (begin < before.size() && begin < all.size() && before[begin] == all[begin]) ++begin;
  std::string_view answer = std::string_view(all).substr(begin);
  constexpr std::string_view thought = "</think>"; // of templates that write none before a call
  if (const size_t at = answer.find(thought); at != answer.npos) answer.remove_prefix(at + thought.size());
  for (const char* end :
       {"<|im_end|>", "<|eot_id|>", "</s>", "<turn|>", "<|eom_id|>", "<|end_of_text|>", "<|tool_response>"})
    answer = answer.substr(0, answer.find(end));

  for (const size_t step : {answer.size(), size_t{1}, size_t{7}}) {
    const Heard heard = hear(*chat.tool_call_form(), answer, step);
    ASSERT_EQ(heard.calls.size(), 1U) << answer;
    EXPECT_EQ(heard.calls[0].name, "get_weather");
    EXPECT_EQ(nlohmann::json::parse(heard.calls[0].arguments), nlohmann::json(arguments)); // in the template's order
    EXPECT_EQ(heard.said, "");
  }
}

INSTANTIATE_TEST_SUITE_P(All, PublicTemplate,
                         testing::Values("qwen25", "qwen3", "qwen3vl", "qwen3_5", "llama31", "mistral", "ministral3",
                                         "gemma4"),
                         [](const auto& tested) { return std::string(tested.param); });

const ToolCallForm& form_with(const std::string& begin) {
  return *tool_call_form(begin + "{\"name\": \"probe\", \"parameters\": {}}", "probe");
}

TEST(ToolCalls, OfOtherFormsAreRead) {
  const auto lfm = hear(
      form_with("<|tool_call_start|>"),
      "Well. \n<|tool_call_start|>[f(a=\"x, (y)\", b=[1, -2.5], c={'k': None}), g.h()]<|tool_call_end|>\ndone\n", 3);
  EXPECT_EQ(lfm.said, "Well.\ndone\n");
  EXPECT_THAT(lfm.calls, testing::ElementsAre(ToolCall{"f", R"~({"a":"x, (y)","b":[1,-2.5],"c":{"k":null}})~"},
                                              ToolCall{"g.h", "{}"}));
  const auto glm = hear(form_with("<tool_call>"),
                        "<tool_call>find\n<arg_key>what</arg_key>\n<arg_value>a b</arg_value>\n<arg_key>most</arg_key>"
                        "<arg_value>5</arg_value>\n</tool_call>",
                        1);
  EXPECT_THAT(glm.calls, testing::ElementsAre(ToolCall{"find", R"({"what":"a b","most":5})"}));
  const auto mistral =
      hear(form_with("[TOOL_CALLS]"), "[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{\"a\": 1}[TOOL_CALLS]g[ARGS]{}", 2);
  EXPECT_THAT(mistral.calls, testing::ElementsAre(ToolCall{"f", "{\"a\":1}"}, ToolCall{"g", "{}"}));
  const auto granite =
      hear(form_with("<|tool_call|>"), R"(<|tool_call|>[{"name": "f", "arguments": {"z": 1, "a": 2}}])", 4);
  EXPECT_THAT(granite.calls, testing::ElementsAre(ToolCall{"f", R"({"z":1,"a":2})"})); // in the model's order
  const auto llama = hear(form_with(""), "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": \"1; 2\"}}", 5);
  EXPECT_THAT(llama.calls, testing::ElementsAre(ToolCall{"f", "{\"a\":\"1; 2\"}"}));
}

TEST(ToolCalls, ValuesHaveTheTypesOfTheTool) {
  const Ordered tools = {
      {{"type", "function"},
       {"function",
        {{"name", "f"},
         {"parameters", {{"properties", {{"code", {{"type", "string"}}}, {"n", {{"type", "integer"}}}}}}}}}}};
  const std::string answer =
      "<tool_call>\n<function=f>\n<parameter=code>\n12\n</parameter>\n<parameter=n>\n12\n</parameter>\n"
      "</function>\n</tool_call>";
  EXPECT_EQ(hear(form_with("<tool_call>"), answer, 6, &tools).calls.at(0).arguments, R"({"code":"12","n":12})");
  EXPECT_EQ(hear(form_with("<tool_call>"), answer, 6).calls.at(0).arguments, R"({"code":12,"n":12})");
}

// As pydantic and others write parameters that may be left out, or refer to schemas beside.
TEST(ToolCalls, ValuesHaveOneOfTheTypesOfTheTool) {
  const Ordered parameters = Ordered::parse(R"({
    "$defs": {"Name": {"type": "string"}, "Endless": {"anyOf": [{"$ref": "#/$defs/Endless"}, {"$ref": "#/$defs/Endless"}]}},
    "properties": {
      "optional": {"anyOf": [{"type": "string"}, {"type": "null"}]},
      "listed": {"type": ["string", "null"]},
      "referred": {"$ref": "#/$defs/Name"},
      "chosen": {"enum": ["1", "2", "null"]},
      "either": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}, {"type": "number"}]},
      "number": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
      "endless": {"$ref": "#/$defs/Endless"},
      "lost": {"$ref": "#/$defs/~9"},
      "any": {}
    }})");
  const Ordered tools = {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", parameters}}}}};
  const auto read = [&](const std::string& name, const std::string& value) {
    const std::string qwen = "<tool_call>\n<function=f>\n<parameter=" + name + ">\n" + value +
                             "\n</parameter>\n</function>\n</tool_call>",
                      glm = "<tool_call>f\n<arg_key>" + name + "</arg_key>\n<arg_value>" + value +
                            "</arg_value>\n</tool_call>";
    const std::string arguments = hear(form_with("<tool_call>"), qwen, 50, &tools).calls.at(0).arguments;
    EXPECT_EQ(hear(form_with("<tool_call>"), glm, 50, &tools).calls.at(0).arguments, arguments);
    return Ordered::parse(arguments).at(name);
  };
  for (const char* text : {"optional", "listed", "referred", "chosen"}) {
    EXPECT_EQ(read(text, "1"), "1") << text;
    EXPECT_EQ(read(text, "True"), "True") << text;
    EXPECT_EQ(read(text, "words"), "words") << text;
  }
  for (const char* text : {"optional", "listed"})
    for (const char* nothing : {"null", "None"}) EXPECT_EQ(read(text, nothing), nullptr) << text;
  EXPECT_EQ(read("referred", "null"), "null");
  EXPECT_EQ(read("chosen", "null"), "null");
  EXPECT_EQ(read("either", "5"), 5);
  EXPECT_EQ(read("either", "[1, 2]"), (Ordered{1, 2}));
  EXPECT_EQ(read("either", "true"), "true");
  EXPECT_EQ(read("either", "01234"), "01234");
  EXPECT_EQ(read("number", "12"), 12);
  for (const char* unknown : {"endless", "lost", "any", "more"}) EXPECT_EQ(read(unknown, "12"), 12) << unknown;
}

TEST(ToolCalls, WithoutATagNameATool) {
  const Ordered tools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  const auto calls = [&](const std::string& answer, const Ordered* known) {
    const Heard heard = hear(form_with(""), answer, 7, known);
    EXPECT_EQ(heard.said, heard.calls.empty() ? answer : "");
    return std::ssize(heard.calls);
  };
  for (const Ordered* known : {static_cast<const Ordered*>(nullptr), &tools}) {
    EXPECT_EQ(calls(R"({"name": "f", "parameters": {"a": 1}})", known), 1);
    EXPECT_EQ(calls(R"({"name": "f", "parameters": {}}; {"name": "f", "arguments": {}})", known), 2);
    EXPECT_EQ(calls(R"({"name": "Ann", "age": 5})", known), 0) << "an answer of a form";
    EXPECT_EQ(calls(R"(<|python_tag|>{"name": "f"})", known), 1);
  }
  EXPECT_EQ(calls(R"({"name": "Ann", "parameters": {}})", &tools), 0);
  EXPECT_EQ(calls(R"(<|python_tag|>{"name": "g", "parameters": {}})", &tools), 1)
      << "the client says that there is none";
}

TEST(ToolCalls, WhatIsNoneIsSaid) {
  const std::vector<std::pair<std::string, std::string>> answers = {
      {"<tool_call>", "The tag <tool_call> opens, </tool_call> closes."},
      {"<tool_call>", "<tool_call>{\"name\": 5}</tool_call>"},
      {"<tool_call>", "<tool_call>{\"name\": \"f\", \"arguments\": {}"}, // cut off
      {"<tool_call>", "a < b <tool_cal"},
      {"<tool_call>", "<tool_call><function=f><parameter=x>1</function></tool_call>"},
      {"<|tool_call_start|>", "<|tool_call_start|>[f(x=), g()]<|tool_call_end|>"},
      {"<|tool_call>", "<|tool_call>call:f{x:[1,}<tool_call|>"},
      {"[TOOL_CALLS]", "[TOOL_CALLS]f[ARGS]{\"a\": "},
      {"", "{\"answer\": 5}"},
      {"", "No tool: {\"name\": \"f\", \"parameters\": {}}"},
      {"", "   "}};
  for (const auto& [begin, answer] : answers)
    for (const size_t step : {answer.size(), size_t{1}}) {
      const Heard heard = hear(form_with(begin), answer, step);
      EXPECT_EQ(heard.said, answer);
      EXPECT_TRUE(heard.calls.empty()) << answer;
    }
}

TEST(ToolCalls, NestedTextsOfAnyDepthDoNoHarm) {
  for (const char* opening : {"[", "{", "f(x=[", "call:f{x:{", "[f(x={'a':"}) {
    std::string deep;
    for (int i = 0; i < 20000; ++i) deep += opening;
    for (const auto& read :
         {read_json_calls, read_whole_call, read_tagged_call, read_mistral_calls, read_python_calls, read_gemma_call})
      EXPECT_FALSE(read(deep, nullptr));
  }
}

TEST(ToolCalls, OfAnUnknownFormAreNotLookedFor) {
  EXPECT_EQ(tool_call_form("I call probe with x = 1", "probe"), nullptr);
  EXPECT_EQ(tool_call_form("nothing", "probe"), nullptr);
}

} // namespace
