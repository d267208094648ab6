#include "infer/sampling.h"

#include "base/error.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

namespace fvlm::infer {
namespace {

// Of tokens of the vocabulary; others are left out.
at::Tensor plus(const at::Tensor& logits, const std::map<int64_t, double>& added) {
  std::vector<int64_t> tokens;
  std::vector<double> values;
  for (const auto& [token, value] : added) {
    if (token < 0 || token >= logits.size(0)) continue;
    tokens.push_back(token);
    values.push_back(value);
  }
  return logits.index_add(0, at::tensor(tokens, at::kLong).to(logits.device()),
                          at::tensor(values, logits.scalar_type()).to(logits.device()));
}

} // namespace

Sampler::Sampler(const Sampling& sampling)
    : sampling_(sampling), random_(sampling.seed, fmt::format("answer {}", sampling.answer)) {
  constexpr double least_temperature = 1e-100; // by which any logit can be divided
  if (sampling.temperature > 0) sampling_.temperature = std::max(sampling.temperature, least_temperature);
  if (!(sampling.temperature >= 0) || !std::isfinite(sampling.temperature))
    throw Error(ErrorKind::usage, "a temperature is 0 or more, not {}", sampling.temperature)
        .advise("0: always the likeliest token; 1: as likely as the model finds each");
  if (!(sampling.top_p > 0 && sampling.top_p <= 1))
    throw Error(ErrorKind::usage, "top-p is a share, above 0 and up to 1, not {}", sampling.top_p);
  if (!(sampling.min_p >= 0 && sampling.min_p <= 1))
    throw Error(ErrorKind::usage, "min-p is a share of the likeliest token's probability, from 0 to 1, not {}",
                sampling.min_p);
  if (sampling.top_k < 0)
    throw Error(ErrorKind::usage, "top-k is a number of tokens, not {}", sampling.top_k)
        .advise("0: draw among all tokens");
  if (!(sampling.repetition_penalty > 0) || !std::isfinite(sampling.repetition_penalty))
    throw Error(ErrorKind::usage, "a repetition penalty is above 0, not {}", sampling.repetition_penalty)
        .advise("1: none; above 1: tokens that occurred become less likely");
  constexpr double most_penalty = 2, most_bias = 100; // OpenAI's
  for (const auto& [name, penalty] :
       {std::pair("frequency", sampling.frequency_penalty), std::pair("presence", sampling.presence_penalty)})
    if (!(std::abs(penalty) <= most_penalty))
      throw Error(ErrorKind::usage, "a {} penalty is from -2 to 2, not {}", name, penalty)
          .advise("0: none; above 0: tokens that occurred in the answer become less likely");
  for (const auto& [token, bias] : sampling.logit_bias)
    if (!(std::abs(bias) <= most_bias))
      throw Error(ErrorKind::usage, "the bias of a token is from -100 to 100, and that of {} is {}", token, bias);
}

at::Tensor Sampler::changed(const at::Tensor& logits, std::span<const int64_t> context, int64_t index) const {
  std::map<int64_t, double> added(sampling_.logit_bias.begin(), sampling_.logit_bias.end());
  const at::Tensor penalized = repetition_penalized(added.empty() ? logits : plus(logits, added), context);
  if (sampling_.frequency_penalty == 0 && sampling_.presence_penalty == 0) return penalized;
  added.clear();
  for (const int64_t token : context.last(std::min(context.size(), static_cast<size_t>(index)))) {
    const bool is_first = !added.contains(token);
    added[token] -= sampling_.frequency_penalty + (is_first ? sampling_.presence_penalty : 0);
  }
  return plus(penalized, added);
}

at::Tensor Sampler::repetition_penalized(const at::Tensor& logits, std::span<const int64_t> context) const {
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

TokenDistribution Sampler::distribution(const at::Tensor& logits, std::span<const int64_t> context,
                                        int64_t index) const {
  const at::Tensor row = changed(logits.to(at::kDouble).cpu(), context, index);
  const auto [scores, tokens] = row.sort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
  const int64_t most = sampling_.top_k > 0 ? std::min(sampling_.top_k, row.size(0)) : row.size(0);
  const double temperature = sampling_.temperature == 0 ? 1 : sampling_.temperature;
  const at::Tensor shares = at::softmax(scores.narrow(0, 0, most) / temperature, 0);
  const double* share = shares.const_data_ptr<double>();
  int64_t kept = 0;
  double sum = 0;
  while (kept < most &&
         (kept == 0 || (sum < sampling_.top_p && share[kept] > 0 && share[kept] >= sampling_.min_p * share[0])))
    sum += share[kept++];
  const int64_t* token = tokens.const_data_ptr<int64_t>();
  TokenDistribution drawn{{token, token + kept}, {share, share + kept}};
  for (double& probability : drawn.probabilities) probability /= sum;
  return drawn;
}

int64_t Sampler::pick(const at::Tensor& logits, std::span<const int64_t> context, int64_t index) const {
  if (sampling_.temperature == 0) return changed(logits.to(at::kDouble), context, index).argmax().item<int64_t>();
  if (draws_among_all()) { // on the device of the logits, and without sorting them
    const at::Tensor row = changed(logits.to(at::kDouble), context, index);
    const at::Tensor sums = at::softmax(row / sampling_.temperature, 0).cumsum(0);
    const at::Tensor drawn = sums.narrow(0, sums.size(0) - 1, 1) * random_.uniform(static_cast<uint64_t>(index));
    const int64_t place = at::searchsorted(sums, drawn, /*out_int32=*/false, /*right=*/true).item<int64_t>();
    return std::min(place, sums.size(0) - 1); // beyond it where logits are not finite
  }
  const TokenDistribution drawn = distribution(logits, context, index);
  double rest = random_.uniform(static_cast<uint64_t>(index));
  size_t chosen = 0;
  while (chosen + 1 < drawn.tokens.size() && (rest -= drawn.probabilities[chosen]) >= 0) ++chosen;
  return drawn.tokens[chosen];
}

namespace {

// Of each row of `setting`: temperature, top k, top p, min p, random number.
at::Tensor column(const at::Tensor& setting, int64_t at) {
  return setting.narrow(1, at, 1);
}

// The first place of each row at which the sums [rows, n] exceed the share u [rows, 1] of the last one, and the last
// place where logits are not finite: int64 [rows, 1].
at::Tensor places_of(const at::Tensor& sums, const at::Tensor& u) {
  const at::Tensor drawn = sums.narrow(1, sums.size(1) - 1, 1) * u;
  return at::searchsorted(sums, drawn, /*out_int32=*/false, /*right=*/true).clamp_max_(sums.size(1) - 1);
}

at::Tensor draw_among_all(const at::Tensor& scores, const at::Tensor& setting) {
  return places_of(at::softmax(scores / column(setting, 0), 1).cumsum(1), column(setting, 4));
}

at::Tensor draw_among_some(const at::Tensor& scores, const at::Tensor& setting) {
  const auto [values, ids] = scores.sort(/*stable=*/true, /*dim=*/1, /*descending=*/true);
  const at::Tensor rank = at::arange(scores.size(1), setting.options());
  const at::Tensor beyond_k = rank >= column(setting, 1);
  const at::Tensor shares =
      at::softmax((values / column(setting, 0)).masked_fill(beyond_k, -std::numeric_limits<double>::infinity()), 1);
  const at::Tensor before = at::constant_pad_nd(shares.cumsum(1), {1, -1});
  const at::Tensor dropped =
      (before >= column(setting, 2)).logical_or(shares < column(setting, 3) * shares.narrow(1, 0, 1));
  return ids.gather(1, places_of(shares.masked_fill(dropped, 0).cumsum(1), column(setting, 4)));
}

} // namespace

std::vector<int64_t> Sampler::pick_together(const at::Tensor& logits, std::span<const Draw> draws) {
  enum Kind { likeliest, among_all, among_some, kinds };
  std::array<std::vector<int64_t>, kinds> rows;
  std::array<std::vector<double>, kinds> settings; // of each row: temperature, top k, top p, min p, random number
  const at::Tensor scores = logits.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  for (int64_t row = 0; row < std::ssize(draws); ++row) {
    const auto& [sampler, context, index] = draws[static_cast<size_t>(row)];
    const Sampling& s = sampler->sampling_;
    const Kind kind = s.temperature == 0 ? likeliest : sampler->draws_among_all() ? among_all : among_some;
    rows[kind].push_back(row);
    const double top_k = s.top_k > 0 ? static_cast<double>(s.top_k) : std::numeric_limits<double>::infinity();
    for (const double value :
         {s.temperature, top_k, s.top_p, s.min_p, sampler->random_.uniform(static_cast<uint64_t>(index))})
      settings[kind].push_back(value);
    if (sampler->changes_logits()) scores[row].copy_(sampler->changed(scores[row], context, index));
  }
  std::vector<at::Tensor> tokens; // int64 [rows of a kind, 1]
  std::vector<int64_t> order;
  for (const Kind kind : {likeliest, among_all, among_some}) {
    const auto count = std::ssize(rows[kind]);
    if (count == 0) continue;
    order.insert(order.end(), rows[kind].begin(), rows[kind].end());
    const bool is_all = count == std::ssize(draws);
    const at::Tensor own =
        is_all ? scores : scores.index_select(0, at::tensor(rows[kind], at::kLong).to(scores.device()));
    const at::Tensor setting = at::tensor(settings[kind], at::kDouble).view({count, 5}).to(scores.device());
    tokens.push_back(kind == likeliest   ? own.argmax(1, /*keepdim=*/true)
                     : kind == among_all ? draw_among_all(own, setting)
                                         : draw_among_some(own, setting));
  }
  const at::Tensor picked = at::concat(tokens).cpu();
  std::vector<int64_t> all(draws.size());
  for (size_t i = 0; i < order.size(); ++i) all[static_cast<size_t>(order[i])] = picked.const_data_ptr<int64_t>()[i];
  return all;
}

} // namespace fvlm::infer
