// Checks of optimizers: the algorithm, if it is one that recipes name, and the rules of every optimizer.
#include "check/families.h"
#include "check/formulas.h"
#include "check/generic.h"
#include "check/invalid_queries.h"
#include "check/operand.h"
#include "check/optimizer.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace fvlm::check {
namespace {

Outcome known(Context& context, const std::vector<OptimizerCase>& cases) {
  if (!algorithm_known(context))
    return not_applicable(fmt::format("'{}' is no algorithm that the ABI describes", algorithm_of(context)));
  return expect_correct(context, optimizer_cases(context, cases));
}

Outcome hyperparameters(Context& context) {
  const auto& table = context.table<fvlm_optimizer_v1>();
  std::vector<std::string> names;
  for (int32_t i = 0; i < table.hyperparameter_count; ++i) {
    const auto& [name, fallback, least, most] = table.hyperparameters[i];
    if (!name || !name[0]) return failed("hyperparameter {} has no name", i);
    if (!std::isfinite(fallback)) return failed("{}: the fallback is {}", name, fallback);
    if (!(least <= fallback && fallback <= most))
      return failed("{}: the fallback {} is not within {} and {}", name, fallback, least, most);
    if (std::ranges::find(names, name) != names.end()) return failed("{} is listed twice", name);
    names.emplace_back(name);
  }
  if (names.empty() || names[0] != "lr") return failed("the first hyperparameter is not \"lr\"");
  if (const double least = table.hyperparameters[0].least; least > 0)
    return failed("lr is at least {}, but a schedule's warm-up begins at 0", least);
  std::vector<std::string> wanted;
  if (algorithm_of(context) == "adamw") wanted = {"lr", "beta1", "beta2", "eps", "weight_decay"};
  if (algorithm_of(context) == "muon") wanted = {"lr", "momentum", "nesterov", "weight_decay", "eps"};
  if (names.size() < wanted.size() || !std::equal(wanted.begin(), wanted.end(), names.begin()))
    return failed("{} takes {}, in this order; listed are {}", algorithm_of(context), fmt::join(wanted, ", "),
                  fmt::join(names, ", "));
  return ok(fmt::format("{}", fmt::join(names, ", ")));
}

Outcome states(Context& context) {
  const auto& table = context.table<fvlm_optimizer_v1>();
  const fvlm_optimizer_segment segment{0, 8, 8, 0};
  for (auto state : {at::kFloat, at::kBFloat16}) {
    fvlm_optimizer_query query{};
    query.struct_size = sizeof query;
    query.device = device_of(context.device);
    query.gradient_dtype = query.parameter_dtype = dtype_of(at::kFloat);
    query.state_dtype = dtype_of(state);
    query.elements = 64, query.segment_count = query.group_count = 1, query.segments = &segment;
    fvlm_optimizer_state first[FVLM_MAX_STATES + 1] = {}, second[FVLM_MAX_STATES + 1] = {};
    const int32_t count = table.states(&query, first);
    if (count < 0 || count > FVLM_MAX_STATES) return failed("states() returned {}", count);
    if (first[FVLM_MAX_STATES].name) return failed("states() wrote past {} states", FVLM_MAX_STATES);
    if (table.states(&query, second) != count) return failed("states() returned {} and then another count", count);
    std::set<std::string> names;
    for (int32_t i = 0; i < count; ++i) {
      if (!first[i].name || !first[i].name[0]) return failed("state {} has no name", i);
      if (!names.insert(first[i].name).second) return failed("two states are called {}", first[i].name);
      scalar_type(first[i].dtype);
      if (std::string(first[i].name) != second[i].name) return failed("states() answers differently each time");
    }
    std::set<std::string> wanted;
    if (algorithm_of(context) == "adamw") wanted = {"m", "v"};
    if (algorithm_of(context) == "muon") wanted = {"momentum"};
    if (!std::includes(names.begin(), names.end(), wanted.begin(), wanted.end()))
      return failed("{} has states {}; declared are {}", algorithm_of(context), fmt::join(wanted, ", "),
                    fmt::join(names, ", "));
  }
  return ok();
}

Outcome one_step(Context& context) {
  return known(context, {{}, {.shapes = {{24, 80}, {80, 24}, {33, 33}}}});
}
Outcome many_steps(Context& context) {
  return known(context, {{.steps = algorithm_of(context) == "muon" ? 5 : 50}});
}
Outcome only(Context& context, const OptimizerCase& one, const std::function<std::string(const Run&, const Run&)>& look,
             const OptimizerCase& other) {
  Trial trial = optimizer_trial(context, one), second = optimizer_trial(context, other);
  const Run first_run = run_if_supported(context, trial), second_run = run_if_supported(context, second);
  auto failure = look(first_run, second_run);
  return failure.empty() ? ok() : failed("{}: {}", trial.label, failure);
}

// Runs two trials, which have to give the same bits.
Outcome same_bits(Context& context, const OptimizerCase& one, const OptimizerCase& other) {
  return only(context, one, different_bits, other);
}

// "" if the outputs differ by at most a small fraction of their largest number.
std::string far_apart(const Run& one, const Run& other) {
  for (const auto& [name, tensor] : one.outputs) {
    const auto a = tensor.to(at::kDouble), b = other.output(name)->to(at::kDouble);
    const auto off = (a - b).abs();
    const double allowed = 2e-4 * a.abs().max().item<double>();
    if (const double most = off.max().item<double>(); !(most <= allowed)) {
      const int64_t at = off.argmax().item<int64_t>();
      return fmt::format("{}[{}] is {:.6g} and {:.6g}", name, at, a[at].item<double>(), b[at].item<double>());
    }
  }
  return "";
}

// For an algorithm that no header describes: float32 inputs give nearly the same results.
template <at::ScalarType dtype>
Outcome gradients_in(Context& context) {
  if (algorithm_known(context)) return known(context, {{.gradient_dtype = dtype, .steps = 3}});
  return only(context, {.gradient_dtype = dtype, .steps = 3}, far_apart, {.steps = 3, .gradient_rounded_to = dtype});
}
Outcome steps_counted(Context& context) {
  return known(context, {{.first_step = 2}, {.first_step = 100}, {.first_step = 100000}});
}
Outcome applied(Context& context) {
  if (algorithm_of(context) == "muon")
    return known(context, {{.hyper = {{"momentum", {0.5}}, {"weight_decay", {0.3}}}, .steps = 2},
                           {.hyper = {{"nesterov", {0}}, {"lr", {0.2}}}, .steps = 2},
                           {.hyper = {{"nesterov", {1}}}, .steps = 2}});
  return known(context, {{.hyper = {{"beta1", {0.5}}, {"beta2", {0.7}}}, .steps = 3},
                         {.hyper = {{"eps", {0.05}}}, .steps = 2},
                         {.hyper = {{"weight_decay", {0.5}}, {"lr", {0.1}}}, .steps = 2},
                         {.hyper = {{"weight_decay", {0}}}, .steps = 2}});
}
Outcome groups(Context& context) {
  std::vector<std::pair<int64_t, int64_t>> shapes{{8, 12}, {6, 10}, {5, 30}, {7, 7}};
  return known(context, {{.shapes = shapes,
                          .groups = {0, 1, 2, 1},
                          .hyper = {{"lr", {0.01, 0.1, 0}}, {"weight_decay", {0.1, 0, 0.5}}},
                          .steps = 2}});
}

// One call for segments of many groups gives the same results as one call per group.
Outcome many_groups(Context& context) {
  for (int64_t count : {5, 9, 17, 65, 129}) {
    OptimizerCase all{.hyper = {{"lr", {}}}, .steps = 2};
    for (int64_t group = 0; group < count; ++group) {
      all.shapes.emplace_back(2 + group % 3, 3 + group % 5);
      all.groups.push_back(group);
      all.hyper[0].second.push_back(0.01 + 0.001 * static_cast<double>(group));
    }
    if (algorithm_known(context)) {
      if (Outcome outcome = known(context, {all}); outcome.state != State::ok) return outcome;
      continue;
    }
    // Another rate for the last group has to change that group.
    OptimizerCase other = all;
    other.hyper[0].second.back() *= 2;
    const int64_t size = all.shapes.back().first * all.shapes.back().second;
    const auto look = [&](const Run& a, const Run& b) -> std::string {
      const at::Tensor &one = *a.output("master"), &two = *b.output("master");
      const int64_t begin = one.numel() - size;
      return at::equal(one.narrow(0, begin, size), two.narrow(0, begin, size))
                 ? fmt::format("the lr of group {} does not move it", count - 1)
                 : "";
    };
    if (Outcome outcome = only(context, all, look, other); outcome.state != State::ok) return outcome;
  }
  return ok("5 to 129 groups");
}

// In a vector whose numbers repeat, the results repeat too, also for elements far behind.
Outcome long_segments_alike(Context& context) {
  constexpr int64_t period = 1031, turns = 257, size = period * turns;
  Trial trial = optimizer_trial(context, {.shapes = {{1, size}}, .steps = 2, .scale = 0.5, .period = period});
  const Run run = run_if_supported(context, trial);
  for (const auto& [name, tensor] : run.outputs) {
    const auto rows = tensor.to(at::kDouble).view({turns, period});
    const auto off = (rows - rows.narrow(0, 0, 1)).abs();
    if (!(off.max().item<double>() <= 1e-5 * rows.abs().max().item<double>())) {
      const int64_t at = off.argmax().item<int64_t>();
      return failed("{}: the numbers repeat after {} elements, and {}[{}] is {:.6g} where {}[{}] is {:.6g}",
                    trial.label, period, name, at, tensor[at].item<double>(), name, at % period,
                    tensor[at % period].item<double>());
    }
  }
  return ok("2 shapes, and one whose numbers repeat");
}

// Every element of a long segment is updated; correctly, where the algorithm is known.
Outcome million_elements(Context& context) {
  const bool vectors = takes_vectors(context);
  std::vector<OptimizerCase> cases;
  if (vectors)
    cases = {{.shapes = {{1, 1048577 + 3}, {1, 5}}}, {.shapes = {{1025, 1031}, {1, 7}}}};
  else
    cases = {{.shapes = {{257, 129}, {3, 5}}}, {.shapes = {{65, 1025}}}};
  if (algorithm_known(context)) return known(context, cases);
  for (const auto& one : cases) {
    Trial trial = optimizer_trial(context, one);
    Run run = run_if_supported(context, trial);
    const at::Tensor& master = *run.output("master");
    const auto still = master == normal({master.numel()}, one.seed * 64, at::kFloat, 0.5);
    if (const int64_t count = still.sum().item<int64_t>(); count > master.numel() / 100)
      return failed("{}: {} of {} elements did not move, the first is number {}", trial.label, count, master.numel(),
                    at::nonzero(still).reshape({-1})[0].item<int64_t>());
    const auto runs = still.narrow(0, 0, still.numel() - 2)
                          .logical_and(still.narrow(0, 1, still.numel() - 2))
                          .logical_and(still.narrow(0, 2, still.numel() - 2));
    if (runs.any().item<bool>())
      return failed("{}: elements from number {} on did not move", trial.label,
                    at::nonzero(runs).reshape({-1})[0].item<int64_t>());
  }
  return vectors ? long_segments_alike(context) : ok(fmt::format("{} shapes", cases.size()));
}

Outcome groups_apart(Context& context) {
  OptimizerCase one{.shapes = {{8, 12}, {6, 10}}, .groups = {0, 1}, .hyper = {{"lr", {0.01, 0.01}}}, .steps = 2};
  OptimizerCase other = one;
  other.hyper = {{"lr", {0.01, 0.3}}};
  return only(
      context, one,
      [](const Run& a, const Run& b) -> std::string {
        auto first = [](const Run& run) { return run.output("master")->narrow(0, 0, 96); };
        auto second = [](const Run& run) { return run.output("master")->narrow(0, 96, 60); };
        if (!at::equal(first(a), first(b))) return "the lr of group 1 moves group 0";
        if (at::equal(second(a), second(b))) return "the lr of group 1 does not move group 1";
        return "";
      },
      other);
}

// The gaps between segments keep their bits, although the gradient is NaN there.
Outcome gaps_untouched(Context& context) {
  for (auto parameter : {at::kFloat, at::kBFloat16}) {
    const OptimizerCase one{.parameter_dtype = parameter, .gap = 5, .steps = 2};
    OptimizerCase still = one;
    still.steps = 0;
    Trial trial = optimizer_trial(context, one);
    if (!refusal(context, trial).empty()) continue;
    Run run = run_fully(context, trial);
    auto outside = inside_segments(context, one).logical_not();
    auto before = normal({outside.numel()}, one.seed * 64, at::kFloat, 0.5);
    for (const auto& [name, tensor] : run.outputs) {
      at::Tensor held = name == "master" ? before : name == "parameter" ? -before : at::zeros_like(tensor);
      auto moved = (tensor != held.to(tensor.scalar_type())).logical_and(outside);
      if (int64_t count = moved.sum().item<int64_t>())
        return failed("{}: {} of {} elements of {} outside the segments changed", trial.label, count,
                      outside.sum().item<int64_t>(), name);
    }
  }
  return ok();
}

Outcome skips(Context& context) {
  for (int32_t skip : {1, -7})
    for (bool nan : {false, true})
      for (auto parameter : {at::kFloat, at::kBFloat16}) {
        OptimizerCase one{.parameter_dtype = parameter, .skip = skip, .gradient_nan = nan};
        if (skip == 1) one.shapes = {{16, 24}, {257, 129}}; // one small segment, one of several pieces
        Trial trial = optimizer_trial(context, one);
        if (!refusal(context, trial).empty()) continue;
        Run run = run_fully(context, trial);
        auto before = normal({run.output("master")->numel()}, one.seed * 64, at::kFloat, 0.5);
        for (const auto& [name, tensor] : run.outputs) {
          at::Tensor held = name == "master"      ? before
                            : name == "parameter" ? before.to(parameter)
                                                  : at::zeros_like(tensor);
          if (!at::equal(tensor, held.to(tensor.scalar_type())))
            return failed("{}: {} changed{}", trial.label, name, nan ? " (the gradient was NaN)" : "");
        }
      }
  return ok();
}

Outcome scales(Context& context) {
  // A power of two, so that scaling is exact wherever it is done.
  Outcome outcome = same_bits(context, {.steps = 2, .scale = 0.5, .gradient_size = 2}, {.steps = 2});
  if (outcome.state != State::ok) return outcome;
  const std::vector<std::pair<int64_t, int64_t>> longer{{257, 129}, {3, 5}};
  outcome = same_bits(context, {.shapes = longer, .steps = 2, .scale = 0.5, .gradient_size = 2},
                      {.shapes = longer, .steps = 2});
  if (outcome.state != State::ok) return outcome;
  return same_bits(context, {.gradient_dtype = at::kBFloat16, .steps = 2, .scale = 4, .gradient_size = 0.25},
                   {.gradient_dtype = at::kBFloat16, .steps = 2});
}

Outcome rounded_copy(Context& context) {
  int tried = 0;
  for (auto dtype : {at::kBFloat16, at::kHalf}) {
    Trial trial = optimizer_trial(context, {.parameter_dtype = dtype, .steps = 3});
    if (!refusal(context, trial).empty()) continue;
    ++tried;
    Run run = run_fully(context, trial);
    auto wanted = run.output("master")->to(dtype);
    auto off = *run.output("parameter") != wanted;
    if (int64_t count = off.sum().item<int64_t>()) {
      int64_t first = at::nonzero(off).reshape({-1})[0].item<int64_t>();
      return failed("{}: {} of {} parameters are not the master rounded to nearest even; number {} is {}, of {:.9g}",
                    trial.label, count, off.numel(), first, (*run.output("parameter"))[first].item<double>(),
                    (*run.output("master"))[first].item<double>());
    }
  }
  return tried ? ok() : not_applicable("parameters in float32 alone are supported");
}

Outcome rounds_ties(Context& context) {
  int tried = 0;
  for (auto dtype : {at::kBFloat16, at::kHalf}) {
    // With lr 0 the masters remain halfway between two numbers.
    Trial trial = optimizer_trial(context, {.parameter_dtype = dtype, .hyper = {{"lr", {0}}}, .ties = true});
    if (!refusal(context, trial).empty()) continue;
    ++tried;
    Run run = run_fully(context, trial);
    const auto wanted = run.output("master")->to(dtype), off = *run.output("parameter") != wanted;
    if (int64_t count = off.sum().item<int64_t>()) {
      const int64_t first = at::nonzero(off).reshape({-1})[0].item<int64_t>();
      return failed("{}: {} of {} parameters halfway between two numbers are not rounded to the even one; number {} is "
                    "{:.9g}, of {:.9g}",
                    trial.label, count, off.numel(), first, (*run.output("parameter"))[first].item<double>(),
                    (*run.output("master"))[first].item<double>());
    }
  }
  return tried ? ok() : not_applicable("parameters in float32 alone are supported");
}

Outcome states_tell_all(Context& context) {
  return same_bits(context, {.steps = 4, .new_instance_after = 2}, {.steps = 4});
}

Outcome narrow_states(Context& context) {
  return known(context, {{.state_dtype = at::kBFloat16, .steps = 3}});
}

Outcome stands_still(Context& context) {
  OptimizerCase one{.hyper = {{"lr", {0}}}, .steps = 3};
  Trial trial = optimizer_trial(context, one);
  Run run = run_if_supported(context, trial);
  auto before = normal({run.output("master")->numel()}, one.seed * 64, at::kFloat, 0.5);
  const double moved = (*run.output("master") - before).abs().max().item<double>();
  return moved == 0 ? ok() : failed("{}: with lr 0 a parameter moved by {:.3g}", trial.label, moved);
}

Outcome descends(Context& context) {
  OptimizerCase one{.hyper = {{"weight_decay", {0}}}};
  Trial trial = optimizer_trial(context, one);
  Run run = run_if_supported(context, trial);
  const int64_t elements = run.output("master")->numel();
  auto change = *run.output("master") - normal({elements}, one.seed * 64, at::kFloat, 0.5);
  const double along = (change * normal({elements}, one.seed * 64 + 1, at::kFloat)).sum().item<double>();
  return along < 0 ? ok() : failed("{}: the first step goes uphill (gradient . change = {:.3g})", trial.label, along);
}

Outcome stays_finite(Context& context) {
  for (double size : {0.0, 1e-30, 1e15}) {
    Trial trial = optimizer_trial(context, {.steps = 3, .gradient_size = size});
    Run run = run_if_supported(context, trial);
    for (const auto& [name, tensor] : run.outputs)
      if (!at::isfinite(tensor.to(at::kDouble)).all().item<bool>())
        return failed("gradients of size {:g}: {} is not finite", size, name);
  }
  return ok();
}

Outcome no_segments(Context& context) {
  // An arena with elements but without segments.
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 0}, {0, 7}, {0, 0}}) {
    OptimizerCase one{.shapes = {{rows, cols}}, .gap = 5, .steps = 2};
    Trial trial = optimizer_trial(context, one);
    Run run = run_if_supported(context, trial);
    auto before = normal({10}, one.seed * 64, at::kFloat, 0.5);
    if (!at::equal(*run.output("master"), before))
      return failed("an empty segment, {} x {}, changed the master", rows, cols);
  }
  return ok("3 shapes");
}

