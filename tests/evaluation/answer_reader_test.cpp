// What of a model's answer is compared with the expected ones, where it thinks before it answers.
#include "../data/small_tokenizer.h"
#include "evaluation/answerer.h"

#include <gmock/gmock.h>

namespace fvlm::evaluation {
namespace {

using testing::ElementsAre;

// `special`: whether the tags are tokens that a text is shown without.
Tokenizer thinking_tokenizer(const char* begin, const char* end, bool special) {
  auto file = test::small_tokenizer();
  for (const char* tag : {begin, end}) {
    auto& tokens = file["added_tokens"];
    tokens.push_back({{"id", 259 + tokens.size()}, {"content", tag}, {"special", special}});
  }
  return Tokenizer::from_json(file.dump(), "small");
}

AnswerReader::Answer read(const AnswerReader& reader, const char* prompt, const char* answer) {
  return reader.read({}, reader.tokenizer().encode(prompt), reader.tokenizer().encode(answer));
}

TEST(FirstLine, IsWithoutTheMarksAroundIt) {
  EXPECT_EQ(first_line("\n - 'Three.'\nFour"), "Three");
  EXPECT_EQ(first_line("- three."), "three");
  EXPECT_EQ(first_line("..."), "");
}

TEST(FirstLine, KeepsTheSignAndThePointOfANumber) {
  for (const std::string number : {"-3", ".5", "-.5", "-3 degrees"})
    EXPECT_EQ(first_line(" " + number + ".\n"), number);
}

TEST(AnswerReader, LeavesThoughtsOut) {
  const Tokenizer tokenizer = thinking_tokenizer("<think>", "</think>", false);
  const AnswerReader reader(tokenizer, {});
  EXPECT_EQ(read(reader, "Which? ", "<think>\nA or B.\n</think>\n\nB<|im_end|>").text, "B");
  EXPECT_EQ(read(reader, "Which? <think>\n", "\n</think>\n\nB<|im_end|>").text, "B");
  EXPECT_EQ(read(reader, "Which? <think>\n\n</think>\n\n", "B").text, "B");
  EXPECT_EQ(read(reader, "Which? ", "B").text, "B");
  EXPECT_FALSE(read(reader, "Which? ", "B").is_thought_alone);
  EXPECT_FALSE(read(reader, "Which? ", "<|im_end|>").is_thought_alone);
  for (const char* prompt : {"Which? ", "Which? <think>\n"}) {
    const auto cut = read(reader, prompt, "<think>A or B: B");
    EXPECT_EQ(cut.text, "") << "no answer yet";
    EXPECT_TRUE(cut.is_thought_alone);
  }
}

TEST(AnswerReader, FindsTagsThatAreSpecialTokens) {
  const Tokenizer tokenizer = thinking_tokenizer("<|channel>", "<channel|>", true);
  EXPECT_EQ(read({tokenizer, {}}, "Which? ", "<|channel>thought\nA or B.<channel|>B<|im_end|>").text, "B");
}

TEST(AnswerReader, ReadsTextAsItIsWithoutTags) {
  const Tokenizer tokenizer = Tokenizer::from_json(test::small_tokenizer().dump(), "small");
  EXPECT_EQ(read({tokenizer, {}}, "Which? ", " <think>A</think>B\n").text, "<think>A</think>B");
}

TEST(AnswerReader, ExpectsAnswersWithoutThoughts) {
  const Tokenizer tokenizer = thinking_tokenizer("<think>", "</think>", false);
  const AnswerReader reader(tokenizer, {});
  SampleText text;
  text.ids = tokenizer.encode("Which? <think>\n");
  text.answer_mask.assign(text.ids.size(), 0);
  for (const TokenId id : tokenizer.encode("\n</think>\n\nB<|im_end|>")) {
    text.ids.push_back(id);
    text.answer_mask.push_back(1);
  }
  Sample sample;
  EXPECT_THAT(reader.expected(sample, text), ElementsAre("B"));
  sample.answers = {"A", "<think>B"};
  EXPECT_THAT(reader.expected(sample, text), ElementsAre("A", "<think>B")) << "as the sample says";
}

} // namespace
} // namespace fvlm::evaluation
