#include "train/thread_replicas.h"

#include "base/parallel.h"
#include "ops/torch_threads.h"
#include "plugin/host.h"
#include "train/padding.h"
#include "train/stage_model.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdlib>

namespace fvlm::train {
namespace {

constexpr int64_t max_replicas = 8;

} // namespace

ThreadReplicas::Size choose_replicas(const ModelDescription& description, at::Device device) {
  if (!device.is_cpu()) return {};
  int64_t parameters = 0;
  for (const ModelPart& part : description.parts)
    for (const TensorSpec& spec : description.layout(part).tensors) parameters += elements_of(spec.shape);
  if (parameters >= ops::parameters_worth_threads) return {};
  const bool set_by_user = std::getenv("OMP_NUM_THREADS") != nullptr;
  const int64_t threads = set_by_user ? at::get_num_threads() : threads_or_cores(0);
  at::set_num_threads(1);
  return {std::min(threads, max_replicas), threads};
}

ThreadReplicas::Size replicas_of(const plan::Stage& stage, const ThreadReplicas::Size& chosen) {
  return stage.embeds() ? ThreadReplicas::Size() : chosen;
}

std::vector<HostPack> split_pack(const HostPack& pack, int64_t wanted) {
  const size_t samples = pack.samples.size();
  const size_t count = std::min(static_cast<size_t>(wanted), std::max<size_t>(samples, 1));
  std::vector<HostPack> parts;
  for (size_t i = 0; i < count; ++i) {
    HostPack part = pack;
    part.samples.assign(pack.samples.begin() + static_cast<std::ptrdiff_t>(first_of_part(samples, count, i)),
                        pack.samples.begin() + static_cast<std::ptrdiff_t>(first_of_part(samples, count, i + 1)));
    parts.push_back(std::move(part));
  }
  return parts;
}

ThreadReplicas::ThreadReplicas(const plan::Plan& plan, const plan::Stage& stage, model::Model& policy,
                               ops::Operations& operations, Registry& registry, const model::Capacity& max_capacity,
                               const Frozen& frozen, const Size& size)
    : policy_(policy), operations_(operations) {
  computers_.push_back(std::make_unique<GradientComputer>(plan, stage, policy, operations, max_capacity, frozen));
  model::Parameters& values = policy.parameters();
  model::ArenaOptions options;
  options.device = values.trained().device();
  options.dtype = values.trained().scalar_type();
  options.gradient_dtype = values.gradients().scalar_type();
  options.trains = [&](const model::ParameterSpec& spec) { return values.at(spec.name).gradient.defined(); };
  options.scheme_of = [&](const model::ParameterSpec& spec) { return find_packed_scheme(values.at(spec.name).scheme); };
  options.shares_values_with = &values;
  for (int64_t i = 1; i < size.parts; ++i) {
    Replica& replica = replicas_.emplace_back();
    replica.operations = make_operations(plan, registry, options.device);
    replica.model = std::make_unique<model::Model>(policy.config(), options);
    replica.model->speed = policy.speed;
    replica.model->set_recompute(policy.encoder().recompute, policy.decoder().recompute);
    computers_.push_back(
        std::make_unique<GradientComputer>(plan, stage, *replica.model, *replica.operations, max_capacity, frozen));
  }
  for (int64_t i = 1; i < std::min(size.parts, size.threads); ++i) threads_.push_back(std::make_unique<TaskThread>());
}

void ThreadReplicas::begin_step() {
  for (const auto& computer : computers_) computer->begin_step();
}

void ThreadReplicas::forward_backward(const HostPack& host, const StepCounts& counts, double scale, PartTimes& times,
                                      bool measure_attention, GradientReduction* reduction) {
  if (computers_.size() == 1) {
    computers_.front()->forward_backward(host, counts, scale, times, measure_attention, reduction);
    return;
  }
  const auto parts = split_pack(host, static_cast<int64_t>(computers_.size()));
  const size_t threads = threads_.size() + 1;
  const auto work = [&](size_t thread, PartTimes& own_times) {
    const c10::InferenceMode without_autograd;
    const SerialScope alone;
    for (size_t i = thread; i < parts.size(); i += threads)
      computers_[i]->forward_backward(parts[i], counts, scale, own_times, measure_attention && i == 0);
  };
  for (size_t thread = 1; thread < threads; ++thread)
    threads_[thread - 1]->start([&work, &times, thread] {
      PartTimes discarded; // but for its spans
      discarded.set_spans(times.spans());
      work(thread, discarded);
    });
  std::exception_ptr first_error;
  const auto keep_first = [&](const auto& call) {
    try {
      call();
    } catch (...) {
      if (!first_error) first_error = std::current_exception();
    }
  };
  keep_first([&] { work(0, times); });
  for (const auto& thread : threads_) keep_first([&] { thread->wait(); });
  times.add_elapsed("threads");
  if (first_error) std::rethrow_exception(first_error);
}

void ThreadReplicas::cache_reference(const HostPack& host, const model::Model& reference) {
  const auto parts = split_pack(host, static_cast<int64_t>(computers_.size()));
  for (size_t i = 0; i < parts.size(); ++i) computers_[i]->cache_reference(parts[i], reference);
}

void ThreadReplicas::cache_teachers(const HostPack& host) {
  const auto parts = split_pack(host, static_cast<int64_t>(computers_.size()));
  for (size_t i = 0; i < parts.size(); ++i) computers_[i]->cache_teachers(parts[i]);
}

void ThreadReplicas::finish_caching() {
  for (const auto& computer : computers_) computer->finish_caching();
}

bool ThreadReplicas::drop(const UnsupportedCall& refused) {
  return operations_.drop(refused) ||
         std::ranges::any_of(replicas_, [&](const Replica& replica) { return replica.operations->drop(refused); });
}

void ThreadReplicas::reduce_gradients() {
  for (const Replica& replica : replicas_) policy_.parameters().add_gradients(replica.model->parameters());
}

at::Tensor ThreadReplicas::sums() const {
  at::Tensor sums = computers_.front()->sums();
  for (size_t i = 1; i < computers_.size(); ++i) sums = sums + computers_[i]->sums();
  return sums;
}

double ThreadReplicas::counted() const {
  double counted = 0;
  for (const auto& computer : computers_) counted += computer->counted();
  return counted;
}

int64_t ThreadReplicas::encoded_frames() const {
  int64_t frames = 0;
  for (const auto& computer : computers_) frames += computer->encoded_frames();
  return frames;
}

int64_t ThreadReplicas::used_rows() const {
  int64_t rows = 0;
  for (const auto& computer : computers_) rows += computer->used_rows();
  return rows;
}

int64_t ThreadReplicas::all_rows() const {
  int64_t rows = 0;
  for (const auto& computer : computers_) rows += computer->all_rows();
  return rows;
}

} // namespace fvlm::train
