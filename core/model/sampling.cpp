#include "model/sampling.h"

#include "base/error.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/softmax.h>
#include <fmt/format.h>

#include <cmath>

namespace fvlm::model {

Sampler::Sampler(const Sampling& sampling)
    : sampling_(sampling), random_(sampling.seed, fmt::format("answer {}", sampling.answer)) {
  if (!(sampling.temperature >= 0) || !std::isfinite(sampling.temperature))
    throw Error(ErrorKind::usage, fmt::format("a temperature is 0 or more, not {}", sampling.temperature))
        .advise("0: always the likeliest token; 1: as likely as the model finds each");
  if (!(sampling.top_p > 0 && sampling.top_p <= 1))
    throw Error(ErrorKind::usage, fmt::format("top-p is a share, above 0 and up to 1, not {}", sampling.top_p));
}

int64_t Sampler::pick(const at::Tensor& logits, int64_t index) const {
  if (is_greedy()) return logits.argmax().item<int64_t>();
  const auto [scores, tokens] = logits.to(at::kDouble).cpu().sort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
  const at::Tensor shares = at::softmax(scores / sampling_.temperature, 0);
  const double* share = shares.const_data_ptr<double>();
  int64_t kept = 0;
  double sum = 0;
  while (kept < shares.size(0) && (kept == 0 || sum < sampling_.top_p)) sum += share[kept++];
  double rest = random_.uniform(static_cast<uint64_t>(index)) * sum;
  int64_t drawn = 0;
  while (drawn + 1 < kept && (rest -= share[drawn]) >= 0) ++drawn;
  return tokens[drawn].item<int64_t>();
}

} // namespace fvlm::model
