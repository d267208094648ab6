#include "evaluation/answers.h"

#include "base/error.h"
#include "base/text.h"
#include "evaluation/sequences.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <set>

namespace fvlm::evaluation {
namespace {

constexpr std::string_view punctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

bool is_space(char letter) {
  return std::string_view(" \t\n\r\f\v").find(letter) != std::string_view::npos;
}

bool is_digit(char letter) {
  return letter >= '0' && letter <= '9';
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& letter : out)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  return out;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  bool inside = false;
  for (const char letter : text) {
    if (!is_space(letter) && !inside) words.emplace_back();
    inside = !is_space(letter);
    if (inside) words.back() += letter;
  }
  return words;
}

bool is_article(const std::string& word) {
  return word == "a" || word == "an" || word == "the";
}

bool is_letter_or_digit(char letter) {
  return is_digit(letter) || (letter >= 'a' && letter <= 'z');
}

char letter_at(std::string_view text, size_t at) {
  return at < text.size() ? text[at] : ' ';
}

// "1,000" is "1000", and "1,2" is not "12".
bool is_of_thousands(std::string_view text, size_t at) {
  size_t end = at + 1;
  while (is_digit(letter_at(text, end))) ++end;
  return text[at] == ',' && end - at - 1 == 3;
}

// Whether a text has these words, not only as parts of other words or numbers. Both are in lower case.
bool has_words(std::string_view text, std::string_view words) {
  const auto separates = [&](size_t at) { return !is_letter_or_digit(text[at]) && !is_of_number(text, at); };
  for (size_t begin = text.find(words); begin != text.npos; begin = text.find(words, begin + 1)) {
    const size_t end = begin + words.size();
    const bool is_begin = begin == 0 || !is_letter_or_digit(words.front()) || separates(begin - 1);
    if (is_begin && (end == text.size() || !is_letter_or_digit(words.back()) || separates(end))) return true;
  }
  return false;
}

template <class Score>
double best(const Answers& expected, const Score& score) {
  double highest = 0;
  for (const std::string& each : expected) highest = std::max(highest, score(each));
  return highest;
}

double f1_of(const std::vector<std::string>& answer, const std::vector<std::string>& expected) {
  if (answer.empty() || expected.empty()) return 0;
  std::multiset<std::string> left(expected.begin(), expected.end());
  double shared = 0;
  for (const std::string& word : answer)
    if (const auto found = left.find(word); found != left.end()) {
      left.erase(found);
      ++shared;
    }
  return 2 * shared / static_cast<double>(answer.size() + expected.size());
}

// Texts of which nothing is left once they are normalized are the same where they are spelt the same.
bool are_same(const std::string& answer, const std::string& expected) {
  const std::string own = normalized(answer), right = normalized(expected);
  return own.empty() || right.empty() ? lower(trimmed(answer)) == lower(trimmed(expected)) : own == right;
}

// Contractions whose apostrophe an answer may lack: "dont" is "don't".
constexpr std::array contractions{
    "ain't",    "aren't",   "can't",   "could've", "couldn't",  "couldn't've", "didn't",    "doesn't", "don't",
    "hadn't",   "hasn't",   "haven't", "he'd",     "he's",      "how'd",       "how'll",    "how's",   "isn't",
    "it'd",     "it'll",    "let's",   "ma'am",    "mightn't",  "might've",    "mustn't",   "must've", "needn't",
    "o'clock",  "oughtn't", "shan't",  "she's",    "should've", "shouldn't",   "someone'd", "that'd",  "that's",
    "there'd",  "there're", "there's", "they'd",   "they'll",   "they're",     "they've",   "wasn't",  "we'd",
    "we've",    "weren't",  "what'll", "what're",  "what's",    "what've",     "when's",    "where'd", "where's",
    "where've", "who'd",    "who'll",  "who's",    "who've",    "why'll",      "why're",    "why's",   "won't",
    "would've", "wouldn't", "y'all",   "you'd",    "you'll",    "you're",      "you've"};

const std::string& spelt_out(const std::string& word) {
  static const std::map<std::string, std::string> known = [] {
    std::map<std::string, std::string> all{{"none", "0"},  {"zero", "0"},  {"one", "1"},  {"two", "2"},
                                           {"three", "3"}, {"four", "4"},  {"five", "5"}, {"six", "6"},
                                           {"seven", "7"}, {"eight", "8"}, {"nine", "9"}, {"ten", "10"}};
    for (const std::string contraction : contractions) {
      std::string bare = contraction;
      std::erase(bare, '\'');
      all.emplace(std::move(bare), contraction);
    }
    return all;
  }();
  const auto found = known.find(word);
  return found == known.end() ? word : found->second;
}

// As VQAv2 normalizes. A mark goes without a trace where it stands beside a space, or where the answer holds a number
// such as 1,000; else a space takes its place.
std::string normalized_for_vqa(std::string_view answer) {
  constexpr std::string_view marks = ";/[]\"{}()=+\\_-><@`,?!";
  std::string text = trimmed(answer);
  std::ranges::replace_if(
      text, [](char letter) { return letter == '\n' || letter == '\t'; }, ' ');
  const std::string given = text;
  bool thousands = false;
  for (size_t i = 1; i + 1 < given.size(); ++i)
    thousands = thousands || (given[i] == ',' && is_digit(given[i - 1]) && is_digit(given[i + 1]));
  for (const char mark : marks) {
    const std::string before{' ', mark}, behind{mark, ' '};
    const bool drop = thousands || given.find(before) != std::string::npos || given.find(behind) != std::string::npos;
    if (drop)
      std::erase(text, mark);
    else
      std::replace(text.begin(), text.end(), mark, ' ');
  }
  std::string without_stops;
  for (size_t i = 0; i < text.size(); ++i)
    if (text[i] != '.' || (i + 1 < text.size() && is_digit(text[i + 1]))) without_stops += text[i];
  std::vector<std::string> words;
  for (const std::string& word : words_of(lower(without_stops)))
    if (const std::string& whole = spelt_out(word); !is_article(whole)) words.push_back(whole);
  return join(words, " ");
}

// "12.5" and "12.5%", which is an eighth.
std::optional<double> number_of(std::string_view text) {
  std::string digits = trimmed(text);
  const bool percent = digits.ends_with('%');
  if (percent) digits.pop_back();
  if (digits.starts_with('+')) digits.erase(0, 1);
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(value)) return {};
  return percent ? value / 100 : value;
}

