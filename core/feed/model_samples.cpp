#include "feed/model_samples.h"

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace fvlm::feed {
namespace {

// As they lie in the pack's memory, which is never written to.
at::Tensor frames_at(const HostPack& pack, int64_t first, int64_t count, int64_t size) {
  const int64_t begin = first * 3 * size * size;
  if (pack.normalization)
    return at::from_blob(const_cast<uint8_t*>(pack.pixels.data()) + begin, {count, size, size, 3}, at::kByte);
  return at::from_blob(const_cast<float*>(pack.frames.data()) + begin, {count, 3, size, size}, at::kFloat);
}

at::Tensor normalised_at(const HostPack& pack, int64_t first, int64_t count, int64_t size) {
  const at::Tensor frames = frames_at(pack, first, count, size);
  if (!pack.normalization) return frames;
  const at::Tensor normalised = at::empty({count, 3, size, size}, at::kFloat);
  HostFrames{frames, {}, pack.normalization}.copy_to(normalised);
  return normalised;
}

at::Tensor without_contents(int64_t count, int64_t size) {
  return at::zeros({1}, at::kFloat).expand({count, 3, size, size});
}

// Of an encoder of bytes, the sample's text.
at::Tensor bytes_of(const Sample& sample) {
  // Never written to.
  return at::from_blob(const_cast<uint8_t*>(sample.bytes.data()), {std::ssize(sample.bytes)}, at::kByte);
}

} // namespace

std::vector<model::Sample> model_samples(const HostPack& pack, int64_t image_size, const LabelFunction& labels,
                                         const ModelSampleOptions& options) {
  const auto texts = options.texts;
  const auto frames_of = options.contents ? normalised_at : [](const HostPack&, int64_t, int64_t count, int64_t size) {
    return without_contents(count, size);
  };
  std::vector<model::Sample> samples;
  samples.reserve(pack.samples.size());
  for (const PackedSample& packed : pack.samples) {
    const Sample& sample = *packed.sample;
    at::Tensor frames = sample.bytes.empty() ? frames_of(pack, packed.first_frame, sample.distinct_frames(), image_size)
                                             : bytes_of(sample);
    int64_t copies = sample.copies;
    if (options.repeats == Repeats::apart && copies > 1) {
      frames = frames.unsqueeze(1).expand({-1, std::exchange(copies, 1), -1, -1, -1}).flatten(0, 1);
    }
    if (texts == Texts::share_frames) samples.push_back({frames, {}, copies, sample.grids()});
    for (const SampleText& text : packed.sample->texts) {
      if (texts == Texts::apart) samples.push_back({frames, {}, copies, sample.grids()});
      samples.back().texts.push_back({{text.ids.begin(), text.ids.end()}, labels(text)});
    }
  }
  return samples;
}

HostFrames frames_of(const HostPack& pack, int64_t image_size, Texts texts, Repeats repeats) {
  HostFrames all;
  all.normalization = pack.normalization;
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
  const bool once = std::ranges::all_of(all.copies, [](int64_t copies) { return copies == 1; });
  if (once || repeats == Repeats::share_encoding) all.copies.clear();
  return all;
}

std::vector<int64_t> HostFrames::shape_of(int64_t slots) const {
  return {slots, 3, frames.size(normalization ? 1 : 2), frames.size(normalization ? 2 : 3)};
}

at::Tensor table_on(at::Device device, const NormalizationTable& normalization) {
  auto* values = const_cast<float*>(normalization.front().data()); // never written to
  return at::from_blob(values, {3 * 256}, at::kFloat).clone().to(device);
}

// In parts, so that the indices of the values are few.
void normalise(const at::Tensor& pixels, const at::Tensor& table, const at::Tensor& into) {
  constexpr int64_t at_once = 16;
  const auto options = at::TensorOptions(pixels.device()).dtype(at::kInt);
  const at::Tensor channels = at::arange(0, 3 * 256, 256, options).view({1, 3, 1, 1});
  for (int64_t begin = 0; begin < pixels.size(0); begin += at_once) {
    const int64_t count = std::min(at_once, pixels.size(0) - begin);
    at::Tensor target = into.narrow(0, begin, count), index = at::empty(target.sizes(), options);
    at::add_out(index, pixels.narrow(0, begin, count).permute({0, 3, 1, 2}), channels);
    at::Tensor flat = target.view({-1});
    at::index_select_out(flat, table, 0, index.view({-1}));
  }
}

void HostFrames::copy_to(const at::Tensor& slots, const at::Tensor& table) const {
  const auto put = [&](const at::Tensor& from, const at::Tensor& into) {
    if (!normalization) {
      into.copy_(from);
    } else if (into.is_cpu()) {
      for (int64_t i = 0; i < from.size(0); ++i) {
        const at::Tensor pixels = from[i], values = into[i];
        fvlm::normalise({pixels.const_data_ptr<uint8_t>(), static_cast<size_t>(pixels.numel())},
                        {values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel())}, *normalization);
      }
    } else {
      normalise(from.to(into.device()), table, into);
    }
  };
  int64_t end = 0;
  if (copies.empty()) {
    end = frames.size(0);
    put(frames, slots.narrow(0, 0, end));
  } else {
    for (size_t i = 0; i < copies.size(); end += copies[i++]) {
      const at::Tensor first = slots.narrow(0, end, 1);
      put(frames.narrow(0, static_cast<int64_t>(i), 1), first);
      if (copies[i] == 1) continue;
      const at::Tensor others = slots.narrow(0, end + 1, copies[i] - 1);
      others.copy_(first.expand_as(others));
    }
  }
  if (const int64_t padding = slots.size(0) - end; padding > 0) slots.narrow(0, end, padding).zero_();
}

} // namespace fvlm::feed
