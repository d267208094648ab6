#include "model/connector/foveated/maps.h"

#include <ATen/ops/tensor.h>

#include <algorithm>

namespace fvlm::model {
namespace {

// Each frame has two segments of these lengths.
Segments two_a_frame(const FrameLayout& layout, int64_t first, int64_t second, int64_t longest) {
  std::vector<int32_t> starts{0};
  for (int64_t frame = 0; frame < layout.frames; ++frame) {
    starts.push_back(starts.back() + static_cast<int32_t>(first));
    starts.push_back(starts.back() + static_cast<int32_t>(second));
  }
  starts.resize(static_cast<size_t>(2 * layout.slots) + 1, starts.back());
  return {at::tensor(starts, at::kInt).to(layout.device), {}, longest};
}

} // namespace

FoveatedMaps::FoveatedMaps(const PackMaps& maps)
    : queries(maps.segments.at("queries")), appended{maps.segments.at("appended rows"),
                                                     maps.segments.at("appended keys"),
                                                     maps.segments.at("appended queries")},
      videos(maps.segments.at("videos")), query_source(maps.tensors.at("query_source")) {}

void add_foveated_maps(PackMaps& maps, const FrameLayout& layout) {
  const int64_t keys = layout.tokens_per_frame;
  std::vector<int64_t> source;
  for (const int64_t length : layout.video_lengths)
    for (int64_t frame = 0; frame < length; ++frame)
      source.push_back(frame == 0 ? layout.slots : static_cast<int64_t>(source.size()) - 1);
  source.resize(static_cast<size_t>(layout.slots), layout.slots);
  maps.tensors["query_source"] = at::tensor(source, at::kLong).to(layout.device);
  const std::vector<int64_t> ones(static_cast<size_t>(layout.frames), 1);
  maps.segments["queries"] = segments_of(ones, layout.slots, layout.slots, 1, layout.device);
  maps.segments["appended rows"] = two_a_frame(layout, keys + 1, 0, keys + 1);
  maps.segments["appended keys"] = two_a_frame(layout, keys, 1, keys);
  maps.segments["appended queries"] = two_a_frame(layout, 1, 0, 1);
  maps.segments["videos"] = segments_of(layout.video_lengths, std::min(layout.slots, layout.sequences), layout.slots,
                                        layout.longest_video, layout.device);
}

} // namespace fvlm::model
