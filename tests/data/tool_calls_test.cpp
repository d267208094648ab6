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

const ToolCallForm& form_with(const std::string& begin,
                              const std::string& call = R"({"name": "probe", "parameters": {}})") {
  return *tool_call_form(begin + call, "probe");
}

class ToolCalls : public testing::Test {
 protected:
  const std::string tag = "<tool_call>", end_tag = "</tool_call>";
  const ToolCallForm &hermes = form_with(tag), &qwen35 = form_with(tag, "\n<function=probe>\n"),
                     &glm = form_with(tag, "probe\n<arg_key>x</arg_key>"), &lfm = form_with("<|tool_call_start|>"),
                     &gemma = form_with("<|tool_call>"), &llama = form_with("");
};

TEST_F(ToolCalls, OfOtherFormsAreRead) {
  const auto lfm_calls = hear(
      lfm, "Well. \n<|tool_call_start|>[f(a=\"x, (y)\", b=[1, -2.5], c={'k': None}), g.h()]<|tool_call_end|>\ndone\n",
      3);
  EXPECT_EQ(lfm_calls.said, "Well.\ndone\n");
  EXPECT_THAT(lfm_calls.calls, testing::ElementsAre(ToolCall{"f", R"~({"a":"x, (y)","b":[1,-2.5],"c":{"k":null}})~"},
                                                    ToolCall{"g.h", "{}"}));
  const auto glm_calls =
      hear(glm,
           "<tool_call>find\n<arg_key>what</arg_key>\n<arg_value>a b</arg_value>\n<arg_key>most</arg_key>"
           "<arg_value>5</arg_value>\n</tool_call>",
           1);
  EXPECT_THAT(glm_calls.calls, testing::ElementsAre(ToolCall{"find", R"({"what":"a b","most":5})"}));
  const auto mistral =
      hear(form_with("[TOOL_CALLS]"), "[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{\"a\": 1}[TOOL_CALLS]g[ARGS]{}", 2);
  EXPECT_THAT(mistral.calls, testing::ElementsAre(ToolCall{"f", "{\"a\":1}"}, ToolCall{"g", "{}"}));
  const auto granite =
      hear(form_with("<|tool_call|>"), R"(<|tool_call|>[{"name": "f", "arguments": {"z": 1, "a": 2}}])", 4);
  EXPECT_THAT(granite.calls, testing::ElementsAre(ToolCall{"f", R"({"z":1,"a":2})"})); // in the model's order
  const auto tagged = hear(llama, "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": \"1; 2\"}}", 5);
  EXPECT_THAT(tagged.calls, testing::ElementsAre(ToolCall{"f", "{\"a\":\"1; 2\"}"}));
}

TEST_F(ToolCalls, ValuesHaveTheTypesOfTheTool) {
  const Ordered tools = {
      {{"type", "function"},
       {"function",
        {{"name", "f"},
         {"parameters", {{"properties", {{"code", {{"type", "string"}}}, {"n", {{"type", "integer"}}}}}}}}}}};
  const std::string answer =
      "<tool_call>\n<function=f>\n<parameter=code>\n12\n</parameter>\n<parameter=n>\n12\n</parameter>\n"
      "</function>\n</tool_call>";
  EXPECT_EQ(hear(qwen35, answer, 6, &tools).calls.at(0).arguments, R"({"code":"12","n":12})");
  EXPECT_EQ(hear(qwen35, answer, 6).calls.at(0).arguments, R"({"code":12,"n":12})");
}

