#include "feed/model_samples.h"

#include <ATen/ops/from_blob.h>

namespace fvlm::feed {

std::vector<model::Sample> model_samples(const HostPack& pack, int64_t image_size, const LabelFunction& labels) {
  // Never written to.
  auto* memory = const_cast<float*>(pack.frames.data());
  const int64_t elements = 3 * image_size * image_size;
  std::vector<model::Sample> samples;
  samples.reserve(pack.samples.size());
  for (const PackedSample& packed : pack.samples) {
    model::Sample& sample = samples.emplace_back();
    if (packed.sample->frames > 0)
      sample.frames = at::from_blob(memory + packed.first_frame * elements,
                                    {packed.sample->frames, 3, image_size, image_size}, at::kFloat);
    for (const SampleText& text : packed.sample->texts)
      sample.texts.push_back({{text.ids.begin(), text.ids.end()}, labels(text)});
  }
  return samples;
}

} // namespace fvlm::feed
