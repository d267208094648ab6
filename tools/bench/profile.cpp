#include "bench/profile.h"

#include "base/error.h"
#include "base/text.h"
#include "bench/job.h"
#include "bench/pack_file.h"
#include "bench/peer.h"
#include "device/runtime.h"
#include "model/execution.h"
#include "model/loading.h"
#include "objective/next_token/settings.h"
#include "ops/host_memory.h"
#include "train/active_lines.h"
#include "train/memory.h"
#include "train/peak_memory.h"

#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>

namespace fvlm::bench {
namespace {

Job job_of_files(const ProfileRequest& request) {
  const auto directory = ModelDirectory::open(request.model);
  Job job;
  job.name = request.batch.filename().string();
  job.model = request.model;
  job.batch = request.batch;
  PackOfFile read = read_pack(request.batch, directory.description().decoder().vocab_size);
  job.pack = std::move(read.pack);
  if (job.pack.samples.empty()) throw Error(ErrorKind::data, "the batch has no sample").at(request.batch.string());
  int64_t frames = 0, text = 0;
  for (const auto& sample : job.pack.samples) {
    frames = std::max(frames, sample->frames);
    text = std::max<int64_t>(text, sample->texts.front().tokens());
    job.capacity.frames += sample->frames;
    job.capacity.rows += sample->rows();
  }
  job.plan = synthetic_plan(request, read.image_size, frames, text);
  job.plan.stages.front().objective = {objective::NextToken()};
  return job;
}

class Profile {
 public:
  Profile(const ProfileRequest& request, Registry& registry, const Progress& progress)
      : request_(request), registry_(registry), progress_(progress), device_(model::device_named(request.device)) {}

  ProfileReport::Row measure(Job& job, std::vector<std::string>& choices) {
    ProfileReport::Row row;
    row.configuration = job.name;
    row.reference = job.reference;
    row.samples = job.samples() * packs();
    row.packs_of_a_rank = 1.0 / static_cast<double>(request_.context.ranks);
    train::PeakMemory peak(device_, std::numeric_limits<int64_t>::max());
    try {
      if (are_several()) row.alone = alone(job, peak);
      steps(job, row, peak, choices, request_.sharing, request_.context);
    } catch (const std::exception& error) {
      if (!train::is_out_of_memory(error)) throw;
      row.problem = "out of memory";
    }
    peak.give_back();
    // The peer computes its reference in each step, and reads no quantized model.
    if (!request_.peer.empty() && row.problem.empty() && row.reference != "remembered" && !job.is_quantized)
      compare(job, row);
    return row;
  }

  Job job(const Configuration& configuration, const std::string& reference) {
    return job_of(configuration, request_, request_.frames, request_.text, reference, models_, registry_, device_);
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Of a step, over all ranks.
  int64_t packs() const { return request_.sharing.ranks / request_.context.ranks; }
  bool are_several() const { return request_.sharing.ranks > 1; }

  std::optional<Times> alone(const Job& job, train::PeakMemory& peak) {
    ProfileReport::Row row;
    std::vector<std::string> choices;
    try {
      steps(job, row, peak, choices, {}, {});
    } catch (const std::exception& error) {
      if (!train::is_out_of_memory(error)) throw;
      row.problem = "out of memory";
    }
    peak.give_back();
    return row.problem.empty() ? std::optional(row.times) : std::nullopt;
  }

  void steps(const Job& job, ProfileReport::Row& row, train::PeakMemory& peak, std::vector<std::string>& choices,
             const train::Sharing& sharing, const ops::ContextGroup& context) {
    const plan::Stage& stage = job.plan.stages.front();
    Training training(job.plan, registry_, device_, job.model, job.capacity, job.samples(), sharing, context);
    auto counts = train::counts_of(stage, job.pack.samples);
    if (sharing.group)
      for (double& count : counts.of_term) count *= static_cast<double>(packs());
    row.labels = static_cast<int64_t>(counts.all_terms());
    row.flops = training.flops(job.pack.samples) / static_cast<double>(context.ranks);
    train::GradientComputer& gradient_computer = training.gradient_computer();
    if (stage.uses(plan::ObjectiveTerm::Reference::cached) || stage.caches_teacher()) cache_frozen(training, job, row);

    const auto start = Clock::now();
    const auto staged = gradient_computer.stage(job.pack.host, counts, 1);
    PartTimes untimed;
    std::vector<double> losses, norms;
    const auto step = [&] {
      training.forward_backward(*staged, untimed);
      training.optimize();
      wait();
      if (request_.numbers.empty()) return;
      losses.push_back(training.loss());
      norms.push_back(training.gradient_norm());
    };
    progress_(job.name, 0, request_.repeat);
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
      progress_(job.name, i + 1, request_.repeat);
    }
    row.kernels = training.kernels();
    row.peak_bytes = row.kernels > 0 ? peak.held() : peak.peak();
    row.last_loss = training.loss();
    row.gradient_norm = training.gradient_norm();
    const auto precision = train::product_precision(request_.precision, device_, training.operations().choices());
    if (const auto at_best = train::peak_flops(device_, precision))
      row.utilisation = row.flops / (row.times.median() / 1e3) / *at_best;
    if (!request_.numbers.empty()) write_numbers(training, losses, norms);
    if (request_.with_anatomy) row.anatomy = anatomy_of(training, job, counts, step);
    choices = training.choices();
  }

  static void wait() {
    if (device::Runtime* gpu = device::runtime()) gpu->synchronize();
  }

