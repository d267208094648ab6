#include "model/parameters.h"

#include "base/error.h"
#include "base/text.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <numeric>

namespace fvlm::model {
namespace {

constexpr int64_t alignment = 64; // elements: a block begins where wide loads like it

int64_t elements(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t aligned(int64_t size) {
  return (size + alignment - 1) / alignment * alignment;
}

const TensorSpec& spec_of(const WeightLayout& layout, const std::string& name) {
  for (const TensorSpec& spec : layout.tensors)
    if (spec.name == name) return spec;
  throw Error(ErrorKind::internal, "a layer lacks a tensor that is read with others").at(name);
}

} // namespace

std::vector<ParameterBlock> blocks_of(const WeightLayout& layout, const std::string& folder,
                                      const std::vector<ReadTogether>& read_together) {
  std::vector<ParameterBlock> blocks;
  for (const TensorSpec& spec : layout.tensors) {
    if (!spec.parameter) continue;
    std::vector<std::string> names{spec.name};
    bool leads = true;
    for (const ReadTogether& ends : read_together)
      for (const std::string& end : ends) {
        if (!spec.name.ends_with(end)) continue;
        const std::string stem = spec.name.substr(0, spec.name.size() - end.size());
        leads = end == ends.front();
        names.clear();
        for (const std::string& each : ends) names.push_back(stem + each);
      }
    if (!leads) continue;
    ParameterBlock& block = blocks.emplace_back();
    for (const std::string& name : names) block.push_back({folder + name, spec_of(layout, name).shape});
  }
  return blocks;
}

Parameters::Parameters(const std::vector<ParameterBlock>& blocks, const ArenaOptions& options) {
  // A buffer for what trains, so that it lies together, and one for what does not.
  struct Place {
    int64_t begin;
    bool trains;
  };
  std::vector<Place> places;
  int64_t trained = 0, fixed = 0;
  for (const ParameterBlock& block : blocks) {
    int64_t size = 0;
    bool trains = false;
    for (const ParameterSpec& spec : block) {
      size += elements(spec.shape);
      trains = trains || options.trains(spec);
    }
    int64_t& end = trains ? trained : fixed;
    places.push_back({end, trains});
    end += aligned(size);
  }
  const auto on = at::TensorOptions().device(options.device);
  trained_ = at::zeros({trained}, on.dtype(options.dtype));
  gradients_ = at::zeros({trained}, on.dtype(options.gradient_dtype));
  const at::Tensor fixed_values = at::empty({fixed}, on.dtype(options.dtype));

  for (size_t index = 0; index < blocks.size(); ++index) {
    auto [begin, trains] = places[index];
    for (const ParameterSpec& spec : blocks[index]) {
      const int64_t size = elements(spec.shape);
      ops::Parameter& parameter = all_.emplace_back();
      parameter.name = spec.name;
      parameter.value = (trains ? trained_ : fixed_values).narrow(0, begin, size).view(spec.shape);
      if (trains) parameter.gradient = gradients_.narrow(0, begin, size).view(spec.shape);
      begin += size;
      by_name_[spec.name] = &parameter;
    }
  }
}

ops::Parameter& Parameters::at(const std::string& name) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) throw Error(ErrorKind::internal, "the model has no parameter of this name").at(name);
  return *found->second;
}

ops::Weight Parameters::together(const std::vector<std::string>& names) {
  std::vector<ops::Parameter*> parts;
  parts.reserve(names.size());
  for (const std::string& name : names) parts.push_back(&at(name));
  return ops::Weight(std::move(parts));
}

void Parameters::forget_gradients() {
  for (ops::Parameter& parameter : all_) parameter.has_gradient = false;
}

void Parameters::complete_gradients() {
  for (ops::Parameter& parameter : all_)
    if (parameter.gradient.defined() && !parameter.has_gradient) parameter.gradient.zero_();
}

} // namespace fvlm::model
