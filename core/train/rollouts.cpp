#include "train/rollouts.h"

#include "base/hash.h"
#include "base/json.h"
#include "evaluation/score.h"
#include "feed/model_samples.h"
#include "model/size_class.h"
#include "ops/torch_threads.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>

namespace fvlm::train {
namespace {

// Of the lines up to this step. A run that was killed may have written further ones, whose steps are taken again.
uint64_t bytes_up_to(int64_t step, const std::filesystem::path& file) {
  uint64_t bytes = 0;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line) && !lines.eof(); bytes += line.size() + 1) {
    const auto read = nlohmann::json::parse(line, nullptr, false);
    if (!read.is_object() || read.value("step", step + 1) > step) break;
  }
  return bytes;
}

double rounded(double value) {
  constexpr double places = 1e6;
  return std::round(value * places) / places;
}

nlohmann::ordered_json shown_answer(const Tokenizer& tokenizer, const SampleText& text) {
  const std::vector<TokenId> ids = evaluation::PromptAndAnswer(text).answer;
  return {{"text", evaluation::decoded(tokenizer, ids)},
          {"reward", rounded(text.outcome.reward)},
          {"advantage", rounded(text.outcome.advantage)},
          {"ended", text.outcome.is_cut_off == 0},
          {"ids", ids}};
}

} // namespace

Advantages advantages(const std::vector<double>& rewards, plan::Rollouts::Advantage kind) {
  constexpr double least_deviation = 1e-4; // where all answers earn nearly the same
  const auto count = static_cast<double>(rewards.size());
  const double mean = std::accumulate(rewards.begin(), rewards.end(), 0.0) / count;
  double squares = 0;
  for (const double reward : rewards) squares += (reward - mean) * (reward - mean);
  Advantages found;
  found.deviation = std::sqrt(squares / (count - 1));
  const double scale = kind == plan::Rollouts::Advantage::standardized ? found.deviation + least_deviation : 1;
  for (const double reward : rewards) found.of_answers.push_back((reward - mean) / scale);
  return found;
}

Rollouts::Rollouts(const RolloutsRequest& request)
    : request_(request), settings_(*request.stage.rollouts()), rewards_(settings_, request.lua),
      answers_(request.tokenizer, request.stage.data.chat_template),
      seed_(static_cast<uint64_t>(request.plan.seed) ^ xxh64("rollouts " + request.stage.name)) {
  if (!request.shown.empty() && settings_.show > 0)
    shown_.emplace(request.shown, bytes_up_to(request.steps_taken, request.shown));
}

void Rollouts::begin_step(int64_t step, bool written) {
  step_ = step;
  lines_.clear();
  most_lines_ = shown_ && written ? static_cast<size_t>(settings_.show) : 0;
}

void Rollouts::end_step() {
  for (std::string& line : lines_) shown_->append(std::move(line));
  if (!lines_.empty()) shown_->flush();
  lines_.clear();
}

void Rollouts::answer(HostPack& pack, int64_t parts) {
  if (pack.samples.empty()) return;
  const c10::InferenceMode without_gradients;
  const ops::ModelThreads threads(request_.model.parameters().element_count());
  const auto given = ops::retry_with_next_plugin(request_.operations, [&] {
    try {
      return generate(pack, parts);
    } catch (...) {
      answerer_.reset();
      throw;
    }
  });
  for (auto answer = given.begin(); PackedSample & packed : pack.samples) {
    auto answered = std::make_shared<Sample>(*packed.sample);
    for (SampleText& text : answered->texts) {
      const size_t prompt = evaluation::PromptAndAnswer(text).prompt.size();
      text.ids.resize(prompt);
      text.answer_mask.resize(prompt);
      text.ids.insert(text.ids.end(), answer->tokens.begin(), answer->tokens.end());
      text.answer_mask.resize(text.ids.size(), 1);
      text.outcome.tokens = static_cast<float>(answer->tokens.size());
      text.outcome.is_cut_off = answer->ended ? 0 : 1;
      ++answer;
    }
    reward(*answered);
    show(*answered);
    packed.sample = std::move(answered);
  }
}

