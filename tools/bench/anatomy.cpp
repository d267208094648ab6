#include "bench/anatomy.h"

#include "device/runtime.h"
#include "ops/call_observer.h"

#include <algorithm>
#include <limits>
#include <span>

namespace fvlm::bench {
namespace {

using device::Activity;

constexpr const char* copies = "copies"; // a part

double milliseconds_of(const Activity& activity) {
  return static_cast<double>(activity.end - activity.begin) / 1e6;
}

bool is_copy(const Activity& activity) {
  return activity.name == device::copy_to_device || activity.name == device::copy_to_host;
}

StepAnatomy::Flow flow_of(std::span<const Activity> activities) {
  StepAnatomy::Flow flow;
  flow.launches = std::ssize(activities);
  std::vector<std::pair<uint64_t, int>> edges; // starts (+1) and ends (-1) of activities
  for (const Activity& each : activities) {
    edges.insert(edges.end(), {{each.begin, 1}, {each.end, -1}});
    if (is_copy(each)) flow.copies += milliseconds_of(each);
  }
  std::ranges::sort(edges);
  if (edges.empty()) return flow;
  int at_work = 0;
  uint64_t before = edges.front().first;
  flow.span = static_cast<double>(edges.back().first - before) / 1e6;
  for (const auto& [time, change] : edges) {
    const double passed = static_cast<double>(time - before) / 1e6;
    if (at_work > 0) flow.busy += passed;
    if (at_work > 1) flow.beside += passed;
    at_work += change;
    before = time;
  }
  return flow;
}

// The shortest of several steps, because under the profiler a slow host may delay a graph's launch.
StepAnatomy::Flow flow_of(const std::function<void()>& step) {
  constexpr int steps = 6;
  device::Runtime* const gpu = device::runtime();
  std::vector<uint64_t> begins;
  const auto activities = gpu->profile([&] {
    for (int i = 0; i < steps; ++i) {
      begins.push_back(gpu->now());
      step();
    }
  });
  StepAnatomy::Flow shortest{.span = std::numeric_limits<double>::infinity()};
  begins.push_back(std::numeric_limits<uint64_t>::max());
  auto from = activities.begin();
  for (int i = 0; i < steps; ++i) {
    const auto to = std::find_if(
        from, activities.end(), [&](const Activity& each) { return each.begin >= begins[static_cast<size_t>(i) + 1]; });
    if (const auto flow = flow_of(std::span(from, to)); flow.span < shortest.span) shortest = flow;
    from = to;
  }
  return shortest;
}

// Observes calls of plugins, with a synchronization before and after each.
class Calls {
 public:
  explicit Calls(device::Runtime& gpu)
      : gpu_(gpu), observer_{[this] { begin_ = now(); },
                             [this](std::string_view operation, const ops::CalledQuery& query, double bytes) {
                               calls_.push_back({begin_, now(), index_of(operation, query)});
                               StepAnatomy::Operation& of = operations[calls_.back().operation];
                               of.minimal = of.minimal + minimal_work(operation, query, bytes);
                               ++of.calls;
                             }} {
    ops::use_call_observer(&observer_);
  }
  ~Calls() { ops::use_call_observer(nullptr); }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  // The call that an activity belongs to; null: none. Activities are in order of time.
  StepAnatomy::Operation* of(const Activity& activity) {
    while (next_ < calls_.size() && calls_[next_].end < activity.begin) ++next_;
    const bool within = next_ < calls_.size() && calls_[next_].begin <= activity.begin;
    return within ? &operations[calls_[next_].operation] : nullptr;
  }

  std::vector<StepAnatomy::Operation> operations;

 private:
  struct Call {
    uint64_t begin, end;
    size_t operation;
  };

  uint64_t now() const {
    gpu_.synchronize();
    return gpu_.now();
  }
  size_t index_of(std::string_view operation, const ops::CalledQuery& query) {
    const std::string shape = shape_of(query);
    const auto known = std::ranges::find_if(
        operations, [&](const auto& each) { return each.name == operation && each.shape == shape; });
    if (known != operations.end()) return static_cast<size_t>(known - operations.begin());
    operations.push_back({std::string(operation), shape, 0, 0, {}});
    return operations.size() - 1;
  }

