#include "train/input_staging.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

namespace fvlm::train {
namespace {

// Those beside the pack's own.
std::vector<at::Tensor*> tensors_beside_pack(objective::PassInputs& in) {
  std::vector<at::Tensor*> all{
      &in.weights,           &in.frame_shares,        &in.used_pairs,        &in.judgements,
      &in.outcomes,          &in.reference_log_probs, &in.retrieval.queries, &in.retrieval.positives,
      &in.retrieval.compared};
  for (at::Tensor& mask : in.masks) all.push_back(&mask);
  for (auto& [term, compared] : in.compared)
    all.insert(all.end(), {&compared.rows, &compared.teacher_rows, &compared.weights, &compared.cached});
  return all;
}

// All but the frames, which lie apart.
std::vector<at::Tensor*> small_tensors(objective::PassInputs& in) {
  auto all = in.pack.tensors();
  std::erase(all, &in.pack.frames);
  if (in.teacher_pack) {
    const auto of_teacher = in.teacher_pack->tensors();
    all.insert(all.end(), of_teacher.begin(), of_teacher.end());
  }
  const auto others = tensors_beside_pack(in);
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

// Where each tensor begins in one buffer, and the buffer's size.
std::vector<int64_t> offsets(const std::vector<at::Tensor*>& tensors) {
  constexpr int64_t alignment = 256;
  std::vector<int64_t> offsets{0};
  for (const at::Tensor* tensor : tensors) {
    const auto bytes = tensor->defined() ? static_cast<int64_t>(tensor->nbytes()) : 0;
    offsets.push_back(offsets.back() + (bytes + alignment - 1) / alignment * alignment);
  }
  return offsets;
}

// The small tensors in one host buffer.
at::Tensor packed_bytes(objective::PassInputs& in, bool pinned) {
  const auto tensors = small_tensors(in);
  const auto begins = offsets(tensors);
  at::Tensor bytes = at::empty({begins.back()}, at::TensorOptions().dtype(at::kByte).pinned_memory(pinned));
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i]->defined())
      std::memcpy(bytes.mutable_data_ptr<uint8_t>() + begins[i], tensors[i]->const_data_ptr(), tensors[i]->nbytes());
  return bytes;
}

// Makes the small tensors slices of `bytes`.
void place_in(const at::Tensor& bytes, objective::PassInputs& in) {
  const auto tensors = small_tensors(in);
  const auto begins = offsets(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    at::Tensor& tensor = *tensors[i];
    if (!tensor.defined()) continue;
    const at::Tensor slice = bytes.narrow(0, begins[i], static_cast<int64_t>(tensor.nbytes()));
    tensor = slice.view(tensor.scalar_type()).view(tensor.sizes());
  }
}

} // namespace

std::vector<int64_t> shape_key(objective::PassInputs& inputs) {
  std::vector<int64_t> key = inputs.pack.shape();
  if (inputs.teacher_pack) {
    const auto of_teacher = inputs.teacher_pack->shape();
    key.insert(key.end(), of_teacher.begin(), of_teacher.end());
  }
  for (const at::Tensor* tensor : tensors_beside_pack(inputs)) model::append_shape(key, *tensor);
  return key;
}

objective::PassInputs on_device(BuiltPass built, at::Device device) {
  objective::PassInputs& in = built.inputs;
  for (at::Tensor* tensor : small_tensors(in))
    if (tensor->defined()) *tensor = tensor->to(device);
  if (built.frames.frames.defined()) {
    in.pack.frames =
        at::empty(built.frames.shape_of(in.pack.square_slots()), at::TensorOptions(device).dtype(at::kFloat));
    const auto* bytes = device.is_cpu() ? nullptr : built.frames.normalization;
    built.frames.copy_to(in.pack.frames, bytes ? feed::table_on(device, *bytes) : at::Tensor());
  }
  return std::move(in);
}

// Memory that a copy still reads or writes is not given back.
InputStaging::~InputStaging() {
  if (!copied_) return;
  try {
    copied_->wait();
  } catch (const c10::Error&) { // an error of the device, which whatever comes next reports again
  }
}

void InputStaging::stage(BuiltPass built, std::shared_ptr<std::byte> memory, StagedInputs& place) {
  const at::Tensor bytes = packed_bytes(built.inputs, device_.is_cuda());
  if (!place.bytes.defined()) {
    if (built.frames.frames.defined()) built.inputs.pack.frames = frame_slots(built.inputs.pack.square_slots());
    place.bytes = at::empty(bytes.sizes(), at::TensorOptions(device_).dtype(at::kByte));
    place_in(place.bytes, built.inputs);
    place.inputs = std::move(built.inputs);
  }
  place.bytes.copy_(bytes, true);
  if (built.frames.frames.defined()) copy_frames(built.frames, std::move(memory), place.inputs.pack.frames);
}

// The first slots of those that all packs share, but for packs of more squares than frames, which videos have.
at::Tensor InputStaging::frame_slots(int64_t count) {
  const auto options = at::TensorOptions(device_).dtype(at::kFloat);
  if (count > max_frames_[0]) {
    auto shape = max_frames_;
    shape[0] = count;
    return at::empty(shape, options);
  }
  if (!slots_.defined()) slots_ = at::empty(max_frames_, options);
  return slots_.narrow(0, 0, count);
}

// Into the first of `slots`; the others become zero. A repeated frame travels once.
void InputStaging::copy_frames(const feed::HostFrames& frames, std::shared_ptr<std::byte> memory,
                               const at::Tensor& slots) {
  if (frames.normalization && !table_.defined()) table_ = feed::table_on(device_, *frames.normalization);
  if (overlap_) {
    if (const int64_t own = frames.frames.size(0); !incoming_.defined() || incoming_.size(0) < own) {
      if (copied_) copied_->wait();
      auto shape = frames.frames.sizes().vec();
      shape[0] = std::max(max_frames_[0], own);
      incoming_ = at::empty(shape, frames.frames.options().device(device_));
      free_ = runtime_.record_event(); // work that is under way may still use that memory
    }
    if (copied_) copied_->wait(); // long ago, where packs are computed one after the other
    memory_ = std::move(memory);
    const at::Tensor from = frames.frames, target = incoming_.narrow(0, 0, from.size(0));
    copied_ = runtime_.copy_on_prefetch_stream(*free_, [target, from] { target.copy_(from, true); });
    runtime_.wait_event(*copied_);
    feed::HostFrames{target, frames.copies, frames.normalization}.copy_to(slots, table_);
    free_ = runtime_.record_event();
  } else {
    frames.copy_to(slots, table_);
  }
}

} // namespace fvlm::train