// As pydantic and others write parameters that may be left out, or refer to schemas beside.
TEST_F(ToolCalls, ValuesHaveOneOfTheTypesOfTheTool) {
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
    const std::string function = "<tool_call>\n<function=f>\n<parameter=" + name + ">\n" + value +
                                 "\n</parameter>\n</function>\n</tool_call>",
                      keys = "<tool_call>f\n<arg_key>" + name + "</arg_key>\n<arg_value>" + value +
                             "</arg_value>\n</tool_call>";
    const std::string arguments = hear(qwen35, function, 50, &tools).calls.at(0).arguments;
    EXPECT_EQ(hear(glm, keys, 50, &tools).calls.at(0).arguments, arguments);
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

TEST_F(ToolCalls, WithoutATagNameATool) {
  const Ordered tools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  const auto calls = [&](const std::string& answer, const Ordered* known) {
    const Heard heard = hear(llama, answer, 7, known);
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

TEST_F(ToolCalls, OfLlamaHaveSemicolonsBetween) {
  const std::string f = R"({"name": "f", "parameters": {"a": "1; {2", "b": "\"; }"}})",
                    g = R"({"name": "g", "parameters": {"c": [1, {"d": ";"}]}})";
  const ToolCall first{"f", R"({"a":"1; {2","b":"\"; }"})"}, second{"g", R"({"c":[1,{"d":";"}]})"};
  for (const std::string& answer : {f + "; " + g, f + ";" + g + ";", f + " ;\n" + g, "<|python_tag|>" + f + "; " + g,
                                    "<|python_tag|>" + f + "; <|python_tag|>" + g})
    for (const size_t step : {answer.size(), size_t{1}}) {
      const Heard heard = hear(llama, answer, step);
      EXPECT_THAT(heard.calls, testing::ElementsAre(first, second)) << answer;
      EXPECT_EQ(heard.said, "");
    }
}

// As Python reads them (3.11).
TEST_F(ToolCalls, OfPythonHaveItsEscapes) {
  const auto argument = [this](const std::string& text) {
    const std::string call = "<|tool_call_start|>[f(x=" + text + ")]<|tool_call_end|>";
    const Heard heard = hear(lfm, call, 3);
    return heard.calls.empty() ? Ordered(heard.said) : Ordered::parse(heard.calls[0].arguments)["x"];
  };
  const std::vector<std::pair<std::string, std::string>> texts = {
      {R"("a\nb\tc\rd")", "a\nb\tc\rd"},
      {R"('it\'s \"so\"')", "it's \"so\""},
      {R"("C:\\new\\x41")", "C:\\new\\x41"},
      {R"("\x41\xe9")", "A\u00e9"},
      {R"("\u00e9\u20ac")", "\u00e9\u20ac"},
      {R"("\U0001f600")", "\U0001f600"},
      {R"("\ud83d\ude00")", "\U0001f600"}, // as a client sees it that reads what Python writes of it
      {R"("\ud83d\u0041")", "\uFFFDA"},
      {R"("\101\60\0")", std::string("A0\0", 3)},
      {R"("\a\b\f\v")", "\a\b\f\v"},
      {R"("\d+\.\/")", R"(\d+\.\/)"}, // which are no escapes
      {R"("\xg1\u12\U00110000")", R"(\xg1\u12\U00110000)"},
      {"\"a\\\nb\"", "ab"},
      {R"("")", ""}};
  for (const auto& [written, meant] : texts) EXPECT_EQ(argument(written), meant) << written;
  EXPECT_EQ(argument(R"({"k\n": ['\x41', "\\"]})"), (Ordered{{"k\n", {"A", "\\"}}}));
}

TEST_F(ToolCalls, NumbersKeepTheirDigits) {
  const Ordered tools = Ordered::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {
      "i": {"type": "integer"}, "s": {"type": "string"}}}}}])");
  const auto arguments = [&](const ToolCallForm& form, const std::string& answer) {
    return hear(form, answer, 7, &tools).calls.at(0).arguments;
  };
  for (const std::string& number : std::vector<std::string>{
           "9007199254740993", "18446744073709551615", "18446744073709551616", "-9223372036854775809",
           "123456789012345678901234567890", "0.1000000000000000055", "1.50", "1e3", "-7"}) {
    const std::string json = R"({"name": "f", "arguments": {"i": )" + number + R"(, "l": [)" + number + "]}}",
                      expected = R"({"i":)" + number + R"(,"l":[)" + number + "]}";
    EXPECT_EQ(arguments(hermes, tag + json + end_tag), expected);
    EXPECT_EQ(arguments(llama, json), expected);
    EXPECT_EQ(arguments(form_with("<|tool_call|>"), "<|tool_call|>[" + json + "]"), expected);
    EXPECT_EQ(arguments(form_with("[TOOL_CALLS]"), "[TOOL_CALLS]f[ARGS]" + expected), expected);
    EXPECT_EQ(arguments(lfm, "<|tool_call_start|>[f(i=" + number + ", l=[" + number + "])]<|tool_call_end|>"),
              expected);
    EXPECT_EQ(arguments(gemma, "<|tool_call>call:f{i:" + number + ",l:[" + number + "]}<tool_call|>"), expected);
    EXPECT_EQ(arguments(glm, tag + "f<arg_key>i</arg_key><arg_value>" + number + "</arg_value><arg_key>s</arg_key>" +
                                 "<arg_value>" + number + "</arg_value>" + end_tag),
              R"({"i":)" + number + R"(,"s":")" + number + "\"}");
    EXPECT_EQ(arguments(qwen35, tag + "<function=f><parameter=i>" + number + "</parameter><parameter=s>\n" + number +
                                    "\n</parameter></function>" + end_tag),
              R"({"i":)" + number + R"(,"s":")" + number + "\"}");
  }
}