  device::Runtime& gpu_;
  uint64_t begin_ = 0;
  std::vector<Call> calls_;
  size_t next_ = 0;
  ops::CallObserver observer_;
};

void add(StepAnatomy::Share& share, const Activity& activity) {
  share.milliseconds += milliseconds_of(activity);
  ++share.launches;
}

StepAnatomy::Share& named(std::vector<StepAnatomy::Share>& shares, const std::string& name) {
  const auto known = std::ranges::find_if(shares, [&](const auto& each) { return each.name == name; });
  return known == shares.end() ? shares.emplace_back(StepAnatomy::Share{name, 0, 0}) : *known;
}

// Runs the step eagerly, with a GradientComputer of its own, and records the end of each part and the work of each
// call.
void cut(StepAnatomy& anatomy, Training& training, const Job& job, const train::StepCounts& counts) {
  device::Runtime* const gpu = device::runtime();
  plan::Plan plain = job.plan;
  plain.speed.graphs = false;
  const auto gradient_computer = training.gradient_computer_for(plain);
  std::vector<std::pair<std::string, uint64_t>> ends;
  const auto end = [&](const std::string& part) {
    gpu->synchronize();
    ends.emplace_back(part, gpu->now());
  };
  PartTimes times;
  times.set_callback(end);
  Calls calls(*gpu);
  const auto activities = gpu->profile([&] {
    const auto staged = gradient_computer->stage(job.packs.front().host, counts, 1);
    end(copies);
    gradient_computer->begin_step();
    gradient_computer->forward_backward(*staged, times);
    training.optimize(false);
    end("optimizer");
  });
  size_t part = 0;
  for (const Activity& activity : activities) {
    while (part + 1 < ends.size() && ends[part].second < activity.begin) ++part;
    add(named(anatomy.parts, is_copy(activity) ? copies : ends[part].first), activity);
    add(named(anatomy.kernels, activity.name), activity);
    if (StepAnatomy::Operation* const operation = calls.of(activity))
      operation->milliseconds += milliseconds_of(activity);
    else
      add(anatomy.others, activity);
  }
  std::ranges::stable_sort(anatomy.kernels,
                           [](const auto& a, const auto& b) { return a.milliseconds > b.milliseconds; });
  anatomy.operations = std::move(calls.operations);
}

nlohmann::ordered_json json_of(const std::vector<StepAnatomy::Share>& shares) {
  auto list = nlohmann::ordered_json::array();
  for (const auto& share : shares)
    list.push_back({{"name", share.name}, {"ms", share.milliseconds}, {"launches", share.launches}});
  return list;
}

} // namespace

double StepAnatomy::milliseconds() const {
  double sum = 0;
  for (const Share& share : parts) sum += share.milliseconds;
  return sum;
}

nlohmann::ordered_json StepAnatomy::json() const {
  nlohmann::ordered_json document{{"flow",
                                   {{"span_ms", flow.span},
                                    {"busy_ms", flow.busy},
                                    {"beside_ms", flow.beside},
                                    {"copies_ms", flow.copies},
                                    {"gaps_ms", flow.gaps()},
                                    {"launches", flow.launches}}},
                                  {"busy_ms", milliseconds()},
                                  {"parts", json_of(parts)},
                                  {"ceiling", ceiling.json()}};
  for (const Operation& operation : operations)
    document["operations"].push_back({{"name", operation.name},
                                      {"shape", operation.shape},
                                      {"calls", operation.calls},
                                      {"ms", operation.milliseconds},
                                      {"bytes", operation.minimal.bytes},
                                      {"flops", operation.minimal.flops},
                                      {"least_ms", minimal_ms(operation)}});
  document["others"] = {{"ms", others.milliseconds}, {"launches", others.launches}};
  document["kernel_names"] = json_of(kernels);
  return document;
}

StepAnatomy anatomy_of(Training& training, const Job& job, const train::StepCounts& counts,
                       const std::function<void()>& step) {
  StepAnatomy anatomy;
  anatomy.flow = flow_of(step);
  cut(anatomy, training, job, counts);
  const ops::OperationsOptions& made = training.operations().options();
  anatomy.ceiling.raise(made.device, made.dtype);
  const auto above = [&](const auto& operation) { return operation.milliseconds - anatomy.minimal_ms(operation); };
  std::ranges::stable_sort(anatomy.operations, [&](const auto& a, const auto& b) { return above(a) > above(b); });
  return anatomy;
}

} // namespace fvlm::bench
