#include "evaluation/result.h"

#include "base/error.h"
#include "base/text.h"
#include "evaluation/answers.h"

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

// What generated answers come to.
class AnswerMeans {
 public:
  // Whether the sample's answer is an exact match.
  double add(const SampleScore& sample) {
    const auto& [answer, expected] = *sample.generated;
    const double exact = exact_match(answer, expected);
    exact_.add(exact);
    f1_.add(f1(answer, expected));
    anls_.add(anls(answer, expected));
    rouge_l_.add(rouge_l(answer, expected));
    add(characters_, character_errors(answer, expected));
    add(words_, word_errors(answer, expected));
    contains_.add(contains(answer, expected));
    relaxed_.add(relaxed_accuracy(answer, expected));
    vqa_.add(vqa_accuracy(answer, expected));
    captions_.push_back({answer, expected});
    const int64_t rank = sample.texts[sample.correct].first_rank;
    first_.add(rank == 0);
    first_of_five_.add(rank < 5);
    several_ = several_ || expected.size() > 1;
    return exact;
  }

  void append_to(Values& values) const {
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
    if (!several_) return;
    values.emplace_back("vqa_accuracy", vqa_.value());
    Mean similar;
    for (const double score : cider(captions_)) similar.add(score);
    values.emplace_back("cider", similar.value());
  }

 private:
  static void add(TextErrors& sum, const TextErrors& errors) {
    sum.edits += errors.edits;
    sum.length += errors.length;
  }

  Mean exact_, f1_, anls_, rouge_l_, contains_, relaxed_, vqa_, first_, first_of_five_;
  TextErrors characters_, words_; // of all answers
  std::vector<Caption> captions_;
  bool several_ = false; // expected answers of a sample
};

bool is_correct(const SampleScore& sample) {
  const double correct = sample.texts[sample.correct].mean();
  for (size_t i = 0; i < sample.texts.size(); ++i)
    if (i != sample.correct && !(sample.texts[i].mean() > correct)) return false; // a tie is not correct
  return true;
}

} // namespace

double margin_of(const SampleScore& pair) {
  return pair.texts[1].loss - pair.texts[0].loss;
}

report::Record Result::record(const std::string& stage, int64_t step) const {
  Values all = values;
  all.emplace_back("seconds", seconds);
  return {"evaluation", stage, step, {{"set", set}, {"mode", mode}, {"measure", plan::name_of(measure)}}, all};
}

bool is_share(std::string_view name) {
  const std::string_view measure = name.substr(0, name.find('.'));
  return measure.ends_with("accuracy") || measure.ends_with("error_rate");
}

std::string Result::text() const {
  constexpr std::array<std::string_view, 6> elsewhere{
      "samples", "rouge_l", "word_error_rate", "contains", "first_token_accuracy", "first_token_top5_accuracy"};
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
  return value("accuracy");
}

Result result_of(const SampleSet& set, const std::string& mode, const Scores& scores, const Reference* reference) {
  const plan::Measure measure = set.settings().measure;
  Result result{set.name(scores.decoder),
                mode,
                measure,
                std::ssize(scores.samples),
                set.samples() + std::ssize(set.skipped()) - std::ssize(scores.samples),
                {}};
  Mean loss, accuracy, margin, reward_accuracy, reward_margin, bits_per_byte;
  AnswerMeans answers;
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
      by_source[sample.source].add(answers.add(sample));
      continue;
    }
    const bool pair = measure == plan::Measure::preference;
    const double hit = pair ? margin_of(sample) > 0 : is_correct(sample);
    accuracy.add(hit);
    by_source[sample.source].add(hit);
    if (!pair) continue;
    margin.add(margin_of(sample));
    if (!reference) continue;
    const double reward = reference->beta * (margin_of(sample) - reference->margins.at(sample.position));
    reward_accuracy.add(reward > 0);
    reward_margin.add(reward);
  }
  const auto add = [&](const char* name, const Mean& mean) {
    if (mean.count > 0) result.values.emplace_back(name, mean.value());
  };
  add("bits_per_byte", bits_per_byte);
  add("loss", loss);
  add("accuracy", accuracy);
  add("margin", margin);
  add("reward_accuracy", reward_accuracy);
  add("reward_margin", reward_margin);
  if (measure == plan::Measure::answer) answers.append_to(result.values);
  for (const auto& size : scores.sizes) result.values.push_back(size);
  result.values.emplace_back("samples", static_cast<double>(result.samples));
  if (scores.attention_entropy) result.values.emplace_back("attention_entropy", *scores.attention_entropy);
  const bool is_accuracy = measure != plan::Measure::loss && measure != plan::Measure::bits_per_byte;
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
    agreement.add(std::ranges::all_of(joint.answers, [&](const std::string& answer) {
      return normalized(answer) == normalized(joint.answers.front());
    }));
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