// One space between words.
Symbols anls_symbols(std::string_view text) {
  Symbols points = code_points(join(words_of(text), " "));
  for (uint32_t& point : points) point = lower_case(point);
  return points;
}

// Of the expected texts, the one of the lowest rate of errors.
template <class Count>
TextErrors fewest_errors(const Answers& expected, const Count& count) {
  TextErrors fewest = count(expected.front());
  for (size_t i = 1; i < expected.size(); ++i)
    if (const TextErrors errors = count(expected[i]); errors.rate() < fewest.rate()) fewest = errors;
  return fewest;
}

std::vector<std::string> rouge_words(std::string_view text) {
  std::string plain = lower(text);
  for (char& letter : plain)
    if (!is_digit(letter) && !(letter >= 'a' && letter <= 'z')) letter = ' ';
  return words_of(plain);
}

double rouge_l_of(const std::vector<std::string>& answer, const std::vector<std::string>& expected) {
  if (answer.empty() || expected.empty()) return 0;
  const auto [own, right] = numbered(answer, expected);
  return 2 * static_cast<double>(common_subsequence(own, right)) / static_cast<double>(own.size() + right.size());
}

constexpr size_t longest_gram = 4;
using Grams = std::map<std::vector<std::string>, double>; // of 1 to 4 words: how often, or their weight

// Words in lower case, without marks but for the apostrophes inside them.
std::vector<std::string> caption_words(std::string_view text) {
  std::string plain = lower(text);
  for (char& letter : plain)
    if (letter != '\'' && punctuation.find(letter) != std::string_view::npos) letter = ' ';
  return words_of(plain);
}

Grams grams_of(const std::vector<std::string>& words) {
  Grams grams;
  for (size_t n = 1; n <= longest_gram; ++n)
    for (size_t i = 0; i + n <= words.size(); ++i)
      ++grams[{words.begin() + static_cast<std::ptrdiff_t>(i), words.begin() + static_cast<std::ptrdiff_t>(i + n)}];
  return grams;
}

// A caption's grams times their inverse document frequency, and its length by the number of words of a gram.
struct Weighted {
  Grams grams;
  std::array<double, longest_gram> norms{};
  double words = 0;
};

