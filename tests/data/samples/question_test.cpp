// Questions about a context: what an encoder of bytes reads of them, and the decoder's text behind it.
#include "data/visual_marks.h"
#include "sample_maker.h"

#include <fmt/format.h>

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::test;
using testing::ElementsAre;
using testing::HasSubstr;

namespace {

constexpr const char* squad =
    R"({"context":"Ann has a cat.","question":"Who?","answers":{"text":["Bo","Ann","Ann"],"answer_start":[0,0,0]}})";

Wanted bytes(int64_t max_bytes, plan::QuestionForm form = {}) {
  Wanted wanted;
  wanted.visual_rows = {3, true, max_bytes};
  wanted.mix.questions = std::move(form);
  return wanted;
}

std::string source_text(const Sample& sample) {
  return {sample.bytes.begin(), sample.bytes.end()};
}

std::string text_of(const Sample& sample) {
  return decode_with_placeholders(byte_tokenizer(), sample.texts.at(0).ids);
}

std::string learnt_text(const Sample& sample) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i < sample.texts[0].ids.size(); ++i)
    if (sample.texts[0].answer_mask[i]) ids.push_back(sample.texts[0].ids[i]);
  return byte_tokenizer().decode(ids);
}

} // namespace

TEST(Questions, BecomeBytesOfTheirSourceAndRowsBeforeTheAnchor) {
  const Sample sample = measure({{"json", squad}}, bytes(512));
  EXPECT_EQ(source_text(sample), "Context: Ann has a cat.\nQuestion: Who?\n");
  EXPECT_EQ(text_of(sample), "[3 visual rows]Answer: Ann<|im_end|>");
  EXPECT_EQ(learnt_text(sample), " Ann<|im_end|>");
  EXPECT_EQ(sample.frames, 1);
  EXPECT_EQ(sample.texts[0].placeholders, 3);
  EXPECT_THAT(sample.answers, ElementsAre("Bo", "Ann", "Ann"));
}

TEST(Questions, LoseTheEndOfAContextThatIsTooLong) {
  EXPECT_EQ(source_text(measure({{"json", squad}}, bytes(30))), "Context: Ann h\nQuestion: Who?\n");
  const char* umlauts = R"({"context":"äöü","question":"Who?","answers":["x"]})";
  for (const int64_t most : {31, 30}) // a character has two bytes
    EXPECT_EQ(source_text(measure({{"json", umlauts}}, bytes(most))),
              most == 31 ? "Context: äöü\nQuestion: Who?\n" : "Context: äö\nQuestion: Who?\n");
}

TEST(Questions, AreSkippedAndCountedWithoutRoomOrWithoutAnAnswer) {
  EXPECT_THAT(measure({{"json", squad}}, bytes(20)).dropped, HasSubstr("leaves nothing of the encoder's 20 bytes"));
  const Sample empty = measure({{"json", R"({"context":"c","question":"q","answers":[" ",""]})"}}, bytes(512));
  EXPECT_THAT(empty.dropped, HasSubstr("none of its answers has any text"));
  EXPECT_TRUE(empty.lacks_answer);
}

TEST(Questions, WithoutAnyByteForTheEncoderAreBroken) {
  plan::QuestionForm form;
  form.source = "{context}";
  EXPECT_THAT(refusal({{"json", R"({"context":"","question":"Who?","answers":["Ann"]})"}}, bytes(512, form)),
              HasSubstr("its context and its question are empty"));
}

TEST(Questions, HaveBosBeforeOrBehindTheRows) {
  plan::QuestionForm form;
  form.bos = "<|im_start|>";
  EXPECT_EQ(text_of(measure({{"json", squad}}, bytes(512, form))), "<|im_start|>[3 visual rows]Answer: Ann<|im_end|>");
  form.bos_place = plan::QuestionForm::Begin::after_prefix;
  EXPECT_EQ(text_of(measure({{"json", squad}}, bytes(512, form))), "[3 visual rows]<|im_start|>Answer: Ann<|im_end|>");
  form.bos = "<s>";
  EXPECT_THROW((void)measure({{"json", squad}}, bytes(512, form)), Error);
}

TEST(Questions, AreReadAsTextInATextOnlySource) {
  plan::QuestionForm form;
  form.prompt = "<|im_start|>{source}<|im_end|>";
  form.max_source_tokens = 5;
  form.max_answer_tokens = 2;
  Wanted wanted = bytes(512, form);
  wanted.source.text = {"*.tar"};
  const Sample sample = measure({{"json", squad}}, wanted);
  EXPECT_EQ(text_of(sample), "<|im_start|>Conte<|im_end|>Answer: A<|im_end|>");
  EXPECT_EQ(sample.frames, 0);
  EXPECT_TRUE(sample.bytes.empty());
}

