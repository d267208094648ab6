#include "infer/sampling.h"

#include "base/error.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fvlm::infer {

Sampler::Sampler(const Sampling& sampling)
    : sampling_(sampling), random_(sampling.seed, fmt::format("answer {}", sampling.answer)) {
  if (!(sampling.temperature >= 0) || !std::isfinite(sampling.temperature))
    throw Error(ErrorKind::usage, fmt::format("a temperature is 0 or more, not {}", sampling.temperature))
        .advise("0: always the likeliest token; 1: as likely as the model finds each");
  if (!(sampling.top_p > 0 && sampling.top_p <= 1))
    throw Error(ErrorKind::usage, fmt::format("top-p is a share, above 0 and up to 1, not {}", sampling.top_p));
  if (!(sampling.min_p >= 0 && sampling.min_p <= 1))
    throw Error(ErrorKind::usage, fmt::format("min-p is a share of the likeliest token's probability, from 0 to 1, "
                                              "not {}",
                                              sampling.min_p));
  if (sampling.top_k < 0)
    throw Error(ErrorKind::usage, fmt::format("top-k is a number of tokens, not {}", sampling.top_k))
        .advise("0: draw among all tokens");
  if (!(sampling.repetition_penalty > 0) || !std::isfinite(sampling.repetition_penalty))
    throw Error(ErrorKind::usage, fmt::format("a repetition penalty is above 0, not {}", sampling.repetition_penalty))
        .advise("1: none; above 1: tokens that occurred become less likely");
}

at::Tensor Sampler::penalized(const at::Tensor& logits, std::span<const int64_t> context) const {
  std::vector<int64_t> occurred;
  occurred.reserve(context.size());
  for (const int64_t token : context) // placeholders of visual tokens are no tokens
    if (token >= 0 && token < logits.size(0)) occurred.push_back(token);
  if (sampling_.repetition_penalty == 1 || occurred.empty()) return logits;
  const at::Tensor places = at::tensor(occurred, at::kLong).to(logits.device());
  const at::Tensor scores = logits.index_select(0, places);
  return logits.index_copy(
      0, places, at::where(scores > 0, scores / sampling_.repetition_penalty, scores * sampling_.repetition_penalty));
}

TokenDistribution Sampler::distribution(const at::Tensor& logits, std::span<const int64_t> context) const {
  const at::Tensor row = penalized(logits.to(at::kDouble).cpu(), context);
  const auto [scores, tokens] = row.sort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
  const int64_t most = sampling_.top_k > 0 ? std::min(sampling_.top_k, row.size(0)) : row.size(0);
  const double temperature = sampling_.temperature == 0 ? 1 : sampling_.temperature;
  const at::Tensor shares = at::softmax(scores.narrow(0, 0, most) / temperature, 0);
  const double* share = shares.const_data_ptr<double>();
  int64_t kept = 0;
  double sum = 0;
  while (kept < most && (kept == 0 || (sum < sampling_.top_p && share[kept] >= sampling_.min_p * share[0])))
    sum += share[kept++];
  const int64_t* token = tokens.const_data_ptr<int64_t>();
  TokenDistribution drawn{{token, token + kept}, {share, share + kept}};
  for (double& probability : drawn.probabilities) probability /= sum;
  return drawn;
}

int64_t Sampler::pick(const at::Tensor& logits, std::span<const int64_t> context, int64_t index) const {
  if (sampling_.temperature == 0) return penalized(logits, context).argmax().item<int64_t>();
  if (draws_among_all()) { // on the device of the logits, and without sorting them
    const at::Tensor row = penalized(logits.to(at::kDouble), context);
    const at::Tensor sums = at::softmax(row / sampling_.temperature, 0).cumsum(0);
    const at::Tensor drawn = sums.narrow(0, sums.size(0) - 1, 1) * random_.uniform(static_cast<uint64_t>(index));
    return at::searchsorted(sums, drawn, /*out_int32=*/false, /*right=*/true).item<int64_t>();
  }
  const TokenDistribution drawn = distribution(logits, context);
  double rest = random_.uniform(static_cast<uint64_t>(index));
  size_t chosen = 0;
  while (chosen + 1 < drawn.tokens.size() && (rest -= drawn.probabilities[chosen]) >= 0) ++chosen;
  return drawn.tokens[chosen];
}

} // namespace fvlm::infer
