// The engine's only list of the operations of the kind kernels.
#include "plugin/table_slot.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace fvlm {
namespace {

// Those of the kind kernels that carry a state from row to row.
std::vector<TableOperation> recurrences() {
  using Table = fvlm_kernels_v1;
  return {{.name = "short_convolution",
           .slots = {FVLM_SLOT(Table, short_convolution_forward), FVLM_SLOT(Table, short_convolution_backward)},
           .op = FVLM_OP_SHORT_CONVOLUTION,
           .options = FVLM_WITH_BIAS | FVLM_WITH_STATES,
           .sizes = "ROWSxWIDTH",
           .has_parameters = true,
           .rows_forward = 2,
           .rows_backward = 3},
          {.name = "delta_rule",
           .slots = {FVLM_SLOT(Table, delta_rule_forward), FVLM_SLOT(Table, delta_rule_backward)},
           .op = FVLM_OP_DELTA_RULE,
           .options = FVLM_WITH_STATES,
           .sizes = "ROWSxHEADSxHEAD_DIM",
           .has_parameters = true}};
}

// Mixtures of experts, which are computed so in passes without gradients.
std::vector<TableOperation> experts() {
  using Table = fvlm_kernels_v1;
  return {
      {.name = "experts",
       .slots = {FVLM_SLOT(Table, experts_forward)},
       .op = FVLM_OP_EXPERTS,
       .options = FVLM_WITH_BIAS | FVLM_SIGMOID_ROUTER | FVLM_NORMALIZED_ROUTER | FVLM_INT8_WEIGHTS | FVLM_INT4_WEIGHTS,
       .sizes = "ROWSxINNERxWIDTHxEXPERTSxCHOSENxWEIGHT_BITS",
       .has_inner = true,
       .has_backward = false,
       .has_epsilon = true}};
}

// All others of the kind kernels.
std::vector<TableOperation> row_operations() {
  using Table = fvlm_kernels_v1;
  constexpr uint32_t residual = FVLM_WITH_RESIDUAL, bias = FVLM_WITH_BIAS, gelu = FVLM_WITH_GELU,
                     sums = FVLM_WITH_COLUMN_SUMS, compensation = FVLM_COMPENSATED,
                     gelu_forms = FVLM_QUICK_GELU | FVLM_GELU_TANH;
  return {{.name = "rmsnorm",
           .slots = {FVLM_SLOT(Table, rmsnorm_forward), FVLM_SLOT(Table, rmsnorm_backward)},
           .op = FVLM_OP_RMSNORM,
           .options = residual | compensation | FVLM_PER_HEAD | FVLM_WITH_GATE,
           .sizes = "ROWSxWIDTH",
           .has_epsilon = true,
           .has_parameters = true,
           .rows_forward = 2,
           .rows_backward = 3},
          {.name = "layernorm",
           .slots = {FVLM_SLOT(Table, layernorm_forward), FVLM_SLOT(Table, layernorm_backward)},
           .op = FVLM_OP_LAYERNORM,
           .options = residual | compensation | sums,
           .sizes = "ROWSxWIDTH",
           .has_epsilon = true,
           .has_parameters = true,
           .rows_forward = 2,
           .rows_backward = 3},
          {.name = "rope",
           .slots = {FVLM_SLOT(Table, rope)},
           .op = FVLM_OP_ROPE,
           .options = FVLM_WITH_FREQUENCIES,
           .sizes = "ROWSxHEADSxHEAD_DIM",
           .rows_forward = 2,
           .rows_backward = 2},
          {.name = "swiglu",
           .slots = {FVLM_SLOT(Table, swiglu_forward), FVLM_SLOT(Table, swiglu_backward)},
           .op = FVLM_OP_SWIGLU,
           .options = FVLM_WITH_OUTPUT | FVLM_GELU_TANH,
           .sizes = "ROWSxWIDTH",
           .rows_forward = 3,
           .rows_backward = 5},
          {.name = "bias_gelu",
           .slots = {FVLM_SLOT(Table, bias_gelu_forward), FVLM_SLOT(Table, bias_gelu_backward)},
           .op = FVLM_OP_BIAS_GELU,
           .options = bias | gelu_forms,
           .sizes = "ROWSxWIDTH",
           .has_parameters = true,
           .rows_forward = 2,
           .rows_backward = 3},
          {.name = "layerscale_residual",
           .slots = {FVLM_SLOT(Table, layerscale_forward), FVLM_SLOT(Table, layerscale_backward)},
           .op = FVLM_OP_LAYERSCALE_RESIDUAL,
           .options = sums,
           .sizes = "ROWSxWIDTH",
           .has_parameters = true,
           .rows_forward = 3,
           .rows_backward = 3},
          {.name = "linear",
           .slots = {FVLM_SLOT(Table, linear_forward), FVLM_SLOT(Table, linear_input_gradient),
                     FVLM_SLOT(Table, linear_weight_gradient)},
           .op = FVLM_OP_LINEAR,
           .options = residual | bias | gelu | sums | compensation | gelu_forms | FVLM_WITH_NORM | FVLM_WITH_SWIGLU |
                      FVLM_STRIDED_WEIGHT | FVLM_BOTH_GRADIENTS | FVLM_WITH_FP8 | FVLM_SWIGLU_INPUT | FVLM_WITH_OUTPUT |
                      FVLM_BFLOAT16_WEIGHT | FVLM_FP8_PAIRS,
           .sizes = "ROWSxINNERxWIDTH",
           .has_inner = true,
           .has_parameters = true},
          {.name = "scaled_rows",
           .slots = {FVLM_SLOT(Table, scaled_rows_forward), FVLM_SLOT(Table, scaled_rows_backward)},
           .op = FVLM_OP_FOLD_ROW_SCALE,
           .options = 0,
           .sizes = "LINEARSxINNERxWIDTH",
           .has_inner = true,
           .has_parameters = true}};
}

} // namespace

