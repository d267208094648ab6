// Samples of data sets that have their question, or what comes before it, under names of their own.
#include "data/samples/other_names.h"
#include "data/samples/prompt_content.h"
#include "sample_maker.h"

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::test;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

namespace {

std::vector<std::string> texts(const std::string& json, const Parts::Fields& fields = {}) {
  Wanted wanted = text_only();
  wanted.source.fields = fields;
  std::vector<std::string> all;
  for (const SampleText& text : measure({{"json", json}}, wanted).texts) all.push_back(reported(text));
  return all;
}

std::string refused(const std::string& json, const Parts::Fields& fields = {}) {
  Wanted wanted = text_only();
  wanted.source.fields = fields;
  return refusal({{"json", json}}, wanted);
}

Parts::Fields suggested(const char* json) {
  return suggested_fields(nlohmann::json::parse(json));
}

std::string one(const std::vector<std::string>& turns) {
  return with_system(chat(turns));
}

} // namespace

TEST(OtherNames, AQuestionIsAskedUnderEachOfThem) {
  for (const char* key : {"question", "prompt", "instruction", "query"}) {
    const std::string begin = fmt::format(R"({{"{}":"Q",)", key);
    EXPECT_THAT(texts(begin + R"("answers":["a","b","b"]})"), ElementsAre(one({"Q", "b"}))) << key;
    EXPECT_THAT(texts(begin + R"("assistant":"a"})"), ElementsAre(one({"Q", "a"}))) << key;
    const auto pair = ElementsAre(one({"Q", "a"}), one({"Q", "b"}));
    EXPECT_THAT(texts(begin + R"("chosen":"a","rejected":"b"})"), pair) << key;
    EXPECT_THAT(texts(begin + R"("chosen_assistant":"a","rejected_assistant":"b"})"), pair) << key;
    EXPECT_THAT(texts(begin + R"("choices":["a","b"],"answer":1})"), pair) << key;
  }
  EXPECT_THAT(texts(R"({"question":"Q","answer":"a"})", {{"assistant", "answer"}}), ElementsAre(one({"Q", "a"})));
  EXPECT_THAT(texts(R"({"user":"U","question":"Q","assistant":"a"})"), ElementsAre(one({"U", "a"})));
  EXPECT_THAT(texts(R"({"question":"","prompt":"P","assistant":"a"})"), ElementsAre(one({"P", "a"})));
}

TEST(OtherNames, AQuestionThatMayBeAnotherIsRefused) {
  EXPECT_THAT(
      refused(R"({"question":"Q","prompt":"P","assistant":"a"})"),
      AllOf(HasSubstr("it has 'question' and 'prompt', and no 'user'"), HasSubstr("fields = { user = \"question\" }")));
  EXPECT_THAT(refused(R"({"query":{"en":"Q"},"answers":["a"]})"),
              HasSubstr("'query' is an object, and a text was expected"));
  EXPECT_THAT(refused(R"({"prompt":"P","caption":"C"})"),
              AllOf(HasSubstr("it has 'prompt' and 'caption', and no 'user'"),
                    HasSubstr("fields = { user = \"prompt\" } asks it, and fields = { caption = \"caption\" }")));
  const char* all = R"({"question":"Q","answer":"A","caption":"C"})";
  EXPECT_THAT(refused(all), HasSubstr("fields = { user = \"question\", assistant = \"answer\" } asks it"));
  EXPECT_THAT(suggested(all), ElementsAre(Pair("assistant", "answer"), Pair("user", "question")));
  EXPECT_THAT(texts(all, suggested(all)), ElementsAre(one({"Q", "A"})));
  EXPECT_THAT(texts(all, {{"caption", "caption"}}), ElementsAre(one({"Describe this.", "C"})));
  EXPECT_THAT(texts(R"({"prompt":"P","caption":"C"})", {{"user", "prompt"}}), ElementsAre(one({"P", "C"})));
  EXPECT_THAT(suggested(R"({"caption":"C","text":"T"})"), IsEmpty());
  EXPECT_THAT(suggested(R"({"question":"Q","answers":["a"]})"), IsEmpty()) << "it is read as it is";
}