Outcome odd_segments(Context& context) {
  if (takes_vectors(context))
    return known(context, {{.shapes = {{1, 1}}},
                           {.shapes = {{1, 3}, {1, 1}, {7, 1}, {3, 3}}, .steps = 2},
                           {.shapes = {{1, 1}, {1, 100001}}}});
  return known(context, {{.shapes = {{2, 2}}}, {.shapes = {{7, 2}, {3, 3}, {2, 50}}, .steps = 2}});
}

Outcome many_segments(Context& context) {
  const bool vectors = takes_vectors(context);
  for (int64_t count : {64, 129, 257, 513, 1025}) {
    OptimizerCase one{.gap = 3};
    for (int64_t i = 0; i < count; ++i) {
      one.shapes.emplace_back(vectors && i % 2 ? 1 : 2 + i % 5, 3 + i % 11);
      one.groups.push_back(i % 4);
    }
    one.hyper = {{"lr", {0.01, 0.02, 0.05, 0.1}}};
    OptimizerCase backwards = one;
    backwards.backwards = true;
    const Outcome outcome =
        algorithm_known(context) ? known(context, {one, backwards}) : only(context, one, far_apart, backwards);
    if (outcome.state != State::ok) return outcome;
  }
  return ok("64 to 1,025 segments");
}

