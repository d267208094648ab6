// Checks of the interface: instances, supports(), and structs of unknown sizes.
#include "check/families.h"
#include "check/generic.h"
#include "check/operand.h"
#include "plugin/untrusted.h"

namespace fvlm::check {
namespace {

Outcome creates(Context& context) {
  context.base().destroy(nullptr);
  for (int i = 0; i < 20; ++i) {
    Instance one(context, context.host()), other(context, context.host());
    if (!one.get() || one.get() == other.get()) return failed("create() gave no instance of its own");
  }
  return ok();
}

Outcome create_refuses_sizes(Context& context) {
  for (uint32_t size : {0u, 4u}) {
    fvlm_instance* instance = nullptr;
    fvlm_instance_config config{size, device_of(context.device), context.host().abi()};
    fvlm_status status = context.base().create(&config, &instance, nullptr);
    if (status == FVLM_OK) return failed("create() accepted a config with struct_size {}", size);
    if (instance)
      return failed("create() refused a config with struct_size {} and gave an instance all the same", size);
  }
  return ok();
}

Outcome supports_stable(Context& context) {
  for (const Trial& trial : sweep_trials(context)) {
    fvlm_support first = trial.supports(context);
    std::string_view reason(first.reason, sizeof first.reason);
    if (reason.find('\0') == std::string_view::npos) return failed("{}: the reason does not end in 0", trial.label);
    if (first.score < 0 || first.score > highest_score)
      return failed("{}: the score {} is not within 0 and {}", trial.label, first.score, highest_score);
    if (first.score == 0 && !first.reason[0]) return failed("{}: no, without a reason", trial.label);
    fvlm_support second = trial.supports(context);
    if (first.score != second.score || reason.substr(0, reason.find('\0')) != second.reason)
      return failed("{}: {} '{}' and then {} '{}'", trial.label, first.score, first.reason, second.score,
                    second.reason);
  }
  return ok();
}

Outcome supports_agrees(Context& context) {
  int yes = 0, no = 0, modest = 0;
  for (const Trial& trial : sweep_trials(context)) {
    std::string refused = refusal(context, trial);
    Run run = trial.run(context, {.ignore_refusal = !refused.empty()});
    if (refused.empty()) {
      if (!run.done()) return failed("{}: supports() says yes, and {}", trial.label, run.failure());
      ++yes;
      continue;
    }
    if (run.done()) {
      double worst = 0;
      if (auto off = mismatch(context, trial, run, worst); !off.empty())
        return failed("{}: supports() says no ({}), and yet the calls return ok, with wrong numbers: {}", trial.label,
                      refused, off);
      ++modest;
      continue;
    }
    for (const Status& status : run.statuses)
      if (status.value != FVLM_ERROR_UNSUPPORTED && status.value != FVLM_OK)
        return failed("{}: supports() says no ({}), and {} returned {} ({}) instead of unsupported", trial.label,
                      refused, status.call, status.value, status_name(status.value));
    if (auto wrote = run.violation(Violation::wrote_on_refusal)) return failed("{}: {}", trial.label, *wrote);
    ++no;
  }
  return ok(fmt::format("{} times yes, {} times no{}", yes, no,
                        modest ? fmt::format(", {} times no where it works", modest) : ""));
}

// A struct of the wrong size in each argument is refused with FVLM_ERROR_ARGUMENT, and nothing is written.
Outcome sizes_refused(Context& context, SizeFault who, const char* what) {
  for (const Trial& trial : context.typical())
    for (uint32_t size : {0u, 4u}) {
      Run run = trial.run(context, {.size_fault = who, .faulty_size = size});
      for (const Status& status : run.statuses) {
        if (who == SizeFault::arguments && (status.call == "requirements" || status.call == "prepare")) continue;
        if (who == SizeFault::call && status.call == "requirements") continue;
        if (status.value != FVLM_ERROR_ARGUMENT)
          return failed("{}: {} with a {} of struct_size {} returned {} ({}) instead of argument", trial.label,
                        status.call, what, size, status.value, status_name(status.value));
      }
      if (auto wrote = run.violation(Violation::wrote_on_refusal)) return failed("{}: {}", trial.label, *wrote);
    }
  return ok();
}

Outcome query_sizes_refused(Context& context) {
  return sizes_refused(context, SizeFault::query, "query");
}
Outcome argument_sizes_refused(Context& context) {
  return sizes_refused(context, SizeFault::arguments, "struct of arguments");
}
Outcome call_sizes_refused(Context& context) {
  return sizes_refused(context, SizeFault::call, "call");
}

} // namespace

std::vector<Check> interface_checks() {
  return {
      {"creates", "create() gives an instance each time, destroy() takes it and NULL", creates},
      {"create_refuses_sizes", "create() refuses a config with a struct_size of 0 or too small", create_refuses_sizes},
      {"supports_stable", "supports() answers the same each time; a no has a reason", supports_stable},
      {"supports_agrees",
       "what supports() says yes to works; its no is refused as unsupported, writing nothing, or right",
       supports_agrees},
      {"query_sizes_refused", "a query with a struct_size of 0 or too small is refused as an argument",
       query_sizes_refused},
      {"argument_sizes_refused", "arguments with a struct_size of 0 or too small are refused", argument_sizes_refused},
      {"call_sizes_refused", "a call with a struct_size of 0 or too small is refused", call_sizes_refused},
  };
}

} // namespace fvlm::check
