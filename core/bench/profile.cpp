#include "bench/profile.h"

#include "base/error.h"
#include "base/text.h"
#include "device/runtime.h"
#include "model/execution.h"
#include "model/flops.h"
#include "ops/host_memory.h"
#include "train/made_pack.h"
#include "train/memory.h"
#include "train/peak_memory.h"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <limits>

namespace fvlm::bench {
namespace {

struct Configuration {
  std::string name, shape;
  int64_t samples = 0;
  bool checkpointing = false;
};

Configuration configuration_named(const std::string& name) {
  const auto parts = split(name, ':');
  Configuration configuration{name, parts.front(), 0, parts.size() == 3 && parts[2] == "checkpointing"};
  const std::string number = parts.size() > 1 ? parts[1] : "";
  const auto end = std::from_chars(number.data(), number.data() + number.size(), configuration.samples);
  if (parts.size() > 3 || (parts.size() == 3 && !configuration.checkpointing) || end.ec != std::errc() ||
      end.ptr != number.data() + number.size() || configuration.samples < 1)
    throw Error(ErrorKind::usage, fmt::format("'{}' is no configuration", name))
        .advise("SHAPE:SAMPLES or SHAPE:SAMPLES:checkpointing, as in 135m:8");
  (void)shape_named(configuration.shape);
  return configuration;
}

plan::Plan plan_of(const ProfileRequest& request, const Configuration& configuration) {
  plan::Plan plan = made_plan(request, shape_named(configuration.shape), request.frames, request.text);
  if (configuration.checkpointing)
    plan.stages.front().activation_checkpointing = {{.every = 1, .layers = {}}, {.every = 1, .layers = {}}};
  return plan;
}

StepAnatomy anatomy_of(const std::vector<device::Activity>& activities,
                       const std::vector<std::pair<std::string, uint64_t>>& marks) {
  StepAnatomy anatomy;
  const auto add = [](std::vector<StepAnatomy::Share>& shares, const std::string& name, double milliseconds) {
    auto share = std::find_if(shares.begin(), shares.end(), [&](const auto& each) { return each.name == name; });
    if (share == shares.end()) share = shares.insert(share, {name, 0, 0});
    share->milliseconds += milliseconds;
    ++share->launches;
  };
  for (const device::Activity& activity : activities) {
    const double milliseconds = static_cast<double>(activity.end - activity.begin) / 1e6;
    const auto mark =
        std::find_if(marks.begin(), marks.end(), [&](const auto& each) { return activity.end <= each.second; });
    add(anatomy.parts, mark == marks.end() ? "after the step" : mark->first, milliseconds);
    add(anatomy.kernels, activity.name, milliseconds);
  }
  std::stable_sort(anatomy.kernels.begin(), anatomy.kernels.end(),
                   [](const auto& a, const auto& b) { return a.milliseconds > b.milliseconds; });
  return anatomy;
}

class Profile {
 public:
  Profile(const ProfileRequest& request, Registry& registry, const ProfileProgress& progress)
      : request_(request), registry_(registry), progress_(progress), device_(model::device_named(request.device)) {}

