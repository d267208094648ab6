#include "evaluation/result.h"

#include "base/error.h"
#include "base/text.h"
#include "evaluation/answers.h"
#include "evaluation/boxes.h"
#include "evaluation/retrieval.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numbers>

namespace fvlm::evaluation {
namespace {

// A running mean.
struct Mean {
  double sum = 0;
  int64_t count = 0;
  void add(double value, int64_t times = 1) {
    sum += value;
    count += times;
  }
  double value() const { return sum / static_cast<double>(count); }
};

// Of questions that are answered by yes or no.
struct YesNoCounts {
  double answers = 0, correct = 0;
  double said = 0, rightly_said = 0, expected = 0; // yes
  void add(std::optional<bool> answer, bool is_yes) {
    ++answers;
    correct += answer == is_yes;
    said += answer == true;
    rightly_said += answer == true && is_yes;
    expected += is_yes;
  }
  double f1() const { return said + expected > 0 ? 2 * rightly_said / (said + expected) : 0; }
  void append_to(Values& values) const {
    values.emplace_back("yes_no_accuracy", correct / answers);
    values.emplace_back("yes_precision", said > 0 ? rightly_said / said : 0);
    values.emplace_back("yes_recall", expected > 0 ? rightly_said / expected : 0);
    values.emplace_back("yes_f1", f1());
    values.emplace_back("yes_share", said / answers);
  }
};

// What generated answers come to. `headline`: the measure by which sources are compared.
class AnswerMeans {
 public:
  explicit AnswerMeans(std::string headline) : headline_(std::move(headline)) {}

  void add(const SampleScore& sample) {
    const auto& [answer, expected] = *sample.generated;
    exact_.add(exact_match(answer, expected));
    by_source_[sample.source].add(answer_score(headline_)(answer, expected));
    const std::string right = normalized(expected.front());
    are_yes_or_no_ = are_yes_or_no_ && expected.size() == 1 && (right == "yes" || right == "no");
    for (YesNoCounts* counts : {&yes_no_, &yes_no_by_source_[sample.source]})
      counts->add(yes_or_no(answer), right == "yes");
    f1_.add(f1(answer, expected));
    anls_.add(anls(answer, expected));
    rouge_l_.add(rouge_l(answer, expected));
    add(characters_, character_errors(answer, expected));
    add(words_, word_errors(answer, expected));
    contains_.add(contains(answer, expected));
    relaxed_.add(relaxed_accuracy(answer, expected));
    ocr_.add(ocr_accuracy(answer, expected));
    vqa_.add(vqa_accuracy(answer, expected));
    captions_.push_back({answer, expected});
    const int64_t rank = sample.texts[sample.correct].first_rank;
    first_.add(rank == 0);
    first_of_five_.add(rank < 5);
    several_ = several_ || expected.size() > 1;
  }

  void append_to(Values& values) const {
    const auto begin = std::ssize(values);
    values.emplace_back("accuracy", exact_.value());
    values.emplace_back("f1", f1_.value());
    values.emplace_back("anls", anls_.value());
    values.emplace_back("rouge_l", rouge_l_.value());
    values.emplace_back("character_error_rate", characters_.rate());
    values.emplace_back("word_error_rate", words_.rate());
    values.emplace_back("contains", contains_.value());
    values.emplace_back("relaxed_accuracy", relaxed_.value());
    values.emplace_back("first_token_accuracy", first_.value());
    values.emplace_back("first_token_top5_accuracy", first_of_five_.value());
    values.emplace_back("ocr_accuracy", ocr_.value());
    if (are_yes_or_no_) yes_no_.append_to(values);
    if (several_) {
      values.emplace_back("vqa_accuracy", vqa_.value());
      Mean similar;
      for (const double score : cider(captions_)) similar.add(score);
      values.emplace_back("cider", similar.value());
    }
    const auto first = std::ranges::find(values, headline_, [](const auto& value) { return value.first; });
    if (first != values.end()) std::rotate(values.begin() + begin, first, first + 1);
  }

  // Where there are several.
  void append_sources_to(Values& values) const {
    if (by_source_.size() < 2) return;
    for (const auto& [source, mean] : by_source_) values.emplace_back(headline_ + "." + source, mean.value());
    if (!are_yes_or_no_) return;
    for (const auto& [source, counts] : yes_no_by_source_) values.emplace_back("yes_f1." + source, counts.f1());
  }

 private:
  static void add(TextErrors& sum, const TextErrors& errors) {
    sum.edits += errors.edits;
    sum.length += errors.length;
  }

