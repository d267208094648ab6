// The texts of teachers with prompts of their own.
#include "sample_maker.h"

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::test;
using testing::HasSubstr;

namespace {

Wanted taught(const std::string& prompt) {
  Wanted wanted = text_only();
  wanted.mix.teacher_prompt = prompt;
  return wanted;
}

TEST(TeacherText, FieldsStandInThePrompt) {
  const Sample sample = measure({{"json", R"({"user":"What?","assistant":"Cats.","context":"{x}","page":12})"}},
                                taught("{context} on page {page}: {user}"));
  ASSERT_EQ(sample.teacher_texts.size(), 1u);
  EXPECT_EQ(reported(sample.texts[0]), with_system(chat({"What?", "Cats."})));
  EXPECT_EQ(reported(sample.teacher_texts[0]), with_system(chat({"{x} on page 12: What?", "Cats."})));
  EXPECT_EQ(sample.rows(), static_cast<int64_t>(sample.texts[0].ids.size() + sample.teacher_texts[0].ids.size()));
}

TEST(TeacherText, PartsAreThoseThatTheRecipeMaps) {
  Wanted wanted = taught("{user}!");
  wanted.source.fields = {{"user", "question"}};
  const Sample sample = measure({{"json", R"({"question":"What?","assistant":"Cats."})"}}, wanted);
  EXPECT_EQ(reported(sample.teacher_texts[0]), with_system(chat({"What?!", "Cats."})));
}

TEST(TeacherText, OnlyTheFirstQuestionIsReplaced) {
  const Sample sample = measure({{"json", R"({"messages":[{"role":"user","content":"1"},
      {"role":"assistant","content":"2"},{"role":"user","content":"3"},{"role":"assistant","content":"4"}]})"}},
                                taught("One"));
  EXPECT_EQ(reported(sample.teacher_texts[0]), with_system(chat({"One", "2", "3", "4"})));
}

TEST(TeacherText, EachAnswerOfAPairHasOne) {
  const Sample sample =
      measure({{"json", R"({"user":"Q","chosen_assistant":"good","rejected_assistant":"bad"})"}}, taught("P"));
  ASSERT_EQ(sample.teacher_texts.size(), 2u);
  EXPECT_EQ(reported(sample.teacher_texts[0]), with_system(chat({"P", "good"})));
  EXPECT_EQ(reported(sample.teacher_texts[1]), with_system(chat({"P", "bad"})));
}

TEST(TeacherText, AnAnswerIsCutAsTheSamplesIs) {
  Wanted wanted = taught("P");
  wanted.mix.system = "";
  const std::string json = R"({"user":"Question","assistant":"A long answer."})";
  const auto whole = static_cast<int64_t>(measure({{"json", json}}, wanted).texts[0].ids.size());
  wanted.mix.max_text_tokens = whole - 6; // the end of the turn is two tokens
  const Sample sample = measure({{"json", json}}, wanted);
  EXPECT_EQ(reported(sample.texts[0]), "<|im_start|>user\nQuestion<|im_end|>\n<|im_start|>assistant\n[A long ans]");
  EXPECT_EQ(reported(sample.teacher_texts[0]), "<|im_start|>user\nP<|im_end|>\n<|im_start|>assistant\n[A long ans]");
}

TEST(TeacherText, ATextThatIsTooLongIsSkipped) {
  Wanted wanted = taught("A long, long prompt");
  const std::string json = R"({"user":"Q","assistant":"A"})";
  wanted.mix.max_text_tokens = static_cast<int64_t>(measure({{"json", json}}, wanted).texts[0].ids.size());
  const Sample sample = measure({{"json", json}}, wanted);
  EXPECT_THAT(sample.dropped, HasSubstr("a teacher's text of"));
  EXPECT_THAT(sample.dropped, HasSubstr("more than max_text_tokens"));
}

TEST(TeacherText, WhatCannotBeReadIsBroken) {
  const std::string json = R"({"user":"Q","assistant":"A","list":[1]})";
  EXPECT_THAT(refusal({{"json", json}}, taught("{context}")), HasSubstr("'context' is missing"));
  EXPECT_THAT(refusal({{"json", json}}, taught("{list}")), HasSubstr("'list' is an array, and a text was expected"));
  EXPECT_THAT(refusal({{"json", R"({"token_ids":[1,2],"loss_mask":[0,1]})"}}, taught("P")),
              HasSubstr("it is tokenized"));
  EXPECT_THAT(refusal({{"json", R"({"messages":[{"role":"assistant","content":"2"}]})"}}, taught("P")),
              HasSubstr("it has no user turn"));
}

} // namespace
