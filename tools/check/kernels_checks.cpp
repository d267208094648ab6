// Checks of kernels plugins: the same properties of each operation that the plugin offers.
#include "check/families.h"
#include "check/generic.h"
#include "check/invalid_queries.h"
#include "check/kernels.h"
#include "plugin/kinds.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace fvlm::check {
namespace {

// In the plugin's own dtype for this operation.
template <int op>
Outcome cases(Context& context, std::vector<KernelCase> all, const Variation& variation = {}) {
  if (!offered(context, op)) return not_applicable("not offered");
  return expect_correct(context, kernel_cases(in_own_dtype(context, op, std::move(all))), variation);
}

template <int op, at::ScalarType dtype>
Outcome numbers(Context& context) {
  if (!offered(context, op)) return not_applicable("not offered");
  return expect_correct(context, kernel_cases({{.op = op, .dtype = dtype, .gradient_dtype = dtype},
                                               {.op = op,
                                                .dtype = dtype,
                                                .gradient_dtype = dtype,
                                                .rows = 40,
                                                .width = 128,
                                                .inner = 96,
                                                .heads = 5,
                                                .head_dim = 64,
                                                .rotary_dim = 64,
                                                .seed = 3}}));
}

template <int op>
Outcome no_rows(Context& context) {
  return cases<op>(context, {{.rows = 0}, {.rows = 0, .accumulate = true}});
}

template <int op>
Outcome one_row(Context& context) {
  return cases<op>(context, {{.rows = 1}, {.rows = 1, .width = 640, .heads = 1}});
}

template <int op>
Outcome sizes(Context& context) {
  std::vector<KernelCase> all;
  for (int64_t size : {1, 2, 3, 7, 9, 17, 31, 33, 65, 100, 257, 1001})
    all.push_back({.rows = 5, .width = size, .inner = size % 2 ? size + 4 : 3});
  return cases<op>(context, all);
}

template <int op>
Outcome many_rows(Context& context) {
  const int64_t inner = op == FVLM_OP_FOLD_ROW_SCALE ? 2 : 24;
  if (op == FVLM_OP_DELTA_RULE) // whose formula goes from row to row
    return cases<op>(context, {{.rows = 400, .heads = 1}, {.rows = 97}, {.rows = 150, .heads = 4}});
  return cases<op>(context, {{.rows = 1000, .width = 24, .inner = 24, .heads = 1},
                             {.rows = 257, .width = 33, .inner = 17},
                             {.rows = 3000, .width = 256, .inner = inner, .heads = 4}});
}

template <int op>
Outcome accumulates(Context& context) {
  return cases<op>(context, {{.accumulate = true}, {.rows = 70, .width = 33, .inner = 9, .accumulate = true}});
}

template <int op>
Outcome frozen(Context& context) {
  return cases<op>(context, {{.frozen = true}, {.rows = 33, .frozen = true}});
}

// Each of several gradients alone, and all others without it.
template <int op>
Outcome partly_frozen(Context& context) {
  if (op == FVLM_OP_LINEAR)
    return cases<op>(context, {{.omitted = {"d_bias"}}, {.rows = 33, .accumulate = true, .omitted = {"d_bias"}}});
  if (op == FVLM_OP_LAYERNORM)
    return cases<op>(context, {{.omitted = {"d_weight"}}, {.rows = 33, .accumulate = true, .omitted = {"d_bias"}}});
  return cases<op>(context, {{.omitted = {"d_scale"}},
                             {.omitted = {"d_weight"}},
                             {.accumulate = true, .omitted = {"d_bias"}},
                             {.omitted = {"d_weight", "d_bias"}},
                             {.accumulate = true, .omitted = {"d_scale", "d_bias"}}});
}

template <int op>
Outcome aliased(Context& context) {
  std::vector<KernelCase> all{{}, {.rows = 33, .width = 70, .heads = 2}};
  if (is_norm(op))
    for (auto& one : all) one.residual = one.has_d_sum = true;
  Outcome outcome;
  for (const Placement placement : {Placement::contiguous, Placement::wide_rows})
    for (const int alias : {1, 2}) {
      outcome = cases<op>(context, all, {.placement = placement, .alias = alias});
      if (outcome.state != State::ok) return outcome;
    }
  return outcome;
}

template <int op>
Outcome forward_alone(Context& context) {
  return cases<op>(context, {{.backward = false}, {.rows = 33, .width = 20, .backward = false}});
}

template <int op>
Outcome gradient_float32(Context& context) {
  if (!offered(context, op)) return not_applicable("not offered");
  for (auto dtype : {at::kBFloat16, at::kHalf}) {
    auto trials =
        kernel_cases({{.op = op, .dtype = dtype}, {.op = op, .dtype = dtype, .rows = 50, .accumulate = true}});
    if (refusal(context, trials[0]).empty()) return expect_correct(context, trials);
  }
  return not_applicable("neither bfloat16 nor float16 with gradients in float32 is supported");
}

// Thousands of terms, most of which a 16-bit accumulator would lose.
template <int op>
Outcome long_sums(Context& context) {
  if (!offered(context, op)) return not_applicable("not offered");
  for (auto dtype : {at::kBFloat16, at::kHalf}) {
    KernelCase c{.op = op, .dtype = dtype, .rows = 4096, .width = 16, .inner = 8};
    Trial trial = kernel_trial(c);
    if (!refusal(context, trial).empty()) continue;
    // The tolerance is not that of the formula in 16 bits: the sums have to be as accurate as in float32.
    auto expectation = trial.expect();
    trial.expect = [expectation] {
      Expectation sums;
      for (Expected one : expectation) {
        if (one.name != "d_weight" && one.name != "d_bias" && one.name != "d_scale") continue;
        one.naive = one.exact * (1 + 1e-3);
        one.scale = 4;
        sums.push_back(one);
      }
      return sums;
    };
    return expect_correct(context, {trial});
  }
  return not_applicable("neither bfloat16 nor float16 with gradients in float32 is supported");
}

template <int op>
Outcome residual(Context& context) {
  return cases<op>(context, {{.residual = true}, {.rows = 33, .width = 70, .residual = true}});
}

template <int op>
Outcome d_sum(Context& context) {
  return cases<op>(context, {{.residual = true, .has_d_sum = true}, {.rows = 33, .width = 70, .has_d_sum = true}});
}

template <int op>
Outcome rest(Context& context) {
  if (!offered(context, op)) return not_applicable("not offered");
  std::vector<KernelCase> all;
  std::string reason;
  for (auto dtype : {at::kBFloat16, at::kHalf}) {
    const KernelCase kept{
        .op = op, .dtype = dtype, .gradient_dtype = dtype, .residual = true, .writes_compensation = true};
    KernelCase given = kept;
    given.reads_compensation = true;
    KernelCase narrow = given, deep = given, many = given;
    narrow.rows = 33, narrow.width = 70, narrow.inner = 45;
    deep.rows = 70, deep.inner = 1608, deep.backward = false;
    many.rows = 301, many.width = 392, many.backward = false;
    if (reason = refusal(context, kernel_trial(kept)); reason.empty())
      all.insert(all.end(), {kept, given, narrow, deep, many});
  }
  if (all.empty()) return not_applicable(reason);
  const auto trials = kernel_cases(all);
  const Outcome outcome = expect_correct(context, trials);
  return outcome.state == State::ok ? expect_correct(context, trials, {.alias = 1}) : outcome;
}

template <int op>
Outcome epsilon(Context& context) {
  return cases<op>(context, {{.epsilon = 0.5f}, {.epsilon = 1e-6f, .magnitude = 1e-3}});
}

template <int op>
Outcome magnitudes(Context& context) {
  return cases<op>(context, {{.magnitude = 1e4}, {.magnitude = 100}, {.magnitude = 1e-2}});
}

// Numbers whose exp overflows float32, while products of three are within float16.
template <int op>
Outcome large_numbers(Context& context) {
  return cases<op>(context, {{.magnitude = 100}, {.rows = 33, .width = 70, .magnitude = 1000}});
}

// Expects the outputs that float32 can represent before rounding.
template <int op>
Outcome rounds_ties(Context& context) {
  if (!offered(context, op)) return not_applicable("not offered");
  std::vector<Trial> trials;
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    KernelCase c{
        .op = op, .dtype = dtype, .gradient_dtype = dtype, .rows = 1, .width = 130, .inner = 130, .ties = true};
    c.residual = is_norm(op);
    c.accumulate = op == FVLM_OP_LAYERSCALE_RESIDUAL || op == FVLM_OP_BIAS_GELU;
    Trial trial = kernel_trial(c);
    trial.expect = [expectation = trial.expect] {
      constexpr std::string_view exact[] = {"sum", "d_up", "d_scale", "d_bias", "scaled_weight", "scaled_bias"};
      Expectation some;
      for (Expected one : expectation()) {
        const bool is_exact = std::ranges::find(exact, one.name) != std::end(exact);
        one.rounded = is_exact || (one.name == "y" && !is_norm(op)) || (one.name == "d_weight" && op == FVLM_OP_LINEAR);
        if (one.name == "d_bias" && is_norm(op)) one.rounded = false;
        if (op == FVLM_OP_FOLD_ROW_SCALE && one.name.starts_with("d_")) one.rounded = false;
        if (one.rounded) some.push_back(one);
      }
      return some;
    };
    trials.push_back(std::move(trial));
  }
  return expect_correct(context, trials);
}

