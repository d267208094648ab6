#include "model/generation_batch.h"

#include "model/size_class.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <chrono>

namespace fvlm::model {
namespace {

constexpr int64_t capacity_step = 256; // of the cache, so that what plugins prepared for one batch serves others

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

} // namespace

GenerationBatch::GenerationBatch(const Model& model, Operations& ops, std::vector<int64_t> end_tokens,
                                 int64_t cache_rows, int64_t expected)
    : model_(model), ops_(ops), end_tokens_(std::move(end_tokens)), cache_rows_(cache_rows), expected_(expected) {}

int64_t GenerationBatch::Sequence::rows() const {
  return std::ssize(next) + prompt.max_tokens;
}

int64_t GenerationBatch::add(Prompt prompt) {
  const int64_t visual = prompt.visual.defined() ? prompt.visual.size(0) : 0;
  std::vector<int64_t> tokens;
  if (placeholders_of(prompt.tokens) == 0) tokens.assign(static_cast<size_t>(visual), visual_placeholder);
  tokens.insert(tokens.end(), prompt.tokens.begin(), prompt.tokens.end());
  Sampler sampler(prompt.sampling);
  waiting_.push_back({{prompts_, {}, false, 0}, std::move(prompt), sampler, tokens, std::move(tokens)});
  return prompts_++;
}

bool GenerationBatch::is_idle() const {
  return std::none_of(active_.begin(), active_.end(), [](const auto& sequence) { return sequence.has_value(); });
}

// A cache for the prompts that wait, while nothing is in it.
void GenerationBatch::reserve() {
  int64_t longest = 0;
  for (const Sequence& sequence : waiting_) longest = std::max(longest, sequence.rows());
  const int64_t capacity = (longest + capacity_step - 1) / capacity_step * capacity_step,
                sequences = std::min(row_class(std::max(std::ssize(waiting_), expected_)),
                                     std::max<int64_t>(1, cache_rows_ / capacity));
  if (capacity <= cache_.capacity && sequences <= std::ssize(active_)) return;
  cache_ = {}; // first, so that its memory serves the new one
  cache_ = model_.decoder().make_kv_cache(ops_, sequences, capacity);
  active_.resize(static_cast<size_t>(sequences));
}

void GenerationBatch::admit() {
  if (waiting_.empty()) return;
  if (is_idle()) reserve();
  for (size_t i = 0; i < active_.size() && !waiting_.empty(); ++i) {
    if (active_[i]) continue;
    if (waiting_.front().rows() > cache_.capacity) return; // until a larger cache can be made
    active_[i].emplace(std::move(waiting_.front()));
    active_[i]->begin = now();
    cache_.lengths[i] = 0;
    waiting_.pop_front();
  }
}

at::Tensor GenerationBatch::next_rows() {
  std::vector<int64_t> tokens, places;
  std::vector<at::Tensor> visual;
  for (auto& sequence : active_) {
    if (!sequence) continue;
    for (const int64_t token : sequence->next) {
      if (token == visual_placeholder) places.push_back(std::ssize(tokens));
      tokens.push_back(token == visual_placeholder ? 0 : token);
    }
    if (sequence->prompt.visual.defined()) visual.push_back(std::exchange(sequence->prompt.visual, {}));
  }
  tokens.resize(static_cast<size_t>(row_class(std::ssize(tokens))));
  const auto index = [&](const std::vector<int64_t>& values) {
    return at::tensor(values, at::kLong).to(ops_.options().device);
  };
  at::Tensor rows = model_.decoder().embedding().value().index_select(0, index(tokens));
  if (!places.empty()) rows.index_copy_(0, index(places), at::concat(visual).to(rows.scalar_type()));
  return rows;
}

bool GenerationBatch::append(Sequence& sequence, int64_t token) {
  GeneratedAnswer& answer = sequence.answer;
  answer.tokens.push_back(token);
  sequence.context.push_back(token);
  sequence.next = {token};
  answer.ended = std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
  answer.seconds = now() - sequence.begin;
  if (answer.ended || (sequence.prompt.on_token && !sequence.prompt.on_token(token))) return true;
  return std::ssize(answer.tokens) == sequence.prompt.max_tokens;
}

bool GenerationBatch::step() {
  admit();
  if (is_idle()) return false;
  std::vector<int64_t> rows(active_.size()), lasts;
  int64_t all = 0;
  for (size_t i = 0; i < active_.size(); ++i) {
    if (!active_[i]) continue;
    rows[i] = std::ssize(active_[i]->next);
    lasts.push_back((all += rows[i]) - 1);
  }
  lasts.resize(static_cast<size_t>(row_class(std::ssize(lasts))));
  const at::Tensor hidden = model_.decoder().forward(ops_, next_rows(), cache_, rows);
  Tape no_grad(Tape::Mode::forward_only);
  const at::Tensor of_last = hidden.index_select(0, at::tensor(lasts, at::kLong).to(hidden.device()));
  const at::Tensor logits = model_.decoder().logits(no_grad, ops_, Value(of_last)).data;
  const at::Tensor likeliest = logits.argmax(1).cpu();
  int64_t row = 0;
  for (auto& sequence : active_) {
    if (!sequence) continue;
    const Sampler& sampler = sequence->sampler;
    const int64_t token = sampler.is_argmax()
                              ? likeliest.const_data_ptr<int64_t>()[row]
                              : sampler.pick(logits[row], sequence->context, std::ssize(sequence->answer.tokens));
    ++row;
    if (!append(*sequence, token)) continue;
    finished_.push_back(std::move(sequence->answer));
    sequence.reset();
  }
  return true;
}

std::vector<GeneratedAnswer> GenerationBatch::take_finished() {
  return std::exchange(finished_, {});
}

std::vector<GeneratedAnswer> GenerationBatch::finish() {
  while (step()) continue;
  std::sort(finished_.begin(), finished_.end(),
            [](const GeneratedAnswer& a, const GeneratedAnswer& b) { return a.number < b.number; });
  return take_finished();
}

} // namespace fvlm::model
