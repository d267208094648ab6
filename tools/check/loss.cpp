#include "check/loss.h"

#include "check/families.h"
#include "check/formulas.h"
#include "check/workbench.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

namespace fvlm::check {
namespace {

fvlm_loss_query query_of(const LossCase& c, at::Device device) {
  fvlm_loss_query query{};
  query.struct_size = sizeof query;
  query.needs_d_hidden = c.d_hidden;
  query.needs_d_weight = c.d_weight;
  query.device = device_of(device);
  query.dtype = dtype_of(c.dtype);
  query.gradient_dtype = dtype_of(c.gradient_dtype);
  query.tokens = c.tokens;
  query.width = c.width;
  query.vocab = c.vocab;
  query.softcap = c.softcap;
  return query;
}

struct Numbers {
  at::Tensor hidden, weight, targets, d_losses, held; // held: the content of d_weight before it is accumulated into
};

Numbers numbers_of(const LossCase& c) {
  const auto float_type = at_least_float(c.dtype);
  Numbers n;
  n.hidden = normal({c.tokens, c.width}, c.seed * 8, c.dtype, c.magnitude);
  n.weight = normal({c.vocab, c.width}, c.seed * 8 + 1, c.dtype, 1 / std::sqrt(static_cast<double>(c.width)));
  n.targets = random_integers({c.tokens}, c.seed * 8 + 2, c.vocab, at::kLong);
  n.d_losses = normal({c.tokens}, c.seed * 8 + 3, float_type);
  n.held = normal({c.vocab, c.width}, c.seed * 8 + 4, c.gradient_dtype);
  for (int64_t word = c.large_logits_from; c.large_logits_from > 0 && word < c.vocab; ++word) {
    const auto like = n.hidden[word % c.tokens].to(at::kDouble);
    const double logit = std::log(static_cast<double>(c.vocab)) + 2;
    n.weight[word].copy_(like * (logit / like.square().sum().item<double>()));
  }
  for (int64_t word = 1; c.paired_words && word < c.vocab; word += 2) n.weight[word].copy_(n.weight[word - 1]);
  auto index = at::arange(c.tokens);
  if (c.signed_weights)
    n.d_losses.masked_fill_(index.remainder(7) == 3, 0);
  else
    n.d_losses.fill_(c.tokens ? 1.0 / static_cast<double>(c.tokens) : 0);
  if (c.targets == Targets::last) n.targets.fill_(c.vocab - 1);
  if (c.targets == Targets::none) n.targets.fill_(-100);
  if (c.targets == Targets::some) {
    n.targets.masked_fill_(index.remainder(3) == 1, -100);
    n.targets.masked_fill_(index.remainder(9) == 2, -1);
  }
  if (c.ignored_nan) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    auto ignored = n.targets < 0;
    n.hidden.masked_fill_(ignored.unsqueeze(1), nan);
    n.d_losses.masked_fill_(ignored, nan);
  }
  return n;
}

struct Results {
  at::Tensor losses, d_hidden, d_weight;
};

Results formula(const LossCase& c, const Numbers& n, at::ScalarType work) {
  const auto float_type = at_least_float(work);
  auto hidden = leaf(n.hidden, work), weight = leaf(n.weight, work);
  auto rows = at::nonzero(n.targets >= 0).reshape({-1});
  auto logits = at::matmul(hidden.index_select(0, rows), weight.t()).to(float_type);
  if (c.softcap != 0) logits = at::tanh(logits / c.softcap) * c.softcap;
  auto chosen = logits.gather(1, n.targets.index_select(0, rows).unsqueeze(1)).squeeze(1);
  auto losses = at::logsumexp(logits, {1}) - chosen;
  auto d = gradients({losses}, {hidden, weight}, {n.d_losses.index_select(0, rows)});
  Results results;
  results.losses = at::zeros({c.tokens}, float_type).index_copy(0, rows, losses.detach());
  results.d_hidden = d[0];
  results.d_weight = d[1];
  if (c.accumulate) results.d_weight = n.held.to(float_type) + results.d_weight.to(float_type);
  return results;
}

Expectation expect(const LossCase& c) {
  const Numbers n = numbers_of(c);
  Results exact = formula(c, n, at::kDouble), naive = formula(c, n, c.dtype);
  // A loss is a difference of logits, a gradient one of probabilities; where they cancel, the error has their
  // magnitude.
  Expectation all{{"losses", exact.losses, naive.losses, at_least_float(c.dtype), root_mean_square(n.hidden)}};
  const double weights = root_mean_square(n.d_losses);
  if (c.d_hidden)
    all.push_back({"d_hidden", exact.d_hidden, naive.d_hidden, c.dtype, weights * root_mean_square(n.weight)});
  if (c.d_weight)
    all.push_back({"d_weight", exact.d_weight, naive.d_weight, c.gradient_dtype, weights * root_mean_square(n.hidden)});
  return all;
}

Run run(Context& context, const LossCase& c, const Variation& variation) {
  const auto& table = context.table<fvlm_loss_v1>();
  const Numbers n = numbers_of(c);
  Workbench bench(context, variation);
  if (!bench.begin(table, query_of(c, context.device))) return bench.finish();

  Operand &hidden = bench.input("hidden", n.hidden), &weight = bench.input("weight", n.weight);
  Operand& targets = bench.input("targets", n.targets, Rows::contiguous);
  Operand& losses = bench.output("losses", {c.tokens}, at_least_float(c.dtype), Rows::contiguous);
  std::vector<Operand*> saved;
  if (!c.fused) {
    if (c.d_hidden || c.d_weight) saved = bench.saved("saved");
    fvlm_loss_forward forward{};
    forward.hidden = hidden.abi(), forward.weight = weight.abi(), forward.targets = targets.abi();
    forward.losses = losses.abi();
    for (size_t i = 0; i < saved.size(); ++i) forward.saved[i] = saved[i]->abi();
    bench.call("forward", bench.required().forward_workspace, table.forward, forward);
    if ((!c.d_hidden && !c.d_weight) || !bench.can_continue()) return bench.finish();
  }

  Operand& d_losses = bench.input("d_losses", n.d_losses, Rows::contiguous);
  Operand *d_hidden = nullptr, *d_weight = nullptr;
  if (c.d_hidden) d_hidden = &bench.output("d_hidden", n.hidden.sizes(), c.dtype);
  if (c.d_weight)
    d_weight = c.accumulate ? &bench.updated("d_weight", n.held)
                            : &bench.output("d_weight", n.held.sizes(), c.gradient_dtype, Rows::contiguous);
  if (c.fused) {
    bench.call("fused", bench.required().backward_workspace, table.fused,
               fvlm_loss_fused{0, c.accumulate, hidden.abi(), weight.abi(), targets.abi(), d_losses.abi(), losses.abi(),
                               abi_of(d_hidden), abi_of(d_weight)});
    return bench.finish();
  }
  fvlm_loss_backward backward{};
  backward.accumulate_d_weight = c.accumulate;
  backward.hidden = hidden.abi(), backward.weight = weight.abi(), backward.targets = targets.abi();
  backward.d_losses = d_losses.abi();
  for (size_t i = 0; i < saved.size(); ++i) backward.saved[i] = saved[i]->abi();
  backward.d_hidden = abi_of(d_hidden);
  backward.d_weight = abi_of(d_weight);
  bench.call("backward", bench.required().backward_workspace, table.backward, backward);
  return bench.finish();
}

std::string label(const LossCase& c) {
  std::string text = fmt::format("{} {} x {} x {}", name_of(c.dtype), c.tokens, c.width, c.vocab);
  if (c.fused) text += " fused";
  if (c.gradient_dtype != c.dtype) text += fmt::format(", d_weight {}", name_of(c.gradient_dtype));
  if (c.accumulate) text += ", accumulating";
  if (!c.d_hidden) text += ", no d_hidden";
  if (!c.d_weight) text += ", no d_weight";
  if (c.softcap != 0) text += fmt::format(", softcap {}", c.softcap);
  if (c.targets == Targets::none) text += ", no targets";
  return text;
}

} // namespace