TEST(OtherNames, AnInstructionHasItsInput) {
  const char* alpaca = R"({"instruction":"Translate.","input":"Hund","output":"dog"})";
  EXPECT_THAT(texts(alpaca, suggested(alpaca)), ElementsAre(one({"Translate.\nHund", "dog"})));
  EXPECT_THAT(texts(R"({"instruction":"Sing.","input":" ","output":"La"})", suggested(alpaca)),
              ElementsAre(one({"Sing.", "La"})));
  EXPECT_THAT(texts(R"({"instruction":"","input":"Hund?","output":"dog"})", suggested(alpaca)),
              ElementsAre(one({"Hund?", "dog"})));
  EXPECT_THAT(texts(R"({"instruction":"I","input":"J","chosen":"a","rejected":"b"})"),
              ElementsAre(one({"I\nJ", "a"}), one({"I\nJ", "b"})));
  Parts::Fields fields = suggested(alpaca);
  fields["source"] = "input";
  EXPECT_THAT(texts(alpaca, fields), ElementsAre(one({"Translate.", "dog"})));
  EXPECT_THAT(texts(R"({"user":"Q","input":"I","assistant":"A"})"), ElementsAre(one({"Q", "A"})));
  EXPECT_THAT(refused(R"({"instruction":"I","input":["J"],"output":"O"})", suggested(alpaca)),
              HasSubstr("'input' is an array, and a text was expected"));
}

TEST(OtherNames, TurnsBeforeTheQuestionAreItsHistory) {
  const char* third = R"({"history":[["1","2"],["3","4"]],"query":"5","response":"6"})";
  EXPECT_THAT(texts(third, suggested(third)), ElementsAre(one({"1", "2", "3", "4", "5", "6"})));
  EXPECT_THAT(texts(R"({"history":[["1","2"]],"prompt":"3","chosen":"4","rejected":"5"})"),
              ElementsAre(one({"1", "2", "3", "4"}), one({"1", "2", "3", "5"})));
  EXPECT_THAT(texts(R"({"history":[],"user":"Q","assistant":"A"})"), ElementsAre(one({"Q", "A"})));
  EXPECT_THAT(refused(R"({"history":["1"],"user":"Q","assistant":"A"})"),
              AllOf(HasSubstr("'history' is no list of questions with their answers"),
                    HasSubstr("fields = { history = \"none\" } leaves it alone")));
  EXPECT_THAT(texts(R"({"history":["1"],"user":"Q","assistant":"A"})", {{"history", "none"}}),
              ElementsAre(one({"Q", "A"})));
}

TEST(OtherNames, ASystemTurnBeginsAQuestionToo) {
  EXPECT_THAT(texts(R"({"system":"Be brief.","user":"Q","assistant":"A"})"),
              ElementsAre(with_system(chat({"Q", "A"}), "Be brief.")));
}

TEST(OtherNames, ARejectedAnswerMakesAPairOfAConversation) {
  const std::string talk = R"({"messages":[{"role":"user","content":"1"},{"role":"assistant","content":"2"},
                               {"role":"user","content":"3"},{"role":"assistant","content":"4"}],)";
  const auto pair = ElementsAre(one({"1", "2", "3", "4"}), one({"1", "2", "3", "5"}));
  EXPECT_THAT(texts(talk + R"("rejected_response":"5"})"), pair);
  EXPECT_THAT(texts(talk + R"("rejected_messages":[{"role":"user","content":"1"},{"role":"assistant","content":"2"},
                               {"role":"user","content":"3"},{"role":"assistant","content":"5"}]})"),
              pair);
  EXPECT_THAT(texts(talk + R"("rejected_response":"5"})", {{"rejected_response", "none"}}),
              ElementsAre(one({"1", "2", "3", "4"})));
  EXPECT_THAT(refused(talk + R"("rejected_response":5})"), HasSubstr("'rejected_response' is a number"));
  const char* query = R"({"query":"Q","response":"A","rejected_response":"B"})";
  EXPECT_THAT(texts(query, suggested(query)), ElementsAre(one({"Q", "A"}), one({"Q", "B"})));
}

TEST(OtherNames, PromptsHaveThemToo) {
  const auto prompt = [](const char* json) {
    return parse_prompt_content(nlohmann::json::parse(json), {}, {}, {}, {});
  };
  const auto said = [](const PromptContent& content) {
    std::vector<std::string> all;
    for (const Turn& turn : content.conversation.turns) all.push_back(turn.text);
    return all;
  };
  const PromptContent alpaca = prompt(R"({"instruction":"Translate.","input":"Hund","output":"dog"})");
  EXPECT_THAT(said(alpaca), ElementsAre("Translate.\nHund"));
  EXPECT_EQ(alpaca.expected, "dog");
  EXPECT_THAT(said(prompt(R"({"history":[["1","2"]],"query":"3"})")), ElementsAre("1", "2", "3"));
  const PromptContent captioned = prompt(R"({"question":"Q","answer":"A","caption":"C"})");
  EXPECT_THAT(said(captioned), ElementsAre("Q"));
  EXPECT_EQ(captioned.expected, "A");
}
