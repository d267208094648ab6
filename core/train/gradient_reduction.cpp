#include "train/gradient_reduction.h"

#include "device/runtime.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <utility>

namespace fvlm::train {

GradientReduction::GradientReduction(model::Parameters& parameters, Reduce reduce,
                                     std::function<void(int64_t)> on_replay)
    : parameters_(parameters), reduce_(std::move(reduce)), on_replay_(std::move(on_replay)) {
  for (size_t i = 0; i < buckets().size(); ++i)
    for (const ops::Parameter* parameter : buckets()[i].parameters) bucket_of_[parameter] = i;
  begin_step();
}

void GradientReduction::begin_step() {
  begin_buckets();
  is_captured_ = is_done_ = false;
}

void GradientReduction::begin_buckets() {
  used_.clear();
  incomplete_.clear();
  for (const model::GradientBucket& bucket : buckets()) incomplete_.push_back(bucket.parameters.size());
  next_ = 0;
  pending_.clear();
}

void GradientReduction::begin_pass() {
  begin_buckets();
  is_captured_ = device::is_capturing();
}

void GradientReduction::end_pass() {
  std::fill(incomplete_.begin(), incomplete_.end(), 0);
  reduce_complete();
  for (const dist::PendingPointer& pending : pending_) pending->wait();
  pending_.clear();
}

void GradientReduction::set_done(bool on_host) {
  is_done_ = true;
  if (!on_host && on_replay_) on_replay_(std::ssize(buckets()));
}

void GradientReduction::finish() {
  if (is_done_) return;
  if (is_captured_) begin_buckets();
  end_pass();
  is_done_ = true;
}

bool GradientReduction::is_first_use(ops::Parameter& parameter) {
  return bucket_of_.contains(&parameter) && used_.insert(&parameter).second;
}

void GradientReduction::begin_backward() {
  for (const model::GradientBucket& bucket : buckets())
    for (ops::Parameter* parameter : bucket.parameters)
      if (!used_.contains(parameter)) complete(*parameter);
}

void GradientReduction::complete(ops::Parameter& parameter) {
  parameter.is_complete = true;
  --incomplete_[bucket_of_.at(&parameter)];
  reduce_complete();
}

void GradientReduction::reduce_complete() {
  for (; next_ < buckets().size() && incomplete_[next_] == 0; ++next_) reduce(buckets()[next_]);
}

void GradientReduction::reduce(const model::GradientBucket& bucket) {
  for (ops::Parameter* parameter : bucket.parameters) {
    if (!parameter->has_gradient) parameter->gradient.zero_();
    parameter->has_gradient = true;
  }
  pending_.push_back(reduce_(bucket));
}

} // namespace fvlm::train
