#include "model/connector/foveated/maps.h"

#include <ATen/ops/tensor.h>

#include <algorithm>

namespace fvlm::model {
namespace {

// Each encoded frame has two segments, the second ones of one length.
Segments two_a_frame(const FrameLayout& layout, const std::vector<int64_t>& first, int64_t second, int64_t longest) {
  std::vector<int32_t> starts{0};
  for (const int64_t length : first) {
    starts.push_back(starts.back() + static_cast<int32_t>(length));
    starts.push_back(starts.back() + static_cast<int32_t>(second));
  }
  starts.resize(static_cast<size_t>(2 * layout.encoder_slots) + 1, starts.back());
  return {at::tensor(starts, at::kInt).to(layout.device), {}, longest};
}

const Segments& either(const PackMaps& maps, const char* name, const char* otherwise) {
  const auto found = maps.segments.find(name);
  return found == maps.segments.end() ? maps.segments.at(otherwise) : found->second;
}

} // namespace

FoveatedMaps::FoveatedMaps(const PackMaps& maps)
    : queries(maps.segments.at("queries")), appended{maps.segments.at("appended rows"),
                                                     maps.segments.at("appended keys"),
                                                     maps.segments.at("appended queries")},
      fine_queries(either(maps, "fine queries", "queries")),
      appended_fine_queries(either(maps, "appended fine queries", "appended queries")),
      videos(maps.segments.at("videos")), query_source(maps.tensors.at("query_source")) {}

void add_foveated_maps(PackMaps& maps, const FrameLayout& layout) {
  const int64_t keys = layout.tokens_per_frame;
  std::vector<int64_t> source;
  for (const int64_t length : layout.video_lengths)
    for (int64_t frame = 0; frame < length; ++frame)
      source.push_back(frame == 0 ? layout.slots : static_cast<int64_t>(source.size()) - 1);
  source.resize(static_cast<size_t>(layout.slots), layout.slots);
  maps.tensors["query_source"] = at::tensor(source, at::kLong).to(layout.device);
  const auto each = [&](int64_t length) { return std::vector<int64_t>(layout.copies.size(), length); };
  maps.segments["queries"] = segments_of(each(1), layout.encoder_slots, layout.encoder_slots, 1, layout.device);
  maps.segments["appended rows"] = two_a_frame(layout, each(keys + 1), 0, keys + 1);
  maps.segments["appended keys"] = two_a_frame(layout, each(keys), 1, keys);
  maps.segments["appended queries"] = two_a_frame(layout, each(1), 0, 1);
  if (layout.repeats()) {
    const int64_t most = *std::max_element(layout.copies.begin(), layout.copies.end());
    maps.segments["fine queries"] = segments_of(layout.copies, layout.encoder_slots, layout.slots, most, layout.device);
    maps.segments["appended fine queries"] = two_a_frame(layout, layout.copies, 0, most);
  }
  maps.segments["videos"] = segments_of(layout.video_lengths, std::min(layout.slots, layout.sequences), layout.slots,
                                        layout.longest_video, layout.device);
}

} // namespace fvlm::model