  ProfileReport::Row measure(const Configuration& configuration, std::vector<std::string>& choices) {
    ProfileReport::Row row;
    row.configuration = configuration.name;
    row.samples = configuration.samples;
    train::PeakMemory peak(device_, std::numeric_limits<int64_t>::max());
    try {
      steps(configuration, row, peak, choices);
    } catch (const std::exception& error) {
      if (!train::is_out_of_memory(error)) throw;
      row.problem = "out of memory";
    }
    peak.give_back();
    return row;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void steps(const Configuration& configuration, ProfileReport::Row& row, train::PeakMemory& peak,
             std::vector<std::string>& choices) {
    const plan::Plan plan = plan_of(request_, configuration);
    const plan::Stage& stage = plan.stages.front();
    const auto size = stage.largest_sample();
    const PackSize capacity{configuration.samples * size.frames, configuration.samples * size.tokens};
    Training training(plan, registry_, device_, models_.of(shape_named(configuration.shape)), capacity,
                      configuration.samples);
    const auto pack = train::make_full_pack(stage, capacity, configuration.samples, plan.model.image_size,
                                            training.vlm().config().decoder.vocab_size);
    const auto counts = train::counts_of(stage, pack.samples);
    if (counts.samples != configuration.samples)
      throw Error(ErrorKind::internal, fmt::format("{} samples were made", counts.samples)).at(configuration.name);
    row.labels = static_cast<int64_t>(counts.all_terms());
    row.flops = flops_of(training.vlm(), pack.samples, plan.model.image_size);
    train::Learner& learner = training.learner();

    const auto start = Clock::now();
    const auto brought = learner.bring(pack.host, counts, 1);
    train::PartTimes nobodys;
    const auto step = [&] {
      learner.begin_step();
      learner.take(*brought, nobodys);
      training.optimize();
      if (device::Runtime* gpu = device::runtime()) gpu->synchronize();
    };
    progress_(configuration.name, 0, request_.repeat);
    step();
    row.ready_after = std::chrono::duration<double>(Clock::now() - start).count();
    row.first_loss = training.loss();
    for (int64_t i = 1; i < request_.warmup; ++i) step();
    peak.give_back();
    peak.begin(std::numeric_limits<int64_t>::max());
    for (int64_t i = 0; i < request_.repeat; ++i) {
      const Stopwatch watch;
      step();
      row.times.add(watch.stop());
      progress_(configuration.name, i + 1, request_.repeat);
    }
    row.kernels = training.kernels();
    row.peak_bytes = row.kernels > 0 ? peak.held() : peak.peak();
    row.last_loss = training.loss();
    row.gradient_norm = training.gradient_norm();
    if (const auto at_best = train::peak_flops(device_, request_.precision))
      row.utilisation = row.flops / (row.times.median() / 1e3) / *at_best;
    if (request_.watch) {
      device::Runtime* const gpu = device::runtime();
      plan::Plan plain = plan;
      plain.speed.graphs = false;
      const auto watched = training.learner_of(plain);
      std::vector<std::pair<std::string, uint64_t>> marks;
      const auto mark = [&](const std::string& part) {
        gpu->synchronize();
        marks.emplace_back(part, gpu->now());
      };
      train::PartTimes times;
      times.tell(mark);
      const auto again = watched->bring(pack.host, counts, 1);
      const auto activities = gpu->watch([&] {
        watched->begin_step();
        watched->take(*again, times);
        training.optimize();
        mark("optimizer");
      });
      row.anatomy = anatomy_of(activities, marks);
    }
    choices = training.choices();
  }

  static double flops_of(const model::Vlm& vlm, const std::vector<std::shared_ptr<const Sample>>& samples,
                         int64_t image_size) {
    model::Work work;
    for (const auto& sample : samples) {
      const auto length = static_cast<int64_t>(sample->texts.front().ids.size());
      work.add(sample->frames, std::vector{length}, length - 1);
    }
    return model::flops(vlm.config(), vlm.tower().tokens_per_frame(image_size, image_size), work, {true, true, true});
  }

  const ProfileRequest& request_;
  Registry& registry_;
  const ProfileProgress& progress_;
  at::Device device_;
  MadeModels models_;
};

} // namespace

double StepAnatomy::milliseconds() const {
  double sum = 0;
  for (const Share& share : parts) sum += share.milliseconds;
  return sum;
}

ProfileReport measure_profile(const ProfileRequest& request, Registry& registry, const ProfileProgress& progress) {
  if (request.repeat < 1 || request.warmup < 1 || request.frames < 0 || request.text < 2)
    throw Error(ErrorKind::usage, "--repeat and --warmup want 1 or more, --frames 0 or more, --text 2 or more");
  if (request.watch && !device::runtime())
    throw Error(ErrorKind::usage, "what a device does is seen on a GPU alone")
        .advise("--device cuda, in a build with CUDA");
  std::vector<Configuration> configurations;
  for (const std::string& name : request.configurations) configurations.push_back(configuration_named(name));
  const c10::InferenceMode without_autograd;
  ops::keep_freed_memory();
  ProfileReport report;
  Profile profile(request, registry, progress);
  for (const Configuration& configuration : configurations)
    report.rows.push_back(profile.measure(configuration, report.choices));
  return report;
}

nlohmann::ordered_json ProfileReport::json() const {
  nlohmann::ordered_json document{{"kernels", choices}, {"rows", nlohmann::ordered_json::array()}};
  for (const Row& row : rows) {
    nlohmann::ordered_json one{{"configuration", row.configuration}, {"samples", row.samples}};
    if (!row.problem.empty()) {
      one["problem"] = row.problem;
    } else {
      one["labels"] = row.labels;
      one["step"] = row.times.json(row.samples);
      one["ready_after_s"] = row.ready_after;
      one["peak_bytes"] = row.peak_bytes;
      one["recorded_kernels"] = row.kernels;
      one["first_loss"] = row.first_loss;
      one["last_loss"] = row.last_loss;
      one["gradient_norm"] = row.gradient_norm;
      one["flops"] = row.flops;
      if (row.utilisation) one["utilisation"] = *row.utilisation;
      if (row.anatomy) {
        one["busy_ms"] = row.anatomy->milliseconds();
        for (const auto& [key, shares] :
             {std::pair{"parts", &row.anatomy->parts}, {"kernel_names", &row.anatomy->kernels}})
          for (const auto& share : *shares)
            one[key].push_back({{"name", share.name}, {"ms", share.milliseconds}, {"launches", share.launches}});
      }
    }
    document["rows"].push_back(std::move(one));
  }
  return document;
}

} // namespace fvlm::bench
