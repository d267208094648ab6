// How near a generated answer is to the expected ones, as the public evaluations of question answering and captioning
// measure it. Texts are UTF-8; upper and lower case are told apart in ASCII only.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::evaluation {

using Answers = std::vector<std::string>; // all that are right for one question: at least one

// As SQuAD normalizes: lower case, without punctuation and the articles a, an and the, one space between words.
std::string normalized(std::string_view answer);

// Of SQuAD, against the best of the expected answers. exact_match: 1 where both are equal once normalized. f1: of the
// words that they share.
double exact_match(const std::string& answer, const Answers& expected);
double f1(const std::string& answer, const Answers& expected);

// Of VQAv2, from the answers of several people: an answer that three of the others gave is wholly right. The mean over
// the people of min(1, agreeing others / 3).
double vqa_accuracy(const std::string& answer, const Answers& expected);

// Of ChartQA: numbers may differ by 5 % of the expected one; other answers have to be equal but for their case.
double relaxed_accuracy(const std::string& answer, const Answers& expected);

// 1 where the answer contains an expected one, or the other way round, in any case. An empty answer contains nothing.
double contains(const std::string& answer, const Answers& expected);

// CIDEr-D of each caption against its references: how many sequences of one to four words they share, weighted by how
// rare those are among the references of all. 10 is the best; a set of a single caption has no rare words, and gets 0.
struct Caption {
  std::string text;
  Answers references;
};
std::vector<double> cider(const std::vector<Caption>& captions);

} // namespace fvlm::evaluation