// In the sums of such numbers each element is rounded by half a unit.
template <int op>
Outcome rounded_sum(Context& context) {
  if (!offered(context, op)) return not_applicable("not offered");
  std::vector<Trial> trials;
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const KernelCase c{.op = op,
                       .dtype = dtype,
                       .gradient_dtype = dtype,
                       .rows = 5,
                       .width = 130,
                       .residual = true,
                       .ties = true,
                       .ties_up = true};
    Trial trial = kernel_trial(c);
    trial.expect = [] { return Expectation{}; };
    trial.extra_check = [c](const Context&, const Run& run, double&) { return norm_of_unrounded_sum(c, run); };
    trials.push_back(std::move(trial));
  }
  return expect_correct(context, trials);
}

Outcome rope_inverse(Context& context) {
  return cases<FVLM_OP_ROPE>(context, {{.inverse = true}, {.head_dim = 64, .rotary_dim = 64, .inverse = true}});
}
Outcome rope_partial(Context& context) {
  return cases<FVLM_OP_ROPE>(context, {{.rotary_dim = 2},
                                       {.rotary_dim = 16},
                                       {.head_dim = 80, .rotary_dim = 32},
                                       {.head_dim = 33, .rotary_dim = 30},
                                       {.head_dim = 80, .rotary_dim = 32, .inverse = true}});
}
Outcome rope_positions(Context& context) {
  return cases<FVLM_OP_ROPE>(context,
                             {{.first_position = 1000}, {.head_dim = 64, .rotary_dim = 64, .first_position = 8000}});
}
Outcome rope_theta(Context& context) {
  return cases<FVLM_OP_ROPE>(
      context, {{.theta = 100}, {.head_dim = 64, .rotary_dim = 64, .first_position = 90, .theta = 500000}});
}
Outcome rope_head_dims(Context& context) {
  std::vector<KernelCase> all;
  for (int head_dim : {2, 4, 6, 10, 24, 40, 72, 96, 128, 256})
    all.push_back({.rows = 4, .head_dim = head_dim, .rotary_dim = head_dim});
  for (int heads : {1, 2, 7}) all.push_back({.heads = heads});
  return cases<FVLM_OP_ROPE>(context, all);
}

