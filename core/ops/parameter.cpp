#include "ops/parameter.h"

#include "base/error.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace fvlm::ops {
namespace {

// Adjacent tensors as one with more rows.
at::Tensor joined(const std::vector<Parameter*>& parts, at::Tensor Parameter::*member) {
  const at::Tensor& first = parts.front()->*member;
  if (parts.size() == 1) return first;
  auto shape = first.sizes().vec();
  int64_t offset = first.storage_offset() + first.numel();
  for (size_t index = 1; index < parts.size(); ++index) {
    const at::Tensor& next = parts[index]->*member;
    if (next.data_ptr() != static_cast<const char*>(first.data_ptr()) +
                               (offset - first.storage_offset()) * static_cast<int64_t>(first.element_size()))
      throw Error(ErrorKind::internal, "parameters that are read together do not lie together").at(parts[index]->name);
    offset += next.numel();
    shape[0] += next.size(0);
  }
  return first.as_strided(shape, at::empty(shape, first.options().device(at::kMeta)).strides(), first.storage_offset());
}

} // namespace

Weight::Weight(std::vector<Parameter*> parts) : parts_(std::move(parts)), value_(joined(parts_, &Parameter::value)) {
  if (parts_.front()->gradient.defined()) gradient_ = joined(parts_, &Parameter::gradient);
}

Weight Weight::as_matrix() const {
  Weight matrix = *this;
  matrix.value_ = value_.flatten(1);
  if (trains()) matrix.gradient_ = gradient_.flatten(1);
  return matrix;
}

bool Weight::claim(const Weight& weight, const Weight& other) {
  std::vector<Parameter*> parts;
  for (const Weight* each : {&weight, &other})
    if (each->trains()) parts.insert(parts.end(), each->parts_.begin(), each->parts_.end());
  const auto holds = [](const Parameter* part) { return part->has_gradient; };
  const bool adds = std::any_of(parts.begin(), parts.end(), holds);
  for (Parameter* part : parts) {
    if (adds && !part->has_gradient) part->gradient.zero_();
    part->has_gradient = true;
  }
  return adds;
}

void Weight::add_gradient(const at::Tensor& gradient) const {
  if (claim(*this))
    gradient_.add_(gradient);
  else
    gradient_.copy_(gradient);
}

} // namespace fvlm::ops
