// Checks of attention plugins, one property per row.
#include "check/attention.h"
#include "check/families.h"
#include "check/formulas.h"
#include "check/generic.h"
#include "check/invalid_queries.h"
#include "check/operand.h"

#include <ATen/core/Tensor.h>

#include <limits>
#include <tuple>

namespace fvlm::check {
namespace {

using Lengths = std::vector<int64_t>;

// Cases in the plugin's own dtype, for rows that do not test dtypes.
Outcome cases(Context& context, std::vector<AttentionCase> all) {
  const auto dtype = attention_dtype(context);
  for (auto& one : all) one.dtype = dtype;
  return expect_correct(context, attention_cases(all));
}

template <at::ScalarType dtype, bool backward>
Outcome numbers(Context& context) {
  return expect_correct(context,
                        attention_cases({{.dtype = dtype, .backward = backward},
                                         {.dtype = dtype, .lengths_q = {64, 31}, .backward = backward, .seed = 2}}));
}

Outcome causal(Context& context) {
  return cases(context, {{.causal = true}, {.causal = true, .lengths_q = {1, 64, 65, 40}}});
}

Outcome causal_bottom_right(Context& context) {
  return cases(context, {{.causal = true, .lengths_q = {5, 17, 3}, .lengths_kv = {9, 40, 70}},
                         {.causal = true, .lengths_q = {9, 40, 70}, .lengths_kv = {5, 17, 3}},
                         {.causal = true, .lengths_q = {1, 1}, .lengths_kv = {90, 1}},
                         {.causal = true, .lengths_q = {150, 150}, .lengths_kv = {200, 200}, .uniform_lengths = true}});
}

Outcome lengths_differ(Context& context) {
  return cases(context, {{.lengths_q = {5, 17, 3}, .lengths_kv = {9, 40, 70}},
                         {.lengths_q = {9, 40, 70}, .lengths_kv = {5, 17, 3}},
                         {.lengths_q = {1, 1, 1}, .lengths_kv = {64, 3, 100}}});
}

Outcome groups(Context& context) {
  return cases(context, {{.heads_q = 6, .heads_kv = 2},
                         {.heads_q = 9, .heads_kv = 3, .lengths_q = {12, 20}},
                         {.heads_q = 8, .heads_kv = 1, .lengths_q = {12, 20}}});
}

Outcome odd_heads(Context& context) {
  return cases(context, {{.heads_q = 1, .heads_kv = 1},
                         {.heads_q = 3, .heads_kv = 3},
                         {.heads_q = 5, .heads_kv = 5},
                         {.heads_q = 7, .heads_kv = 7, .lengths_q = {4}}});
}

Outcome head_dims(Context& context) {
  std::vector<AttentionCase> all;
  for (int head_dim : {1, 2, 7, 8, 16, 24, 32, 33, 40, 72, 80, 96, 100, 127, 128, 192, 256})
    all.push_back({.head_dim = head_dim, .lengths_q = {9, 6}});
  return cases(context, all);
}

Outcome scale(Context& context) {
  return cases(context, {{.scale = 0.37}, {.scale = 0.01}, {.causal = true, .scale = 1}});
}

Outcome one_token(Context& context) {
  return cases(context, {{.lengths_q = {1}}, {.causal = true, .lengths_q = {1}}, {.lengths_q = {1, 1, 1, 1, 1}}});
}

Outcome one_segment(Context& context) {
  return cases(context, {{.lengths_q = {8}}, {.lengths_q = {300}}, {.causal = true, .lengths_q = {257}}});
}

Outcome empty_first(Context& context) {
  return cases(context, {{.lengths_q = {0, 7, 9}}, {.causal = true, .lengths_q = {0, 0, 9}}});
}
Outcome empty_middle(Context& context) {
  return cases(context, {{.lengths_q = {7, 0, 9}}, {.causal = true, .lengths_q = {7, 0, 0, 9}}});
}
Outcome empty_last(Context& context) {
  return cases(context, {{.lengths_q = {7, 9, 0}}, {.causal = true, .lengths_q = {7, 9}, .spare_segments = 3}});
}

Outcome no_keys(Context& context) {
  return cases(context, {{.lengths_q = {4, 7, 3}, .lengths_kv = {6, 0, 5}}, {.lengths_q = {4}, .lengths_kv = {0}}});
}
Outcome no_queries(Context& context) {
  return cases(context, {{.lengths_q = {4, 0, 3}, .lengths_kv = {6, 8, 5}}, {.lengths_q = {0}, .lengths_kv = {5}}});
}

Outcome zero_rows(Context& context) {
  return cases(context,
               {{.lengths_q = {0}}, {.lengths_q = {0, 0}, .spare_segments = 2}, {.causal = true, .lengths_q = {0}}});
}

Outcome many_segments(Context& context) {
  Lengths lengths;
  for (int64_t s = 0; s < 64; ++s) lengths.push_back(s * 7 % 13);
  return cases(context, {{.lengths_q = lengths}, {.causal = true, .heads_q = 3, .heads_kv = 3, .lengths_q = lengths}});
}

// Shapes of uniform lengths, for which plugins have kernels of their own; some declare it by the query's `even`.
Outcome even(Context& context) {
  return cases(context,
               {{.lengths_q = {70, 70, 70}},
                {.lengths_q = {70, 70, 0}, .padding_q = 70, .padding_kv = 70},
                {.heads_q = 6, .heads_kv = 3, .lengths_q = {70, 70}, .lengths_kv = {90, 90}},
                {.lengths_q = {70, 35}, .padding_q = 35, .padding_kv = 35},
                {.heads_q = 6, .heads_kv = 3, .lengths_q = {35, 70, 0}, .padding_q = 105, .padding_kv = 105},
                {.lengths_q = {70, 0}, .lengths_kv = {0, 90}, .padding_q = 70, .padding_kv = 90},
                {.causal = true, .lengths_q = {70, 70}},
                {.causal = true, .lengths_q = {70, 35}, .padding_q = 35, .padding_kv = 35},
                {.lengths_q = {70, 70, 70}, .uniform_lengths = true},
                {.heads_q = 6, .heads_kv = 3, .lengths_q = {70, 70}, .lengths_kv = {90, 90}, .uniform_lengths = true},
                {.causal = true, .lengths_q = {70, 70}, .spare_segments = 3, .uniform_lengths = true},
                {.causal = true, .lengths_q = {3, 3}, .uniform_lengths = true}});
}

// Query rows appended to a frame's patches, whose keys no query reads. The last two cases only have such sizes.
Outcome shared_rows(Context& context) {
  return cases(context, {{.lengths_q = {71, 0, 71, 0}, .lengths_kv = {70, 1, 70, 1}},
                         {.heads_q = 6, .heads_kv = 3, .lengths_q = {90, 0, 90, 0}, .lengths_kv = {70, 20, 70, 20}},
                         {.lengths_q = {71, 0, 0, 0}, .lengths_kv = {70, 1, 0, 0}, .padding_q = 71, .padding_kv = 71},
                         {.lengths_q = {1, 0, 1, 0}, .lengths_kv = {70, 1, 70, 1}},
                         {.lengths_q = {71, 0, 35, 36}, .lengths_kv = {70, 1, 70, 1}},
                         {.lengths_q = {71, 0, 71, 0}, .lengths_kv = {69, 2, 70, 1}}});
}

// More heads than a GPU works on at once: of long segments, then of segments whose only query is an extra one.
AttentionCase many_guests() {
  AttentionCase many{.heads_q = 16, .heads_kv = 16, .lengths_q = {}};
  for (int i = 0; i < 16; ++i) {
    const bool is_long = i < 8;
    many.lengths_q.push_back(is_long ? 200 : 0);
    many.lengths_kv.push_back(is_long ? 30 + 120 * (i % 2) : 1 + i);
    many.extra_queries.push_back(1);
  }
  return many;
}

// An extra query in some segments and none in others, which adds to the gradients of the segment's keys.
Outcome guests(Context& context) {
  std::vector<AttentionCase> all{
      {.extra_queries = {1, 1, 1}},
      {.lengths_q = {20, 0, 33, 7}, .lengths_kv = {30, 9, 0, 7}, .extra_queries = {1, 1, 0, 0}},
      {.lengths_q = {71, 0, 71, 0}, .lengths_kv = {70, 1, 70, 1}, .extra_queries = {1, 0, 1, 0}},
      {.heads_q = 6,
       .heads_kv = 6,
       .lengths_q = {258, 0, 258, 0},
       .lengths_kv = {257, 1, 257, 1},
       .extra_queries = {1, 0, 1, 0}},
      {.lengths_q = {257, 257, 100},
       .padding_q = 5,
       .padding_kv = 5,
       .spare_segments = 2,
       .padding_holds = std::numeric_limits<double>::quiet_NaN(),
       .extra_queries = {1, 0, 1}},
      {.lengths_q = {40, 50}, .magnitude = 30, .extra_queries = {0, 1}},
      {.extra_queries = {0, 0, 0}}};
  if (context.device.is_cuda()) all.push_back(many_guests());
  return cases(context, all);
}

Outcome queries_alone(Context& context) {
  return cases(
      context,
      {{.dq_only = true},
       {.heads_q = 6, .heads_kv = 6, .lengths_q = {1, 0, 1, 0}, .lengths_kv = {257, 1, 257, 1}, .dq_only = true},
       {.heads_q = 6,
        .heads_kv = 6,
        .lengths_q = {1, 1, 1},
        .lengths_kv = {64, 0, 9},
        .padding_q = 2,
        .padding_kv = 3,
        .dq_only = true}});
}

// Segment lengths of a vision tower. Rows after a segment's end do not belong to it.
Outcome frames(Context& context) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<AttentionCase> all;
  for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    all.push_back({.dtype = dtype,
                   .heads_q = 3,
                   .heads_kv = 3,
                   .lengths_q = {258, 0, 258, 0, 258, 0},
                   .lengths_kv = {257, 1, 257, 1, 257, 1},
                   .unattended_keys_hold = nan});
    all.push_back({.dtype = dtype,
                   .lengths_q = {272, 1, 0, 200, 64, 129, 17},
                   .lengths_kv = {257, 272, 60, 1, 0, 128, 193},
                   .padding_q = 5,
                   .padding_kv = 80,
                   .spare_segments = 2,
                   .unattended_keys_hold = nan});
    all.push_back({.dtype = dtype, .lengths_q = {180, 256, 31, 192}, .backward = false});
  }
  return expect_correct(context, attention_cases(all));
}