Outcome bias_gelu_plain(Context& context) {
  return cases<FVLM_OP_BIAS_GELU>(context, {{.bias = false}, {.rows = 33, .width = 20, .bias = false}});
}

Outcome linear_plain(Context& context) {
  return cases<FVLM_OP_LINEAR>(context,
                               {{.bias = false}, {.rows = 33, .width = 20, .bias = false, .accumulate = true}});
}
Outcome linear_residual(Context& context) {
  if (!offered(context, FVLM_OP_LINEAR)) return not_applicable("not offered");
  const KernelCase one{.op = FVLM_OP_LINEAR, .dtype = kernel_dtype(context, FVLM_OP_LINEAR), .residual = true};
  if (const std::string no = refusal(context, kernel_trial(one)); !no.empty()) return not_applicable(no);
  const std::vector<KernelCase> all{{.residual = true},
                                    {.rows = 33, .width = 20, .residual = true, .bias = false, .accumulate = true},
                                    {.rows = 300, .width = 384, .inner = 96, .backward = false, .residual = true}};
  Outcome outcome = cases<FVLM_OP_LINEAR>(context, all);
  return outcome.state == State::ok ? cases<FVLM_OP_LINEAR>(context, all, {.alias = 1}) : outcome;
}
Outcome linear_gelu(Context& context) {
  return cases<FVLM_OP_LINEAR>(context,
                               {{.gelu = true}, {.bias = false, .gelu = true}, {.backward = false, .gelu = true}});
}
Outcome linear_gelu_before(Context& context) {
  return cases<FVLM_OP_LINEAR>(context, {{.gelu_on_input = true}, {.gelu = true, .gelu_on_input = true}});
}

