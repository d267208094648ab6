#include "check/process_checks.h"

#include "check/families.h"
#include "check/growth.h"
#include "check/operand.h"
#include "check/other_process.h"
#include "check/probe.h"
#include "check/process_state.h"

namespace fvlm::check {
namespace {

using Changes = std::map<Aspect, std::string>;

std::vector<Trial> every_trial(Context& context) {
  std::vector<Trial> all = context.typical();
  const auto more = sweep_trials(context);
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

void refused_create(Context& context) {
  fvlm_instance* none = nullptr;
  const fvlm_instance_config config{0, device_of(context.device), context.host().abi()};
  context.base().create(&config, &none, nullptr);
}

// Calls every function with valid and invalid arguments, and compares the process's state before and after each call.
Changes watch_all(Context& context) {
  ProcessWatch watch;
  const auto trials = every_trial(context);
  if (context.device.is_cuda()) // the CUDA driver starts threads and opens files at first use
    for (int i = 0; i < 2; ++i)
      for (const Trial& trial : trials)
        if (refusal(context, trial).empty()) trial.run(context, {});
  watch.around("create() and destroy()", [&] { Instance(context, context.host()); });
  watch.around("a refused create()", [&] { refused_create(context); });
  for (const Trial& trial : trials) {
    bool refused = false;
    watch.around("supports()", [&] { refused = !refusal(context, trial).empty(); });
    Variation variation;
    variation.watch = &watch;
    variation.ignore_refusal = refused;
    trial.run(context, variation);
    variation.flags = 0;
    trial.run(context, variation);
    variation.size_fault = SizeFault::arguments;
    trial.run(context, variation);
  }
  // Changes that earlier rows' calls left behind.
  if (context.device.is_cpu())
    watch.compare(context.subject.entered(), "since it was loaded",
                  {Aspect::signals, Aspect::environment, Aspect::scheduling, Aspect::descriptors});
  return watch.changes();
}

const Changes& changes(Context& context) {
  static std::map<std::string, Changes> known;
  auto found = known.find(context.kind);
  if (found == known.end()) found = known.emplace(context.kind, watch_all(context)).first;
  return found->second;
}

template <Aspect aspect>
Outcome unchanged(Context& context) {
  if (context.subject.built_in()) return not_applicable("the reference is a part of the engine");
  const Changes& all = changes(context);
  const auto found = all.find(aspect);
  if (found != all.end()) return failed(found->second);
  if (!context.device.is_cpu() || context.subject.command.empty()) return ok();
  const auto& first = fresh_process(context).changes;
  const auto once = first.find(aspect);
  return once == first.end() ? ok() : failed(once->second);
}

Outcome leaves_float_mode(Context& context) {
  if (!float_mode_left_by().empty()) return failed("changed by the end of the row {}", float_mode_left_by());
  return unchanged<Aspect::float_mode>(context);
}

Outcome starts_no_threads(Context& context) {
  const bool watched = !context.subject.built_in() && watch_calls(context.subject.handle());
  for (const Trial& trial : context.typical()) trial.run(context, {}); // one-time initialization happens here
  take_counts();
  start_counting();
  for (const Trial& trial : context.typical()) trial.run(context, {});
  stop_counting();
  if (auto counts = take_counts(); watched && counts.threads > 0)
    return failed("{} threads were started during {} runs", counts.threads, context.typical().size());
  // Also before that, but a CUDA runtime that is linked into a plugin starts threads at its first use.
  if (watched && context.device.is_cpu() && threads_started() > 0)
    return failed("{} threads were started", threads_started());
  return unchanged<Aspect::threads>(context);
}

Outcome starts_no_processes(Context& context) {
  Outcome outcome = unchanged<Aspect::processes>(context);
  if (outcome.state == State::ok && processes_started() > 0) return failed("{} were started", processes_started());
  return outcome;
}

Outcome instances_flat(Context& context) {
  if (context.subject.built_in()) return not_applicable("the reference is plain ATen, which allocates");
  return expect_no_growth(context, 4000, "instances", [&] {
    Instance(context, context.host());
    refused_create(context);
  });
}

Outcome used_instances_flat(Context& context) {
  if (context.subject.built_in()) return not_applicable("the reference is plain ATen, which allocates");
  const Trial& trial = context.typical().front();
  return expect_no_growth(context, 1000, "instances that were used", [&] {
    Instance own(context, context.host());
    trial.run(context, {.instance = own.get()});
  });
}

Outcome queries_flat(Context& context) {
  if (context.subject.built_in()) return not_applicable("the reference is plain ATen, which allocates");
  const auto trials = every_trial(context);
  size_t next = 0;
  return expect_no_growth(context, 20000, "questions", [&] { trials[next++ % trials.size()].supports(context); });
}

// Of each query by itself: what grows for one alone is lost among others.
Outcome requirements_flat(Context& context) {
  if (context.subject.built_in()) return not_applicable("the reference is plain ATen, which allocates");
  Outcome outcome = not_applicable("supports() says no to every shape, or this kind has no requirements()");
  int64_t queries = 0;
  Variation variation;
  variation.ask_again = [&](const std::function<void()>& requirements) {
    ++queries;
    outcome = expect_no_growth(context, 2000, "answers of requirements()", requirements);
  };
  for (const Trial& trial : every_trial(context)) {
    if (!refusal(context, trial).empty()) continue;
    keep_alive();
    trial.run(context, variation);
    if (outcome.state == State::failed) return failed("{}: {}", trial.label, outcome.text);
  }
  return queries > 0 ? ok(fmt::format("{} queries", queries)) : outcome;
}

Outcome refusals_flat(Context& context) {
  if (context.subject.built_in()) return not_applicable("the reference is plain ATen, which allocates");
  return expect_no_growth(context, 1000, "refused calls",
                          [&] { context.typical().front().run(context, {.size_fault = SizeFault::arguments}); });
}

Outcome same_in_other_processes(Context& context) {
  if (context.subject.built_in()) return not_applicable("the reference is a part of the engine");
  if (!context.device.is_cpu()) return not_applicable("on a GPU a plugin may choose by measuring");
  const auto here = result_hashes(context, false);
  int copies = 0;
  for (const auto& there : result_hashes_elsewhere(context)) {
    ++copies;
    for (size_t i = 0; i < here.size(); ++i)
      if (i >= there.size() || here[i] != there[i])
        return failed("{}, and in another process, with another environment, folder, time and order of addresses, {}",
                      here[i], i < there.size() ? there[i] : "nothing");
  }
  return ok(fmt::format("{} other processes", copies));
}

Outcome exits_cleanly(Context& context) {
  if (context.subject.built_in()) return not_applicable("the reference is a part of the engine");
  if (!context.device.is_cpu()) return not_applicable("looked at on the CPU");
  if (freed_memory_stays()) return not_applicable("a sanitizer speaks up at the exit");
  const std::string& failure = fresh_process(context).exit;
  return failure.empty() ? ok() : failed("{}", failure);
}

} // namespace

std::string& float_mode_left_by() {
  static std::string row;
  return row;
}

std::vector<Check> process_checks() {
  return {
      {"instances_flat", "memory, address space and open files do not grow over 4,000 instances", instances_flat},
      {"used_instances_flat", "nor over 1,000 that were used", used_instances_flat, "instances_flat,memory_flat",
       Extent::thorough},
      {"queries_flat", "nor over 20,000 questions to supports()", queries_flat},
      {"requirements_flat", "nor over 2,000 answers of requirements() to any one query", requirements_flat, "",
       Extent::thorough},
      {"refusals_flat", "nor over 1,000 refused calls", refusals_flat, "", Extent::thorough},
      {"starts_no_threads", "calls start no threads", starts_no_threads},
      {"starts_no_processes", "nor processes", starts_no_processes},
      {"leaves_no_descriptors", "calls leave no files open, close none and change none",
       unchanged<Aspect::descriptors>},
      {"prints_nothing", "calls print nothing: the engine's output may be a document", unchanged<Aspect::output>},
      {"leaves_signals", "signal handlers, masks and timers stay as they were", unchanged<Aspect::signals>},
      {"leaves_environment", "so do environment variables, locale, umask and working folder",
       unchanged<Aspect::environment>},
      {"leaves_scheduling", "so do CPU affinity, priority, resource limits and the thread's name",
       unchanged<Aspect::scheduling>},
      {"same_in_other_processes",
       "with FVLM_DETERMINISTIC the same bits in any process: time, id, environment, addresses",
       same_in_other_processes, "deterministic,pure"},
      {"exits_cleanly", "a process that has used it exits as if it had not", exits_cleanly},
      {"leaves_float_mode", "so do rounding and flush-to-zero, after every function", leaves_float_mode},
  };
}

} // namespace fvlm::check
