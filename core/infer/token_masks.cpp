#include "infer/token_masks.h"

#include "infer/captured.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace fvlm::infer {
namespace {

constexpr double impossible = -std::numeric_limits<double>::infinity();
constexpr int64_t most_kept_bytes = int64_t{64} << 20; // of all answers together

at::Tensor mask_of(grammar::TokenConstraint& constraint, std::span<const int64_t> ends, const at::Tensor& logits) {
  std::vector<bool> allowed = constraint.allowed();
  allowed.resize(static_cast<size_t>(logits.size(0)));
  const bool may_end = constraint.is_whole() || constraint.is_over();
  for (const int64_t end : ends) allowed[static_cast<size_t>(end)] = may_end;
  const at::Tensor hidden = at::empty({logits.size(0)}, at::TensorOptions(at::kBool).pinned_memory(logits.is_cuda()));
  std::ranges::transform(allowed, hidden.mutable_data_ptr<bool>(), [](bool may_follow) { return !may_follow; });
  return hidden.to(logits.device(), at::kBool, /*non_blocking=*/true);
}

} // namespace

void hide_tokens(std::span<const int64_t> tokens, const at::Tensor& logits) {
  if (!tokens.empty()) logits.index_fill_(0, upload({tokens.begin(), tokens.end()}, logits.device()), impossible);
}

void TokenMasks::hide(grammar::TokenConstraint& constraint, std::span<const int64_t> ends, const at::Tensor& logits) {
  const auto place = constraint.place();
  auto found = kept_.find(place);
  if (found == kept_.end()) {
    if ((std::ssize(kept_) + 1) * logits.size(0) > most_kept_bytes) kept_.clear();
    found = kept_.emplace(place, mask_of(constraint, ends, logits)).first;
    ++copied_;
  }
  logits.masked_fill_(found->second, impossible);
}

} // namespace fvlm::infer