const std::vector<TableOperation>& kernel_operations() {
  static const std::vector<TableOperation> all = [] {
    std::vector<TableOperation> operations = row_operations();
    std::ranges::move(recurrences(), std::back_inserter(operations));
    std::ranges::move(experts(), std::back_inserter(operations));
    return operations;
  }();
  return all;
}

const TableOperation* find_operation(int32_t op) {
  for (const TableOperation& operation : kernel_operations())
    if (operation.op == op) return &operation;
  return nullptr;
}

std::string operation_name(int32_t op) {
  const TableOperation* operation = find_operation(op);
  return operation ? std::string(operation->name) : fmt::format("op {}", op);
}

std::string KindOf<fvlm_kernels_v1>::shape(const Query& query) {
  const TableOperation* operation = find_operation(query.op);
  std::string text =
      fmt::format("{} {} of {}", query.rows, query.op == FVLM_OP_FOLD_ROW_SCALE ? "linears" : "rows", query.width);
  if (operation && operation->has_inner) text += fmt::format(" from {}", query.inner);
  if (query.segments > 0) text += fmt::format(", {} segments of at most {}", query.segments, query.max_seqlen);
  if (query.taps > 0) text += fmt::format(", {} taps", query.taps);
  if (query.key_heads > 0)
    text += fmt::format(", {} heads of {} by {} of {}", query.heads, query.head_dim, query.key_heads, query.key_dim);
  if (query.experts > 0) text += fmt::format(", to {} of {} experts", query.chosen, query.experts);
  constexpr std::pair<uint32_t, const char*> options[] = {{FVLM_WITH_RESIDUAL, "residual"},
                                                          {FVLM_WITH_BIAS, "bias"},
                                                          {FVLM_WITH_GELU, "gelu"},
                                                          {FVLM_COMPENSATED, "compensation"},
                                                          {FVLM_QUICK_GELU, "quick_gelu"},
                                                          {FVLM_GELU_TANH, "gelu_tanh"},
                                                          {FVLM_WITH_FREQUENCIES, "frequencies"},
                                                          {FVLM_PER_HEAD, "heads apart"},
                                                          {FVLM_WITH_BACKWARD, "backward"},
                                                          {FVLM_WITH_NORM, "norm"},
                                                          {FVLM_WITH_SWIGLU, "swiglu"},
                                                          {FVLM_STRIDED_WEIGHT, "strided weight"},
                                                          {FVLM_BOTH_GRADIENTS, "both gradients at once"},
                                                          {FVLM_WITH_OUTPUT, "output"},
                                                          {FVLM_WITH_FP8, "fp8"},
                                                          {FVLM_SWIGLU_INPUT, "swiglu before it"},
                                                          {FVLM_BFLOAT16_WEIGHT, "bfloat16 weight"},
                                                          {FVLM_FP8_PAIRS, "pairs of e4m3"},
                                                          {FVLM_WITH_STATES, "states"},
                                                          {FVLM_WITH_GATE, "gate"},
                                                          {FVLM_SIGMOID_ROUTER, "sigmoids"},
                                                          {FVLM_NORMALIZED_ROUTER, "a sum of 1"},
                                                          {FVLM_INT8_WEIGHTS, "weights in int8"},
                                                          {FVLM_INT4_WEIGHTS, "weights in int4"}};
  for (const auto& [bit, name] : options)
    if (query.options & bit) text += fmt::format(", with {}", name);
  return text;
}

} // namespace fvlm