// Frames of more rows than some kernels keep on chip: last tiles of queries and keys of one row, of few and of many.
Outcome long_frames(Context& context) {
  std::vector<AttentionCase> all;
  for (const bool backward : {false, true}) {
    all.push_back({.dtype = at::kBFloat16, .lengths_q = {577, 577}, .backward = backward, .uniform_lengths = true});
    all.push_back({.dtype = at::kHalf,
                   .heads_q = 6,
                   .heads_kv = 3,
                   .lengths_q = {385, 1, 0, 200, 520, 64, 129, 17},
                   .lengths_kv = {273, 272, 60, 1, 0, 640, 257, 211},
                   .padding_q = 5,
                   .padding_kv = 80,
                   .spare_segments = 2,
                   .padding_holds = std::numeric_limits<double>::quiet_NaN(),
                   .backward = backward});
  }
  return expect_correct(context, attention_cases(all));
}

Outcome padding_zeroed(Context& context) {
  return cases(context, {{.padding_q = 6, .padding_kv = 6},
                         {.causal = true, .padding_q = 70, .padding_kv = 3},
                         {.lengths_q = {0}, .padding_q = 4, .padding_kv = 4}});
}

Outcome padding_nan(Context& context) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  return cases(context, {{.padding_q = 6, .padding_kv = 6, .padding_holds = nan},
                         {.causal = true, .padding_q = 70, .padding_kv = 3, .padding_holds = nan},
                         {.lengths_q = {257, 257}, .padding_q = 257, .padding_kv = 257, .padding_holds = nan},
                         {.lengths_q = {272, 1, 0, 200, 64, 129, 17},
                          .lengths_kv = {257, 272, 60, 1, 0, 128, 193},
                          .padding_q = 5,
                          .padding_kv = 80,
                          .spare_segments = 2,
                          .padding_holds = nan}});
}

