#include "ops/parameter.h"

#include "base/error.h"
#include "device/runtime.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>

namespace fvlm::ops {
namespace {

// Adjacent tensors as a single view, concatenated in the first dimension.
template <class TensorOf>
at::Tensor concatenated_view(const std::vector<Parameter*>& parts, const TensorOf& tensor_of) {
  const at::Tensor& first = tensor_of(*parts.front());
  if (parts.size() == 1) return first;
  auto shape = first.sizes().vec();
  int64_t offset = first.storage_offset() + first.size(0) * first.stride(0);
  for (size_t index = 1; index < parts.size(); ++index) {
    const at::Tensor& next = tensor_of(*parts[index]);
    if (!next.is_alias_of(first) || next.storage_offset() != offset)
      throw Error(ErrorKind::internal, "parameters that are used as one weight are not adjacent in memory")
          .at(parts[index]->name);
    offset += next.size(0) * first.stride(0);
    shape[0] += next.size(0);
  }
  return first.as_strided(shape, first.strides(), first.storage_offset());
}

} // namespace

at::Tensor strided_stack(std::span<const at::Tensor> tensors) {
  const at::Tensor& first = tensors.front();
  if (!first.defined()) return {};
  const int64_t distance =
      tensors.size() > 1 && tensors[1].defined() ? tensors[1].storage_offset() - first.storage_offset() : 0;
  for (size_t index = 1; index < tensors.size(); ++index) {
    const at::Tensor& next = tensors[index];
    if (!next.defined() || !next.is_alias_of(first) || next.sizes() != first.sizes() ||
        next.strides() != first.strides() ||
        next.storage_offset() - first.storage_offset() != static_cast<int64_t>(index) * distance || distance < 1)
      return {};
  }
  auto shape = first.sizes().vec(), strides = first.strides().vec();
  shape.insert(shape.begin(), static_cast<int64_t>(tensors.size()));
  strides.insert(strides.begin(), tensors.size() > 1 ? distance : first.numel());
  return first.as_strided(shape, strides);
}

Weight::Weight(std::vector<Parameter*> parts) : parts_(std::move(parts)) {
  const Parameter& first = *parts_.front();
  for (const Parameter* part : parts_)
    if (part->scheme != first.scheme)
      throw Error(ErrorKind::data, "{} and {} are read as one matrix, and only one of them is quantized", first.name,
                  part->name)
          .advise("export the model anew: quantize both or neither");
  const auto view = [&](const auto& of) { return concatenated_view(parts_, of); };
  if (first.scheme.empty()) {
    value_ = view([](const Parameter& part) -> const at::Tensor& { return part.value; });
  } else {
    int64_t rows = 0;
    for (const Parameter* part : parts_) rows += part->value.size(0);
    value_ = at::empty({1, 1}, first.value.options()).expand({rows, first.value.size(1)}); // a shape
    for (size_t index = 0; index < first.packed.size(); ++index)
      packed_.push_back(view([index](const Parameter& part) -> const at::Tensor& { return part.packed[index]; }));
  }
  if (first.gradient.defined())
    gradient_ = view([](const Parameter& part) -> const at::Tensor& { return part.gradient; });
}

Weight Weight::as_matrix() const {
  Weight matrix = *this;
  matrix.value_ = value_.flatten(1);
  if (requires_grad()) matrix.gradient_ = gradient_.flatten(1);
  return matrix;
}

Weight Weight::as_rows() const {
  Weight rows = *this;
  rows.value_ = value_.flatten(0, -2);
  if (requires_grad()) rows.gradient_ = gradient_.flatten(0, -2);
  return rows;
}

Weight Weight::plus_one() const {
  Weight sum = *this;
  sum.value_ = value_ + 1;
  return sum;
}

Weight Weight::rows(int64_t first, int64_t count) const {
  Weight part = *this;
  part.value_ = value_.narrow(0, first, count);
  if (requires_grad()) part.gradient_ = gradient_.narrow(0, first, count);
  for (at::Tensor& packed : part.packed_) packed = packed.narrow(0, first, count);
  return part;
}

bool Weight::has_gradient() const {
  return std::ranges::any_of(parts_, [](const Parameter* part) { return part->has_gradient; });
}

bool Weight::is_adapted() const {
  return std::ranges::any_of(parts_, [](const Parameter* part) { return part->adapter != nullptr; });
}

at::Tensor Weight::joined() const {
  const at::Tensor& whole = parts_.front()->joined;
  const bool lies_in_it = whole.defined() && whole.data_ptr() == value_.data_ptr() &&
                          value_.size(0) + (whole.size(1) - value_.size(1)) == whole.size(0);
  return lies_in_it ? whole : at::Tensor();
}

bool Weight::begin_write(std::span<const Weight> weights) {
  if (std::ranges::any_of(weights, std::mem_fn(&Weight::is_on_side_stream)))
    if (device::Runtime* gpu = device::runtime()) gpu->join_side_stream();
  for (const Weight& each : weights) each.set_on_side_stream(false);
  return begin_gradients(weights);
}

bool Weight::begin_side_stream_write(std::span<const Weight> weights) {
  for (const Weight& each : weights) each.set_on_side_stream(true);
  return begin_gradients(weights);
}

bool Weight::begin_gradients(std::span<const Weight> weights) {
  for (const Weight& each : weights)
    if (each.requires_grad() && each.is_part() && !each.has_gradient()) {
      Parameter& whole = *each.parts_.front();
      if (whole.buffer) whole.buffer->allocate();
      whole.gradient.zero_();
      whole.has_gradient = true;
    }
  const bool accumulate =
      std::ranges::any_of(weights, [](const Weight& each) { return each.requires_grad() && each.has_gradient(); });
  for (const Weight& each : weights)
    if (each.requires_grad()) each.begin_gradient(accumulate);
  return accumulate;
}

// Where the write accumulates, parts without a gradient are zeroed first, adjacent ones by a single call.
void Weight::begin_gradient(bool accumulate) const {
  int64_t row = 0, begin = 0; // the parts in rows [begin, row) have no gradient yet
  const auto clear = [&] {
    if (accumulate && row > begin) gradient_.narrow(0, begin, row - begin).zero_();
  };
  for (Parameter* part : parts_) {
    if (part->is_complete)
      throw Error(ErrorKind::internal, "a gradient is written after it was taken for complete").at(part->name);
    if (part->buffer) part->buffer->allocate();
    const int64_t rows = parts_.size() == 1 ? gradient_.size(0) : part->gradient.size(0);
    if (part->has_gradient) {
      clear();
      begin = row + rows;
    }
    row += rows;
    part->has_gradient = true;
  }
  clear();
}

void Weight::set_on_side_stream(bool is_on_side_stream) const {
  for (Parameter* part : parts_) part->on_side_stream = is_on_side_stream;
}

bool Weight::is_on_side_stream() const {
  return std::ranges::any_of(parts_, [](const Parameter* part) { return part->on_side_stream; });
}

void Weight::add_gradient(const at::Tensor& gradient) const {
  if (begin_write(*this))
    gradient_.add_(gradient);
  else
    gradient_.copy_(gradient);
}

} // namespace fvlm::ops
