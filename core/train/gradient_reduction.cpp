#include "train/gradient_reduction.h"

#include "device/runtime.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <utility>

namespace fvlm::train {
namespace {

constexpr size_t max_buffers = 2; // of buckets that are being reduced

// Vectors lie apart from their bucket's buffer, and are copied into it by the current stream. The side stream writes
// biases with the weights that they belong to.
void wait_for_vectors(const model::GradientBucket& bucket) {
  const auto is_written_aside = [](const ops::Parameter* parameter) {
    return parameter->on_side_stream && parameter->value.dim() < 2;
  };
  if (bucket.vectors.empty() || std::ranges::none_of(bucket.parameters, is_written_aside)) return;
  if (device::Runtime* gpu = device::runtime()) gpu->join_side_stream();
}

} // namespace

GradientReduction::GradientReduction(model::Parameters& parameters, Calls calls)
    : parameters_(parameters), calls_(std::move(calls)),
      buffers_(!buckets().empty() && buckets().front().buffer != nullptr) {
  for (size_t i = 0; i < buckets().size(); ++i)
    for (ops::Parameter* parameter : buckets()[i].parameters) bucket_of_[parameter] = i;
  begin_buckets();
}

void GradientReduction::begin_step(int64_t passes) {
  passes_ = buffers_ ? passes : 1;
  done_ = 0;
  in_pass_ = is_captured_ = false;
  begin_buckets();
  if (calls_.on_step) calls_.on_step();
}

void GradientReduction::begin_buckets() {
  used_.clear();
  incomplete_.clear();
  for (const model::GradientBucket& bucket : buckets()) {
    incomplete_.push_back(bucket.parameters.size());
    if (bucket.buffer) bucket.buffer->release();
  }
  next_ = 0;
  pending_.clear();
}

void GradientReduction::begin_pass() {
  begin_buckets();
  for (const auto& [parameter, bucket] : bucket_of_) parameter->is_complete = false; // after a capture that failed
  in_pass_ = true;
  is_captured_ = device::is_capturing();
}

void GradientReduction::end_pass() {
  std::ranges::fill(incomplete_, 0);
  reduce_complete();
  wait_until_left(0);
  if (buffers_) parameters_.reset_gradients();
}

void GradientReduction::set_done(bool on_host) {
  in_pass_ = false;
  ++done_;
  if (!on_host && calls_.on_replay) calls_.on_replay(std::ssize(buckets()));
}

void GradientReduction::finish() {
  if (in_pass_ && is_captured_) begin_buckets();
  const auto reduce_all = [&] {
    end_pass();
    set_done(true);
  };
  if (in_pass_) reduce_all();
  while (done_ < passes_) {
    begin_buckets();
    reduce_all();
  }
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
    if (!parameter->has_gradient && !parameter->buffer) parameter->gradient.zero_();
    parameter->has_gradient = true;
  }
  if (bucket.buffer) bucket.buffer->allocate();
  wait_for_vectors(bucket);
  for (const auto& [vector, place] : bucket.vectors) at::Tensor(place).copy_(vector);
  pending_.emplace_back(&bucket, calls_.reduce(bucket));
  if (buffers_) wait_until_left(max_buffers);
}

void GradientReduction::wait_until_left(size_t buckets) {
  for (; pending_.size() > buckets; pending_.pop_front()) {
    const auto& [bucket, pending] = pending_.front();
    pending->wait();
    if (calls_.on_reduced) calls_.on_reduced(*bucket);
    if (bucket->buffer) bucket->buffer->release();
  }
}

} // namespace fvlm::train