// One query or none per segment on many keys, like the query of a frame.
Outcome one_query(Context& context) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<AttentionCase> all;
  for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (int head_dim : {32, 64, 128})
      for (int sharing : {1, 3}) {
        all.push_back({.dtype = dtype,
                       .heads_q = 2 * sharing,
                       .head_dim = head_dim,
                       .lengths_q = {1, 1, 0, 1, 0, 1, 1, 1},
                       .lengths_kv = {257, 1, 33, 0, 0, 31, 64, 130},
                       .padding_q = 5,
                       .padding_kv = 7,
                       .spare_segments = 2,
                       .padding_holds = nan,
                       .unattended_keys_hold = nan});
        all.push_back({.dtype = dtype,
                       .heads_q = 2 * sharing,
                       .head_dim = head_dim,
                       .lengths_q = {1, 1, 1},
                       .lengths_kv = {257, 257, 257},
                       .spare_segments = sharing,
                       .uniform_lengths = true});
      }
  all.push_back({.dtype = at::kBFloat16, .lengths_q = {1, 1}, .lengths_kv = {257, 700}, .magnitude = 300});
  return expect_correct(context, attention_cases(all));
}

// The content of one segment does not change the bits of the others.
Outcome segments_apart(Context& context) {
  const auto dtype = attention_dtype(context);
  const AttentionCase three{.dtype = dtype, .lengths_q = {20, 30, 25}, .seed = 5};
  // The same rows, but cu_seqlens leaves the middle segment out, so that its rows belong to no segment.
  Trial whole = attention_trial(three);
  if (auto no = refusal(context, whole); !no.empty()) return not_applicable(no);
  AttentionCase merged = three;
  merged.lengths_q = {20, 55};
  Run apart = whole.run(context, {}), together = attention_trial(merged).run(context, {});
  if (!apart.done()) return failed(apart.failure());
  if (!together.done()) return failed(together.failure());
  const at::Tensor *one = apart.output("out"), *other = together.output("out");
  auto first = [](const at::Tensor& rows) { return rows.narrow(0, 0, 20).to(at::kDouble); };
  const double difference = (first(*one) - first(*other)).abs().max().item<double>();
  if (!(difference <= 1e-6)) return failed("segment 0 moves by {:.3g} when its neighbours are joined", difference);
  return ok();
}

