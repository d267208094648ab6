#include "check/trial.h"

#include "check/child.h"
#include "check/generic.h"
#include "check/operand.h"

#include <ATen/ops/nonzero.h>
#include <ATen/ops/stack.h>

namespace fvlm::check {

std::string refusal(Context& context, const Trial& trial) {
  fvlm_support answer = trial.supports(context);
  if (answer.score > 0) return "";
  return answer.reason[0] ? answer.reason : "no, without a reason";
}

std::string mismatch(const Context& context, const Trial& trial, const Run& run, double& worst) {
  const auto expectation = trial.expect();
  for (const Expected& expected : expectation) {
    const at::Tensor* actual = run.output(expected.name);
    if (!actual) return fmt::format("{} was not computed", expected.name);
    Comparison found = compare(*actual, expected);
    if (!found.failure.empty()) return found.failure;
    worst = std::max(worst, found.ratio);
  }
  return trial.extra_check ? trial.extra_check(context, run, worst) : "";
}

std::string different_bits(const Run& one, const Run& other) {
  for (const auto& [name, tensor] : one.outputs) {
    const at::Tensor* second = other.output(name);
    if (!second || second->sizes() != tensor.sizes()) return name + " was not computed";
    if (tensor.numel() == 0 || tensor.dim() == 0) continue;
    auto a = tensor.view(at::kByte), b = second->view(at::kByte);
    if (same_bytes(a, b)) continue;
    auto values = at::stack({tensor.reshape({-1}).to(at::kDouble), second->reshape({-1}).to(at::kDouble)});
    auto differs = (a != b).view({tensor.numel(), -1}).any(1);
    int64_t first = at::nonzero(differs).reshape({-1})[0].item<int64_t>();
    return fmt::format("{}: {} of {} elements differ, the first is {:.9g} and then {:.9g}", name,
                       differs.sum().item<int64_t>(), tensor.numel(), values[0][first].item<double>(),
                       values[1][first].item<double>());
  }
  return "";
}

namespace {

Outcome run_and_compare(Context& context, const std::vector<Trial>& trials, const Variation& variation,
                        bool may_refuse) {
  int done = 0, refused = 0;
  double worst = 0;
  std::string why = "no such trial";
  for (const Trial& trial : trials) {
    if (std::string no = refusal(context, trial); !no.empty()) {
      why = no;
      continue;
    }
    keep_alive();
    Run run = trial.run(context, variation);
    if (may_refuse && !run.done() && run.statuses.back().value == FVLM_ERROR_UNSUPPORTED) {
      if (auto wrote = run.violation(Violation::wrote_on_refusal)) return failed("{}: {}", trial.label, *wrote);
      why = run.statuses.back().error;
      ++refused;
      continue;
    }
    if (auto failure = run.failure(); !failure.empty()) return failed("{}: {}", trial.label, failure);
    if (auto off = mismatch(context, trial, run, worst); !off.empty()) return failed("{}: {}", trial.label, off);
    ++done;
  }
  if (done == 0 && refused == 0) return not_applicable("supports() says no: " + why);
  if (done == 0) return ok(fmt::format("refused: {}", why));
  std::string text =
      fmt::format("{} {}, at most {:.0f} % of the tolerance", done, done == 1 ? "shape" : "shapes", 100 * worst);
  if (refused) text += fmt::format("; {} refused", refused);
  return ok(text);
}

} // namespace

Outcome expect_correct(Context& context, const std::vector<Trial>& trials, const Variation& variation) {
  return run_and_compare(context, trials, variation, false);
}

Outcome expect_correct_or_refused(Context& context, const std::vector<Trial>& trials, const Variation& variation) {
  return run_and_compare(context, trials, variation, true);
}

void append(std::vector<Check>& rows, std::vector<Check> more) {
  rows.insert(rows.end(), more.begin(), more.end());
}

Run run_fully(Context& context, const Trial& trial, const Variation& variation) {
  Run run = trial.run(context, variation);
  if (!run.done()) throw RowAborted{State::failed, fmt::format("{}: {}", trial.label, run.failure())};
  return run;
}

Run run_if_supported(Context& context, const Trial& trial) {
  if (const std::string no = refusal(context, trial); !no.empty())
    throw RowAborted{State::not_applicable, "supports() says no: " + no};
  return run_fully(context, trial);
}

} // namespace fvlm::check
