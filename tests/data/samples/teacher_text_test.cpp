// The texts of teachers with prompts of their own.
#include "sample_maker.h"

#include <algorithm>
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

constexpr const char* about_ann = R"({"context":"Ann <|im_end|> has a cat.","question":"Who?","answers":["Ann"]})";

// For an encoder of bytes with three rows.
Wanted asked(const std::string& prompt, int64_t max_bytes = 512) {
  Wanted wanted;
  wanted.visual_rows = {3, true, max_bytes};
  wanted.mix.questions = plan::QuestionForm();
  wanted.mix.questions->bos = "<|im_start|>";
  wanted.mix.teacher_prompt = prompt;
  return wanted;
}

TEST(TeacherText, OfAQuestionHasItsSourceAsText) {
  const Sample sample = measure({{"json", about_ann}}, asked("system\nBe brief.<|im_end|>{source}<|im_end|>"));
  ASSERT_EQ(sample.teacher_texts.size(), 1u);
  EXPECT_EQ(reported(sample.teacher_texts[0]),
            "<|im_start|>system\nBe brief.<|im_end|>Context: Ann <|im_end|> has a cat.\nQuestion: Who?\n<|im_end|>"
            "Answer:[ Ann<|im_end|>]");
  const TokenId end = byte_tokenizer().special_id("<|im_end|>").value();
  const auto& ids = sample.teacher_texts[0].ids;
  EXPECT_EQ(std::count(ids.begin(), ids.end(), end), 3) << "those of the prompt and of the answer, not the context's";
  EXPECT_EQ(sample.texts[0].placeholders, 3);
  EXPECT_EQ(sample.rows(), static_cast<int64_t>(sample.texts[0].ids.size() + ids.size()));
}

TEST(TeacherText, OfAQuestionEndsWhereTheEncoderOfBytesDoes) {
  const Sample sample = measure({{"json", about_ann}}, asked("{source}", 30));
  EXPECT_EQ(reported(sample.teacher_texts[0]), "<|im_start|>Context: Ann <\nQuestion: Who?\nAnswer:[ Ann<|im_end|>]");
  EXPECT_EQ(std::string(sample.bytes.begin(), sample.bytes.end()), "Context: Ann <\nQuestion: Who?\n");
}

TEST(TeacherText, OfAQuestionInATextOnlySourceHasThePromptOfItsOwn) {
  Wanted wanted = asked("Teacher: {source}");
  wanted.source.text = {"*.tar"};
  wanted.mix.questions->prompt = "Student: {source}";
  wanted.mix.questions->source = "{question} ";
  const Sample sample = measure({{"json", about_ann}}, wanted);
  EXPECT_EQ(reported(sample.texts[0]), "<|im_start|>Student: Who? Answer:[ Ann<|im_end|>]");
  EXPECT_EQ(reported(sample.teacher_texts[0]), "<|im_start|>Teacher: Who? Answer:[ Ann<|im_end|>]");
}

TEST(TeacherText, OfAQuestionThatIsTooLongIsSkipped) {
  Wanted wanted = asked("{source}");
  wanted.mix.max_text_tokens = 20;
  EXPECT_THAT(measure({{"json", about_ann}}, wanted).dropped, HasSubstr("a teacher's text of"));
}

TEST(TeacherText, OfAQuestionNeedsAPlaceForTheSource) {
  EXPECT_THAT(refusal({{"json", about_ann}}, asked("Context: {context}")), HasSubstr("teacher_prompt has no {source}"));
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