// Column sums of d_x, in all forms that the engine uses.
template <int op>
Outcome summed(Context& context) {
  if (!offered(context, op)) return not_applicable("not offered");
  constexpr bool linear = op == FVLM_OP_LINEAR, layernorm = op == FVLM_OP_LAYERNORM;
  std::vector<KernelCase> all;
  for (const auto dtype : {kernel_dtype(context, op), at::kBFloat16})
    for (KernelCase c :
         std::vector<KernelCase>{{.column_sums = true},
                                 {.rows = 70, .width = 33, .inner = 9, .column_sums = true, .accumulate = true},
                                 {.rows = 3000, .gelu_on_input = linear, .column_sums = true},
                                 {.rows = 257, .gelu_on_input = linear, .column_sums = true, .accumulate = true},
                                 {.column_sums = true, .frozen = !linear},
                                 {.rows = 3000, .width = 384, .has_d_sum = layernorm, .column_sums = true},
                                 {.rows = 2500, .width = 100, .column_sums = true, .accumulate = true},
                                 {.rows = 0, .column_sums = true}}) {
      c.op = op, c.dtype = dtype;
      if (dtype != at::kBFloat16) c.gradient_dtype = dtype;
      all.push_back(c);
    }
  return expect_correct_where_supported(context, all);
}

Outcome nonsense(Context& context) {
  using Query = fvlm_kernels_query;
  InvalidQueries<Query> nonsense;
  for (const TableOperation& operation : kernel_operations()) {
    const int op = operation.op;
    const Query good = KernelCase{.op = op}.query(context.device);
    const std::string name = fmt::format("for {} ", op_name(op));
    nonsense.add_usual(good, &Query::dtype, name);
    if (!offered(context, op)) nonsense.add(name + "though its functions are NULL", good, [](Query&) {});
    for (int bit = 6; bit < 32; ++bit)
      if (!(find_operation(op)->options & (1U << bit)))
        nonsense.add(fmt::format("{}with bit {} of options, which no header names", name, bit), good,
                     [bit](Query& q) { q.options |= 1u << bit; });
    if (op == FVLM_OP_BIAS_GELU || op == FVLM_OP_LINEAR)
      nonsense.add(name + "with both approximations of gelu", good,
                   [](Query& q) { q.options |= FVLM_QUICK_GELU | FVLM_GELU_TANH; });
    if (op != FVLM_OP_ROPE) continue;
    nonsense.add(name + "with an odd rotary_dim", good, [](Query& q) { q.rotary_dim = 5; });
    nonsense.add(name + "with rotary_dim larger than head_dim", good, [](Query& q) { q.rotary_dim = 2 * q.head_dim; });
  }
  nonsense.add("for a number that is no operation", KernelCase{.op = FVLM_OP_RMSNORM}.query(context.device),
               [](Query& q) { q.op = 99; });
  return nonsense.refused_by(context.table<fvlm_kernels_v1>().supports);
}

// Segments of a row each, short ones and long ones; slots that no segment has stay as they are.
template <int op>
Outcome continues(Context& context) {
  std::vector<KernelCase> all;
  for (const int64_t rows : {0, 1, 3, 5, 12, 40, 150}) all.push_back({.rows = rows, .backward = false, .states = true});
  return cases<op>(context, all);
}

Outcome convolution_taps(Context& context) {
  std::vector<KernelCase> all;
  for (const int taps : {1, 2, 3, 4}) {
    all.push_back({.rows = 30, .bias = taps % 2 == 0, .taps = taps, .accumulate = taps > 2});
    all.push_back({.rows = 7, .backward = false, .bias = taps % 2 == 0, .taps = taps, .states = true});
  }
  return cases<FVLM_OP_SHORT_CONVOLUTION>(context, all);
}

