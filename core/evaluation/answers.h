// How near a generated answer is to the expected ones, as the public evaluations of question answering and captioning
// measure it. Texts are UTF-8; upper and lower case are told apart in ASCII only, but by anls; white space is ASCII's.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::evaluation {

using Answers = std::vector<std::string>; // all that are right for one question: at least one

// Whether the mark at `at` of a text in lower case is a part of a number: of "-3", "-.5", "1.2", ".5", "1,000", "1/2"
// and "9:30".
bool is_of_number(std::string_view text, size_t at);

// As SQuAD normalizes: lower case, without punctuation and the articles a, an and the, one space between words. But
// numbers keep their signs and points, "-3" and "1.2", and articles that are all of an answer stay: it may be an
// option's letter.
std::string normalized(std::string_view answer);

// Of SQuAD, against the best of the expected answers. exact_match: 1 where both are equal once normalized, or where
// nothing is left of one of them, but for case. f1: of the words that they share.
double exact_match(const std::string& answer, const Answers& expected);
double f1(const std::string& answer, const Answers& expected);

// Of VQAv2, from the answers of several people: an answer that three of the others gave is wholly right. The mean over
// the people of min(1, agreeing others / 3).
double vqa_accuracy(const std::string& answer, const Answers& expected);

// Of ChartQA: numbers may differ by 5 % of the expected one; other answers have to be equal but for their case.
double relaxed_accuracy(const std::string& answer, const Answers& expected);

// 1 where the answer contains an expected one, in any case, and not only as a part of another word or number.
double contains(const std::string& answer, const Answers& expected);

// Of OCRBench: 1 where the answer contains an expected one, in any case and without regard to white space, which
// OCRBench itself disregards in formulas alone.
double ocr_accuracy(const std::string& answer, const Answers& expected);

// Of POPE, MME and HallusionBench as VLMEvalKit reads answers: yes, where one of its words is yes and none is no; no,
// the other way round; else nothing.
std::optional<bool> yes_or_no(std::string_view answer);
// 1 where the answer is the same of both as an expected one.
double yes_no_accuracy(const std::string& answer, const Answers& expected);

// Of DocVQA and InfographicVQA, the similarity whose mean is ANLS: 1 - edit distance / length of the longer text, over
// code points in lower case, with one space between words; 0 where that is below 0.5 (0.5 itself counts, as in the
// public scripts and VLMEvalKit). Those divide by lengths before spaces are joined, which a text could grow for
// nothing.
double anls(const std::string& answer, const Answers& expected);

// The measure whose mean results give this name: "accuracy" is exact_match(). Throws Error(internal) for another name.
using AnswerScore = double (*)(const std::string& answer, const Answers& expected);
AnswerScore answer_score(std::string_view name);

// Of transcripts, as jiwer's defaults count: edits that make the answer of an expected text, both without space around
// them, and that one's length; case and punctuation count. Of several expected ones, those of the lowest rate. A
// corpus' rate is that of all edits and lengths added up. Nothing as reference has the length 1.
struct TextErrors {
  int64_t edits = 0, length = 0;
  double rate() const;
};
TextErrors character_errors(const std::string& answer, const Answers& expected); // of code points
// Of words between white space: line breaks, too, which jiwer leaves inside a word.
TextErrors word_errors(const std::string& answer, const Answers& expected);

// 1 - the rate of character errors, or 0 where those are more than the characters expected.
double character_accuracy(const std::string& answer, const Answers& expected);

// ROUGE-L: the F-measure of the longest common subsequence of words, as rouge_score computes it without stemming. Words
// are runs of ASCII letters, in lower case, and digits; all else stands between them. 0 where a text has none.
double rouge_l(const std::string& answer, const Answers& expected);

// CIDEr-D of each caption against its references: how many sequences of one to four words they share, weighted by how
// rare those are among the references of all. 10 is the best; a set of a single caption has no rare words, and gets 0.
struct Caption {
  std::string text;
  Answers references;
};
std::vector<double> cider(const std::vector<Caption>& captions);

} // namespace fvlm::evaluation