Trial loss_trial(const LossCase& c) {
  Trial trial;
  trial.label = label(c);
  trial.supports = [c](Context& context) {
    const auto& table = context.table<fvlm_loss_v1>();
    fvlm_support answer = query_support(table.supports, query_of(c, context.device));
    if (c.fused && !table.fused) fvlm_answer(&answer, 0, "fused is not offered");
    return answer;
  };
  trial.run = [c](Context& context, const Variation& variation) { return run(context, c, variation); };
  trial.expect = once([c] { return expect(c); });
  return trial;
}

std::vector<Trial> loss_cases(const std::vector<LossCase>& cases) {
  return trials_of(cases, loss_trial);
}

at::ScalarType loss_dtype(Context& context) {
  return first_supported_dtype(context,
                               [](auto dtype) { return loss_trial({.dtype = dtype, .gradient_dtype = dtype}); });
}

std::vector<Trial> loss_trials(Context& context) {
  const auto dtype = loss_dtype(context);
  auto trials = loss_cases({{.dtype = dtype, .gradient_dtype = dtype},
                            {.dtype = dtype, .gradient_dtype = dtype, .tokens = 70, .width = 32, .vocab = 160}});
  if (context.table<fvlm_loss_v1>().fused)
    trials.push_back(loss_trial({.dtype = dtype, .gradient_dtype = dtype, .fused = true}));
  return trials;
}

