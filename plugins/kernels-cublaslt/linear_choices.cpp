// linear_choices.cpp: from a measured plan to a choice, and back to the plan of another row count.
#include "linear_choices.h"

#include <algorithm>

namespace fvlm::plugins {
namespace {

PlanKey key_of(const fvlm_kernels_query& query) {
  fvlm_kernels_query of_class = query;
  of_class.rows = row_count_class(query.rows);
  return plan_key_of(of_class, false);
}

// Calls visit(index in LinearChoice, product) for each product of the plan.
template <class Plan, class Visit>
void each_product(Plan& plan, const Visit& visit) {
  visit(LinearChoice::forward_product, plan.forward);
  visit(LinearChoice::input_product, plan.input);
  visit(LinearChoice::weight_product, plan.weight);
  visit(LinearChoice::gelu_forward_product, plan.gelu_forward);
  visit(LinearChoice::gelu_input_product, plan.gelu_input);
}

// The flags that are measured. A kernel of this plugin that does not support a row count is not in its heuristic plan.
template <class Plan, class Choice, class Visit>
void each_kernel(Plan& plan, Choice& choice, const Visit& visit) {
  visit(plan.forward_is_skinny, choice.forward_is_skinny);
  visit(plan.input_is_skinny, choice.input_is_skinny);
  visit(plan.forward_is_fused, choice.forward_is_fused);
  visit(plan.input_is_fused, choice.input_is_fused);
  visit(plan.gelu_is_fused, choice.gelu_is_fused);
  visit(plan.gelu_derivative_is_fused, choice.gelu_derivative_is_fused);
  visit(plan.weight_is_custom, choice.weight_is_custom);
  visit(plan.weight_and_bias_are_custom, choice.weight_and_bias_are_custom);
}

} // namespace

std::int64_t row_count_class(std::int64_t rows) {
  constexpr std::int64_t each_its_own = 64, largest = 16384;
  if (rows <= each_its_own) return rows;
  std::int64_t power = each_its_own;
  while (power < std::min(rows, largest)) power *= 2;
  return power;
}

bool LinearChoices::apply(const CublasLt& library, const fvlm_kernels_query& query, std::size_t workspace,
                          LinearPlan& plan) const {
  const auto found = choices_.find(key_of(query));
  if (found == choices_.end()) return false;
  const LinearChoice& choice = found->second;
  each_product(plan, [&](int index, Matmul& product) { product.choose(library, choice.product[index], workspace); });
  each_kernel(plan, choice, [](bool& of_plan, bool chosen) { of_plan = of_plan && chosen; });
  plan.gelu_is_epilogue = choice.gelu_is_epilogue && plan.gelu_forward.exists();
  plan.gelu_derivative_is_epilogue = choice.gelu_derivative_is_epilogue && plan.gelu_input.exists();
  return true;
}

void LinearChoices::keep(const fvlm_kernels_query& query, const LinearPlan& plan) {
  LinearChoice choice{};
  each_product(plan, [&](int index, const Matmul& product) { choice.product[index] = product.choice(); });
  each_kernel(plan, choice, [](bool of_plan, bool& chosen) { chosen = of_plan; });
  choice.gelu_is_epilogue = plan.gelu_is_epilogue;
  choice.gelu_derivative_is_epilogue = plan.gelu_derivative_is_epilogue;
  choices_[key_of(query)] = choice;
}

} // namespace fvlm::plugins