Outcome large_scores(Context& context) {
  return cases(context, {{.magnitude = 300}, {.causal = true, .magnitude = 300}});
}

Outcome rotary(Context& context) {
  return cases(context, {{.rotary_dim = 64},
                         {.causal = true, .rotary_dim = 32},
                         {.head_dim = 32, .lengths_q = {200}, .rotary_dim = 32},
                         {.causal = true,
                          .heads_q = 9,
                          .heads_kv = 3,
                          .lengths_q = {8, 16, 0, 5, 12},
                          .lengths_kv = {16, 3, 4, 0, 12},
                          .padding_q = 9,
                          .padding_kv = 2,
                          .rotary_dim = 64},
                         {.causal = true, .heads_q = 6, .heads_kv = 2, .lengths_q = {136, 70, 200}, .rotary_dim = 64}});
}

// Few and many short segments, as a decoder has for short texts: some kernels keep all keys of such a segment on chip.
Outcome decoder(Context& context) {
  const Lengths ragged{136, 1, 27, 64, 65, 128, 129, 144, 0, 100, 43, 21, 22},
      others{27, 19, 40, 8, 33, 64, 10, 90, 11, 70, 17, 120, 144};
  const AttentionCase rotated{.causal = true,
                              .heads_q = 9,
                              .heads_kv = 3,
                              .padding_q = 5,
                              .padding_kv = 5,
                              .rotary_dim = 64,
                              .padding_holds = std::numeric_limits<double>::quiet_NaN()};
  const auto of = [&rotated](Lengths lengths_q, Lengths lengths_kv = {}) {
    AttentionCase one = rotated;
    one.lengths_q = std::move(lengths_q), one.lengths_kv = std::move(lengths_kv);
    return one;
  };
  std::vector<AttentionCase> all{of({136, 136}), of(ragged), of(ragged, others), of(Lengths(24, 136))};
  const auto with_heads = [&all](AttentionCase one, int heads_q, int heads_kv) {
    one.heads_q = heads_q, one.heads_kv = heads_kv;
    all.push_back(std::move(one));
  };
  with_heads(of(ragged), 4, 4);
  with_heads(of(others, ragged), 5, 1);
  with_heads(of({136, 70}), 18, 2);
  with_heads(of({144, 100, 0, 128, 129, 144}, {100, 144, 9, 144, 65, 143}), 32, 16);
  with_heads(of({144, 100, 120, 128, 129, 144}), 80, 80);
  // Segments of several tiles of 64 rows, some of them partly full, and more tiles than a GPU has multiprocessors.
  const Lengths longer{192, 1, 64, 65, 0, 128, 129, 256, 17}, longer_others{30, 192, 1, 100, 63, 0, 200, 256, 64};
  for (const AttentionCase& one : {of({192, 192}), of(longer), of(longer, longer_others), of(Lengths(24, 150))})
    all.push_back(one);
  with_heads(of(longer_others, longer), 10, 1);
  return cases(context, all);
}

