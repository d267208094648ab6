// Losses at all sizes up to those of the bundled recipes, varying one dimension at a time.
#include "check/generic.h"
#include "check/loss.h"
#include "check/sizes.h"

#include <algorithm>

namespace fvlm::check {
namespace {

// In the plugin's own dtype, and also in bfloat16 if supported; with separate calls and with `fused`.
Outcome sized(Context& context, const std::vector<LossCase>& cases) {
  const auto own = loss_dtype(context);
  std::vector<at::ScalarType> dtypes{own};
  if (own != at::kBFloat16) dtypes.push_back(at::kBFloat16);
  std::vector<Trial> trials;
  for (LossCase one : cases)
    for (const auto dtype : dtypes)
      for (const bool fused : {false, true}) {
        one.dtype = dtype, one.fused = fused;
        one.gradient_dtype = dtype == own ? dtype : at::kFloat;
        trials.push_back(with_sums_of(std::max({one.tokens, one.width, one.vocab}), loss_trial(one)));
      }
  return expect_correct(context, trials);
}

Outcome vocabularies(Context& context) {
  std::vector<LossCase> all;
  for (const int64_t vocab : just_above(1, 17))
    all.push_back({.tokens = 3, .width = 5, .vocab = vocab, .large_logits_from = vocab - 1});
  for (const int64_t vocab : tiles_above(7, 17))
    all.push_back({.tokens = 5,
                   .width = 8,
                   .vocab = vocab,
                   .targets = Targets::last,
                   .accumulate = true,
                   .large_logits_from = vocab - 64});
  return sized(context, all);
}

Outcome token_counts(Context& context) {
  std::vector<LossCase> all;
  for (const int64_t tokens : just_above(4, 16)) all.push_back({.tokens = tokens, .width = 4, .vocab = 5});
  for (const int64_t tokens : tiles_above(7, 14))
    all.push_back({.tokens = tokens,
                   .width = 8,
                   .vocab = 16,
                   .targets = Targets::some,
                   .accumulate = true,
                   .signed_weights = true});
  return sized(context, all);
}

Outcome widths(Context& context) {
  std::vector<LossCase> all;
  for (const int64_t width : just_above(1, 13)) all.push_back({.tokens = 3, .width = width, .vocab = 7});
  for (const int64_t width : tiles_above(7, 13))
    all.push_back({.tokens = 5, .width = width, .vocab = 16, .accumulate = true});
  return sized(context, all);
}

Outcome shipped_vocabulary(Context& context) {
  return sized(context,
               {{.tokens = 70, .width = 12, .vocab = 49152, .targets = Targets::some, .large_logits_from = 49100}});
}

} // namespace

std::vector<Check> loss_size_checks(const std::string& needs) {
  const auto row = [&](const char* name, const char* proves, Outcome (*run)(Context&), const char* more = "") {
    return Check{name, proves, run, needs + more, Extent::thorough};
  };
  return {
      row("vocabularies", "up to 131,136 words, with much of the probability on the last of them", vocabularies,
          ",accumulates"),
      row("token_counts", "up to 65,537 tokens", token_counts, ",accumulates,ignored"),
      row("widths", "up to 8,256 features", widths, ",accumulates"),
      row("shipped_vocabulary", "49,152 words, 70 tokens", shipped_vocabulary, ",ignored"),
  };
}

} // namespace fvlm::check