  void cache_frozen(Training& training, const Job& job, ProfileReport::Row& row) {
    for (int64_t i = 0; i < request_.warmup + request_.repeat; ++i) {
      const Stopwatch watch;
      training.cache_frozen(job.pack.host);
      if (i >= request_.warmup) row.caching.add(watch.stop());
    }
    training.finish_caching();
  }

  void write_numbers(Training& training, const std::vector<double>& losses, const std::vector<double>& norms) const {
    std::map<std::string, at::Tensor> numbers{{"losses", at::tensor(losses, at::kDouble)},
                                              {"gradient_norms", at::tensor(norms, at::kDouble)}};
    for (const ops::Parameter& parameter : training.trained_model().parameters().all())
      if (parameter.gradient.defined()) numbers["grad." + parameter.name] = parameter.gradient.to(at::kFloat);
    model::write_tensors(request_.numbers, numbers);
  }

  // After the engine's steps, whose memory the peer may need.
  void compare(Job& job, ProfileReport::Row& row) {
    if (job.batch.empty()) write_pack(job.pack, job.plan.model.image_size, job.batch = scratch_ / "batch.safetensors");
    const bool checkpointing = job.plan.stages.front().activation_checkpointing.vision.every > 0;
    std::vector<std::string> arguments{"--model",  job.model.string(), "--batch", job.batch.string(),
                                       "--device", request_.device,    "--rate",  fmt::format("{}", request_.rate)};
    if (checkpointing) arguments.emplace_back("--checkpointing");
    if (job.plan.model.adapters)
      arguments.insert(arguments.end(), {"--lora", fmt::format("{}", lora_rank)});
    else if (const auto& freeze = job.plan.stages.front().freeze; !freeze.empty())
      arguments.insert(arguments.end(), {"--freeze", join(freeze, ",")});
    if (request_.precision == plan::Precision::bf16) arguments.insert(arguments.end(), {"--dtype", "bf16"});
    Peer peer(request_.peer, arguments);
    PeerSide& side = row.peer.emplace();
    side.first_loss = peer.run(1).loss;
    if (request_.model.empty()) job.batch.clear();
    require_same_loss(row.first_loss, side.first_loss, loss_tolerance_of_bf16, job.name);
    (void)peer.run(request_.warmup);
    for (const StepTime& turn : peer.run(request_.repeat).turns) side.times.add(turn);
    side.peak_bytes = peer.peak_bytes();
  }

  const ProfileRequest& request_;
  Registry& registry_;
  const Progress& progress_;
  at::Device device_;
  SyntheticModels models_;
  ScratchFolder scratch_;
};

} // namespace

ProfileReport measure_profile(const ProfileRequest& request, Registry& registry, const Progress& progress) {
  if (request.repeat < 1 || request.warmup < 1 || request.frames < 0 || request.text < 2)
    throw Error(ErrorKind::usage, "--repeat and --warmup want 1 or more, --frames 0 or more, --text 2 or more");
  if (request.with_anatomy && !device::runtime())
    throw Error(ErrorKind::usage, "what a device does is seen on a GPU alone")
        .advise("--device cuda, in a build with CUDA");
  if (request.sharing.ranks > 1 && !request.peer.empty())
    throw Error(ErrorKind::usage, "the peer is one process, and several ranks were started")
        .advise("measure it without torchrun");
  if (request.model.empty() != request.batch.empty()) throw Error(ErrorKind::usage, "--model and --batch go together");
  std::vector<Configuration> configurations;
  for (const std::string& name : request.configurations) configurations.push_back(configuration_named(name));
  const c10::InferenceMode without_autograd;
  ops::keep_freed_memory();
  ProfileReport report;
  Profile profile(request, registry, progress);
  const auto measure = [&](Job job) { report.rows.push_back(profile.measure(job, report.choices)); };
  if (!request.model.empty()) measure(job_of_files(request));
  for (const Configuration& configuration : configurations)
    for (const char* reference : request.pairs ? std::vector{"remembered", "live"} : std::vector{""})
      measure(profile.job(configuration, reference));
  return report;
}

nlohmann::ordered_json ProfileReport::json() const {
  nlohmann::ordered_json document{{"kernels", choices}, {"rows", nlohmann::ordered_json::array()}};
  for (const Row& row : rows) {
    nlohmann::ordered_json one{{"configuration", row.configuration}, {"samples", row.samples}};
    if (!row.reference.empty()) one["reference"] = row.reference;
    if (!row.problem.empty()) {
      one["problem"] = row.problem;
    } else {
      one["labels"] = row.labels;
      one["step"] = row.times.json(row.samples);
      if (row.alone) one["share_of_alone"] = row.share_of_alone();
      if (row.caching.count() > 0) one["remember"] = row.caching.json(row.samples);
      one["ready_after_s"] = row.ready_after;
      one["peak_bytes"] = row.peak_bytes;
      one["recorded_kernels"] = row.kernels;
      one["first_loss"] = row.first_loss;
      one["last_loss"] = row.last_loss;
      one["gradient_norm"] = row.gradient_norm;
      one["flops"] = row.flops;
      if (row.utilisation) one["utilisation"] = *row.utilisation;
      if (row.peer) {
        one["peer"] = {{"step", row.peer->times.json(row.samples)},
                       {"peak_bytes", row.peer->peak_bytes},
                       {"first_loss", row.peer->first_loss}};
        one["ratio"] = row.ratio();
      }
      if (row.anatomy) one.update(row.anatomy->json());
    }
    document["rows"].push_back(std::move(one));
  }
  return document;
}

} // namespace fvlm::bench