// Segments that end within, at and behind tiles of 64 rows, up to as many as some kernels take.
Outcome wide_heads(Context& context) {
  const Lengths ragged{192, 1, 64, 65, 0, 128, 129, 256, 17}, others{30, 192, 1, 100, 63, 0, 200, 256, 64};
  std::vector<AttentionCase> all;
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const bool causal : {true, false})
      for (const auto& [heads_q, heads_kv, keys] : {std::tuple{6, 2, ragged}, std::tuple{3, 3, others}})
        all.push_back({.dtype = dtype,
                       .causal = causal,
                       .heads_q = heads_q,
                       .heads_kv = heads_kv,
                       .head_dim = 128,
                       .lengths_q = ragged,
                       .lengths_kv = keys,
                       .padding_q = 5,
                       .padding_kv = 70,
                       .spare_segments = 2,
                       .padding_holds = std::numeric_limits<double>::quiet_NaN()});
  all.push_back(all.front());
  all.back().lengths_q = all.back().lengths_kv = {192, 192};
  all.back().uniform_lengths = true;
  all.back().padding_q = all.back().padding_kv = 0;
  return expect_correct(context, attention_cases(all));
}

Outcome rotary_given(Context& context) {
  return cases(context, {{.rotary_dim = 64, .rope_theta = 100},
                         {.rotary_dim = 64, .first_position = 7},
                         {.causal = true,
                          .lengths_q = {5, 17, 3},
                          .lengths_kv = {9, 40, 70},
                          .rotary_dim = 64,
                          .first_position = 300,
                          .rope_theta = 500000}});
}

Outcome forward_alone(Context& context) {
  return cases(context, {{.backward = false}, {.causal = true, .heads_q = 3, .heads_kv = 3, .backward = false}});
}

Outcome nonsense(Context& context) {
  fvlm_attention_query good{};
  good.struct_size = sizeof good;
  good.device = device_of(context.device);
  good.dtype = dtype_of(attention_dtype(context));
  good.heads_q = good.heads_kv = 2;
  good.head_dim = 64;
  good.max_seqlen_q = good.max_seqlen_kv = 16;
  good.tokens_q = good.tokens_kv = 64;
  good.segments = 4;
  good.scale = 0.125f;
  InvalidQueries<fvlm_attention_query> nonsense;
  nonsense.add_usual(good, &fvlm_attention_query::dtype);
  nonsense.add("with 3 query heads on 2 key heads", good, [](auto& q) { q.heads_q = 3; });
  nonsense.add("with rotary_dim larger than head_dim", good, [](auto& q) { q.rotary_dim = 128; });
  return nonsense.refused_by(context.table<fvlm_attention_v1>().supports);
}

Outcome mixtures(Context& context) {
  std::vector<AttentionCase> all;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    auto draw = [&, turn = uint64_t{0}](int64_t limit) mutable {
      return random_integers({1}, seed * 1000 + turn++, limit, at::kLong).item<int64_t>();
    };
    AttentionCase one;
    one.causal = draw(2);
    one.heads_kv = static_cast<int>(1 + draw(3));
    one.heads_q = static_cast<int>(one.heads_kv * (1 + draw(3)));
    const int dims[] = {16, 32, 64, 48, 128};
    one.head_dim = dims[draw(5)];
    const int64_t segments = 1 + draw(7);
    one.lengths_q.clear();
    for (int64_t s = 0; s < segments; ++s) {
      one.lengths_q.push_back(draw(40));
      one.lengths_kv.push_back(draw(3) ? draw(60) : one.lengths_q.back());
    }
    one.padding_q = draw(10), one.padding_kv = draw(10), one.spare_segments = draw(4);
    one.backward = draw(4) > 0;
    one.seed = seed;
    all.push_back(one);
  }
  return cases(context, all);
}

} // namespace

