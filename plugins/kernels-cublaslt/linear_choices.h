// linear_choices.h: what measurements selected for linear layers, by class of row count: products of similar row counts
// take the same kernels, and need not be measured for each of them. The engine keeps it between runs (fvlm/cache.h).
#pragma once
#include "linear_plan.h"

#include <cstdint>
#include <map>

namespace fvlm::plugins {

// The class of a row count, itself a row count. Which kernel is the fastest hardly depends on the rows where there are
// many; where there are few, each number of them has a class of its own.
std::int64_t row_count_class(std::int64_t rows);

// What of a plan was measured, as it is kept: flags are 0 or not.
struct LinearChoice {
  enum { forward_product, input_product, weight_product, gelu_forward_product, gelu_input_product, products };
  MatmulChoice product[products];
  std::uint8_t gelu_is_epilogue, gelu_derivative_is_epilogue, forward_is_skinny, input_is_skinny, forward_is_fused,
      input_is_fused, gelu_is_fused, gelu_derivative_is_fused, weight_is_custom, weight_and_bias_are_custom;
};

class LinearChoices {
 public:
  // Selects in the plan, the heuristic one of the query, what was measured for the query's class. False: nothing was.
  // `workspace`: bytes that a product may have. [setup]
  bool apply(const CublasLt& library, const fvlm_call& call, const fvlm_kernels_query& query, std::size_t workspace,
             LinearPlan& plan);
  // Keeps what was measured for the query. [setup]
  void keep(const fvlm_call& call, const fvlm_kernels_query& query, const LinearPlan& plan);

 private:
  const LinearChoice* find(const fvlm_call& call, const fvlm_kernels_query& query);

  std::map<PlanKey, LinearChoice> choices_; // by class
};

} // namespace fvlm::plugins
