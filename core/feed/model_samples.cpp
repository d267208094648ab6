#include "feed/model_samples.h"

#include <ATen/ops/concat.h>
#include <ATen/ops/from_blob.h>

namespace fvlm::feed {
namespace {

at::Tensor frames_at(const HostPack& pack, int64_t first, int64_t count, int64_t image_size) {
  // Never written to.
  auto* memory = const_cast<float*>(pack.frames.data());
  return at::from_blob(memory + first * 3 * image_size * image_size, {count, 3, image_size, image_size}, at::kFloat);
}

// Of an encoder of bytes, the sample's text.
at::Tensor bytes_of(const Sample& sample) {
  // Never written to.
  return at::from_blob(const_cast<uint8_t*>(sample.bytes.data()), {std::ssize(sample.bytes)}, at::kByte);
}

} // namespace

std::vector<model::Sample> model_samples(const HostPack& pack, int64_t image_size, const LabelFunction& labels,
                                         Texts texts) {
  std::vector<model::Sample> samples;
  samples.reserve(pack.samples.size());
  for (const PackedSample& packed : pack.samples) {
    const Sample& sample = *packed.sample;
    const auto frames =
        sample.bytes.empty() ? frames_at(pack, packed.first_frame, sample.frames, image_size) : bytes_of(sample);
    if (texts == Texts::share_frames) samples.push_back({frames, {}});
    for (const SampleText& text : packed.sample->texts) {
      if (texts == Texts::apart) samples.push_back({frames, {}});
      samples.back().texts.push_back({{text.ids.begin(), text.ids.end()}, labels(text)});
    }
  }
  return samples;
}

at::Tensor frames_of(const HostPack& pack, int64_t image_size, Texts texts) {
  if (texts == Texts::apart) {
    std::vector<at::Tensor> frames;
    for (const PackedSample& packed : pack.samples)
      frames.insert(frames.end(), packed.sample->texts.size(),
                    frames_at(pack, packed.first_frame, packed.sample->frames, image_size));
    return at::concat(frames);
  }
  int64_t count = 0;
  for (const PackedSample& packed : pack.samples) count += packed.sample->frames;
  return frames_at(pack, pack.samples.front().first_frame, count, image_size);
}

} // namespace fvlm::feed
