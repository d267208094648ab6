#include "bench/profile.h"

#include "base/error.h"
#include "base/log.h"
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

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>

namespace fvlm::bench {
namespace {

Job job_of_files(const ProfileRequest& request) {
  const auto directory = ModelDirectory::open(request.model);
  Job job;
  job.name = request.batch.filename().string();
  job.model = request.model;
  PackOfFile read = read_pack(request.batch, directory.description().decoder().vocab_size);
  const train::SyntheticPack& pack = job.packs.emplace_back(std::move(read.pack));
  if (pack.samples.empty()) throw Error(ErrorKind::data, "the batch has no sample").at(request.batch.string());
  int64_t frames = 0, text = 0;
  for (const auto& sample : pack.samples) {
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
      : request_(request), registry_(registry), progress_(progress), device_(model::device_named(request.device)),
        models_(train::type_of(request.precision) == at::kBFloat16 ? DType::bf16 : DType::f32) {}

  ProfileReport::Row measure(const Job& job, std::vector<std::string>& choices) {
    ProfileReport::Row row;
    row.configuration = job.name;
    row.reference = job.reference;
    row.samples = job.samples() * packs();
    row.packs_of_a_rank = 1.0 / static_cast<double>(request_.context.ranks);
    train::PeakMemory peak(device_, std::numeric_limits<int64_t>::max());
    const bool fits = fits_in_memory(job, [&] {
      if (are_several()) row.alone = alone(job, peak);
      steps(job, row, peak, choices, request_.sharing, request_.context);
    });
    if (!fits) row.problem = "out of memory";
    peak.give_back();
    // The peer computes its reference in each step, and reads no quantized model.
    if (!request_.peer.empty() && row.problem.empty() && row.reference != "remembered" && !job.is_quantized)
      compare(job, row);
    return row;
  }

  Job job(const Configuration& configuration, const std::string& reference) {
    return job_of(configuration, request_, request_.frames, request_.text, reference, models_, registry_, device_,
                  packs_in_turn);
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Of a step, over all ranks.
  int64_t packs() const { return request_.sharing.ranks / request_.context.ranks; }
  bool are_several() const { return request_.sharing.ranks > 1; }

  // Logs what could not be allocated.
  static bool fits_in_memory(const Job& job, const std::function<void()>& steps) {
    try {
      steps();
      return true;
    } catch (const std::exception& error) {
      if (!train::is_out_of_memory(error)) throw;
      const std::string_view message = error.what();
      log_info("{}: {}", job.name, message.substr(0, message.find('\n')));
      return false;
    }
  }

  std::optional<std::vector<double>> alone(const Job& job, train::PeakMemory& peak) {
    ProfileReport::Row row;
    std::vector<std::string> choices;
    const bool fits = fits_in_memory(job, [&] { steps(job, row, peak, choices, {}, {}); });
    peak.give_back();
    const at::Tensor medians = at::zeros({request_.sharing.ranks}, at::dtype(at::kDouble));
    medians[request_.sharing.rank] = fits ? row.times.median() : std::numeric_limits<double>::infinity();
    const at::Tensor shared = medians.to(device_);
    request_.sharing.group->all_reduce(shared, dist::Reduction::max)->wait();
    const at::Tensor of_all = shared.cpu();
    const std::vector<double> alone(of_all.const_data_ptr<double>(), of_all.const_data_ptr<double>() + of_all.numel());
    return std::isfinite(*std::ranges::max_element(alone)) ? std::optional(alone) : std::nullopt;
  }

  void steps(const Job& job, ProfileReport::Row& row, train::PeakMemory& peak, std::vector<std::string>& choices,
             const train::Sharing& sharing, const ops::ContextGroup& context) {
    const plan::Stage& stage = job.plan.stages.front();
    Training training(job.plan, registry_, device_, job.model, job.capacity, job.samples(), sharing, context,
                      std::ssize(job.packs));
    std::vector<DeviceSteps::Pack> packs_with_counts;
    for (const train::SyntheticPack& pack : job.packs) {
      packs_with_counts.push_back({pack.host, train::counts_of(stage, pack.samples)});
      train::StepCounts& counts = packs_with_counts.back().counts;
      if (sharing.group)
        for (double& count : counts.of_term) count *= static_cast<double>(packs());
    }
    const train::StepCounts counts = packs_with_counts.front().counts;
    row.labels = static_cast<int64_t>(counts.all_terms());
    if (stage.uses(plan::ObjectiveTerm::Reference::cached) || stage.caches_teacher()) cache_frozen(training, job, row);

    const auto start = Clock::now();
    DeviceSteps steps(training, std::move(packs_with_counts));
    row.flops = training.flops(job.packs.front().samples) / static_cast<double>(context.ranks);
    std::vector<double> losses, norms;
    const auto step = [&] {
      const StepTime taken = steps.step();
      if (request_.numbers.empty()) return taken;
      losses.push_back(training.loss());
      norms.push_back(training.gradient_norm());
      return taken;
    };
    progress_(job.name, 0, request_.repeat);
    step();
    row.ready_after = std::chrono::duration<double>(Clock::now() - start).count();
    row.first_loss = training.loss();
    for (int64_t i = 1; i < request_.warmup; ++i) step();
    peak.give_back();
    peak.begin(std::numeric_limits<int64_t>::max());
    for (int64_t i = 0; i < request_.repeat; ++i) {
      row.times.add(step());
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
    const bool all_ranks = sharing.ranks == request_.sharing.ranks;
    if (request_.sustained > 0 && all_ranks) row.sustained = sustain(steps, job, row.times.median(), sharing);
    if (request_.with_anatomy) row.anatomy = anatomy_of(training, job, counts, [&] { (void)step(); });
    choices = training.choices();
  }

  // All ranks take as many steps.
  Sustained sustain(DeviceSteps& steps, const Job& job, double step_ms, const train::Sharing& sharing) const {
    const double wanted_ms = request_.sustained * 1e3;
    const at::Tensor expected = at::full({1}, std::ceil(wanted_ms / step_ms), at::dtype(at::kDouble).device(device_));
    if (sharing.group) sharing.group->all_reduce(expected, dist::Reduction::max)->wait();
    const auto total = std::max<int64_t>(1, static_cast<int64_t>(expected.item<double>()));
    const std::string name = job.name + ", sustained";
    Sustained sustained;
    sustained.clocks = clocks_during(device_, [&] {
      const Stopwatch watch;
      int64_t done = 0;
      do {
        sustained.times.add(steps.step());
        progress_(name, ++done, std::max(done, total));
      } while (sharing.group ? done < total : watch.stop().wall < wanted_ms);
    });
    return sustained;
  }

  void cache_frozen(Training& training, const Job& job, ProfileReport::Row& row) {
    const auto packs = std::max<int64_t>(std::ssize(job.packs), request_.warmup + request_.repeat);
    for (int64_t i = 0; i < packs; ++i) {
      const Stopwatch watch;
      training.cache_frozen(job.packs[static_cast<size_t>(i % std::ssize(job.packs))].host);
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
  void compare(const Job& job, ProfileReport::Row& row) {
    const bool checkpointing = job.plan.stages.front().activation_checkpointing.vision.every > 0;
    std::vector<std::string> arguments{"--model",       job.model.string(), "--device",
                                       request_.device, "--rate",           fmt::format("{}", request_.rate)};
    for (size_t i = 0; i < job.packs.size(); ++i) {
      std::filesystem::path file = request_.batch;
      if (file.empty())
        write_pack(job.packs[i], job.plan.model.image_size, file = scratch_ / fmt::format("batch-{}.safetensors", i));
      arguments.insert(arguments.end(), {"--batch", file.string()});
    }
    if (checkpointing) arguments.emplace_back("--checkpointing");
    if (job.plan.model.adapters)
      arguments.insert(arguments.end(), {"--lora", fmt::format("{}", lora_rank)});
    else if (const auto& freeze = job.plan.stages.front().freeze; !freeze.empty())
      arguments.insert(arguments.end(), {"--freeze", join(freeze, ",")});
    if (train::type_of(request_.precision) == at::kBFloat16) arguments.insert(arguments.end(), {"--dtype", "bf16"});
    Peer peer(request_.peer, arguments);
    PeerSide& side = row.peer.emplace();
    side.first_loss = peer.run(1).loss;
    require_same_loss(row.first_loss, side.first_loss, loss_tolerance_of_bf16, job.name);
    // Its measured steps begin with the same pack as the engine's, after as many warm-up steps or a few more.
    (void)peer.run(request_.warmup - 1 + std::ssize(job.packs));
    const auto measured = peer.run(request_.repeat);
    for (const StepTime& turn : measured.turns) side.times.add(turn);
    side.last_loss = measured.loss;
    side.peak_bytes = peer.peak_bytes();
    if (request_.sustained <= 0) return;
    side.sustained.emplace();
    side.sustained->clocks = clocks_during(device_, [&] {
      for (const StepTime& turn : peer.run_for(request_.sustained).turns) side.sustained->times.add(turn);
    });
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
    throw Error(ErrorKind::usage,
                "expected --repeat and --warmup of 1 or more, --frames of 0 or more, --text of 2 or more");
  if (!std::isfinite(request.sustained) || request.sustained < 0)
    throw Error(ErrorKind::usage, "--sustained: expected 0 seconds or more, got {}", request.sustained);
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
  const auto measure = [&](const Job& job) { report.rows.push_back(profile.measure(job, report.choices)); };
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
      if (row.sustained) one["sustained"] = row.sustained->json(row.samples);
      if (row.alone) {
        one["alone_ms"] = *row.alone;
        one["share_of_alone"] = row.share_of_alone();
      }
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
                       {"first_loss", row.peer->first_loss},
                       {"last_loss", row.peer->last_loss}};
        one["ratio"] = row.ratio();
        if (row.peer->sustained) {
          one["peer"]["sustained"] = row.peer->sustained->json(row.samples);
          one["sustained_ratio"] = row.sustained_ratio(*row.peer);
        }
      }
      if (row.anatomy) one.update(row.anatomy->json());
    }
    document["rows"].push_back(std::move(one));
  }
  return document;
}

} // namespace fvlm::bench
