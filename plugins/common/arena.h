// arena.h: what the optimizer plugins share: checks of a step's arguments, and iteration over the parameter slices
// (segments) of the arena.
#pragma once

#include <fvlm/fvlm.hpp>

#include <algorithm>
#include <cstdint>

namespace fvlm::plugins {

// Stands for the rounded copy where parameter_dtype is float32, so that the model computes with the master itself.
struct NoCopy {};

} // namespace fvlm::plugins

template <>
inline constexpr fvlm_dtype fvlm::sdk::dtype_of<fvlm::plugins::NoCopy> = fvlm::sdk::float32;

namespace fvlm::plugins {

inline std::int64_t size_of(const fvlm_optimizer_segment& segment) {
  return segment.rows * segment.cols;
}

// Throws if a parameter slice exceeds the arena or names a parameter group that does not exist.
inline void check_segments(const fvlm_optimizer_query& query) {
  if (query.segment_count > 0 && !query.segments) throw sdk::Failure(FVLM_ERROR_ARGUMENT, "segments is NULL");
  for (std::int64_t i = 0; i < query.segment_count; ++i) {
    const fvlm_optimizer_segment& s = query.segments[i];
    const bool inside = s.rows >= 0 && s.cols >= 0 && s.offset >= 0 && s.offset <= query.elements &&
                        (s.cols == 0 || s.rows <= (query.elements - s.offset) / s.cols);
    if (!inside) {
      throw sdk::Failure(FVLM_ERROR_ARGUMENT,
                         "segment %lld (offset %lld, %lld x %lld) lies outside the arena of %lld elements",
                         static_cast<long long>(i), static_cast<long long>(s.offset), static_cast<long long>(s.rows),
                         static_cast<long long>(s.cols), static_cast<long long>(query.elements));
    }
    if (s.group < 0 || s.group >= query.group_count) {
      throw sdk::Failure(FVLM_ERROR_ARGUMENT, "segment %lld names group %lld of %lld", static_cast<long long>(i),
                         static_cast<long long>(s.group), static_cast<long long>(query.group_count));
    }
  }
}

// Refuses element types that with_element_types() does not know, and throws like check_segments().
inline sdk::Support fits_arena(const fvlm_optimizer_query& query) {
  if (!sdk::is_one_of<float, sdk::BFloat16, sdk::Half>(query.gradient_dtype))
    return sdk::refuse("gradients in %s are not supported", sdk::name_of(query.gradient_dtype));
  if (!sdk::is_one_of<float, sdk::BFloat16, sdk::Half>(query.parameter_dtype))
    return sdk::refuse("parameters in %s are not supported", sdk::name_of(query.parameter_dtype));
  check_segments(query);
  return sdk::accept(1, "known types");
}

// The data of a flat, contiguous buffer of exactly `elements` values of this type.
template <class Element, class Tensor>
Element* flat(Tensor* tensor, const char* name, std::int64_t elements) {
  const sdk::View<Element, 1> view(tensor, name);
  if (view.size(0) != elements || !view.contiguous()) {
    throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s: expected %lld contiguous values but got %lld with stride %lld", name,
                       static_cast<long long>(elements), static_cast<long long>(view.size(0)),
                       static_cast<long long>(view.stride(0)));
  }
  return view.data();
}

template <class Element, class Tensor>
Element* matrix(Tensor* tensor, const char* name, std::int64_t rows, std::int64_t cols) {
  const sdk::View<Element, 2> view(tensor, name);
  if (view.size(0) != rows || view.size(1) != cols || !view.contiguous()) {
    throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s: expected %lld x %lld values but got %lld x %lld", name,
                       static_cast<long long>(rows), static_cast<long long>(cols), static_cast<long long>(view.size(0)),
                       static_cast<long long>(view.size(1)));
  }
  return view.data();
}

// The scalar arguments of a step.
struct StepScalars {
  std::int64_t step;
  float scale;
  bool skip;
  const float* hyper; // [group_count, hyperparameter_count]

  StepScalars(const fvlm_optimizer_query& query, const fvlm_optimizer_step& arguments, std::int64_t hyperparameters)
      : step(*flat<const std::int64_t>(arguments.step, "step", 1)),
        scale(*flat<const float>(arguments.scale, "scale", 1)),
        skip(*flat<const std::int32_t>(arguments.skip, "skip", 1) != 0),
        hyper(matrix<const float>(arguments.hyper, "hyper", query.group_count, hyperparameters)) {
    if (step < 1) {
      throw sdk::Failure(FVLM_ERROR_ARGUMENT, "step is %lld: steps count from 1", static_cast<long long>(step));
    }
  }
};

// Calls update<Gradient, Copy, Moment>() with the element types of the query's buffers.
template <class Update>
void with_element_types(const fvlm_optimizer_query& query, fvlm_dtype moments, const Update& update) {
  using sdk::BFloat16, sdk::Half;
  sdk::dispatch<float, BFloat16, Half>(query.gradient_dtype, [&](auto gradient) {
    sdk::dispatch<NoCopy, BFloat16, Half>(query.parameter_dtype, [&](auto copy) {
      sdk::dispatch<float, BFloat16>(moments, [&](auto moment) {
        update.template
        operator()<typename decltype(gradient)::type, typename decltype(copy)::type, typename decltype(moment)::type>();
      });
    });
  });
}

// Calls visit(segment, offset, count) for contiguous runs of elements. Work is balanced by elements, not by slices,
// whose sizes differ by a factor of a million.
template <class Visit>
void for_each_run(const fvlm_host* host, const fvlm_optimizer_query& query, std::int64_t grain, const Visit& visit) {
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < query.segment_count; ++i) total += size_of(query.segments[i]);
  sdk::parallel_for(host, total, grain, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t position = 0;
    for (std::int64_t i = 0; i < query.segment_count && position < end; ++i) {
      const fvlm_optimizer_segment& segment = query.segments[i];
      const std::int64_t from = std::max(begin, position), to = std::min(end, position + size_of(segment));
      if (from < to) visit(segment, segment.offset + from - position, to - from);
      position += size_of(segment);
    }
  });
}

} // namespace fvlm::plugins
