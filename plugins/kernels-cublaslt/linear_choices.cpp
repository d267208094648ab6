// linear_choices.cpp: from a measured plan to a choice, and back to the plan of another row count.
#include "linear_choices.h"

#include <fvlm/cache.h>

#include <algorithm>
#include <cstdio>
#include <type_traits>

namespace fvlm::plugins {
namespace {

PlanKey key_of(const fvlm_kernels_query& query) {
  fvlm_kernels_query of_class = query;
  of_class.rows = row_count_class(query.rows);
  return plan_key_of(of_class, false);
}

// Under which the engine keeps a choice. The version is that of LinearChoice.
struct CacheKey {
  char text[200];

  explicit CacheKey(const fvlm_kernels_query& q) {
    constexpr int version = 1;
    (void)std::snprintf(
        text, sizeof text,
        "linear %d, class of %lld rows, %lld -> %lld, dtype %d.%d, gradient %d.%d, options %#x, cuBLASLt %zu", version,
        static_cast<long long>(row_count_class(q.rows)), static_cast<long long>(q.inner),
        static_cast<long long>(q.width), q.dtype.code, q.dtype.bits, q.gradient_dtype.code, q.gradient_dtype.bits,
        std::get<5>(plan_key_of(q, false)), cublasLtGetVersion());
  }
};

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

const LinearChoice* LinearChoices::find(const fvlm_call& call, const fvlm_kernels_query& query) {
  static_assert(std::is_trivially_copyable_v<LinearChoice>);
  const PlanKey key = key_of(query);
  if (const auto found = choices_.find(key); found != choices_.end()) return &found->second;
  const fvlm_caching_host* cache = fvlm_cache_of(call.host);
  LinearChoice kept{};
  if (!cache || !cache->cache_load(call.host, query.device, CacheKey(query).text, &kept, sizeof kept)) return nullptr;
  return &(choices_[key] = kept);
}

bool LinearChoices::apply(const CublasLt& library, const fvlm_call& call, const fvlm_kernels_query& query,
                          std::size_t workspace, LinearPlan& plan) {
  const LinearChoice* const found = find(call, query);
  if (!found) return false;
  const LinearChoice& choice = *found;
  each_product(plan, [&](int index, Matmul& product) { product.choose(library, choice.product[index], workspace); });
  each_kernel(plan, choice, [](bool& of_plan, std::uint8_t chosen) { of_plan = of_plan && chosen != 0; });
  plan.gelu_is_epilogue = choice.gelu_is_epilogue != 0 && plan.gelu_forward.exists();
  plan.gelu_derivative_is_epilogue = choice.gelu_derivative_is_epilogue != 0 && plan.gelu_input.exists();
  return true;
}

void LinearChoices::keep(const fvlm_call& call, const fvlm_kernels_query& query, const LinearPlan& plan) {
  LinearChoice choice{};
  each_product(plan, [&](int index, const Matmul& product) { choice.product[index] = product.choice(); });
  each_kernel(plan, choice, [](bool of_plan, std::uint8_t& chosen) { chosen = of_plan; });
  choice.gelu_is_epilogue = plan.gelu_is_epilogue;
  choice.gelu_derivative_is_epilogue = plan.gelu_derivative_is_epilogue;
  choices_[key_of(query)] = choice;
  if (const fvlm_caching_host* cache = fvlm_cache_of(call.host))
    cache->cache_store(call.host, query.device, CacheKey(query).text, &choice, sizeof choice);
}

} // namespace fvlm::plugins
