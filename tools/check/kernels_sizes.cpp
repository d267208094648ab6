// Kernels at all sizes up to those of the bundled recipes, varying one dimension at a time.
#include "check/generic.h"
#include "check/kernels.h"
#include "check/sizes.h"
#include "plugin/kinds.h"

#include <algorithm>

namespace fvlm::check {
namespace {

// In the plugin's own dtype for this operation, and also in bfloat16 if supported. Each case runs also with all
// options: accumulation, a residual, column sums of d_x.
Outcome sized(Context& context, int op, const std::vector<KernelCase>& cases) {
  if (!offered(context, op)) return not_applicable("not offered");
  const auto own = kernel_dtype(context, op);
  std::vector<Trial> trials;
  const auto add = [&](const KernelCase& one) {
    trials.push_back(with_sums_of(std::max({one.rows, one.width, one.inner}), kernel_trial(one)));
  };
  for (KernelCase one : cases) {
    one.op = op;
    one.dtype = one.gradient_dtype = own;
    add(one);
    KernelCase full = one;
    full.accumulate = true;
    if (is_norm(op)) full.residual = full.has_d_sum = true;
    add(full);
    full.column_sums = find_operation(op)->options & FVLM_WITH_COLUMN_SUMS;
    if (full.column_sums) add(full);
    if (own == at::kBFloat16) continue;
    one.dtype = at::kBFloat16, one.gradient_dtype = at::kFloat;
    add(one);
  }
  return expect_correct(context, trials);
}

template <int op>
Outcome widths(Context& context) {
  std::vector<KernelCase> all;
  for (const int64_t width : just_above(1, 13)) all.push_back({.rows = 3, .width = width, .inner = 5});
  for (const int64_t width : tiles_above(7, 13)) all.push_back({.rows = 5, .width = width, .inner = 8});
  return sized(context, op, all);
}

template <int op>
Outcome inner_sizes(Context& context) {
  std::vector<KernelCase> all;
  for (const int64_t inner : just_above(1, 13)) all.push_back({.rows = 3, .width = 5, .inner = inner});
  for (const int64_t inner : tiles_above(7, 13)) all.push_back({.rows = 5, .width = 8, .inner = inner});
  return sized(context, op, all);
}

template <int op>
Outcome row_counts(Context& context) {
  std::vector<KernelCase> all;
  const bool matrices = op == FVLM_OP_FOLD_ROW_SCALE;
  for (const int64_t rows : just_above(4, matrices ? 11 : 17))
    all.push_back({.rows = rows,
                   .width = matrices ? 3 : 8,
                   .inner = matrices ? 2 : 8,
                   .heads = 1,
                   .head_dim = 8,
                   .rotary_dim = 8});
  for (const int64_t rows : tiles_above(7, matrices ? 10 : 14))
    all.push_back({.rows = rows,
                   .width = matrices ? 3 : 17,
                   .inner = matrices ? 2 : 12,
                   .heads = 2,
                   .head_dim = 16,
                   .rotary_dim = 8});
  return sized(context, op, all);
}

template <int op>
Outcome million_elements(Context& context) {
  const bool matrices = op == FVLM_OP_FOLD_ROW_SCALE;
  return sized(context, op,
               {{.rows = matrices ? 1 : 1025,
                 .width = 1031,
                 .inner = matrices ? 1033 : 8,
                 .heads = 16,
                 .head_dim = 66,
                 .rotary_dim = 66},
                {.rows = matrices ? 3 : 130,
                 .width = 8256,
                 .inner = matrices ? 64 : 130,
                 .heads = 64,
                 .head_dim = 130,
                 .rotary_dim = 128}});
}

Outcome rope_more_heads(Context& context) {
  std::vector<KernelCase> all;
  for (const int64_t heads : just_above(1, 8))
    all.push_back({.rows = 3, .heads = static_cast<int>(heads), .head_dim = 8, .rotary_dim = 8});
  for (const int heads : {12, 16, 24, 32, 48, 64, 96, 128})
    all.push_back({.rows = 5, .heads = heads, .head_dim = 64, .rotary_dim = 64});
  for (const int head_dim : {66, 80, 112, 130, 160, 192, 258, 512})
    all.push_back({.rows = 3, .heads = 2, .head_dim = head_dim, .rotary_dim = head_dim});
  return sized(context, FVLM_OP_ROPE, all);
}

Outcome rope_far_positions(Context& context) {
  std::vector<KernelCase> all;
  for (const int64_t position : just_above(4, 15))
    all.push_back(
        {.rows = 9, .heads = 2, .head_dim = 64, .rotary_dim = 64, .first_position = position, .theta = 100000});
  return sized(context, FVLM_OP_ROPE, all);
}

template <int op>
void rows_of(std::vector<Check>& rows) {
  const std::string name = op_name(op);
  const std::string needs = name + "_float*," + name + "_bfloat16";
  const TableOperation& operation = *find_operation(op);
  const std::string known = needs + (operation.has_parameters ? "," + name + "_accumulates" : "") +
                            (is_norm(op) ? "," + name + "_residual," + name + "_d_sum" : "");
  const auto row = [&](const char* what, const char* proves, Outcome (*run)(Context&)) {
    rows.push_back({name + what, proves, run, known, Extent::thorough});
  };
  if (op != FVLM_OP_ROPE) row("_widths", "widths just above each power of two, up to 8,256", widths<op>);
  if (operation.has_inner)
    row("_inner_sizes", "inner sizes just above each power of two, up to 8,256", inner_sizes<op>);
  row("_row_counts", "up to 131,073 rows, or 2,049 matrices", row_counts<op>);
  row("_million", "more than a million elements", million_elements<op>);
  if (op != FVLM_OP_ROPE) return;
  row("_more_heads", "up to 257 heads and head_dim 512", rope_more_heads);
  row("_far_positions", "positions up to 32,769", rope_far_positions);
}

} // namespace

std::vector<Check> kernel_size_checks() {
  std::vector<Check> rows;
  rows_of<FVLM_OP_RMSNORM>(rows);
  rows_of<FVLM_OP_LAYERNORM>(rows);
  rows_of<FVLM_OP_ROPE>(rows);
  rows_of<FVLM_OP_SWIGLU>(rows);
  rows_of<FVLM_OP_BIAS_GELU>(rows);
  rows_of<FVLM_OP_LAYERSCALE_RESIDUAL>(rows);
  rows_of<FVLM_OP_LINEAR>(rows);
  rows_of<FVLM_OP_FOLD_ROW_SCALE>(rows);
  return rows;
}

} // namespace fvlm::check