Table attention_table() {
  Table table{"attention", {}, attention_benchmarks()};
  const std::string plain = "forward_*,backward_*,causal";
  append(
      table.checks,
      {
          {"forward_float32", "out agrees with float64, in float32", numbers<at::kFloat, false>},
          {"forward_bfloat16", "out agrees with float64, in bfloat16", numbers<at::kBFloat16, false>},
          {"forward_float16", "out agrees with float64, in float16", numbers<at::kHalf, false>},
          {"forward_float64", "out agrees with float64, in float64", numbers<at::kDouble, false>},
          {"backward_float32", "gradients agree with autograd in float64, in float32", numbers<at::kFloat, true>,
           "forward_*"},
          {"backward_bfloat16", "gradients agree with autograd in float64, in bfloat16", numbers<at::kBFloat16, true>,
           "forward_*"},
          {"backward_float16", "gradients agree with autograd in float64, in float16", numbers<at::kHalf, true>,
           "forward_*"},
          {"backward_float64", "gradients agree with autograd in float64, in float64", numbers<at::kDouble, true>,
           "forward_*"},
          {"causal", "a query sees no later key", causal, "forward_*,backward_*"},
          {"causal_bottom_right", "the last query sees the last key, whatever the lengths; a fully masked row gives 0",
           causal_bottom_right, "forward_*,backward_*,causal"},
          {"lengths_differ", "segments may have more or fewer keys than queries", lengths_differ, plain},
          {"groups", "query heads share key heads in order", groups, plain},
          {"odd_heads", "1, 3, 5 and 7 heads", odd_heads, plain},
          {"head_dims", "head_dim 1 to 256, odd ones too", head_dims, plain},
          {"scale", "the query's scale is the one applied", scale, plain},
          {"one_token", "segments of one token", one_token, plain},
          {"one_segment", "a single segment, short and long", one_segment, plain},
          {"empty_first", "empty segments before others", empty_first, plain},
          {"empty_middle", "empty segments between others", empty_middle, plain},
          {"empty_last", "empty segments behind others, spare ones too", empty_last, plain},
          {"no_keys", "queries without keys give 0", no_keys, plain},
          {"no_queries", "keys without queries have gradient 0", no_queries, plain},
          {"zero_rows", "no tokens at all", zero_rows, plain},
          {"many_segments", "64 segments", many_segments, plain},
          {"even",
           "segments of one length, as the query may say, empty ones behind them, and other lengths that fill as many "
           "rows",
           even, plain},
          {"shared_rows", "queries of one segment and keys of another in the same rows", shared_rows, plain},
          {"guests", "another call's queries, one or none in a segment, add to the gradients of its keys", guests,
           plain},
          {"queries_alone", "the gradient of the queries without those of keys and values", queries_alone, plain},
          {"frames", "segments of up to 272 rows, NaN in keys that nobody reads", frames, plain + ",shared_rows"},
          {"long_frames", "segments of up to 640 rows", long_frames, plain + ",frames"},
          {"padding_zeroed", "rows behind the last segment come out as 0", padding_zeroed, plain},
          {"padding_nan", "NaN in padding rows stays there", padding_nan, "forward_*,backward_*,causal,padding_zeroed"},
          {"one_query", "one query a segment, or none, on up to 257 keys", one_query,
           plain + ",groups,padding_zeroed,padding_nan"},
          {"segments_apart", "segments do not see each other", segments_apart, "forward_*"},
          {"large_scores", "scores in the thousands do not overflow", large_scores, plain},
          {"rotary", "rotation inside the attention, where offered", rotary, plain},
          {"decoder", "short segments, causal and rotated, where offered", decoder, plain + ",rotary"},
          {"wide_heads", "heads of 128 on segments of up to 256 rows, in 16 bits", wide_heads, plain},
          {"rotary_given", "positions and rope_theta are the ones given", rotary_given, plain + ",rotary"},
          {"forward_alone", "the forward without a backward to follow", forward_alone, "forward_*"},
          {"supports_nonsense", "supports() refuses impossible queries", nonsense},
      });
  append(table.checks, attention_size_checks(plain));
  append(table.checks, partial_attention_checks(plain));
  append(table.checks, paged_attention_checks());
  append(table.checks, generic_checks(plain + ",groups"));
  append(table.checks, {{"mixtures", "24 random mixtures of all the above", mixtures, "*"}});
  return table;
}

} // namespace fvlm::check
