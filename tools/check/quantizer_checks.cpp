// Checks of quantizers, one property per row.
#include "check/families.h"
#include "check/generic.h"
#include "check/invalid_queries.h"
#include "check/quantizer.h"
#include "check/workbench.h"

#include <fvlm/fvlm.hpp>

#include <ATen/ops/clamp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/round.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

namespace fvlm::check {
namespace {

Outcome cases(Context& context, std::vector<QuantizerCase> all) {
  const auto dtype = quantizer_dtype(context);
  for (auto& one : all) one.dtype = dtype;
  return expect_correct(context, quantizer_cases(all));
}

// Runs each supported case and passes the result to `look`, which returns "" or what is wrong.
Outcome each(Context& context, std::vector<QuantizerCase> all,
             const std::function<std::string(const QuantizerCase&, const Run&)>& look) {
  const auto own = quantizer_dtype(context);
  int done = 0;
  std::string why;
  for (auto& one : all) {
    if (one.dtype == at::kFloat) one.dtype = own;
    Trial trial = quantizer_trial(one);
    if (why = refusal(context, trial); !why.empty()) continue;
    Run run = run_fully(context, trial);
    if (auto failure = look(one, run); !failure.empty()) return failed("{}: {}", trial.label, failure);
    ++done;
  }
  return done ? ok(fmt::format("{} weights", done)) : not_applicable("supports() says no: " + why);
}

int bits_of(const Context& context) {
  return context.table<fvlm_quantizer_v1>().bits;
}

std::string scheme_of(const Context& context) {
  const char* scheme = context.table<fvlm_quantizer_v1>().scheme;
  return scheme ? scheme : "";
}

// A matrix with a row for each scale, for schemes whose groups are known.
at::Tensor by_scale(const Context& context, const QuantizerCase& c, const at::Tensor& matrix) {
  return scheme_of(context) == "int4" && c.cols > 0 ? matrix.reshape({-1, sdk::int4_group(c.cols)}) : matrix;
}

// Half a quantization step of a row whose largest weight takes the last code, plus one rounding of the dtype.
at::Tensor half_step(const at::Tensor& weight, int bits) {
  auto largest = weight.abs().amax(1, true);
  const double roundings = 0x1p-7;
  return largest / (std::ldexp(1.0, bits - 1) - 1) * 0.5 * (1 + roundings) + largest * 0x1p-8;
}

at::Tensor float_half_step(const QuantizerCase& c, const at::Tensor& weight, int bits) {
  if (c.dtype != at::kFloat && c.dtype != at::kDouble) return half_step(weight, bits);
  return weight.abs().amax(1, true) / (std::ldexp(1.0, bits - 1) - 1) * 0.5 * (1 + 1e-4);
}

std::string element(const at::Tensor& mask, const at::Tensor& weight, const at::Tensor& got) {
  auto at = at::nonzero(mask)[0];
  const int64_t row = at[0].item<int64_t>(), col = at[1].item<int64_t>();
  return fmt::format("{} of {} elements; [{}, {}] was {:.6g} and is {:.6g}", mask.sum().item<int64_t>(), mask.numel(),
                     row, col, weight[row][col].item<double>(), got[row][col].item<double>());
}

// Weights within the outermost codes of their row are restored within half a step. Those beyond were clipped: none for
// int8, less than half for any scheme.
std::string comes_back(const Context& context, const QuantizerCase& c, const Run& run) {
  const int bits = bits_of(context);
  auto weight = by_scale(context, c, quantizer_numbers(c).weight.to(at::kDouble));
  auto unpacked = by_scale(context, c, run.output("unpacked")->to(at::kDouble));
  auto wrong = at::isfinite(unpacked).logical_not();
  if (wrong.any().item<bool>()) return "not finite: " + element(wrong, weight, unpacked);
  auto slack = float_half_step(c, weight, bits) + 1e-300;
  auto beyond = (weight > unpacked.amax(1, true) + slack).logical_or(weight < unpacked.amin(1, true) - slack);
  if (const double share = beyond.to(at::kDouble).mean().item<double>(); share > 0.5 && c.weights == Weights::normal)
    return fmt::format("{:.0f} % of the weights are clipped", 100 * share);
  auto off = ((weight - unpacked).abs() > slack).logical_and(beyond.logical_not());
  return off.any().item<bool>() ? "off by more than half a step: " + element(off, weight, unpacked) : "";
}

Outcome round_trip(Context& context) {
  return each(context, {{}, {.rows = 5, .cols = 300, .seed = 2}, {.magnitude = 3, .seed = 3}},
              [&](const auto& c, const Run& run) { return comes_back(context, c, run); });
}

template <at::ScalarType dtype>
Outcome linear(Context& context) {
  return expect_correct(context, quantizer_cases({{.dtype = dtype},
                                                  {.dtype = dtype, .rows = 40, .cols = 96, .tokens = 33},
                                                  {.dtype = dtype, .rows = 33, .cols = 2048, .tokens = 3}}));
}

template <at::ScalarType dtype>
Outcome converts(Context& context) {
  return each(context, {{.dtype = dtype}}, [&](const auto& c, const Run& run) -> std::string {
    if (c.dtype != dtype) return "";
    return comes_back(context, c, run);
  });
}

Outcome int8_codes(Context& context) {
  if (scheme_of(context) != "int8" && scheme_of(context) != "w8a8")
    return not_applicable("the scheme is " + scheme_of(context));
  std::vector<QuantizerCase> all{
      {}, {.cols = 301}, {.weights = Weights::zero_rows}, {.weights = Weights::outliers}, {.magnitude = 1e-5}};
  all.push_back({.rows = 5, .cols = 254, .weights = Weights::ties});
  if (!context.quick)
    for (auto [rows, cols] : {std::pair<int64_t, int64_t>{1025, 1031}, {17, 2049}, {17, 8193}, {4, 65537}, {8193, 5}})
      all.push_back({.rows = rows, .cols = cols, .convert_only = true});
  return each(context, all, [](const auto& c, const Run& run) -> std::string {
    const at::Tensor *codes = run.output("packed[0]"), *scales = run.output("packed[1]");
    if (!codes || codes->scalar_type() != at::kChar || codes->dim() != 2 || codes->size(0) != c.rows ||
        codes->size(1) != c.cols)
      return "packed[0] has to be int8 [rows, cols]";
    if (!scales || scales->scalar_type() != at::kFloat || scales->numel() != c.rows)
      return "packed[1] has to be float32 [rows]";
    auto weight = quantizer_numbers(c).weight.to(at::kFloat);
    auto scale = weight.abs().amax(1) / 127;
    if (auto off = scales->reshape({-1}) != scale; off.any().template item<bool>()) {
      const int64_t row = at::nonzero(off)[0][0].template item<int64_t>();
      return fmt::format("the scale of row {} is {:.9g} and should be {:.9g}", row,
                         (*scales).reshape({-1})[row].template item<double>(), scale[row].template item<double>());
    }
    auto wanted = at::where(scale.unsqueeze(1) == 0, at::zeros_like(weight), at::round(weight / scale.unsqueeze(1)));
    wanted = at::clamp(wanted, -127, 127);
    auto off = codes->to(at::kFloat) != wanted;
    return off.any().template item<bool>() ? "codes: " + element(off, wanted, codes->to(at::kFloat)) : "";
  });
}

// The codes of int4 [rows, cols], or what is wrong with the layout.
std::string int4_layout(const QuantizerCase& c, const at::Tensor* packed, const at::Tensor* scales, int64_t groups,
                        at::Tensor& codes) {
  if (!packed || packed->scalar_type() != at::kByte || packed->dim() != 2 || packed->size(0) != c.rows ||
      packed->size(1) != (c.cols + 7) / 8 * 4)
    return "packed[0] has to be uint8 [rows, 4 ceil(cols / 8)]";
  if (!scales || scales->scalar_type() != at::kFloat || scales->dim() != 2 || scales->size(0) != c.rows ||
      scales->size(1) != groups)
    return fmt::format("packed[1] has to be float32 [rows, {}]", groups);
  const at::Tensor bytes = packed->to(at::kInt);
  const at::Tensor all = at::stack({bytes.bitwise_and(15), bytes.div(16, "floor")}, 2).flatten(1);
  if (all.narrow(1, c.cols, all.size(1) - c.cols).any().item<bool>()) return "bits of no column are not 0";
  codes = all.narrow(1, 0, c.cols).to(at::kFloat) - 8;
  return "";
}

std::string int4_defect(const QuantizerCase& c, const Run& run) {
  const int64_t group = sdk::int4_group(c.cols), groups = c.cols / group;
  at::Tensor codes;
  const at::Tensor* scales = run.output("packed[1]");
  if (auto wrong = int4_layout(c, run.output("packed[0]"), scales, groups, codes); !wrong.empty()) return wrong;
  const auto n = quantizer_numbers(c);
  const auto grouped = [&](const at::Tensor& matrix) { return matrix.view({c.rows, groups, group}); };
  const at::Tensor weight = grouped(n.weight.to(at::kFloat)), scale = scales->unsqueeze(2),
                   importance = (c.weighted ? n.importance : at::ones({c.cols})).to(at::kDouble).view({groups, group});
  const auto codes_by = [&](const at::Tensor& by) {
    return at::clamp(at::round(weight / at::where(by == 0, at::ones_like(by), by)), -8, 7);
  };
  const auto error_by = [&](const at::Tensor& by) {
    const at::Tensor off = weight.to(at::kDouble) - (codes_by(by) * by).to(at::kDouble);
    return (off.square() * importance).sum(2, true);
  };
  if (auto off = codes != codes_by(scale).view({c.rows, c.cols}); off.any().item<bool>())
    return "codes: " + element(off, codes_by(scale).view({c.rows, c.cols}), codes);
  const at::Tensor largest = weight.abs().amax(2, true);
  at::Tensor least = at::full_like(importance.sum(1).view({1, groups, 1}), INFINITY), listed = scale == largest / 7;
  for (int candidate = 0; candidate <= 12; ++candidate) {
    const at::Tensor by = largest / at::full({1}, 7 + 0.25 * candidate, largest.options());
    listed = listed.logical_or(scale == by);
    least = at::minimum(least, error_by(by));
  }
  if (!listed.all().item<bool>()) return "a scale is none of the largest weight / 7, / 7.25, ... / 10";
  const at::Tensor worse = error_by(scale) > least * (1 + 1e-3) + 1e-30;
  return worse.any().item<bool>() ? fmt::format("{} of {} groups have a scale that another one betters",
                                                worse.sum().item<int64_t>(), worse.numel())
                                  : "";
}

Outcome int4_codes(Context& context) {
  if (scheme_of(context) != "int4") return not_applicable("the scheme is " + scheme_of(context));
  std::vector<QuantizerCase> all{{},
                                 {.weights = Weights::zero_rows},
                                 {.weights = Weights::outliers},
                                 {.weights = Weights::negative},
                                 {.magnitude = 3},
                                 {.weighted = true}};
  for (int64_t cols : {1, 7, 32, 64, 128, 192, 256, 301, 512, 576}) {
    all.push_back({.rows = 9, .cols = cols, .convert_only = true});
    all.push_back({.rows = 9, .cols = cols, .weighted = true, .convert_only = true});
  }
  return each(context, all, int4_defect);
}

Outcome fake_is_unpack(Context& context) {
  std::vector<QuantizerCase> all{
      {}, {.rows = 5, .cols = 301}, {.weights = Weights::outliers}, {.rows = 5, .cols = 254, .weights = Weights::ties}};
  for (auto dtype : {at::kBFloat16, at::kHalf}) all.push_back({.dtype = dtype});
  return each(context, all, [](const auto&, const Run& run) -> std::string {
    auto off = *run.output("out") != *run.output("unpacked");
    return off.any().template item<bool>() ? "fake quantisation and unpack(pack) differ: " +
                                                 element(off, *run.output("unpacked"), *run.output("out"))
                                           : "";
  });
}

// The gradient passes unchanged, except that it is 0 where the weight is beyond the outermost codes of its row.
Outcome straight_through(Context& context) {
  return each(context, {{}, {.weights = Weights::outliers}, {.weights = Weights::negative}},
              [&](const auto& c, const Run& run) -> std::string {
                auto n = quantizer_numbers(c);
                const auto grouped = [&](const at::Tensor& matrix) { return by_scale(context, c, matrix); };
                auto weight = grouped(n.weight.to(at::kDouble)),
                     unpacked = grouped(run.output("unpacked")->to(at::kDouble));
                const at::Tensor d_weight = grouped(*run.output("d_weight"));
                n.d_out = grouped(n.d_out);
                auto passed = d_weight == n.d_out, stopped = (d_weight == 0).logical_and(n.d_out != 0);
                auto neither = passed.logical_or(stopped).logical_not();
                if (neither.any().template item<bool>())
                  return "a gradient neither passes nor is 0: " + element(neither, n.d_out, d_weight);
                auto slack = float_half_step(c, weight, bits_of(context)) + 1e-300;
                auto high = unpacked.amax(1, true), low = unpacked.amin(1, true);
                auto beyond = (weight > high + slack).logical_or(weight < low - slack);
                auto within = (weight <= high).logical_and(weight >= low);
                auto leaks = beyond.logical_and(stopped.logical_not()).logical_and(n.d_out != 0);
                if (leaks.any().template item<bool>())
                  return "the gradient passes where the weight was clipped: " + element(leaks, weight, unpacked);
                auto blocked = within.logical_and(stopped);
                return blocked.any().template item<bool>()
                           ? "the gradient is 0 where the weight lies in range: " + element(blocked, weight, unpacked)
                           : "";
              });
}

Outcome zero_rows(Context& context) {
  return each(context, {{.weights = Weights::zero_rows}, {.magnitude = 0}},
              [](const auto& c, const Run& run) -> std::string {
                auto weight = quantizer_numbers(c).weight, unpacked = *run.output("unpacked");
                auto zero = (weight == 0).all(1, true).expand_as(weight);
                auto off = (unpacked != 0).logical_and(zero);
                if (off.any().template item<bool>())
                  return "a row of zeros does not come back as zeros: " + element(off, weight, unpacked);
                for (const char* name : {"y", "d_x", "out", "d_weight"})
                  if (!at::isfinite(run.output(name)->to(at::kDouble)).all().template item<bool>())
                    return fmt::format("{} is not finite", name);
                return "";
              });
}

Outcome magnitudes(Context& context, std::initializer_list<double> sizes) {
  std::vector<QuantizerCase> all;
  for (double size : sizes) all.push_back({.magnitude = size});
  return each(context, all, [&](const auto& c, const Run& run) { return comes_back(context, c, run); });
}

Outcome huge_values(Context& context) {
  const bool narrow = quantizer_dtype(context) == at::kHalf;
  return narrow ? magnitudes(context, {1000, 10000}) : magnitudes(context, {1e10, 1e30, 2e37});
}

Outcome tiny_values(Context& context) {
  const bool narrow = quantizer_dtype(context) == at::kHalf;
  return narrow ? magnitudes(context, {1e-2, 1e-3}) : magnitudes(context, {1e-10, 1e-30});
}

Outcome uneven_rows(Context& context) {
  return each(
      context,
      {{.weights = Weights::constant}, {.weights = Weights::negative}, {.rows = 1}, {.weights = Weights::outliers}},
      [&](const auto& c, const Run& run) { return comes_back(context, c, run); });
}

Outcome plain_linear(Context& context) {
  return cases(context, {{.bias = false}, {.tokens = 40, .bias = false}});
}
// Weights that a device streams, and products that it has in tiles of tokens: few and many output features, short and
// long rows, widths that no block divides.
void add_large(std::vector<QuantizerCase>& all, std::initializer_list<uint32_t> options, uint32_t features) {
  for (const uint32_t each : options)
    for (const auto [rows, cols, tokens] : {std::array<int64_t, 3>{12802, 512, 2},
                                            {1030, 4096, 3},
                                            {1032, 8256, 12},
                                            {8456, 512, 24},
                                            {1032, 4160, 32},
                                            {1030, 4096, 32},
                                            {6152, 576, 33},
                                            {1032, 4160, 50},
                                            {2056, 704, 72},
                                            {8200, 576, 72},
                                            {2056, 576, 90},
                                            {1544, 576, 128},
                                            {9224, 576, 128},
                                            {520, 528, 200},
                                            {584, 576, 200},
                                            {264, 256, 256},
                                            {6152, 576, 256}})
      if (!(each & ~features))
        all.push_back({.dtype = at::kBFloat16, .rows = rows, .cols = cols, .tokens = tokens, .options = each});
}

// Tokens that a kernel for few of them takes at once, and a few more; weights of one part and of many.
Outcome linear_options(Context& context) {
  const uint32_t features = context.table<fvlm_quantizer_v1>().features;
  if (features == 0) return not_applicable("features is 0");
  constexpr uint32_t residual = FVLM_QUANTIZED_RESIDUAL, norm = FVLM_QUANTIZED_NORM, swiglu = FVLM_QUANTIZED_SWIGLU;
  std::vector<QuantizerCase> all;
  for (const uint32_t options : {residual, norm, swiglu, residual | norm, norm | swiglu}) {
    if (options & ~features) continue;
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
      for (const auto [rows, cols, tokens] : {std::array<int64_t, 3>{48, 64, 1},
                                              {18, 512, 5},
                                              {32, 96, 9},
                                              {96, 2048, 2},
                                              {70, 576, 33},
                                              {16, 4096, 1},
                                              {24, 64, 72},
                                              {40, 96, 128},
                                              {36, 576, 200},
                                              {12, 256, 256}})
        all.push_back(
            {.dtype = dtype, .rows = rows, .cols = cols, .tokens = tokens, .bias = rows != 96, .options = options});
  }
  if (!context.device.is_cpu()) add_large(all, {residual, norm | swiglu, residual | norm}, features);
  return expect_correct(context, quantizer_cases(all));
}
Outcome no_tokens(Context& context) {
  return cases(context, {{.tokens = 0}});
}
Outcome fewer_tokens(Context& context) {
  return cases(context, {{.tokens = 5, .spare_tokens = 4},
                         {.tokens = 0, .spare_tokens = 9},
                         {.tokens = 1, .spare_tokens = 299},
                         {.tokens = 129, .spare_tokens = 1}});
}
Outcome one_token(Context& context) {
  return cases(context, {{.tokens = 1}, {.rows = 1, .cols = 1, .tokens = 1}});
}
Outcome odd_sizes(Context& context) {
  return cases(context, {{.rows = 7, .cols = 33},
                         {.rows = 1, .cols = 257},
                         {.rows = 65, .cols = 1},
                         {.rows = 3, .cols = 5, .tokens = 70},
                         {.rows = 129, .cols = 100, .tokens = 3}});
}

// Just above every power of two, up to the widths of recipes.
Outcome large_sizes(Context& context) {
  std::vector<QuantizerCase> all;
  for (int64_t size : {65, 129, 257, 513, 1025, 2049, 4097, 8193}) {
    all.push_back({.rows = 5, .cols = size, .tokens = 3});
    all.push_back({.rows = size, .cols = 5, .tokens = 3});
    if (size < 4000) all.push_back({.rows = 5, .cols = 9, .tokens = size});
  }
  all.push_back({.rows = 257, .cols = 513, .tokens = 33});
  if (Outcome outcome = cases(context, all); outcome.state != State::ok) return outcome;
  return each(context, all, [&](const auto& c, const Run& run) { return comes_back(context, c, run); });
}

Outcome convert_only(Context& context) {
  return each(context, {{.convert_only = true}},
              [&](const auto& c, const Run& run) { return comes_back(context, c, run); });
}

Outcome packs_small(Context& context) {
  const int bits = bits_of(context);
  if (bits < 1 || bits > 16) return failed("bits is {}", bits);
  return each(context, {{.rows = 64, .cols = 512}}, [&](const auto& c, const Run& run) -> std::string {
    const double codes = static_cast<double>(c.rows * c.cols) * bits / 8, given = static_cast<double>(run.saved);
    if (given < codes)
      return fmt::format("{} bits a weight need {} bytes, the packed tensors have {}", bits, codes, given);
    // Upper bound for the scales of any scheme: one float32 per 16 weights.
    const double most = codes + static_cast<double>(c.rows * c.cols) / 16 * 4 + 1024;
    return given > most ? fmt::format("{} bits a weight are {} bytes, the packed tensors have {}", bits, codes, given)
                        : "";
  });
}

Outcome packs_again(Context& context) {
  // Quantizing a dequantized weight changes nothing, so that saving and loading do not drift. A scheme that clips by
  // the largest weight would drift; int4 finds the scale again at which nothing is off.
  if (scheme_of(context) != "int8" && scheme_of(context) != "int4" && scheme_of(context) != "w8a8")
    return not_applicable("the scheme is " + scheme_of(context));
  return each(context, {{}, {.cols = 301}}, [&](const auto& c, const Run& run) -> std::string {
    const auto& table = context.table<fvlm_quantizer_v1>();
    Workbench bench(context, {});
    fvlm_quantizer_query query{};
    query.device = device_of(context.device);
    query.dtype = dtype_of(c.dtype);
    query.rows = c.rows, query.cols = c.cols;
    if (!bench.begin(table, query)) return bench.finish().failure();
    auto packed = bench.saved("packed");
    fvlm_quantizer_pack pack{};
    fvlm_quantizer_unpack unpack{};
    for (size_t i = 0; i < packed.size(); ++i) pack.packed[i] = packed[i]->abi(), unpack.packed[i] = packed[i]->abi();
    pack.weight = bench.input("weight", *run.output("unpacked"), Rows::contiguous).abi();
    if (!bench.call("pack", bench.required().forward_workspace, table.pack, pack)) return bench.finish().failure();
    Operand& again = bench.output("unpacked", {c.rows, c.cols}, c.dtype, Rows::contiguous);
    unpack.weight = again.abi();
    if (!bench.call("unpack", bench.required().forward_workspace, table.unpack, unpack))
      return bench.finish().failure();
    auto before = run.output("unpacked")->to(at::kDouble), after = again.view().cpu().to(at::kDouble);
    auto moved = (before - after).abs() > before.abs().amax(1, true) * (c.dtype == at::kFloat ? 1e-5 : 1e-2) + 1e-300;
    return moved.any().template item<bool>() ? "packed once more it moves: " + element(moved, before, after) : "";
  });
}

Outcome nonsense(Context& context) {
  fvlm_quantizer_query good{};
  good.struct_size = sizeof good;
  good.device = device_of(context.device);
  good.dtype = dtype_of(quantizer_dtype(context));
  good.rows = 24, good.cols = 64, good.tokens = 9;
  InvalidQueries<fvlm_quantizer_query> nonsense;
  nonsense.add_usual(good, &fvlm_quantizer_query::dtype);
  return nonsense.refused_by(context.table<fvlm_quantizer_v1>().supports);
}

} // namespace

Table quantizer_table() {
  Table table{"quantizer", {}, quantizer_benchmarks()};
  append(
      table.checks,
      {
          {"round_trip", "a weight comes back within half a step", round_trip},
          {"converts_bfloat16", "so do weights in bfloat16", converts<at::kBFloat16>, "round_trip"},
          {"converts_float16", "so do weights in float16", converts<at::kHalf>, "round_trip"},
          {"linear_float32", "the linear and its gradient agree with the unpacked weight in float64, in float32",
           linear<at::kFloat>},
          {"linear_bfloat16", "the same in bfloat16", linear<at::kBFloat16>},
          {"linear_float16", "the same in float16", linear<at::kHalf>},
          {"linear_float64", "the same in float64", linear<at::kDouble>},
          {"linear_plain", "a linear without a bias", plain_linear, "linear_float*,linear_bfloat16"},
          {"linear_options", "a linear with a residual, a norm before it, a gate behind it", linear_options,
           "linear_float*,linear_bfloat16"},
          {"no_tokens", "a linear without tokens", no_tokens, "linear_float*,linear_bfloat16"},
          {"fewer_tokens", "linears of fewer tokens than the query's", fewer_tokens, "linear_float*,linear_bfloat16"},
          {"one_token", "a linear of one token", one_token, "linear_float*,linear_bfloat16"},
          {"odd_sizes", "rows and columns that no vector divides", odd_sizes, "linear_float*,linear_bfloat16"},
          {"fake_is_unpack", "fake quantisation gives the bits of unpack(pack)", fake_is_unpack},
          {"straight_through", "the gradient passes in range and is 0 where the weight was clipped", straight_through,
           "round_trip"},
          {"zero_rows", "rows of zeros come back as zeros", zero_rows},
          {"int8_codes", "the schemes int8 and w8a8 pack as the ABI writes it", int8_codes, "round_trip,zero_rows"},
          {"int4_codes", "the scheme int4 packs as the ABI writes it, with and without importance", int4_codes,
           "round_trip,zero_rows"},
          {"huge_values", "weights of 1e30", huge_values, "round_trip"},
          {"tiny_values", "weights of 1e-30", tiny_values, "round_trip"},
          {"uneven_rows", "constant rows, negative rows, a single row, outliers", uneven_rows, "round_trip"},
          {"large_sizes", "rows, columns and tokens just above every power of two up to 8,192", large_sizes,
           "odd_sizes,round_trip", Extent::thorough},
          {"convert_only", "a query without tokens, where weights are converted alone", convert_only, "round_trip"},
          {"packs_small", "the packed tensors take the bits that the table names", packs_small},
          {"packs_again", "packing the unpacked weight changes nothing", packs_again, "round_trip"},
          {"supports_nonsense", "supports() refuses impossible queries", nonsense},
      });
  append(table.checks, generic_checks("linear_float*,linear_bfloat16"));
  return table;
}

} // namespace fvlm::check
