// The result of an evaluation: named numbers, as written to metrics.jsonl.
#pragma once
#include "evaluation/joint.h"
#include "evaluation/score.h"
#include "report/metrics_log.h"

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fvlm::evaluation {

// loss: mean over the labels of what is right, in nats. accuracy: the share of questions whose right option has the
// lowest loss (mean over its labels), of pairs whose chosen answer is the likelier one. margin: by how many nats a
// pair's chosen answer is likelier, on average. reward_accuracy, reward_margin: the same of rewards, beta times what
// the policy gained on the reference. Of generated answers accuracy is the share of exact matches; f1, anls, rouge_l,
// character_error_rate and word_error_rate of all answers as one corpus, contains, relaxed_accuracy, ocr_accuracy, and
// where a sample expects several answers vqa_accuracy and cider: see answers.h; where all expected answers are yes or
// no yes_no_accuracy, and of the answer yes yes_precision, yes_recall, yes_f1 and yes_share, how often it is given. iou
// and box_accuracy of their boxes: see boxes.h. Of retrieval recall_at_1, recall_at_5, mrr and candidates: see
// retrieval.h. samples. attention_entropy. bits_per_byte: the loss of all tokens that
// are not special, in bits, over the bytes that they stand for. bits_per_byte.SOURCE, loss.SOURCE, iou.SOURCE and
// accuracy.SOURCE where there are several, of generated answers the set's headline in place of accuracy, and
// yes_f1.SOURCE.
using Values = std::vector<std::pair<std::string, double>>;

// Whether the value of this name, or that of a source, is read in percent.
bool is_share(std::string_view name);

struct Result {
  std::string set;  // of a decoder after the first: "heldout.decoder2"
  std::string mode; // of the connector
  plan::Measure measure = plan::Measure::loss;
  int64_t samples = 0;
  int64_t unused = 0; // samples of the set that could not be used
  Values values;
  double seconds = 0; // that it took

  // "questions (coarse_fine): accuracy 95.8 %, loss 0.1523; 2,000 samples in 2.3 s". Of generated answers, the values
  // that most people ask for.
  std::string text() const;
  report::Record record(const std::string& stage, int64_t step) const;
  // Throws Error(internal) for a name that is not there.
  double value(const std::string& name) const;
  // Higher is better among results of one set and mode: the accuracy, the IoU, the MRR, or the negative loss.
  double quality() const;
};

// "evaluation.SET.MODE.FIGURE", and "evaluation.SET.FIGURE" besides for a set that was evaluated in one mode.
std::map<std::string, double> values_by_name(const std::vector<Result>& results);

// A reference model's margins for rewards (log-probability of the chosen minus that of the rejected answer, in nats),
// by the pair's position in its set.
struct Reference {
  plan::PreferenceRewards rewards;
  std::map<int64_t, double> margins;
};

double reward_margin_of(const SampleScore& pair, const plan::PreferenceRewards& rewards);

Result result_of(const SampleSet& set, const std::string& mode, const Scores& scores,
                 const Reference* reference = nullptr);
// Of what several decoders answer together, as the set NAME.joint. accuracy, f1: of the chosen answers;
// all_correct_accuracy, any_correct_accuracy, any_correct_f1: as if all had to be right, and as if someone knew the
// best one; agreement: the share of questions to which all answers are the same.
Result result_of(const SampleSet& set, const std::string& mode, const std::vector<JointAnswer>& answers);

} // namespace fvlm::evaluation