std::vector<infer::GeneratedAnswer> Rollouts::generate(const HostPack& pack, int64_t parts) {
  if (answerer_) {
    answerer_->clear_prefix_cache();
  } else { // of one size for all packs, on which it depends how many answers a pass has
    infer::BatchOptions options;
    options.cache_rows = options.reserved_rows = request_.most.rows / parts;
    options.reserved_sequences = options.max_sequences;
    options.captures = request_.plan.speed.graphs;
    answerer_.emplace(answers_, request_.model, request_.operations, options);
  }
  const auto visual = visual_rows(pack);
  std::vector<evaluation::Answerer::Question> questions;
  for (size_t i = 0; i < pack.samples.size(); ++i) {
    const PackedSample& packed = pack.samples[i];
    const evaluation::PromptAndAnswer reserved(packed.sample->texts.front());
    for (int64_t answer = 0; answer < settings_.answers; ++answer) {
      const auto number = static_cast<uint64_t>(packed.position * settings_.answers + answer);
      questions.push_back({.prompt = reserved.prompt,
                           .sample = *packed.sample,
                           .visual = visual[i],
                           .sampling = {.temperature = 1, .seed = seed_, .answer = number},
                           .most_tokens = std::ssize(reserved.answer)});
    }
  }
  return answerer_->generate(questions, settings_.max_new_tokens);
}

// In the mode that the stage trains in: answers are drawn from the distribution whose gradient is taken.
std::vector<at::Tensor> Rollouts::visual_rows(const HostPack& pack) const {
  const model::Model& model = request_.model;
  const int64_t size = request_.plan.model.image_size;
  auto samples =
      feed::model_samples(pack, size, [](const SampleText& text) { return std::vector<bool>(text.ids.size()); },
                          {feed::Texts::share_frames, evaluation::repeats_of(model)});
  for (model::Sample& sample : samples) sample.texts.resize(1);
  const model::FrameReader reader = model.frame_reader(size, size);
  auto capacity = model::Capacity::of(samples, reader.rows_per_frame);
  for (int64_t* frames : {&capacity.frames, &capacity.encoder_frames}) // few sizes, for which plugins prepare
    *frames = model::size_class(*frames, std::max(*frames, request_.most.frames));
  capacity.longest_video = request_.most.longest_video;
  if (capacity.frames == 0) return std::vector<at::Tensor>(samples.size());
  ops::Tape none(ops::Tape::Mode::forward_only);
  const model::Pack read = model::make_pack(samples, capacity, reader, request_.operations.tensor_options());
  const auto seen = model.encode(none, request_.operations, read, request_.stage.mode);
  return model::visual_by_sample(seen.tokens.data, samples, reader.rows_per_frame);
}

void Rollouts::reward(Sample& answered) const {
  std::vector<double> rewards;
  for (const SampleText& text : answered.texts) {
    const evaluation::PromptAndAnswer read(text);
    const std::string whole = evaluation::decoded(request_.tokenizer, read.answer);
    rewards.push_back(rewards_.of({.prompt = evaluation::decoded(request_.tokenizer, read.prompt),
                                   .text = answered.has_short_answer ? evaluation::first_line(whole) : whole,
                                   .measured = answers_.read(answered, read.prompt, read.answer).text,
                                   .expected = answered.answers,
                                   .tokens = static_cast<int64_t>(text.outcome.tokens),
                                   .ended = text.outcome.is_cut_off == 0,
                                   .key = answered.key,
                                   .source = answered.source}));
  }
  const Advantages found = advantages(rewards, settings_.advantage());
  for (size_t i = 0; i < rewards.size(); ++i) {
    Outcome& outcome = answered.texts[i].outcome;
    outcome.reward = static_cast<float>(rewards[i]);
    outcome.deviation = static_cast<float>(found.deviation);
    outcome.advantage = static_cast<float>(found.of_answers[i]);
    if (settings_.advantage() == plan::Rollouts::Advantage::centered) // a mean over tokens becomes their sum
      outcome.weight = outcome.tokens / static_cast<float>(settings_.max_new_tokens);
  }
}

void Rollouts::show(const Sample& answered) {
  if (lines_.size() >= most_lines_) return;
  nlohmann::ordered_json line = {
      {"step", step_},
      {"key", answered.key},
      {"prompt", evaluation::decoded(request_.tokenizer, evaluation::PromptAndAnswer(answered.texts.front()).prompt)},
      {"expected", answered.answers},
      {"answers", nlohmann::ordered_json::array()}};
  for (const SampleText& text : answered.texts) line["answers"].push_back(shown_answer(request_.tokenizer, text));
  lines_.push_back(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

} // namespace fvlm::train
