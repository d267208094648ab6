#include "train/crew.h"

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

constexpr int64_t most_side_by_side = 8;

} // namespace

Crew::Size crew_for(const ModelDescription& description, at::Device device) {
  if (!device.is_cpu()) return {};
  int64_t parameters = 0;
  for (const Part part : all_parts)
    for (const TensorSpec& spec : description.layout(part).tensors) parameters += elements_of(spec.shape);
  if (parameters >= ops::parameters_worth_threads) return {};
  const bool chosen = std::getenv("OMP_NUM_THREADS") != nullptr;
  const int64_t threads = chosen ? at::get_num_threads() : threads_or_cores(0);
  at::set_num_threads(1);
  return {std::min(threads, most_side_by_side), threads};
}

std::vector<HostPack> parts_of(const HostPack& pack, int64_t wanted) {
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

Crew::Crew(const plan::Plan& plan, const plan::Stage& stage, model::Vlm& policy, ops::Operations& operations,
           Registry& registry, const model::Capacity& most, const Frozen& frozen, const Size& size)
    : policy_(policy), operations_(operations) {
  learners_.push_back(std::make_unique<GradientComputer>(plan, stage, policy, operations, most, frozen));
  model::Parameters& values = policy.parameters();
  model::ArenaOptions options;
  options.device = values.trained().device();
  options.dtype = values.trained().scalar_type();
  options.gradient_dtype = values.gradients().scalar_type();
  options.trains = [&](const model::ParameterSpec& spec) { return values.at(spec.name).gradient.defined(); };
  options.values_of = &values;
  for (int64_t i = 1; i < size.parts; ++i) {
    Follower& follower = followers_.emplace_back();
    follower.operations = make_operations(plan, registry, options.device);
    follower.vlm = std::make_unique<model::Vlm>(policy.config(), options);
    follower.vlm->speed = policy.speed;
    follower.vlm->tower().recompute = policy.tower().recompute;
    follower.vlm->decoder().recompute = policy.decoder().recompute;
    learners_.push_back(
        std::make_unique<GradientComputer>(plan, stage, *follower.vlm, *follower.operations, most, frozen));
  }
  for (int64_t i = 1; i < std::min(size.parts, size.threads); ++i) threads_.push_back(std::make_unique<TaskThread>());
}

void Crew::begin_step() {
  for (const auto& learner : learners_) learner->begin_step();
}

void Crew::forward_backward(const HostPack& host, const StepCounts& counts, double scale, PartTimes& times,
                            bool measure_attention) {
  if (learners_.size() == 1) {
    learners_.front()->forward_backward(host, counts, scale, times, measure_attention);
    return;
  }
  const auto parts = parts_of(host, static_cast<int64_t>(learners_.size()));
  const size_t threads = threads_.size() + 1;
  const auto work = [&](size_t thread, PartTimes& own_times) {
    const c10::InferenceMode without_autograd;
    const WorksAlone alone;
    for (size_t i = thread; i < parts.size(); i += threads)
      learners_[i]->forward_backward(parts[i], counts, scale, own_times, measure_attention && i == 0);
  };
  for (size_t thread = 1; thread < threads; ++thread)
    threads_[thread - 1]->start([&work, thread] {
      PartTimes nobodys;
      work(thread, nobodys);
    });
  std::exception_ptr thrown;
  const auto keep_first = [&](const auto& call) {
    try {
      call();
    } catch (...) {
      if (!thrown) thrown = std::current_exception();
    }
  };
  keep_first([&] { work(0, times); });
  for (const auto& thread : threads_) keep_first([&] { thread->wait(); });
  times.spent_on("threads");
  if (thrown) std::rethrow_exception(thrown);
}

void Crew::cache_reference(const HostPack& host, const model::Vlm& reference) {
  const auto parts = parts_of(host, static_cast<int64_t>(learners_.size()));
  for (size_t i = 0; i < parts.size(); ++i) learners_[i]->cache_reference(parts[i], reference);
}

void Crew::finish_caching() {
  for (const auto& learner : learners_) learner->finish_caching();
}

bool Crew::drop(const UnsupportedCall& refused) {
  return operations_.drop(refused) || std::any_of(followers_.begin(), followers_.end(), [&](const Follower& follower) {
           return follower.operations->drop(refused);
         });
}

void Crew::gather() {
  for (const Follower& follower : followers_) policy_.parameters().add_gradients(follower.vlm->parameters());
}

at::Tensor Crew::sums() const {
  at::Tensor sums = learners_.front()->sums();
  for (size_t i = 1; i < learners_.size(); ++i) sums = sums + learners_[i]->sums();
  return sums;
}

double Crew::counted() const {
  double counted = 0;
  for (const auto& learner : learners_) counted += learner->counted();
  return counted;
}

int64_t Crew::used_rows() const {
  int64_t rows = 0;
  for (const auto& learner : learners_) rows += learner->used_rows();
  return rows;
}

int64_t Crew::all_rows() const {
  int64_t rows = 0;
  for (const auto& learner : learners_) rows += learner->all_rows();
  return rows;
}

} // namespace fvlm::train
