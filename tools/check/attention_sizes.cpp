// Attention at all sizes up to those of the bundled recipes, varying one dimension at a time.
#include "check/attention.h"
#include "check/generic.h"
#include "check/sizes.h"

#include <algorithm>

namespace fvlm::check {
namespace {

using Sizes = std::vector<int64_t>;

// In the plugin's own dtype, and also in bfloat16 if the plugin supports it.
Outcome sized(Context& context, const std::vector<AttentionCase>& cases) {
  const auto own = attention_dtype(context);
  std::vector<at::ScalarType> dtypes{own};
  if (own != at::kBFloat16) dtypes.push_back(at::kBFloat16);
  const auto longest = [](const Sizes& lengths) { return *std::ranges::max_element(lengths); };
  std::vector<Trial> trials;
  for (AttentionCase one : cases)
    for (const auto dtype : dtypes) {
      one.dtype = dtype;
      trials.push_back(with_sums_of(std::max(longest(one.lengths_q), longest(one.kv())), attention_trial(one)));
    }
  return expect_correct(context, trials);
}

Outcome long_queries(Context& context) {
  std::vector<AttentionCase> all;
  for (const int64_t length : just_above(4, 13))
    all.push_back({.heads_q = 1, .heads_kv = 1, .head_dim = 8, .lengths_q = {length}, .lengths_kv = {3}});
  for (const int64_t length : tiles_above(7, 13))
    all.push_back(
        {.causal = true, .heads_q = 2, .heads_kv = 1, .head_dim = 16, .lengths_q = {3, length}, .lengths_kv = {2, 70}});
  return sized(context, all);
}

Outcome long_keys(Context& context) {
  std::vector<AttentionCase> all;
  for (const int64_t length : just_above(4, 13))
    all.push_back({.heads_q = 1, .heads_kv = 1, .head_dim = 8, .lengths_q = {3}, .lengths_kv = {length}});
  for (const int64_t length : tiles_above(7, 13))
    all.push_back(
        {.causal = true, .heads_q = 2, .heads_kv = 1, .head_dim = 16, .lengths_q = {3, 2}, .lengths_kv = {4, length}});
  return sized(context, all);
}

Outcome long_segments(Context& context) {
  std::vector<AttentionCase> all;
  for (const int64_t length : just_above(4, 11)) {
    all.push_back({.causal = length % 3 == 0, .heads_q = 1, .heads_kv = 1, .head_dim = 8, .lengths_q = {length}});
    all.push_back({.causal = length % 3 != 0, .heads_q = 1, .heads_kv = 1, .head_dim = 8, .lengths_q = {length}});
  }
  all.push_back({.heads_q = 1, .heads_kv = 1, .head_dim = 8, .lengths_q = {1025, 1025}, .uniform_lengths = true});
  return sized(context, all);
}

Outcome more_heads(Context& context) {
  std::vector<AttentionCase> all;
  for (const int64_t heads : {3, 5, 9, 12, 16, 17, 24, 32, 33, 48, 64, 65, 96, 128, 129}) {
    const int count = static_cast<int>(heads);
    all.push_back({.heads_q = count, .heads_kv = count, .head_dim = 8, .lengths_q = {5, 3}});
    all.push_back({.causal = true, .heads_q = count, .heads_kv = 1, .head_dim = 8, .lengths_q = {5, 3}});
  }
  return sized(context, all);
}

Outcome more_groups(Context& context) {
  std::vector<AttentionCase> all;
  for (const int groups : {2, 3, 4, 5, 6, 8, 9, 16, 17, 32, 33})
    for (const int sharing : {2, 3})
      all.push_back({.heads_q = groups * sharing, .heads_kv = groups, .head_dim = 8, .lengths_q = {6, 4}});
  for (const int sharing : {4, 5, 7, 8, 9, 16, 17, 32, 33})
    all.push_back({.causal = true, .heads_q = 2 * sharing, .heads_kv = 2, .head_dim = 8, .lengths_q = {6, 4}});
  return sized(context, all);
}

Outcome more_segments(Context& context) {
  std::vector<AttentionCase> all;
  for (const int64_t segments : {9, 17, 33, 65, 129, 257, 513, 1025, 4097}) {
    Sizes lengths, others;
    for (int64_t s = 0; s < segments; ++s) {
      lengths.push_back(s + 1 == segments ? 3 : s * 7 % 4);
      others.push_back(s + 1 == segments ? 2 : s * 5 % 3);
    }
    // The formula's gradients take a dozen operations for each segment.
    all.push_back({.causal = true,
                   .heads_q = 1,
                   .heads_kv = 1,
                   .head_dim = 8,
                   .lengths_q = lengths,
                   .backward = segments < 1100});
    if (segments > 600) continue;
    all.push_back({.heads_q = 2,
                   .heads_kv = 1,
                   .head_dim = 8,
                   .lengths_q = lengths,
                   .lengths_kv = others,
                   .padding_q = 3,
                   .padding_kv = 2,
                   .spare_segments = 3});
    if (segments > 300) continue;
    all.push_back({.heads_q = 1,
                   .heads_kv = 1,
                   .head_dim = 8,
                   .lengths_q = Sizes(static_cast<size_t>(segments), 3),
                   .uniform_lengths = true});
    all.push_back({.heads_q = 1,
                   .heads_kv = 1,
                   .head_dim = 64,
                   .lengths_q = Sizes(static_cast<size_t>(segments), 2),
                   .extra_queries = Sizes(static_cast<size_t>(segments), 1)});
    all.push_back({.heads_q = 1,
                   .heads_kv = 1,
                   .head_dim = 64,
                   .lengths_q = Sizes(static_cast<size_t>(segments), 1),
                   .lengths_kv = Sizes(static_cast<size_t>(segments), 3),
                   .dq_only = true});
  }
  return sized(context, all);
}

Outcome more_padding(Context& context) {
  std::vector<AttentionCase> all;
  for (const int64_t rows : just_above(4, 14))
    all.push_back(
        {.heads_q = 1, .heads_kv = 1, .head_dim = 8, .lengths_q = {3, 4}, .padding_q = rows, .padding_kv = rows + 2});
  for (const int64_t segments : just_above(4, 12))
    all.push_back(
        {.causal = true, .heads_q = 1, .heads_kv = 1, .head_dim = 8, .lengths_q = {3, 4}, .spare_segments = segments});
  return sized(context, all);
}

Outcome wider_heads(Context& context) {
  std::vector<AttentionCase> all;
  for (const int head_dim : {3, 5, 9, 17, 33, 48, 65, 112, 129, 160, 200, 255, 256, 257, 512})
    all.push_back({.heads_q = 2, .heads_kv = 1, .head_dim = head_dim, .lengths_q = {7, 5}});
  return sized(context, all);
}

Outcome far_positions(Context& context) {
  std::vector<AttentionCase> all;
  for (const int64_t position : just_above(4, 14))
    all.push_back({.causal = true,
                   .heads_q = 2,
                   .heads_kv = 1,
                   .lengths_q = {3, 5},
                   .rotary_dim = 64,
                   .first_position = position,
                   .rope_theta = 100000});
  all.push_back({.causal = true,
                 .heads_q = 1,
                 .heads_kv = 1,
                 .lengths_q = {2},
                 .lengths_kv = {8193},
                 .rotary_dim = 64,
                 .first_position = 8191});
  return sized(context, all);
}

Outcome windows(Context& context) {
  std::vector<AttentionCase> all;
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const int window : {1, 16, 100})
      for (AttentionCase one :
           {AttentionCase{.lengths_q = {5, 17, 9, 150, 300}},
            {.heads_q = 4, .heads_kv = 1, .head_dim = 128, .lengths_q = {70, 70}, .padding_q = 9, .padding_kv = 9},
            {.heads_q = 4, .heads_kv = 1, .head_dim = 256, .lengths_q = {0, 257, 31}},
            {.lengths_q = {300, 300}, .uniform_lengths = true}}) {
        one.dtype = dtype, one.causal = true, one.window = window;
        if (refusal(context, attention_trial(one)).empty()) all.push_back(one);
      }
  if (all.empty()) return not_applicable(refusal(context, attention_trial({.causal = true, .window = 16})));
  return expect_correct(context, attention_cases(all));
}

// CLIP-L at 336 pixels, SigLIP at 512 and so400m at 378, a resampler, a byte encoder, and a decoder with heads of 128.
Outcome model_shapes(Context& context) {
  return sized(context, {{.lengths_q = {577, 577}, .uniform_lengths = true},
                         {.lengths_q = {1024, 1024}, .uniform_lengths = true},
                         {.head_dim = 72, .lengths_q = {729, 729}, .uniform_lengths = true},
                         {.head_dim = 128, .lengths_q = {64, 64}, .lengths_kv = {577, 577}, .uniform_lengths = true},
                         {.head_dim = 32, .lengths_q = {512, 300, 77}, .scale = 0.3},
                         {.causal = true, .heads_q = 4, .head_dim = 128, .lengths_q = {192, 192}, .scale = 0.1}});
}

} // namespace

std::vector<Check> attention_size_checks(const std::string& needs) {
  const auto row = [&](const char* name, const char* proves, Outcome (*run)(Context&), const char* more = "") {
    return Check{name, proves, run, needs + more, Extent::thorough};
  };
  return {
      row("long_queries", "segments of up to 8,193 queries on few keys", long_queries),
      row("long_keys", "segments of up to 8,193 keys for few queries", long_keys),
      row("long_segments", "segments of up to 2,049 rows, causal and not", long_segments),
      row("more_heads", "up to 129 heads", more_heads),
      row("more_groups", "up to 33 key heads, each shared by up to 33 query heads", more_groups, ",groups"),
      row("more_segments", "up to 4,097 segments", more_segments),
      row("more_padding", "up to 16,385 rows of padding and 4,097 spare segments", more_padding, ",padding_zeroed"),
      row("wider_heads", "head_dim up to 512, as far as supports() says yes", wider_heads),
      Check{"windows", "a query sees the last keys up to its own alone, where features say so", windows,
            needs + ",causal"},
      row("model_shapes", "sizes of vision encoders, resamplers and decoders", model_shapes),
      row("far_positions", "rotated by positions up to 16,385, where offered", far_positions, ",rotary"),
  };
}

} // namespace fvlm::check
