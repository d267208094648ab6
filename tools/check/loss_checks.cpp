// Checks of loss plugins, one property per row.
#include "check/families.h"
#include "check/formulas.h"
#include "check/generic.h"
#include "check/invalid_queries.h"
#include "check/loss.h"
#include "check/operand.h"

#include <ATen/core/Tensor.h>

namespace fvlm::check {
namespace {

// In the plugin's own dtype, d_weight too, unless a case sets another.
Outcome cases(Context& context, std::vector<LossCase> all) {
  const auto dtype = loss_dtype(context);
  for (auto& one : all) one.dtype = one.gradient_dtype = dtype;
  return expect_correct(context, loss_cases(all));
}

template <at::ScalarType dtype>
Outcome forward(Context& context) {
  return expect_correct(context,
                        loss_cases({{.dtype = dtype, .gradient_dtype = dtype, .d_hidden = false, .d_weight = false},
                                    {.dtype = dtype,
                                     .gradient_dtype = dtype,
                                     .tokens = 65,
                                     .width = 100,
                                     .vocab = 200,
                                     .d_hidden = false,
                                     .d_weight = false}}));
}

template <at::ScalarType dtype>
Outcome backward(Context& context) {
  return expect_correct(
      context, loss_cases({{.dtype = dtype, .gradient_dtype = dtype},
                           {.dtype = dtype, .gradient_dtype = dtype, .tokens = 65, .width = 100, .vocab = 200}}));
}

Outcome fused(Context& context) {
  return cases(context, {{.fused = true},
                         {.targets = Targets::some, .fused = true},
                         {.accumulate = true, .fused = true},
                         {.d_weight = false, .fused = true},
                         {.tokens = 100, .width = 33, .vocab = 301, .fused = true}});
}

Outcome gradient_float32(Context& context) {
  for (auto dtype : {at::kBFloat16, at::kHalf}) {
    auto trials = loss_cases({{.dtype = dtype},
                              {.dtype = dtype, .accumulate = true},
                              {.dtype = dtype, .tokens = 300, .width = 200, .vocab = 1500, .accumulate = true}});
    if (refusal(context, trials[0]).empty()) return expect_correct(context, trials);
  }
  return not_applicable("neither bfloat16 nor float16 with d_weight in float32 is supported");
}

Outcome d_losses_weigh(Context& context) {
  return cases(context, {{.signed_weights = true}, {.tokens = 60, .signed_weights = true, .seed = 9}});
}

Outcome accumulates(Context& context) {
  return cases(context, {{.accumulate = true}, {.tokens = 100, .vocab = 7, .accumulate = true}});
}

Outcome ignored(Context& context) {
  return cases(context, {{.targets = Targets::some}, {.tokens = 50, .targets = Targets::some}});
}

Outcome ignored_nan(Context& context) {
  return cases(context, {{.targets = Targets::some, .ignored_nan = true},
                         {.tokens = 50, .targets = Targets::some, .accumulate = true, .ignored_nan = true}});
}

Outcome all_ignored(Context& context) {
  return cases(context, {{.targets = Targets::none}, {.tokens = 3, .targets = Targets::none}});
}

Outcome all_ignored_accumulating(Context& context) {
  return cases(context, {{.targets = Targets::none, .accumulate = true}});
}

Outcome equal_logits(Context& context) {
  return cases(context,
               {{.magnitude = 0},
                {.tokens = 7, .vocab = 2, .magnitude = 0},
                {.paired_words = true},
                {.tokens = 3, .vocab = 40, .targets = Targets::last, .paired_words = true, .large_logits_from = 36},
                {.tokens = 5, .vocab = 33, .magnitude = 100, .paired_words = true}});
}

Outcome last_target(Context& context) {
  return cases(context, {{.targets = Targets::last}, {.vocab = 129, .targets = Targets::last}});
}

Outcome no_tokens(Context& context) {
  return cases(context, {{.tokens = 0}, {.tokens = 0, .accumulate = true}});
}

Outcome one_token(Context& context) {
  return cases(context, {{.tokens = 1}, {.tokens = 1, .targets = Targets::none}});
}

Outcome one_word(Context& context) {
  return cases(context, {{.vocab = 1}});
}

Outcome width_one(Context& context) {
  return cases(context, {{.width = 1}, {.tokens = 1, .width = 1, .vocab = 2}});
}

Outcome odd_sizes(Context& context) {
  return cases(context, {{.tokens = 31, .width = 65, .vocab = 97},
                         {.tokens = 257, .width = 9, .vocab = 1003},
                         {.tokens = 5, .width = 127, .vocab = 2049}});
}

Outcome large_vocabulary(Context& context) {
  return cases(context, {{.tokens = 130, .width = 16, .vocab = 20011}});
}

Outcome many_logits(Context& context) {
  const Outcome alone = cases(context, {{.tokens = 2800, .width = 16, .vocab = 5003, .seed = 3}});
  if (alone.state != State::ok || !context.table<fvlm_loss_v1>().fused) return alone;
  return cases(context, {{.tokens = 2800, .width = 16, .vocab = 5003, .fused = true, .seed = 3}});
}

Outcome large_logits(Context& context) {
  return cases(context, {{.magnitude = 300}});
}

// Queries with a softcap are put only to plugins that say that they know it.
Outcome softcap(Context& context) {
  const auto& table = context.table<fvlm_loss_v1>();
  if (!(table.features & FVLM_LOSS_SOFTCAP)) return not_applicable("features lacks FVLM_LOSS_SOFTCAP");
  std::vector<LossCase> all;
  for (const bool fused : {false, true}) {
    if (fused && !table.fused) continue;
    all.push_back({.targets = Targets::some, .fused = fused, .magnitude = 3, .softcap = 2});
    all.push_back({.tokens = 31, .width = 65, .vocab = 97, .fused = fused, .magnitude = 20, .softcap = 15});
    all.push_back({.tokens = 600, .width = 16, .vocab = 1003, .accumulate = true, .fused = fused, .softcap = 30});
  }
  const auto dtype = loss_dtype(context);
  for (LossCase& one : all) one.dtype = one.gradient_dtype = dtype;
  if (const std::string no = refusal(context, loss_trial(all.front())); !no.empty()) return not_applicable(no);
  for (const bool fused : {false, true}) {
    LossCase narrow{.dtype = at::kBFloat16, .tokens = 300, .width = 200, .vocab = 1500, .fused = fused, .softcap = 3};
    if (refusal(context, loss_trial(narrow)).empty()) all.push_back(narrow); // with d_weight in float32
  }
  return expect_correct(context, loss_cases(all));
}

Outcome frozen_head(Context& context) {
  return cases(context, {{.d_weight = false}, {.tokens = 90, .d_weight = false}});
}

Outcome head_alone(Context& context) {
  return cases(context, {{.d_hidden = false}, {.tokens = 90, .d_hidden = false}});
}

Outcome nonsense(Context& context) {
  fvlm_loss_query good{};
  good.struct_size = sizeof good;
  good.needs_d_hidden = good.needs_d_weight = 1;
  good.device = device_of(context.device);
  good.dtype = good.gradient_dtype = dtype_of(loss_dtype(context));
  good.tokens = 16, good.width = 64, good.vocab = 100;
  InvalidQueries<fvlm_loss_query> nonsense;
  nonsense.add_usual(good, &fvlm_loss_query::dtype);
  nonsense.add("with d_weight in integers", good, [](auto& q) { q.gradient_dtype = {FVLM_INT, 32, 1}; });
  return nonsense.refused_by(context.table<fvlm_loss_v1>().supports);
}

Outcome mixtures(Context& context) {
  std::vector<LossCase> all;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    auto draw = [&, turn = uint64_t{0}](int64_t limit) mutable {
      return random_integers({1}, seed * 1000 + turn++, limit, at::kLong).item<int64_t>();
    };
    LossCase one;
    one.tokens = draw(150), one.width = 1 + draw(90), one.vocab = 1 + draw(700);
    one.targets = static_cast<Targets>(draw(4));
    one.d_hidden = draw(4) > 0, one.d_weight = draw(4) > 0;
    one.accumulate = draw(2);
    one.fused = context.table<fvlm_loss_v1>().fused && draw(2);
    one.ignored_nan = draw(2), one.signed_weights = draw(2);
    one.seed = seed;
    all.push_back(one);
  }
  return cases(context, all);
}

} // namespace

