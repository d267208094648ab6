#include "check/generic.h"

#include "check/families.h"
#include "check/operand.h"
#include "check/probe.h"
#include "check/process_checks.h"

#include <ATen/ops/nonzero.h>

#include <algorithm>

namespace fvlm::check {
namespace {

// Runs every ordinary trial and fails with the first violation of this kind.
Outcome expect_no_violation(Context& context, Violation kind, const std::vector<Variation>& variations = {{}}) {
  int runs = 0;
  for (const Trial& trial : context.small())
    for (const Variation& variation : variations) {
      Run run = trial.run(context, variation);
      if (auto found = run.violation(kind)) return failed("{}: {}", trial.label, *found);
      runs += run.done();
    }
  return runs ? ok(fmt::format("{} runs", runs)) : not_applicable("no ordinary shape ran: see the rows before");
}

Outcome longer_structs(Context& context) {
  for (const Trial& trial : context.typical()) {
    Run plain = trial.run(context, {});
    Run run = trial.run(context, {.size_fault = SizeFault::longer});
    if (auto failure = run.failure(); !failure.empty()) return failed("{}: {}", trial.label, failure);
    if (auto differ = different_bits(plain, run); !differ.empty()) return failed("{}: {}", trial.label, differ);
  }
  return ok();
}

Outcome workspace_short(Context& context) {
  int checked = 0;
  for (const Trial& trial : context.small()) {
    Run whole = trial.run(context, {});
    for (const Status& needs : whole.statuses) {
      if (needs.workspace == 0 || needs.call == "prepare") continue;
      ++checked;
      Run run = trial.run(context, {.workspace_cut = needs.call});
      if (auto past = run.violation(Violation::past_workspace)) return failed("{}: {}", trial.label, *past);
      // The requested workspace covers several calls; one of them may need less.
      if (run.done()) continue;
      const Status& status = run.statuses.back();
      if (status.call != needs.call || status.value != FVLM_ERROR_WORKSPACE)
        return failed("{}: {} asks for {} bytes of workspace, got one less and returned {} ({}) instead of workspace",
                      trial.label, needs.call, needs.workspace, status.value, status_name(status.value));
      if (auto wrote = run.violation(Violation::wrote_on_refusal)) return failed("{}: {}", trial.label, *wrote);
    }
  }
  return checked ? ok(fmt::format("{} calls", checked)) : not_applicable("no ordinary shape asks for workspace");
}

Outcome workspace_exact(Context& context) {
  int checked = 0;
  for (const Trial& trial : context.small()) {
    Run run = trial.run(context, {});
    if (run.workspace == 0) continue;
    ++checked;
    if (auto failure = run.failure(); !failure.empty()) return failed("{}: {}", trial.label, failure);
    if (auto past = run.violation(Violation::past_workspace)) return failed("{}: {}", trial.label, *past);
  }
  return checked ? ok(fmt::format("{} shapes", checked)) : not_applicable("no ordinary shape asks for workspace");
}

Outcome outputs_in_bounds(Context& context) {
  return expect_no_violation(context, Violation::past_end, {{}, {.placement = Placement::wide_rows}});
}

Outcome inputs_unchanged(Context& context) {
  return expect_no_violation(context, Violation::input_changed);
}

void create_with_protected_config(Context& context) {
  const Pages pages(sizeof(fvlm_instance_config));
  auto* config = reinterpret_cast<fvlm_instance_config*>(pages.data());
  *config = {sizeof *config, device_of(context.device), context.host().abi()};
  fvlm_instance* instance = nullptr;
  const WriteProtection protection({{pages.data(), pages.size(), "the config of create()"}});
  if (context.base().create(config, &instance, nullptr) == FVLM_OK) context.base().destroy(instance);
}

Outcome inputs_sealed(Context& context) {
  if (!context.device.is_cpu()) return not_applicable("pages are closed to writing in host memory alone");
  int runs = 0;
  create_with_protected_config(context);
  {
    const QueryWriteProtection protection;
    for (const Trial& trial : context.small()) (void)trial.supports(context);
  }
  for (const Trial& trial : context.small()) runs += trial.run(context, {.write_protected = true}).done();
  return runs ? ok(fmt::format("{} runs", runs)) : not_applicable("no ordinary shape ran: see the rows before");
}

Outcome throws_nothing(Context& context) {
  return expect_no_violation(
      context, Violation::threw,
      {{}, {.error_sink = false}, {.size_fault = SizeFault::arguments}, {.workspace_cut = "forward"}});
}

Outcome host_used_well(Context& context) {
  return expect_no_violation(context, Violation::host_misused, {{}, {.host = &TestHost::with_threads(1)}});
}

at::Tensor holds(const at::Tensor& tensor, uint8_t poison) {
  auto bytes = tensor.view(at::kByte).reshape({tensor.numel(), -1});
  return (bytes == poison).all(1);
}

constexpr uint8_t first_poison = 0xFF, second_poison = 0x5E;

// Runs every ordinary shape twice, with outputs and workspace filled by two different patterns. `complain` gets one
// output of both runs and a mask of the elements that still hold the patterns.
template <class Complain>
Outcome compare_two_poisons(Context& context, const Complain& complain) {
  for (const Trial& trial : context.small()) {
    Run one = trial.run(context, {.poison = first_poison});
    Run two = trial.run(context, {.poison = second_poison});
    if (!one.done()) return failed("{}: {}", trial.label, one.failure());
    for (const auto& [name, tensor] : one.outputs) {
      const at::Tensor* again = two.output(name);
      if (!again || tensor.numel() == 0 || name.starts_with("saved")) continue;
      const auto left = holds(tensor, first_poison).logical_and(holds(*again, second_poison));
      if (const std::string what = complain(name, tensor, *again, left); !what.empty())
        return failed("{}: {}", trial.label, what);
    }
  }
  return ok();
}

Outcome outputs_written(Context& context) {
  return compare_two_poisons(
      context,
      [](const std::string& name, const at::Tensor& tensor, const at::Tensor&, const at::Tensor& left) -> std::string {
        const int64_t count = left.sum().item<int64_t>();
        return count == 0 ? ""
                          : fmt::format("{} of {} elements of {} were not written, the first is number {}", count,
                                        tensor.numel(), name, at::nonzero(left).reshape({-1})[0].item<int64_t>());
      });
}

Outcome leftovers_unread(Context& context) {
  return compare_two_poisons(
      context,
      [](const std::string& name, const at::Tensor& tensor, const at::Tensor& again,
         const at::Tensor& left) -> std::string {
        const auto differ = (tensor.view(at::kByte) != again.view(at::kByte)).reshape({tensor.numel(), -1}).any(1);
        const int64_t count = differ.logical_and(left.logical_not()).sum().item<int64_t>();
        return count == 0 ? ""
                          : fmt::format("{} of {} elements of {} depend on what outputs and workspace held before",
                                        count, tensor.numel(), name);
      });
}

// Without FVLM_DETERMINISTIC, as in training unless a recipe sets it.
Outcome in_any_order(Context& context) {
  return expect_correct(context, context.typical(), {.flags = 0});
}

Outcome reads_anew(Context& context) {
  Outcome outcome;
  for (const auto prior_call : {Variation::PriorCall::halved, Variation::PriorCall::reordered}) {
    outcome = expect_correct(context, context.small(), {.prior_call = prior_call});
    if (outcome.state == State::failed) return outcome;
  }
  return outcome;
}

// Captures each call once and replays it, as a whole training step is.
Outcome captured(Context& context) {
  if (!context.device.is_cuda()) return not_applicable("graphs are recorded on a GPU: --device cuda");
  if (context.subject.built_in()) return not_applicable("the reference is plain ATen, on ATen's stream");
  size_t nodes = 0;
  for (const Trial& trial : context.typical()) {
    Run plain = run_fully(context, trial);
    Run run = trial.run(context, {.captured = true});
    if (auto wrong = run.violation(Violation::not_capturable)) return failed("{}: {}", trial.label, *wrong);
    if (!run.done()) return failed("{}: recording, {}", trial.label, run.failure());
    if (auto differ = different_bits(plain, run); !differ.empty()) return failed("{}: {}", trial.label, differ);
    nodes = std::max(nodes, run.nodes);
  }
  return ok(
      fmt::format("{} shapes, at most {} {} a call", context.typical().size(), nodes, nodes == 1 ? "node" : "nodes"));
}

// As in training, where a layer's backward comes after the forwards of all the others.
Outcome calls_interleaved(Context& context) {
  const auto& trials = context.typical();
  Instance own(context, context.host());
  const Variation plain{.instance = own.get()}, halves{.halved = true, .instance = own.get()};
  Variation mixed = plain;
  for (size_t i = 0; i < trials.size(); ++i) {
    Run alone = trials[i].run(context, plain);
    if (!alone.done()) return failed("{}: {}", trials[i].label, alone.failure());
    for (size_t step : {size_t{1}, trials.size() - 1}) {
      const Trial& other = trials[(i + step) % trials.size()];
      mixed.between = [&] { other.run(context, plain); };
      if (auto differ = different_bits(alone, trials[i].run(context, mixed)); !differ.empty())
        return failed("{}, with calls for {} before each of its own: {}", trials[i].label, other.label, differ);
    }
    // Layers of one shape share an instance and a query, so neither may store what a backward needs of its forward.
    mixed.between = [&] { trials[i].run(context, halves); };
    if (auto differ = different_bits(alone, trials[i].run(context, mixed)); !differ.empty())
      return failed("{}, with calls for the same shape and other numbers before each of its own: {}", trials[i].label,
                    differ);
  }
  return ok(fmt::format("{} shapes", trials.size()));
}

// Sinks of every small capacity, and of those around powers of two.
std::vector<uint32_t> capacities() {
  std::vector<uint32_t> all;
  for (uint32_t capacity = 0; capacity <= 66; ++capacity) all.push_back(capacity);
  for (uint32_t power : {128u, 256u, 512u}) all.insert(all.end(), {power - 1, power, power + 1});
  return all;
}

Outcome create_into_sink(Context& context) {
  for (const uint32_t capacity : capacities()) {
    std::vector<char> text(capacity + 64, static_cast<char>(0xEE));
    fvlm_error error{sizeof error, capacity, capacity ? text.data() : nullptr};
    fvlm_instance_config config{4, device_of(context.device), context.host().abi()};
    fvlm_instance* instance = nullptr;
    (void)context.base().create(&config, &instance, &error);
    const auto end = text.begin() + capacity;
    if (std::any_of(end, text.end(), [](char c) { return c != static_cast<char>(0xEE); }))
      return failed("create() wrote past an error sink of {} bytes", capacity);
    if (text[0] != static_cast<char>(0xEE) && std::find(text.begin(), end, 0) == end)
      return failed("create() left a text without its final 0 in an error sink of {} bytes", capacity);
  }
  return ok();
}

// Ways in which calls of this trial fail: structs that are too short, and one byte of workspace too little.
std::vector<Variation> failing_calls(Context& context, const Trial& trial) {
  std::vector<Variation> all(2);
  all[0].size_fault = SizeFault::arguments;
  all[1].size_fault = SizeFault::query;
  for (const Status& needs : trial.run(context, {}).statuses)
    if (needs.workspace > 0 && needs.call != "prepare") all.emplace_back().workspace_cut = needs.call;
  return all;
}

Outcome fail_into_sinks(Context& context, const Trial& trial, Variation variation) {
  const Run with_sink = trial.run(context, variation);
  for (const Status& status : with_sink.statuses)
    if (status.value != FVLM_OK && status.error.empty())
      return failed("{}: {} returned {} and wrote no reason into the error sink", trial.label, status.call,
                    status_name(status.value));
  if (with_sink.done()) return ok(); // it needs less than it asks for
  for (const uint32_t capacity : capacities()) {
    variation.error_capacity = capacity;
    const Run run = trial.run(context, variation);
    if (auto wrote = run.violation(Violation::past_end)) return failed("{}: {}", trial.label, *wrote);
  }
  variation.error_sink = false;
  const Run without_sink = trial.run(context, variation);
  if (without_sink.statuses.size() != with_sink.statuses.size())
    return failed("{}: other calls without an error sink", trial.label);
  for (size_t i = 0; i < without_sink.statuses.size(); ++i)
    if (without_sink.statuses[i].value != with_sink.statuses[i].value)
      return failed("{}: {} returned {} with an error sink and {} without", trial.label, with_sink.statuses[i].call,
                    with_sink.statuses[i].value, without_sink.statuses[i].value);
  return ok();
}

Outcome error_sink(Context& context) {
  if (Outcome outcome = create_into_sink(context); outcome.state != State::ok) return outcome;
  for (const Trial& trial : context.typical())
    for (const Variation& variation : failing_calls(context, trial))
      if (Outcome outcome = fail_into_sinks(context, trial, variation); outcome.state != State::ok) return outcome;
  // Shapes and types that supports() refuses, too.
  int refused = 0;
  for (const Trial& trial : sweep_trials(context)) {
    if (refused == 3) break;
    if (refusal(context, trial).empty()) continue;
    ++refused;
    if (Outcome outcome = fail_into_sinks(context, trial, {.ignore_refusal = true}); outcome.state != State::ok)
      return outcome;
  }
  return ok();
}

Outcome shapes_interleaved(Context& context) {
  Instance own(context, context.host());
  const Variation variation{.instance = own.get()};
  std::vector<Run> first;
  for (const Trial& trial : context.typical()) first.push_back(trial.run(context, variation));
  for (size_t i = 0; i < first.size(); ++i) {
    const Trial& trial = context.typical()[i];
    if (!first[i].done()) return failed("{}: {}", trial.label, first[i].failure());
    if (auto differ = different_bits(first[i], trial.run(context, variation)); !differ.empty())
      return failed("{}, after other shapes: {}", trial.label, differ);
  }
  return ok(fmt::format("{} shapes", first.size()));
}

Outcome allocates_nothing(Context& context) {
  if (context.subject.built_in()) return not_applicable("the reference is plain ATen, which allocates");
  if (!watch_calls(context.subject.handle())) return not_applicable("this machine's linker tables are not understood");
  take_counts();
  const Variation variation{.repeat = 5, .before_repeat = start_counting, .after_repeat = stop_counting};
  for (const Trial& trial : context.small()) {
    trial.run(context, variation);
    if (auto counts = take_counts(); counts.allocations > 0)
      return failed("{}: {} allocations in 5 calls, the first by {}", trial.label, counts.allocations,
                    counts.allocator);
  }
  return ok();
}

int64_t allocated_then = 0, resident_then = 0, mapped_then = 0, worst_growth = 0;
const char* grown = "";

Outcome memory_flat(Context& context) {
  if (context.subject.built_in()) return not_applicable("the reference is plain ATen, which allocates");
  Variation variation;
  variation.unguarded = true;
  variation.repeat = 1000;
  variation.before_repeat = [] {
    allocated_then = bytes_allocated();
    resident_then = bytes_resident();
    mapped_then = bytes_mapped();
  };
  variation.after_repeat = [] {
    const int64_t allocated = bytes_allocated() - allocated_then, resident = bytes_resident() - resident_then;
    // Resident pages move by themselves: a stack grows, the test's own memory is touched for the first time.
    if (allocated > std::max<int64_t>(worst_growth, 64 << 10)) worst_growth = allocated, grown = "malloc has given out";
    if (!freed_memory_stays() && resident - (4 << 20) > worst_growth)
      worst_growth = resident, grown = "the process takes";
    if (const int64_t mapped = bytes_mapped() - mapped_then;
        !freed_memory_stays() && mapped - (32 << 20) > worst_growth)
      worst_growth = mapped, grown = "the address space has";
  };
  const Trial& trial = context.typical().front();
  trial.run(context, {});
  worst_growth = 0;
  Run run = run_fully(context, trial, variation);
  if (worst_growth > 0) return failed("{}: after 1,000 calls {} {} more bytes", trial.label, grown, worst_growth);
  return ok("1,000 calls");
}

} // namespace

std::vector<Check> generic_checks(const std::string& needs) {
  const char* repeat = "deterministic,pure"; // rows that compare the bits of two runs
  std::vector<Check> rows = interface_checks();
  append(rows, concurrency_checks(needs));
  append(rows, placement_checks(needs));
  append(rows,
         {
             {"in_any_order", "right, too, where FVLM_DETERMINISTIC is not asked for", in_any_order, needs},
             {"reads_anew", "what lies at an address may be other numbers at the next call", reads_anew, needs},
             {"longer_structs", "structs of a younger engine, longer than ours, are taken", longer_structs, repeat},
             {"workspace_exact", "exactly the workspace asked for is enough, and nothing is written behind it",
              workspace_exact},
             {"workspace_short", "one byte of workspace too little is refused as such, writing nothing, or not missed",
              workspace_short, "workspace_exact"},
             {"outputs_in_bounds", "nothing is written before, behind or between the rows of any tensor",
              outputs_in_bounds},
             {"inputs_unchanged", "no input is written to", inputs_unchanged},
             {"inputs_sealed", "nor is one, or a struct of the call, written to and put back", inputs_sealed,
              "inputs_unchanged"},
             {"outputs_written", "every element of every output is written", outputs_written},
             {"leftovers_unread", "results do not depend on what outputs and workspace held before", leftovers_unread,
              repeat},
             {"recorded", "recorded as a CUDA graph and replayed, calls give the bits that they give when run",
              captured, repeat},
             {"shapes_interleaved", "one instance serves several shapes in turn", shapes_interleaved, repeat},
             {"calls_interleaved",
              "calls for other shapes and other numbers, also between a forward and its backward, change nothing",
              calls_interleaved, repeat},
             {"error_sink", "a failing call writes why, within the sink's capacity; the sink may be NULL", error_sink},
             {"throws_nothing", "no exception crosses the boundary", throws_nothing},
             {"host_used_well", "parallel_for is not nested and no exception passes through it", host_used_well},
             {"allocates_nothing", "calls allocate no memory", allocates_nothing},
             {"memory_flat", "memory does not grow over 1,000 calls", memory_flat},
         });
  append(rows, process_checks());
  return rows;
}

std::vector<Check> generic_host_checks() {
  constexpr std::string_view kept[] = {
      "creates",           "create_refuses_sizes", "query_sizes_refused", "argument_sizes_refused", "longer_structs",
      "outputs_in_bounds", "inputs_unchanged",     "inputs_sealed",       "outputs_written",        "leftovers_unread",
      "two_threads",       "instances_nested",     "reads_in_bounds",     "shapes_interleaved",     "error_sink",
      "throws_nothing",    "memory_flat"};
  auto all = generic_checks("");
  const auto process = process_checks();
  std::erase_if(all, [&](const Check& check) {
    return std::ranges::find(kept, check.name) == std::end(kept) &&
           std::ranges::none_of(process, [&](const Check& row) { return row.name == check.name; });
  });
  return all;
}

} // namespace fvlm::check
