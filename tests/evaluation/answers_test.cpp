// Generated answers beside what the public evaluations make of them.
#include "evaluation/answers.h"

#include <gtest/gtest.h>

namespace fvlm::evaluation {
namespace {

TEST(Answers, AreNormalizedAsSquadDoes) {
  EXPECT_EQ(normalized("  The  Quick, brown\tfox!\n"), "quick brown fox");
  EXPECT_EQ(normalized("an A.B.C. theatre"), "abc theatre");
  EXPECT_EQ(normalized("the"), "the") << "unlike SQuAD, which leaves nothing of it";
  EXPECT_EQ(normalized("Caf\xC3\xA9 7"), "caf\xC3\xA9 7");
}

TEST(Answers, MatchTheBestOfTheExpectedOnes) {
  EXPECT_EQ(exact_match("The Denver Broncos.", {"Carolina", "denver broncos"}), 1);
  EXPECT_EQ(exact_match("Denver", {"Carolina", "Denver Broncos"}), 0);
  EXPECT_DOUBLE_EQ(f1("the Denver team", {"Carolina", "Denver Broncos team"}), 2.0 * 2 / 5);
  EXPECT_DOUBLE_EQ(f1("red red red", {"red blue"}), 2.0 * 1 / 5);
  EXPECT_EQ(f1("", {"red"}), 0);
  EXPECT_EQ(f1("the", {"a"}), 0);
}

TEST(Answers, ThatAreAnOptionsLetterMatchNothingElse) {
  for (const AnswerScore score : {exact_match, f1}) {
    EXPECT_EQ(score("A.", {"A"}), 1);
    EXPECT_EQ(score("(a)", {"A"}), 1);
    for (const char* other : {"", "The", "...", "an", "B"}) EXPECT_EQ(score(other, {"A"}), 0) << other;
  }
}

TEST(Answers, OfMarksAloneAreComparedAsTheyAre) {
  for (const AnswerScore score : {exact_match, f1}) {
    EXPECT_EQ(score(" + ", {"+"}), 1);
    EXPECT_EQ(score("-", {"+"}), 0);
    EXPECT_EQ(score("", {"+"}), 0);
    EXPECT_EQ(score("?", {""}), 0);
    EXPECT_EQ(score("", {""}), 1);
  }
}

TEST(Answers, KeepWhatNumbersAreMadeOf) {
  const std::vector<std::pair<const char*, const char*>> others = {{"-3", "3"},   {"1.2", "12"},  {"$3.50", "350"},
                                                                   {"-.5", ".5"}, {".5", "5"},    {"1/2", "12"},
                                                                   {"1,2", "12"}, {"9:30", "930"}};
  for (const auto& [one, other] : others) {
    EXPECT_EQ(exact_match(one, {other}), 0) << one << " " << other;
    EXPECT_EQ(exact_match(other, {one}), 0) << one << " " << other;
    EXPECT_EQ(exact_match(one, {one}), 1) << one;
    EXPECT_EQ(f1(one, {other}), 0) << one << " " << other;
  }
  const std::vector<std::pair<const char*, const char*>> same = {{"It is -3.", "it is -3"},
                                                                 {"1,000", "1000"},
                                                                 {"1,234,567.5", "1234567.5"},
                                                                 {"$3.50", "3.50"},
                                                                 {"3.", "3"},
                                                                 {"3, 4", "3 4"},
                                                                 {"+3", "3"},
                                                                 {"co-op", "coop"},
                                                                 {"covid-19", "covid19"},
                                                                 {"a - 3", "3"},
                                                                 {"e.g", "eg"}};
  for (const auto& [one, other] : same) EXPECT_EQ(exact_match(one, {other}), 1) << one << " " << other;
}

TEST(Answers, AgreeWithPeopleAsInVqa) {
  const Answers ten{"two", "2", "2", "three", "two", "2", "2", "2", "many", "2"}; // eight say 2
  EXPECT_DOUBLE_EQ(vqa_accuracy("Two.", ten), 1);
  EXPECT_DOUBLE_EQ(vqa_accuracy("three", ten), (1 * 0.0 + 9 * (1.0 / 3)) / 10);
  EXPECT_DOUBLE_EQ(vqa_accuracy("five", ten), 0);
  const Answers three{"dont", "don't", "do not"};
  EXPECT_DOUBLE_EQ(vqa_accuracy("don't", three), (2 * (1.0 / 3) + 2.0 / 3) / 3);
  EXPECT_EQ(vqa_accuracy("the 1,000", {"1000"}), 1);
  EXPECT_EQ(vqa_accuracy("black/white", {"black white"}), 1);
  EXPECT_EQ(vqa_accuracy("3.5", {"35"}), 0);
}

TEST(Answers, ContainTheTextThatOcrBenchExpects) {
  EXPECT_EQ(ocr_accuracy("It says: CENTRE", {"Circle", "centre"}), 1);
  EXPECT_EQ(ocr_accuracy("cent", {"centre"}), 0);
  EXPECT_EQ(ocr_accuracy("\\frac{a}{b}", {"\\frac { a } { b }"}), 1);
  EXPECT_EQ(ocr_accuracy("", {"a"}), 0);
}

TEST(Answers, SayYesOrNo) {
  EXPECT_EQ(yes_or_no("Yes, there is."), true);
  EXPECT_EQ(yes_or_no("there is no dog"), false);
  EXPECT_EQ(yes_or_no("No/Yes"), std::nullopt);
  EXPECT_EQ(yes_or_no("not any; nothing known of it"), std::nullopt);
  EXPECT_EQ(yes_no_accuracy("yes, it is", {"Yes"}), 1);
  EXPECT_EQ(yes_no_accuracy("maybe", {"No"}), 0);
}

TEST(Answers, HaveTheScoresThatResultsName) {
  EXPECT_EQ(answer_score("accuracy")("The dog", {"dog"}), 1);
  EXPECT_EQ(answer_score("ocr_accuracy")("a dog", {"dog"}), 1);
}

TEST(Answers, MayBeOffByFivePercentAsInChartQa) {
  EXPECT_EQ(relaxed_accuracy("104.9", {"100"}), 1);
  EXPECT_EQ(relaxed_accuracy("105.1", {"100"}), 0);
  EXPECT_EQ(relaxed_accuracy("12.5%", {"0.125"}), 1);
  EXPECT_EQ(relaxed_accuracy("-95", {"-100"}), 1);
  EXPECT_EQ(relaxed_accuracy("0.1", {"0"}), 0);
  EXPECT_EQ(relaxed_accuracy("0", {"0"}), 1);
  EXPECT_EQ(relaxed_accuracy(" Yes", {"yes "}), 1);
  EXPECT_EQ(relaxed_accuracy("2 cats", {"2"}), 0);
}

TEST(Answers, ContainExpectedWords) {
  EXPECT_EQ(contains("It is a Red ball.", {"red"}), 1);
  EXPECT_EQ(contains("a (red)-green ball", {"blue", "RED"}), 1);
  EXPECT_EQ(contains("\u8d64\u3044\u7403", {"\u7403"}), 1) << "no spaces stand between such words";
  EXPECT_EQ(contains("hundreds, then red", {"red"}), 1);
  EXPECT_EQ(contains("hundreds", {"red"}), 0);
  EXPECT_EQ(contains("red", {"a red ball"}), 0) << "a part of what is expected";
  EXPECT_EQ(contains("a", {"cat"}), 0);
  EXPECT_EQ(contains("", {"red"}), 0);
  EXPECT_EQ(contains(" ", {""}), 0);
  EXPECT_EQ(contains("a+b", {"+"}), 1);
  for (const char* other : {"-3", "3.5", "0.3", "13", "3,000", "1/3"}) EXPECT_EQ(contains(other, {"3"}), 0) << other;
  for (const char* right : {"3.", "x=3", "(3)", "3 - 0", "$3, say"}) EXPECT_EQ(contains(right, {"3"}), 1) << right;
}

TEST(Answers, AreSimilarByCharactersAsInDocVqa) {
  EXPECT_DOUBLE_EQ(anls("kitten", {"dog", "SITTING"}), 1 - 3.0 / 7);
  EXPECT_EQ(anls("ab", {"axxb"}), 0.5) << "a half counts";
  EXPECT_EQ(anls("ab", {"axxxb"}), 0) << "2 of 5 do not";
  EXPECT_DOUBLE_EQ(anls("na\u00efve", {"naive"}), 1 - 1.0 / 5) << "one of five characters, not two of six bytes";
  EXPECT_EQ(anls("\u00c9COLE \u0416", {"\u00e9cole \u0436"}), 1);
  EXPECT_EQ(anls(" 12\n\n May ", {"12 may"}), 1);
  EXPECT_EQ(anls("a       b", {"xyz"}), 0) << "space makes no text longer";
  EXPECT_EQ(anls("", {"a"}), 0);
  EXPECT_EQ(anls("a", {""}), 0);
  EXPECT_EQ(anls("", {" "}), 1);
  EXPECT_EQ(anls("receipt", {"recipe"}), anls("recipe", {"receipt"}));
}

// Numbers of jiwer 4.0.
TEST(Answers, HaveErrorsAsJiwerCountsThem) {
  const auto expect = [](const TextErrors& found, int64_t edits, int64_t length) {
    EXPECT_EQ(found.edits, edits);
    EXPECT_EQ(found.length, length);
  };
  expect(character_errors("hallo welt", {"xxxxxxxxxxxx", "hello world"}), 4, 11);
  expect(character_errors(" A\n", {"a"}), 1, 1);
  expect(character_errors("\u0416\u6f22", {"\u0416\u5b57"}), 1, 2);
  expect(character_errors("", {"abc"}), 3, 3);
  expect(word_errors("the cat\n  sat", {"the cat sat on"}), 1, 4);
  expect(word_errors("The cat.", {"the cat"}), 2, 2);
  EXPECT_EQ(character_errors("abcd", {"a"}).rate(), 3) << "a rate may exceed 1";
  EXPECT_EQ(character_errors("ab", {""}).rate(), 2);
  EXPECT_EQ(character_errors("", {""}).rate(), 0);
  EXPECT_EQ(word_errors("a b", {" "}).rate(), 2);
}

TEST(Answers, AreAccurateByTheCharactersThatAreRight) {
  EXPECT_DOUBLE_EQ(character_accuracy("abx", {"zzzz", "abcd"}), 0.5);
  EXPECT_EQ(character_accuracy("abcd", {"a"}), 0) << "never below 0";
  EXPECT_EQ(character_accuracy("", {""}), 1);
}

// Numbers of rouge_score 0.1.2 with use_stemmer = False.
TEST(Answers, ShareTheLongestSequenceOfWordsToRouge) {
  EXPECT_DOUBLE_EQ(rouge_l("the cat on a mat", {"a dog", "The cat sat on the mat."}), 8.0 / 11);
  EXPECT_EQ(rouge_l("Don't", {"don t"}), 1);
  EXPECT_DOUBLE_EQ(rouge_l("cafe au lait", {"Caf\u00e9 au lait"}), 2.0 / 3);
  EXPECT_EQ(rouge_l("\u6f22\u5b57", {"\u6f22\u5b57"}), 0) << "words of ASCII alone";
  EXPECT_EQ(rouge_l("", {""}), 0);
}

// The numbers are those of the published script for CIDEr-D on the same words.
TEST(Answers, AreCaptionsToCider) {
  const std::vector<double> scores =
      cider({{"A red ball rolls over the green grass.",
              {"A red ball rolls over the grass.", "The red ball is on green grass"}},
             {"two dogs dogs dogs run", {"two dogs run after a ball", "a pair of dogs is running"}},
             {"a man rides a horse on a beach", {"a man rides a horse on a beach", "someone on a horse by the sea"}}});
  ASSERT_EQ(scores.size(), 3U);
  EXPECT_NEAR(scores[0], 5.101616421414984, 1e-12);
  EXPECT_NEAR(scores[1], 1.1811785798734276, 1e-12);
  EXPECT_NEAR(scores[2], 5.713633165845044, 1e-12);
  EXPECT_EQ(cider({{"alone", {"alone"}}}).front(), 0);
}

} // namespace
} // namespace fvlm::evaluation
