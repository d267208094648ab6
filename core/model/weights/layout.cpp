#include "model/weights/layout.h"

#include "base/error.h"
#include "base/problems.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <unordered_map>

namespace fvlm {
namespace {

bool matches(std::string_view pattern, std::string_view name) {
  size_t star = pattern.find('*');
  if (star == pattern.npos) return pattern == name;
  std::string_view before = pattern.substr(0, star), after = pattern.substr(star + 1);
  return name.size() >= before.size() + after.size() && name.starts_with(before) && name.ends_with(after);
}

// Of a linear that has none in this model. It adds nothing: GPTQ's files have one for each linear.
bool is_bias_of_zeros(const TensorView& tensor, std::string_view name,
                      const std::unordered_map<std::string_view, size_t>& place) {
  constexpr std::string_view suffix = ".bias";
  if (!name.ends_with(suffix) || !is_floating(tensor.dtype)) return false;
  const std::string weight = std::string(name.substr(0, name.size() - suffix.size())) + ".weight";
  return place.contains(weight) &&
         std::ranges::all_of(tensor.data, [](std::byte byte) { return byte == std::byte{0}; });
}

bool same_content(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.data.size() == b.data.size() && a.reader == b.reader &&
         std::memcmp(a.data.data(), b.data.data(), a.data.size()) == 0;
}

} // namespace

int64_t elements_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int64_t> AdjacentPairs::rows_in_file(int64_t rows) const {
  std::vector<int64_t> order;
  if (rotated == 0) return order;
  for (int64_t head = 0; head < rows; head += head_dim)
    for (int64_t i = 0; i < head_dim; ++i) {
      const int64_t half = rotated / 2, pair = 2 * (i % half) + i / half;
      order.push_back(head + (i < rotated ? pair : i));
    }
  return order;
}

std::vector<const TensorView*> bind(const Safetensors& file, const WeightLayout& layout) {
  std::unordered_map<std::string_view, size_t> place;
  for (size_t i = 0; i < layout.tensors.size(); ++i) place.emplace(layout.tensors[i].name, i);

  Problems problems;
  std::vector<const TensorView*> bound(layout.tensors.size());
  const TensorView* tied_copy = nullptr;
  for (const TensorView& tensor : file.tensors()) {
    std::string_view name = tensor.name;
    if (!layout.optional_prefix.empty() && name.starts_with(layout.optional_prefix))
      name.remove_prefix(layout.optional_prefix.size());
    if (auto found = place.find(name); found != place.end()) {
      if (bound[found->second])
        problems.add("tensor {} is there twice, with and without '{}'", shown(name), layout.optional_prefix);
      bound[found->second] = &tensor;
    } else if (!layout.tied_copy.empty() && name == layout.tied_copy) {
      tied_copy = &tensor;
    } else if (name.ends_with(".weight_packed")) {
      throw Error(ErrorKind::data, "its weights are quantized ({}), and plain numbers are read here",
                  shown(tensor.name))
          .at(file.path().string())
          .advise("train and convert the model that it was quantized from");
    } else if (!is_bias_of_zeros(tensor, name, place) &&
               std::ranges::none_of(layout.ignored,
                                    [&](const std::string& pattern) { return matches(pattern, name); })) {
      problems.add("tensor {} is not one of this model", shown(tensor.name));
    }
  }

  for (size_t i = 0; i < bound.size(); ++i) {
    const TensorSpec& spec = layout.tensors[i];
    if (!bound[i]) {
      if (spec.parameter) problems.add("tensor {} is missing", shown(spec.name));
    } else if (bound[i]->shape != spec.shape) {
      problems.add("tensor {} has the shape {}, and must have {}", shown(spec.name), shape_text(bound[i]->shape),
                   shape_text(spec.shape));
    } else if (spec.dtype && bound[i]->dtype != *spec.dtype) {
      problems.add("tensor {} holds {}, and must hold {}", shown(spec.name), name_of(bound[i]->dtype),
                   name_of(*spec.dtype));
    } else if (!spec.dtype && !is_floating(bound[i]->dtype)) {
      problems.add("tensor {} holds {}, and must hold F32, BF16, F16 or F64", shown(spec.name),
                   name_of(bound[i]->dtype));
    } else if (tied_copy && spec.name == layout.tied_to && !same_content(*bound[i], *tied_copy)) {
      problems.add("tensor {} differs from {}, to which config.json ties it", shown(layout.tied_copy),
                   shown(layout.tied_to));
    }
  }
  problems.raise(file.path().string(), "config.json and weights must be of one model: fetch both again");
  return bound;
}

} // namespace fvlm