Outcome nonsense(Context& context) {
  const fvlm_optimizer_segment segment{0, 8, 8, 0};
  fvlm_optimizer_query good{};
  good.struct_size = sizeof good;
  good.device = device_of(context.device);
  good.gradient_dtype = good.parameter_dtype = good.state_dtype = dtype_of(at::kFloat);
  good.elements = 64, good.segment_count = good.group_count = 1, good.segments = &segment;
  if (algorithm_of(context) == "muon" && takes_vectors(context))
    return failed("muon is for matrices: supports() has to refuse a query with a vector");
  InvalidQueries<fvlm_optimizer_query> nonsense;
  nonsense.add_usual(good, &fvlm_optimizer_query::gradient_dtype);
  nonsense.add("with parameters in integers", good, [](auto& q) { q.parameter_dtype = {FVLM_INT, 8, 1}; });
  return nonsense.refused_by(context.table<fvlm_optimizer_v1>().supports);
}

} // namespace

Table optimizer_table() {
  Table table{"optimizer", {}, optimizer_benchmarks()};
  append(table.checks,
         {
             {"hyperparameters", "hyperparameters have names, defaults and bounds; the first is lr, which may be 0",
              hyperparameters},
             {"states", "states have names and types, the same ones each time", states},
             {"one_step", "one step agrees with the algorithm in float64", one_step, "hyperparameters,states"},
             {"many_steps", "so do many steps in a row", many_steps, "one_step"},
             {"gradients_bfloat16", "gradients in bfloat16", gradients_in<at::kBFloat16>, "one_step"},
             {"gradients_float16", "gradients in float16", gradients_in<at::kHalf>, "one_step"},
             {"steps_counted", "the step count is the one given, not one of its own", steps_counted, "one_step"},
             {"applied", "hyperparameters are the ones given", applied, "one_step"},
             {"groups", "each segment is stepped with its group's hyperparameters", groups, "one_step"},
             {"groups_apart", "a group's hyperparameters concern its segments alone", groups_apart, "groups"},
             {"many_groups", "5 to 129 groups", many_groups, "groups"},
             {"million_elements", "segments of a million elements", million_elements, "one_step", Extent::thorough},
             {"gaps_untouched", "nothing outside the segments changes or is read", gaps_untouched},
             {"skips", "where skip is not 0 nothing changes, though gradients be NaN", skips},
             {"scales", "gradients are multiplied by scale", scales},
             {"rounded_copy", "the parameter is the master, rounded to nearest even", rounded_copy},
             {"states_tell_all", "a new instance goes on to the same bits: the states are all there is to know",
              states_tell_all},
             {"narrow_states", "moments in bfloat16 where the recipe would like them", narrow_states, "one_step"},
             {"stands_still", "with lr 0 no parameter moves", stands_still},
             {"rounds_ties", "of two numbers as near the parameter is the even one", rounds_ties,
              "rounded_copy,stands_still"},
             {"descends", "the first step goes downhill", descends},
             {"stays_finite", "gradients of 0, 1e-30 and 1e15 give finite numbers", stays_finite},
             {"no_segments", "an empty segment changes nothing", no_segments, "gaps_untouched"},
             {"odd_segments", "segments of 1 element and of odd sizes", odd_segments, "one_step"},
             {"many_segments", "64 to 1,025 segments in 4 groups, in either order", many_segments,
              "one_step,groups,gaps_untouched"},
             {"gaps_unmapped", "not even read, or written to and put back", gaps_unmapped, "gaps_untouched"},
             {"far_segments", "segments 2^31 and 2^32 elements apart; nothing between them is touched", far_segments,
              "gaps_untouched"},
             {"supports_nonsense", "supports() refuses impossible queries", nonsense},
         });
  append(table.checks, generic_checks("one_step"));
  return table;
}

} // namespace fvlm::check