std::vector<Trial> loss_odd_trials(Context& context) {
  const auto dtype = loss_dtype(context);
  auto trials = loss_cases(
      {{.dtype = dtype, .gradient_dtype = dtype, .tokens = 13, .width = 29, .vocab = 47},
       {.dtype = dtype, .gradient_dtype = dtype, .tokens = 3, .width = 5, .vocab = 9},
       {.dtype = dtype, .gradient_dtype = dtype, .tokens = 11, .width = 7, .vocab = 33, .targets = Targets::some}});
  if (context.table<fvlm_loss_v1>().fused)
    trials.push_back(
        loss_trial({.dtype = dtype, .gradient_dtype = dtype, .tokens = 13, .width = 29, .vocab = 47, .fused = true}));
  return trials;
}

std::vector<Trial> loss_parallel_trials(Context& context) {
  const auto dtype = loss_dtype(context);
  auto trials = loss_cases({{.dtype = dtype, .gradient_dtype = dtype, .tokens = 130, .width = 24, .vocab = 300}});
  if (context.table<fvlm_loss_v1>().fused)
    trials.push_back(
        loss_trial({.dtype = dtype, .gradient_dtype = dtype, .tokens = 100, .width = 20, .vocab = 260, .fused = true}));
  return trials;
}

std::vector<Trial> loss_sweep(Context& context) {
  std::vector<LossCase> cases;
  for (auto dtype : floating)
    for (auto gradient : {dtype, at::kFloat})
      for (int64_t width : {1, 7, 64, 100})
        cases.push_back({.dtype = dtype, .gradient_dtype = gradient, .tokens = 9, .width = width, .vocab = 33});
  cases.push_back({.gradient_dtype = at::kBFloat16});
  cases.push_back({.d_hidden = false});
  cases.push_back({.d_weight = false});
  cases.push_back({.d_hidden = false, .d_weight = false});
  cases.push_back({.vocab = 3000});
  cases.push_back({.tokens = 300});
  cases.push_back({.width = 1000});
  if (context.table<fvlm_loss_v1>().fused) cases.push_back({.fused = true});
  return loss_cases(cases);
}

} // namespace fvlm::check