// Several heads of values for one of keys, and segments of several hundred rows.
Outcome delta_rule_groups(Context& context) {
  return cases<FVLM_OP_DELTA_RULE>(context,
                                   {{.rows = 200, .heads = 4, .key_heads = 2},
                                    {.rows = 20, .heads = 3, .key_heads = 1, .accumulate = true},
                                    {.rows = 210, .heads = 1},
                                    {.rows = 9, .heads = 4, .backward = false, .key_heads = 2, .states = true}});
}

template <int op>
void rows_of(std::vector<Check>& rows) {
  const std::string name = op_name(op);
  std::string plain = name + "_float*," + name + "_bfloat16";
  const TableOperation& operation = *find_operation(op);
  append(
      rows,
      {
          {name + "_float32", name + " and its gradients agree with float64, in float32", numbers<op, at::kFloat>},
          {name + "_bfloat16", name + " and its gradients agree with float64, in bfloat16", numbers<op, at::kBFloat16>},
          {name + "_float16", name + " and its gradients agree with float64, in float16", numbers<op, at::kHalf>},
          {name + "_float64", name + " and its gradients agree with float64, in float64", numbers<op, at::kDouble>},
          {name + "_one_row", "a single row", one_row<op>, plain},
          {name + "_many_rows", "1,000 rows", many_rows<op>, plain},
          {name + "_forward_alone", "the forward without a backward to follow", forward_alone<op>, plain},
      });
  if (op != FVLM_OP_ROPE && op != FVLM_OP_DELTA_RULE)
    append(rows, {{name + "_sizes", "widths from 1 on, odd ones, no multiples of a vector", sizes<op>, plain}});
  if (operation.has_parameters) {
    append(rows, {
                     {name + "_accumulates", "gradients of parameters are added to where the call says so",
                      accumulates<op>, plain},
                     {name + "_frozen", "gradients of parameters not wanted", frozen<op>, plain},
                 });
    std::string known = plain + "," + name + "_accumulates";
    // Column sums of folded scales have no rows, and those of a delta rule are not of its operands.
    if (op != FVLM_OP_FOLD_ROW_SCALE && op != FVLM_OP_DELTA_RULE) {
      append(rows, {{name + "_long_sums", "sums over thousands of rows are kept in float32", long_sums<op>, plain}});
      known += "," + name + "_long_sums";
    }
    plain += "," + name + "_accumulates";
    append(rows, {{name + "_gradient_float32", "gradients of parameters in float32 beside 16 bits",
                   gradient_float32<op>, known}});
  }
  if (op == FVLM_OP_LAYERNORM || op == FVLM_OP_LINEAR || op == FVLM_OP_FOLD_ROW_SCALE)
    append(rows, {{name + "_partly_frozen", "gradients of some parameters wanted, of others not", partly_frozen<op>,
                   plain + "," + name + "_frozen"}});
  append(rows, {{name + "_no_rows", "no rows: gradients of parameters become 0 or stay", no_rows<op>, plain}});
  if (is_norm(op)) {
    append(rows, {
                     {name + "_residual", "x + residual is normalised and written to sum", residual<op>, plain},
                     {name + "_rest", "what the sum loses by rounding is kept, where supports() says so", rest<op>,
                      plain + "," + name + "_residual"},
                     {name + "_d_sum", "the gradient that reaches the sum by other ways is added to d_x", d_sum<op>,
                      plain + "," + name + "_residual"},
                     {name + "_rounded_sum", "y is the norm of the sum as it was rounded", rounded_sum<op>,
                      plain + "," + name + "_residual"},
                     {name + "_epsilon", "the query's epsilon is the one applied", epsilon<op>, plain},
                     {name + "_magnitudes", "large and small rows", magnitudes<op>, plain},
                 });
    plain += "," + name + "_residual," + name + "_d_sum";
  }
  if (op != FVLM_OP_ROPE && op != FVLM_OP_EXPERTS && !carries_state(op))
    append(rows, {{name + "_rounds_ties", "what lies halfway between two numbers of 16 bits becomes the even one",
                   rounds_ties<op>, plain}});
  if (op == FVLM_OP_SWIGLU || op == FVLM_OP_BIAS_GELU)
    append(rows, {{name + "_large", "numbers in the thousands do not overflow", large_numbers<op>, plain}});
  if (operation.options & FVLM_WITH_COLUMN_SUMS)
    append(rows, {{name + "_sums", "d_x comes with its sums over rows, where supports() says so", summed<op>, plain}});
  if (!operation.has_inner && !carries_state(op))
    append(rows,
           {{name + "_aliased", "outputs in the memory of inputs, where the header allows it", aliased<op>, plain}});
}

} // namespace

