#include "feed/model_samples.h"

#include <ATen/ops/concat.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

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
                                         Texts texts, Repeats repeats) {
  std::vector<model::Sample> samples;
  samples.reserve(pack.samples.size());
  for (const PackedSample& packed : pack.samples) {
    const Sample& sample = *packed.sample;
    at::Tensor frames = sample.bytes.empty() ? frames_at(pack, packed.first_frame, sample.distinct_frames(), image_size)
                                             : bytes_of(sample);
    int64_t copies = sample.copies;
    if (repeats == Repeats::apart && copies > 1) {
      frames = frames.unsqueeze(1).expand({-1, std::exchange(copies, 1), -1, -1, -1}).flatten(0, 1);
    }
    if (texts == Texts::share_frames) samples.push_back({frames, {}, copies});
    for (const SampleText& text : packed.sample->texts) {
      if (texts == Texts::apart) samples.push_back({frames, {}, copies});
      samples.back().texts.push_back({{text.ids.begin(), text.ids.end()}, labels(text)});
    }
  }
  return samples;
}

HostFrames frames_of(const HostPack& pack, int64_t image_size, Texts texts, Repeats repeats) {
  HostFrames all;
  std::vector<at::Tensor> frames; // of each text
  int64_t count = 0;
  for (const PackedSample& packed : pack.samples) {
    const Sample& sample = *packed.sample;
    const int64_t own = sample.distinct_frames();
    const size_t times = texts == Texts::apart ? sample.texts.size() : 1;
    if (texts == Texts::apart) frames.insert(frames.end(), times, frames_at(pack, packed.first_frame, own, image_size));
    all.copies.insert(all.copies.end(), times * static_cast<size_t>(own), sample.copies);
    count += own;
  }
  all.frames =
      texts == Texts::apart ? at::concat(frames) : frames_at(pack, pack.samples.front().first_frame, count, image_size);
  const bool once = std::all_of(all.copies.begin(), all.copies.end(), [](int64_t copies) { return copies == 1; });
  if (once || repeats == Repeats::share_encoding) all.copies.clear();
  return all;
}

void HostFrames::copy_to(const at::Tensor& slots) const {
  int64_t end = 0;
  if (copies.empty()) {
    end = frames.size(0);
    slots.narrow(0, 0, end).copy_(frames);
  } else {
    const at::Tensor there = frames.to(slots.device());
    for (size_t i = 0; i < copies.size(); end += copies[i++])
      slots.narrow(0, end, copies[i])
          .copy_(there.narrow(0, static_cast<int64_t>(i), 1).expand_as(slots.narrow(0, end, copies[i])));
  }
  if (const int64_t padding = slots.size(0) - end; padding > 0) slots.narrow(0, end, padding).zero_();
}

} // namespace fvlm::feed