class CiderScale {
 public:
  explicit CiderScale(const std::vector<Caption>& captions) : documents_(static_cast<double>(captions.size())) {
    for (const Caption& caption : captions) {
      std::set<std::vector<std::string>> seen;
      for (const std::string& reference : caption.references)
        for (const auto& [gram, count] : grams_of(caption_words(reference))) seen.insert(gram);
      for (const auto& gram : seen) ++frequency_[gram];
    }
  }

  double score(const Caption& caption) const {
    const Weighted own = weighted(caption.text);
    double sum = 0;
    for (const std::string& reference : caption.references) sum += similarity(own, weighted(reference));
    return 10 * sum / static_cast<double>(caption.references.size());
  }

 private:
  Weighted weighted(const std::string& text) const {
    const std::vector<std::string> words = caption_words(text);
    Weighted out{grams_of(words), {}, static_cast<double>(words.size())};
    for (auto& [gram, weight] : out.grams) {
      const auto found = frequency_.find(gram);
      weight *= std::log(documents_ / (found == frequency_.end() ? 1 : found->second));
      out.norms[gram.size() - 1] += weight * weight;
    }
    for (double& norm : out.norms) norm = std::sqrt(norm);
    return out;
  }

  // Clipped, so that repeating a word gains nothing, and less where the lengths differ.
  static double similarity(const Weighted& own, const Weighted& reference) {
    constexpr double sigma = 6;
    std::array<double, longest_gram> products{};
    for (const auto& [gram, weight] : own.grams)
      if (const auto found = reference.grams.find(gram); found != reference.grams.end())
        products[gram.size() - 1] += std::min(weight, found->second) * found->second;
    double sum = 0;
    for (size_t n = 0; n < longest_gram; ++n)
      if (const double norms = own.norms[n] * reference.norms[n]; norms > 0) sum += products[n] / norms;
    const double apart = own.words - reference.words;
    return sum / longest_gram * std::exp(-apart * apart / (2 * sigma * sigma));
  }

  double documents_;
  std::map<std::vector<std::string>, double> frequency_; // in how many captions' references a gram occurs
};

} // namespace

bool is_of_number(std::string_view text, size_t at) {
  const char mark = text[at], before = at > 0 ? text[at - 1] : ' ', behind = letter_at(text, at + 1);
  const bool begins = !is_letter_or_digit(before);
  if (mark == '-') return begins && (is_digit(behind) || (behind == '.' && is_digit(letter_at(text, at + 2))));
  if (mark == '.') return is_digit(behind) && (begins || is_digit(before));
  return (mark == ',' || mark == '/' || mark == ':') && is_digit(before) && is_digit(behind);
}

std::string normalized(std::string_view answer) {
  const std::string text = lower(answer);
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i)
    if (punctuation.find(text[i]) == std::string_view::npos || (is_of_number(text, i) && !is_of_thousands(text, i)))
      plain += text[i];
  const std::vector<std::string> all = words_of(plain);
  std::vector<std::string> words = all;
  std::erase_if(words, is_article);
  return join(words.empty() ? all : words, " ");
}

double exact_match(const std::string& answer, const Answers& expected) {
  return best(expected, [&](const std::string& each) { return are_same(answer, each) ? 1.0 : 0.0; });
}

double f1(const std::string& answer, const Answers& expected) {
  return best(expected, [&](const std::string& each) {
    return are_same(answer, each) ? 1.0 : f1_of(words_of(normalized(answer)), words_of(normalized(each)));
  });
}

double vqa_accuracy(const std::string& answer, const Answers& expected) {
  const std::string own = normalized_for_vqa(answer);
  const auto agreeing = static_cast<double>(
      std::ranges::count_if(expected, [&](const std::string& each) { return own == normalized_for_vqa(each); }));
  const auto people = static_cast<double>(expected.size());
  if (expected.size() < 2) return agreeing;
  // Of the others of a person who agrees, one fewer does.
  const double beside_agreeing = std::min(1.0, (agreeing - 1) / 3), beside_rest = std::min(1.0, agreeing / 3);
  return (agreeing * beside_agreeing + (people - agreeing) * beside_rest) / people;
}