Table kernels_table() {
  Table table{"kernels", {}, kernels_benchmarks()};
  rows_of<FVLM_OP_RMSNORM>(table.checks);
  rows_of<FVLM_OP_LAYERNORM>(table.checks);
  rows_of<FVLM_OP_ROPE>(table.checks);
  const std::string rope = "rope_float*,rope_bfloat16";
  append(table.checks, {
                           {"rope_inverse", "inverse turns back", rope_inverse, rope},
                           {"rope_partial", "what lies behind rotary_dim is copied", rope_partial, rope},
                           {"rope_positions", "positions in the thousands", rope_positions, rope},
                           {"rope_theta", "the query's rope_theta is the one applied", rope_theta, rope},
                           {"rope_head_dims", "head_dim 2 to 256, 1 to 7 heads", rope_head_dims, rope},
                       });
  rows_of<FVLM_OP_SWIGLU>(table.checks);
  rows_of<FVLM_OP_BIAS_GELU>(table.checks);
  const std::string bias_gelu = "bias_gelu_float*,bias_gelu_bfloat16";
  append(table.checks, {{"bias_gelu_plain", "without a bias", bias_gelu_plain, bias_gelu}});
  rows_of<FVLM_OP_LAYERSCALE_RESIDUAL>(table.checks);
  rows_of<FVLM_OP_LINEAR>(table.checks);
  rows_of<FVLM_OP_FOLD_ROW_SCALE>(table.checks);
  const std::string linear = "linear_float*,linear_bfloat16";
  append(table.checks, {
                           {"linear_plain", "without a bias", linear_plain, linear + ",linear_accumulates"},
                           {"linear_residual", "y is the residual and the product, where supports() says so",
                            linear_residual, linear + ",linear_accumulates"},
                           {"linear_rest", "what y loses by rounding is kept, where supports() says so",
                            rest<FVLM_OP_LINEAR>, linear + ",linear_residual"},
                           {"linear_gelu", "y is gelu of what goes to pre_activation", linear_gelu, linear},
                           {"linear_gelu_before", "d_x is multiplied by the gelu's derivative", linear_gelu_before,
                            linear + ",linear_gelu"},
                       });
  rows_of<FVLM_OP_SHORT_CONVOLUTION>(table.checks);
  rows_of<FVLM_OP_DELTA_RULE>(table.checks);
  rows_of<FVLM_OP_EXPERTS>(table.checks);
  const std::string convolution = "short_convolution_float*,short_convolution_bfloat16",
                    delta_rule = "delta_rule_float*,delta_rule_bfloat16";
  append(table.checks, {
                           {"short_convolution_states", "segments continue others, whose states are replaced",
                            continues<FVLM_OP_SHORT_CONVOLUTION>, convolution},
                           {"short_convolution_taps", "1 to 4 taps, with a bias and without", convolution_taps,
                            convolution + ",short_convolution_states"},
                           {"delta_rule_states", "segments continue others, whose states are replaced",
                            continues<FVLM_OP_DELTA_RULE>, delta_rule},
                           {"delta_rule_groups", "fewer heads of keys than of values, and hundreds of rows",
                            delta_rule_groups, delta_rule + ",delta_rule_states"},
                           {"supports_nonsense", "supports() refuses impossible queries", nonsense},
                       });
  append(table.checks, expert_checks());
  append(table.checks, kernel_option_checks());
  append(table.checks, kernel_size_checks());
  std::string plain;
  for (const TableOperation& operation : kernel_operations()) {
    const std::string name = op_name(operation.op);
    plain += fmt::format("{}{}_float*,{}_bfloat16", plain.empty() ? "" : ",", name, name);
  }
  append(table.checks, generic_checks(plain));
  return table;
}

} // namespace fvlm::check