TEST(Questions, AreTurnsOfAChatWhereNothingElseIsSaid) {
  const std::string asked = R"({"user":"Context: Ann has a cat.\nQuestion: Who?","assistant":"Ann"})";
  const Sample sample = measure({{"json", squad}}, text_only());
  EXPECT_EQ(text_of(sample), text_of(measure({{"json", asked}}, text_only())));
  EXPECT_EQ(learnt_text(sample), learnt_text(measure({{"json", asked}}, text_only())));
  EXPECT_THAT(sample.answers, ElementsAre("Bo", "Ann", "Ann"));
  EXPECT_FALSE(sample.has_short_answer);
  const Sample empty = measure({{"json", R"({"context":"c","question":"q","answers":[" "]})"}}, text_only());
  EXPECT_THAT(empty.dropped, HasSubstr("none of its answers has any text"));
}

TEST(Questions, AreTheOnlySamplesThatAnEncoderOfBytesReads) {
  try {
    (void)measure({{"json", R"({"user":"What?","assistant":"x"})"}}, bytes(512));
    ADD_FAILURE() << "it was read";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("it has no context and question"));
  }
}

namespace {

std::string hotpot_context(const std::string& context, const std::string& facts) {
  plan::QuestionForm form;
  form.source = "{context}|{question}";
  const std::string json =
      R"({"question":"Who?","answer":"Ann","context":)" + context + R"(,"supporting_facts":)" + facts + "}";
  return source_text(measure({{"json", json}}, bytes(4096, form)));
}

const std::string hotpot =
    R"([["A",["a0."," a1.","a2.","a3.","a4."]],["B",["b0.","b1."]],["C",["c0."]],["D",["d0."]]])";

} // namespace

TEST(Questions, OfHotpotQaReadTheSupportingSentencesAndTheirNeighbours) {
  EXPECT_EQ(hotpot_context(hotpot, R"([["B",1],["A",2]])"), "a1. a2. a3. b0. b1.|Who?");
  EXPECT_EQ(hotpot_context(R"({"title":["A","B"],"sentences":[["a0.","a1."],["b0.","b1."]]})",
                           R"({"title":["B","A"],"sent_id":[0,1]})"),
            "a0. a1. b0. b1.|Who?");
}

TEST(Questions, OfHotpotQaReadAtMostSixSupportingSentences) {
  EXPECT_EQ(hotpot_context(hotpot, R"([["A",1],["A",3],["B",0],["C",0]])"), "a0. a1. a2. a3. a4. b0.|Who?");
}

TEST(Questions, OfHotpotQaWithFewSupportingSentencesReadTheFirstParagraphsToo) {
  EXPECT_EQ(hotpot_context(hotpot, R"([["D",0],["B",9],["unknown",0]])"), "d0. a0. a1. a2. a3. b0. b1. c0.|Who?");
  EXPECT_EQ(hotpot_context(hotpot, "null"), "a0. a1. a2. a3. b0. b1. c0.|Who?");
  EXPECT_EQ(hotpot_context("[]", "[]"), "|Who?");
}

TEST(Questions, OfHotpotQaReadAtMost2000Bytes) {
  const std::string umlauts = "x" + [] {
    std::string text;
    for (int i = 0; i < 1500; ++i) text += "ä";
    return text;
  }();
  const std::string read = hotpot_context(R"([["A",[")" + umlauts + R"(","b."]]])", "[]");
  EXPECT_EQ(read, umlauts.substr(0, 1999) + "|Who?");
}

TEST(Questions, OfHotpotQaSayWhatIsWrongWithTheirParagraphs) {
  const auto refused = [](const char* context, const char* facts) {
    return refusal({{"json", fmt::format(R"({{"question":"Who?","answer":"Ann","context":{},"supporting_facts":{}}})",
                                         context, facts)}},
                   bytes(512));
  };
  EXPECT_THAT(refused("7", "[]"), HasSubstr("'context' is neither a text, nor a list"));
  EXPECT_THAT(refused(R"([["A"]])", "[]"), HasSubstr("'context' has an entry that is no pair"));
  EXPECT_THAT(refused(R"([["A",[3]]])", "[]"), HasSubstr("a sentence of 'context'"));
  EXPECT_THAT(refused(R"({"title":["A"],"sentences":[]})", "[]"), HasSubstr("equally long lists"));
  EXPECT_THAT(refused(R"([["A",["a."]]])", R"([["A",-1]])"), HasSubstr("a number of supporting_facts"));
}