double relaxed_accuracy(const std::string& answer, const Answers& expected) {
  constexpr double tolerance = 0.05;
  const auto own = number_of(answer);
  return best(expected, [&](const std::string& each) {
    const auto right = number_of(each);
    if (own && right && *right != 0) return std::abs(*own - *right) / std::abs(*right) <= tolerance ? 1.0 : 0.0;
    return lower(trimmed(answer)) == lower(trimmed(each)) ? 1.0 : 0.0;
  });
}

double contains(const std::string& answer, const Answers& expected) {
  const std::string own = lower(answer);
  return best(expected, [&](const std::string& each) {
    const std::string right = lower(trimmed(each));
    return !right.empty() && has_words(own, right) ? 1.0 : 0.0;
  });
}

double ocr_accuracy(const std::string& answer, const Answers& expected) {
  const auto bare = [](const std::string& text) { return join(words_of(lower(text)), ""); };
  const std::string own = bare(answer);
  return best(expected, [&](const std::string& each) {
    const std::string right = bare(each);
    return !right.empty() && own.find(right) != std::string::npos ? 1.0 : 0.0;
  });
}

std::optional<bool> yes_or_no(std::string_view answer) {
  std::string plain = lower(answer);
  for (char& letter : plain)
    if (punctuation.find(letter) != std::string_view::npos) letter = ' ';
  const std::vector<std::string> words = words_of(plain);
  const bool yes = std::ranges::find(words, "yes") != words.end(), no = std::ranges::find(words, "no") != words.end();
  return yes == no ? std::nullopt : std::optional(yes);
}

double yes_no_accuracy(const std::string& answer, const Answers& expected) {
  const auto own = yes_or_no(answer);
  return best(expected, [&](const std::string& each) { return own && own == yes_or_no(each) ? 1.0 : 0.0; });
}

double anls(const std::string& answer, const Answers& expected) {
  constexpr double threshold = 0.5;
  const Symbols own = anls_symbols(answer);
  return best(expected, [&](const std::string& each) {
    const Symbols right = anls_symbols(each);
    const size_t longer = std::max(own.size(), right.size());
    if (longer == 0) return 1.0;
    const double similarity = 1 - static_cast<double>(edit_distance(own, right)) / static_cast<double>(longer);
    return similarity < threshold ? 0.0 : similarity;
  });
}

AnswerScore answer_score(std::string_view name) {
  static const std::map<std::string_view, AnswerScore> measures = {{"accuracy", exact_match},
                                                                   {"f1", f1},
                                                                   {"anls", anls},
                                                                   {"rouge_l", rouge_l},
                                                                   {"contains", contains},
                                                                   {"relaxed_accuracy", relaxed_accuracy},
                                                                   {"vqa_accuracy", vqa_accuracy},
                                                                   {"ocr_accuracy", ocr_accuracy},
                                                                   {"yes_no_accuracy", yes_no_accuracy}};
  const auto found = measures.find(name);
  if (found == measures.end()) throw Error(ErrorKind::internal, "there is no measure '{}' of answers", name);
  return found->second;
}

double TextErrors::rate() const {
  return static_cast<double>(edits) / static_cast<double>(std::max<int64_t>(length, 1));
}

TextErrors character_errors(const std::string& answer, const Answers& expected) {
  const Symbols own = code_points(trimmed(answer));
  return fewest_errors(expected, [&](const std::string& each) {
    const Symbols right = code_points(trimmed(each));
    return TextErrors{edit_distance(own, right), std::ssize(right)};
  });
}

TextErrors word_errors(const std::string& answer, const Answers& expected) {
  const auto own = words_of(answer);
  return fewest_errors(expected, [&](const std::string& each) {
    const auto [ours, right] = numbered(own, words_of(each));
    return TextErrors{edit_distance(ours, right), std::ssize(right)};
  });
}

double character_accuracy(const std::string& answer, const Answers& expected) {
  return std::max(0.0, 1 - character_errors(answer, expected).rate());
}

double rouge_l(const std::string& answer, const Answers& expected) {
  const auto own = rouge_words(answer);
  return best(expected, [&](const std::string& each) { return rouge_l_of(own, rouge_words(each)); });
}

std::vector<double> cider(const std::vector<Caption>& captions) {
  const CiderScale scale(captions);
  std::vector<double> scores;
  scores.reserve(captions.size());
  for (const Caption& caption : captions) scores.push_back(scale.score(caption));
  return scores;
}

} // namespace fvlm::evaluation
