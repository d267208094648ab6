#include "evaluation/retrieval.h"

#include "feed/model_samples.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <map>
#include <unordered_map>

namespace fvlm::evaluation {
namespace {

constexpr int64_t queries_at_once = 256;

// All that can be found, each once.
struct Candidates {
  std::vector<const EmbeddedInput*> all;
  std::unordered_map<uint64_t, int64_t> by_content;

  explicit Candidates(const std::vector<SampleScore>& samples) {
    for (const SampleScore& sample : samples)
      for (size_t i = 1; i < sample.inputs.size(); ++i)
        if (by_content.try_emplace(sample.inputs[i].content, std::ssize(all)).second) all.push_back(&sample.inputs[i]);
  }
};

at::Tensor rows_of(const std::vector<const EmbeddedInput*>& inputs) {
  const at::Tensor rows = at::empty({std::ssize(inputs), std::ssize(inputs.front()->vector)}, at::kFloat);
  float* to = rows.mutable_data_ptr<float>();
  for (const EmbeddedInput* input : inputs) to = std::ranges::copy(input->vector, to).out;
  return rows;
}

} // namespace

std::vector<SampleScore> embed_pack(const SampleSet& set, const HostPack& loaded, const model::Model& model,
                                    ops::Operations& ops, const std::string& mode) {
  std::vector<SampleScore> scores;
  if (loaded.samples.empty()) return scores;
  const auto samples = feed::model_samples(loaded, set.image_size(),
                                           [](const SampleText& text) { return std::vector<bool>(text.ids.size()); },
                                           {feed::Texts::share_frames, repeats_of(model)});
  const ReadSamples read = read_samples(set, samples, model, ops, mode, model::EncodeOutputs::tokens);
  const at::Tensor last = model::last_rows(read.pack).narrow(0, 0, std::ssize(samples));
  const at::Tensor states = read.hidden.data.index_select(0, last).to(at::kDouble).cpu(),
                   vectors =
                       (states / states.square().sum(1, true).sqrt().clamp_min(1e-12)).to(at::kFloat).contiguous();
  const float* vector = vectors.const_data_ptr<float>();
  for (const PackedSample& packed : loaded.samples) {
    if (packed.sample->role == Sample::Role::query)
      scores.push_back({packed.position, packed.sample->key, set.source_of(packed), {}, 0, {}, {}});
    scores.back().inputs.push_back({loaded.content_of(packed), {vector, vector + vectors.size(1)}});
    vector += vectors.size(1);
  }
  return scores;
}

std::vector<std::pair<std::string, double>> retrieval_values(const std::vector<SampleScore>& samples) {
  const Candidates candidates(samples);
  std::map<uint64_t, std::vector<int64_t>> right; // candidates that queries of a content are to find, each once
  for (const SampleScore& sample : samples) {
    auto& own = right[sample.inputs[0].content];
    const int64_t positive = candidates.by_content.at(sample.inputs[1].content);
    if (std::ranges::find(own, positive) == own.end()) own.push_back(positive);
  }
  const at::Tensor columns = rows_of(candidates.all).t();
  const auto count = std::ssize(samples);
  double first = 0, first_five = 0, reciprocal = 0;
  for (int64_t begin = 0; begin < count; begin += queries_at_once) {
    std::vector<const EmbeddedInput*> queries;
    for (int64_t i = begin; i < std::min(begin + queries_at_once, count); ++i)
      queries.push_back(&samples[static_cast<size_t>(i)].inputs[0]);
    const at::Tensor similarities = at::matmul(rows_of(queries), columns).contiguous();
    const float* row = similarities.const_data_ptr<float>();
    for (size_t i = 0; i < queries.size(); ++i, row += similarities.size(1)) {
      const SampleScore& sample = samples[static_cast<size_t>(begin) + i];
      const float own = row[candidates.by_content.at(sample.inputs[1].content)];
      const auto is_nearer = [own](float other) { return !(other < own); }; // the positive itself, too
      int64_t rank = 1 + std::count_if(row, row + similarities.size(1), is_nearer);
      for (const int64_t other : right.at(queries[i]->content)) rank -= is_nearer(row[other]);
      first += rank == 1;
      first_five += rank <= 5;
      reciprocal += 1 / static_cast<double>(rank);
    }
  }
  const auto all = static_cast<double>(count);
  return {{"recall_at_1", first / all},
          {"recall_at_5", first_five / all},
          {"mrr", reciprocal / all},
          {"candidates", static_cast<double>(candidates.all.size())}};
}

} // namespace fvlm::evaluation
