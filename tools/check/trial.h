// A trial: one problem of a kind (shapes, dtype, numbers), ready to be run in any variation and compared.
#pragma once
#include "check/oracle.h"
#include "check/pages.h"
#include "check/variation.h"

#include <fvlm/abi.h>

#include <functional>
#include <memory>

namespace fvlm::check {

class Context;

struct Trial {
  std::string label; // "float32, causal, 6:2 heads of 64, segments 5 17 9"
  std::function<fvlm_support(Context&)> supports;
  std::function<Run(Context&, const Variation&)> run;
  std::function<Expectation()> expect;
  // A further condition on the outputs, beyond their expected values: "" if it holds. NULL: none.
  std::function<std::string(const Context&, const Run&, double& worst)> extra_check;
};

// Calls a kind's supports(). The score is preset to -1, to recognize an answer that the plugin did not write.
template <class Query>
fvlm_support query_support(void (*supports)(const Query*, fvlm_support*), const Query& query) {
  fvlm_support answer{};
  answer.struct_size = sizeof answer;
  answer.score = -1;
  if (QueryWriteProtection::is_active()) {
    const Pages pages(sizeof query);
    auto* guarded = reinterpret_cast<Query*>(pages.data());
    *guarded = query;
    const WriteProtection protection({{pages.data(), pages.size(), "the query of supports()"}});
    supports(guarded, &answer);
  } else {
    supports(&query, &answer);
  }
  return answer;
}

// The function's result, computed at the first call.
template <class Function>
auto once(Function function) {
  using Result = decltype(function());
  auto kept = std::make_shared<std::optional<Result>>();
  return [kept, function] {
    if (!*kept) *kept = function();
    return **kept;
  };
}

// "" if supports() accepts the trial, else its reason.
std::string refusal(Context& context, const Trial& trial);

// The types that models compute in; trials prefer the first one that the plugin supports.
constexpr at::ScalarType floating[] = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble};

// The first of these whose trial the plugin supports, else float32.
template <class Make>
at::ScalarType first_supported_dtype(Context& context, Make make) {
  for (auto dtype : floating)
    if (refusal(context, make(dtype)).empty()) return dtype;
  return at::kFloat;
}

template <class Case, class Make>
std::vector<Trial> trials_of(const std::vector<Case>& cases, Make make) {
  std::vector<Trial> trials;
  trials.reserve(cases.size());
  for (const auto& one : cases) trials.push_back(make(one));
  return trials;
}

} // namespace fvlm::check