TEST_F(ToolCalls, WhatIsNoneIsSaid) {
  const std::vector<std::pair<const ToolCallForm*, std::string>> answers = {
      {&hermes, "The tag <tool_call> opens, </tool_call> closes."},
      {&hermes, "<tool_call>{\"name\": 5}</tool_call>"},
      {&hermes, "<tool_call>now</tool_call>"},
      {&hermes, "<tool_call>\"now\"</tool_call>"},
      {&hermes, "<tool_call>now"},
      {&hermes, "<tool_call>now\n<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>"},
      {&hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}"}, // cut off
      {&hermes, "a < b <tool_cal"},
      {&qwen35, "<tool_call>now</tool_call>"},
      {&qwen35, "<tool_call><function=f><parameter=x>1</function></tool_call>"},
      {&qwen35, "<tool_call><function=f><parameter=x>1</parameter>"},
      {&glm, "<tool_call>{\"name\": \"f\"}</tool_call>"},
      {&glm, "<tool_call>find"},
      {&glm, "<tool_call>find\n<arg_key>what</arg_key>"},
      {&glm, "<tool_call>find\n<arg_key>what</arg_key>\n<arg_value>a</arg_value>"}, // more may have followed
      {&lfm, "<|tool_call_start|>[f(x=), g()]<|tool_call_end|>"},
      {&gemma, "<|tool_call>call:f{x:[1,}<tool_call|>"},
      {&form_with("[TOOL_CALLS]"), "[TOOL_CALLS]f[ARGS]{\"a\": "},
      {&llama, "{\"answer\": 5}"},
      {&llama, "{\"name\": \"f\", \"parameters\": {}}; and"},
      {&llama, "{\"name\": \"f\", \"parameters\": {}} {\"name\": \"f\", \"parameters\": {}}"},
      {&llama, "No tool: {\"name\": \"f\", \"parameters\": {}}"},
      {&llama, "   "}};
  for (const auto& [form, answer] : answers)
    for (const size_t step : {answer.size(), size_t{1}}) {
      const Heard heard = hear(*form, answer, step);
      EXPECT_EQ(heard.said, answer);
      EXPECT_TRUE(heard.calls.empty()) << answer;
    }
}

TEST_F(ToolCalls, NestedTextsOfAnyDepthDoNoHarm) {
  for (const char* opening : {"[", "{", "f(x=[", "call:f{x:{", "[f(x={'a':"}) {
    std::string deep;
    for (int i = 0; i < 20000; ++i) deep += opening;
    for (const auto& read : {read_json_calls, read_whole_call, read_function_call, read_glm_call, read_mistral_calls,
                             read_python_calls, read_gemma_call})
      EXPECT_FALSE(read(deep, nullptr));
  }
}

TEST_F(ToolCalls, OfAnUnknownFormAreNotLookedFor) {
  EXPECT_EQ(tool_call_form("I call probe with x = 1", "probe"), nullptr);
  EXPECT_EQ(tool_call_form("nothing", "probe"), nullptr);
}

} // namespace
