#include "data/stream/host_pack.h"

#include "base/hash.h"

namespace fvlm {

HostPack HostPack::for_decoder(size_t decoder) const {
  HostPack pack = *this;
  for (PackedSample& packed : pack.samples) packed.sample = fvlm::for_decoder(packed.sample, decoder);
  return pack;
}

uint64_t HostPack::content_of(const PackedSample& packed) const {
  const Sample& sample = *packed.sample;
  Xxh64 hash;
  for (const SampleText& text : sample.texts) hash.update(std::as_bytes(std::span(text.ids)));
  hash.update(std::as_bytes(std::span(sample.bytes)));
  const auto frames_in = [&](auto memory) {
    if (memory.empty()) return; // of a dry run
    const size_t frame = memory.size() / static_cast<size_t>(frame_count);
    const auto own = memory.subspan(static_cast<size_t>(packed.first_frame) * frame,
                                    static_cast<size_t>(sample.distinct_frames()) * frame);
    hash.update(std::as_bytes(own));
  };
  frames_in(frames);
  frames_in(pixels);
  return hash.value();
}

uint64_t HostPack::hash() const {
  Xxh64 hash;
  const auto number = [&](int64_t value) { hash.update(std::as_bytes(std::span(&value, 1))); };
  for (const PackedSample& packed : samples) {
    const Sample& sample = *packed.sample;
    number(packed.position);
    number(packed.first_frame);
    number(sample.frames);
    number(sample.correct_choice.value_or(-1));
    for (const ImageGrid& image : sample.grids()) {
      number(image.rows);
      number(image.columns);
    }
    hash.update(std::as_bytes(std::span(sample.key)));
    hash.update(std::as_bytes(std::span(sample.source)));
    hash.update(std::as_bytes(std::span(sample.bytes)));
    for (size_t decoder = 0; decoder < sample.decoders(); ++decoder) {
      const Sample& own = *fvlm::for_decoder(packed.sample, decoder);
      for (const auto* texts : {&own.texts, &own.teacher_texts})
        for (const SampleText& text : *texts) {
          number(static_cast<int64_t>(text.ids.size()));
          hash.update(std::as_bytes(std::span(text.ids)));
          hash.update(std::as_bytes(std::span(text.answer_mask)));
        }
    }
  }
  hash.update(std::as_bytes(frames));
  hash.update(pixels.empty() ? std::span<const std::byte>() : std::as_bytes(pixels));
  return hash.value();
}

} // namespace fvlm