Table loss_table() {
  Table table{"loss", {}, loss_benchmarks()};
  const std::string plain = "forward_*,backward_*";
  append(table.checks,
         {
             {"forward_float32", "losses agree with float64, in float32", forward<at::kFloat>},
             {"forward_bfloat16", "losses agree with float64, in bfloat16", forward<at::kBFloat16>},
             {"forward_float16", "losses agree with float64, in float16", forward<at::kHalf>},
             {"forward_float64", "losses agree with float64, in float64", forward<at::kDouble>},
             {"backward_float32", "gradients agree with autograd in float64, in float32", backward<at::kFloat>,
              "forward_*"},
             {"backward_bfloat16", "gradients agree with autograd in float64, in bfloat16", backward<at::kBFloat16>,
              "forward_*"},
             {"backward_float16", "gradients agree with autograd in float64, in float16", backward<at::kHalf>,
              "forward_*"},
             {"backward_float64", "gradients agree with autograd in float64, in float64", backward<at::kDouble>,
              "forward_*"},
             {"d_losses_weigh", "each token's gradient is weighed by its d_losses, zeros and negative ones too",
              d_losses_weigh, plain},
             {"gradient_float32", "d_weight in float32 beside activations of 16 bits", gradient_float32, plain},
             {"accumulates", "d_weight is added to where the call says so", accumulates, plain},
             {"ignored", "a token without a target has loss 0 and gradient 0", ignored, plain},
             {"ignored_nan", "NaN in rows without a target stays there", ignored_nan, plain + ",ignored,accumulates"},
             {"all_ignored", "no target at all: losses and gradients 0", all_ignored, plain + ",ignored"},
             {"all_ignored_accumulating", "no target at all leaves what d_weight held", all_ignored_accumulating,
              plain + ",ignored,accumulates"},
             {"fused", "fused gives what forward and backward give", fused, plain + ",ignored,accumulates"},
             {"last_target", "the last word of the vocabulary as target", last_target, plain},
             {"equal_logits", "logits that are equal, the largest and the target's among them", equal_logits, plain},
             {"no_tokens", "no tokens: d_weight becomes 0, or stays where it is added to", no_tokens,
              plain + ",accumulates"},
             {"one_token", "a single token", one_token, plain},
             {"one_word", "a vocabulary of one word: loss 0 and gradient 0", one_word, plain},
             {"width_one", "width 1", width_one, plain},
             {"odd_sizes", "sizes that no vector or tile divides", odd_sizes, plain},
             {"large_vocabulary", "a vocabulary of 20,011 words", large_vocabulary, plain},
             {"many_logits", "14 million logits: more than a chunk", many_logits, plain},
             {"large_logits", "logits in the hundreds do not overflow", large_logits, plain},
             {"softcap", "logits are bounded by the query's softcap, where supports() says so", softcap, plain},
             {"frozen_head", "d_weight not wanted", frozen_head, plain},
             {"head_alone", "d_hidden not wanted", head_alone, plain},
             {"supports_nonsense", "supports() refuses impossible queries", nonsense},
         });
  append(table.checks, loss_size_checks(plain));
  append(table.checks, generic_checks(plain));
  append(table.checks, {{"mixtures", "20 random mixtures of all the above", mixtures, "*"}});
  return table;
}

} // namespace fvlm::check
