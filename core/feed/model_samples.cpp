#include "feed/model_samples.h"

#include <ATen/ops/from_blob.h>

namespace fvlm::feed {
namespace {

at::Tensor frames_at(const HostPack& pack, int64_t first, int64_t count, int64_t image_size) {
  // Never written to.
  auto* memory = const_cast<float*>(pack.frames.data());
  return at::from_blob(memory + first * 3 * image_size * image_size, {count, 3, image_size, image_size}, at::kFloat);
}

} // namespace

std::vector<model::Sample> model_samples(const HostPack& pack, int64_t image_size, const LabelFunction& labels) {
  std::vector<model::Sample> samples;
  samples.reserve(pack.samples.size());
  for (const PackedSample& packed : pack.samples) {
    model::Sample& sample = samples.emplace_back();
    if (packed.sample->frames > 0)
      sample.frames = frames_at(pack, packed.first_frame, packed.sample->frames, image_size);
    for (const SampleText& text : packed.sample->texts)
      sample.texts.push_back({{text.ids.begin(), text.ids.end()}, labels(text)});
  }
  return samples;
}

at::Tensor frames_of(const HostPack& pack, int64_t image_size) {
  int64_t count = 0;
  for (const PackedSample& packed : pack.samples) count += packed.sample->frames;
  return frames_at(pack, pack.samples.front().first_frame, count, image_size);
}

} // namespace fvlm::feed