  std::string headline_;
  Mean exact_, f1_, anls_, rouge_l_, contains_, relaxed_, ocr_, vqa_, first_, first_of_five_;
  std::map<std::string, Mean> by_source_; // of the headline
  TextErrors characters_, words_;         // of all answers
  std::vector<Caption> captions_;
  bool several_ = false; // expected answers of a sample
  bool are_yes_or_no_ = true;
  YesNoCounts yes_no_;
  std::map<std::string, YesNoCounts> yes_no_by_source_;
};

bool is_correct(const SampleScore& sample) {
  const double correct = sample.texts[sample.correct].mean();
  for (size_t i = 0; i < sample.texts.size(); ++i)
    if (i != sample.correct && !(sample.texts[i].mean() > correct)) return false; // a tie is not correct
  return true;
}

double margin_of(const SampleScore& pair) {
  return pair.texts[1].loss - pair.texts[0].loss;
}

} // namespace

double reward_margin_of(const SampleScore& pair, const plan::PreferenceRewards& rewards) {
  return rewards.of_means ? pair.texts[1].mean() - pair.texts[0].mean() : margin_of(pair);
}

report::Record Result::record(const std::string& stage, int64_t step) const {
  Values all = values;
  all.emplace_back("seconds", seconds);
  return {"evaluation", stage, step, {{"set", set}, {"mode", mode}, {"measure", plan::name_of(measure)}}, all};
}

bool is_share(std::string_view name) {
  const std::string_view measure = name.substr(0, name.find('.'));
  return measure.ends_with("accuracy") || measure.starts_with("recall_at_") || measure.ends_with("error_rate") ||
         measure.starts_with("yes_");
}

std::string Result::text() const {
  constexpr std::array<std::string_view, 8> elsewhere{"samples",
                                                      "candidates",
                                                      "rouge_l",
                                                      "word_error_rate",
                                                      "contains",
                                                      "first_token_accuracy",
                                                      "first_token_top5_accuracy",
                                                      "ocr_accuracy"};
  std::vector<std::string> parts;
  for (const auto& [name, value] : values) {
    if (std::ranges::find(elsewhere, name) != elsewhere.end() || name.find('.') != std::string::npos) continue;
    std::string words = name;
    std::ranges::replace(words, '_', ' ');
    parts.push_back(is_share(name) ? fmt::format("{} {:.1f} %", words, 100 * value)
                                   : fmt::format("{} {:.4g}", words, value));
  }
  const std::string unusable = unused > 0 ? fmt::format(", {} not used", grouped(unused)) : "";
  return fmt::format("{} ({}): {}; {}{} in {}", set, mode, join(parts, ", "), counted(samples, "sample"), unusable,
                     human_duration(seconds));
}

double Result::value(const std::string& name) const {
  for (const auto& [each, value] : values)
    if (each == name) return value;
  throw Error(ErrorKind::internal, "the evaluation of '{}' has no value '{}'", set, name);
}

double Result::quality() const {
  if (measure == plan::Measure::loss || measure == plan::Measure::bits_per_byte) return -value(plan::name_of(measure));
  if (measure == plan::Measure::retrieval) return value("mrr");
  return value(measure == plan::Measure::iou ? "iou" : "accuracy");
}

std::map<std::string, double> values_by_name(const std::vector<Result>& results) {
  std::map<std::string, double> named;
  for (const Result& result : results) {
    const bool has_one_mode = std::ranges::count(results, result.set, &Result::set) == 1;
    for (const auto& [figure, value] : result.values) {
      named[fmt::format("evaluation.{}.{}.{}", result.set, result.mode, figure)] = value;
      if (has_one_mode) named[fmt::format("evaluation.{}.{}", result.set, figure)] = value;
    }
  }
  return named;
}

Result result_of(const SampleSet& set, const std::string& mode, const Scores& scores, const Reference* reference) {
  const plan::Measure measure = set.settings().measure;
  Result result{set.name(scores.decoder),
                mode,
                measure,
                std::ssize(scores.samples),
                set.samples() + std::ssize(set.skipped()) - std::ssize(scores.samples),
                {}};
  if (measure == plan::Measure::retrieval) {
    result.values = retrieval_values(scores.samples);
    result.values.emplace_back("samples", static_cast<double>(result.samples));
    return result;
  }
  Mean loss, accuracy, margin, reward_accuracy, reward_margin, bits_per_byte, overlaps, box_hits;
  AnswerMeans answers(set.headline());
  std::map<std::string, Mean> by_source;
  for (const SampleScore& sample : scores.samples) {
    if (measure == plan::Measure::loss || measure == plan::Measure::bits_per_byte) {
      for (const TextScore& text : sample.texts) { // one, or the parts of a document
        loss.add(text.loss, text.labels);
        if (measure == plan::Measure::loss) {
          by_source[sample.source].add(text.loss, text.labels);
          continue;
        }
        const double bits = text.loss / std::numbers::ln2;
        bits_per_byte.add(bits, text.bytes);
        by_source[sample.source].add(bits, text.bytes);
      }
      continue;
    }
    const TextScore& correct = sample.texts[sample.correct];
    loss.add(correct.loss, correct.labels);
    if (measure == plan::Measure::answer) {
      answers.add(sample);
      continue;
    }
    if (measure == plan::Measure::iou) {
      const auto& [answer, expected] = *sample.generated;
      const double overlap = iou(answer, expected);
      overlaps.add(overlap);
      by_source[sample.source].add(overlap);
      box_hits.add(box_accuracy(answer, expected));
      continue;
    }
    const bool pair = measure == plan::Measure::preference;
    const double hit = pair ? margin_of(sample) > 0 : is_correct(sample);
    accuracy.add(hit);
    by_source[sample.source].add(hit);
    if (!pair) continue;
    margin.add(margin_of(sample));
    if (!reference) continue;
    const plan::PreferenceRewards& rewards = reference->rewards;
    const double reward = rewards.beta * (reward_margin_of(sample, rewards) - reference->margins.at(sample.position));
    reward_accuracy.add(reward > 0);
    reward_margin.add(reward);
  }
  const auto add = [&](const char* name, const Mean& mean) {
    if (mean.count > 0) result.values.emplace_back(name, mean.value());
  };
  add("bits_per_byte", bits_per_byte);
  add("loss", loss);
  add("iou", overlaps);
  add("box_accuracy", box_hits);
  add("accuracy", accuracy);
  add("margin", margin);
  add("reward_accuracy", reward_accuracy);
  add("reward_margin", reward_margin);
  if (measure == plan::Measure::answer) answers.append_to(result.values);
  for (const auto& size : scores.sizes) result.values.push_back(size);
  result.values.emplace_back("samples", static_cast<double>(result.samples));
  if (scores.attention_entropy) result.values.emplace_back("attention_entropy", *scores.attention_entropy);
  if (measure == plan::Measure::answer) answers.append_sources_to(result.values);
  const bool is_accuracy =
      measure != plan::Measure::loss && measure != plan::Measure::bits_per_byte && measure != plan::Measure::iou;
  const char* values_name = is_accuracy ? "accuracy" : plan::name_of(measure);
  if (by_source.size() > 1)
    for (const auto& [source, mean] : by_source) add(fmt::format("{}.{}", values_name, source).c_str(), mean);
  return result;
}

Result result_of(const SampleSet& set, const std::string& mode, const std::vector<JointAnswer>& answers) {
  Mean accuracy, all_correct, any_correct, agreement, f1_of_chosen, best_f1;
  for (const JointAnswer& joint : answers) {
    std::vector<double> exact, shared;
    for (const std::string& answer : joint.answers) {
      exact.push_back(exact_match(answer, joint.expected));
      shared.push_back(f1(answer, joint.expected));
    }
    accuracy.add(exact[joint.chosen]);
    f1_of_chosen.add(shared[joint.chosen]);
    all_correct.add(*std::ranges::min_element(exact));
    any_correct.add(*std::ranges::max_element(exact));
    best_f1.add(*std::ranges::max_element(shared));
    agreement.add(std::ranges::all_of(
        joint.answers, [&](const std::string& answer) { return exact_match(answer, {joint.answers.front()}) == 1; }));
  }
  Result result{set.settings().name + ".joint",
                mode,
                set.settings().measure,
                std::ssize(answers),
                set.samples() + std::ssize(set.skipped()) - std::ssize(answers),
                {}};
  result.values = {{"accuracy", accuracy.value()},
                   {"f1", f1_of_chosen.value()},
                   {"all_correct_accuracy", all_correct.value()},
                   {"any_correct_accuracy", any_correct.value()},
                   {"any_correct_f1", best_f1.value()},
                   {"agreement", agreement.value()},
                   {"samples", static_cast<double>(result.samples)}};
  return result;
}

} // namespace fvlm::evaluation
