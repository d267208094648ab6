#include "train/sample_keys.h"

#include "base/error.h"
#include "base/hash.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <array>
#include <span>

namespace fvlm::train {
namespace {

template <class T>
void add(Xxh64& hash, std::span<const T> values) {
  const uint64_t count = values.size();
  hash.update(std::as_bytes(std::span(&count, 1)));
  hash.update(std::as_bytes(values));
}

} // namespace

uint64_t SampleKeys::sample_hash(int64_t position) {
  const std::lock_guard hold(lock_);
  while (std::ssize(hashes_) <= position) {
    const auto drawn = order_.next(state_);
    if (!drawn) throw Error(ErrorKind::internal, "nothing stands at position {}", position);
    Xxh64 hash;
    const std::array<uint64_t, 2> place{drawn->source, static_cast<uint64_t>(drawn->sample)};
    hash.update(std::as_bytes(std::span(place)));
    hashes_.push_back(hash.value());
  }
  return hashes_[static_cast<size_t>(position)];
}

// Of the sample itself, so that an epoch finds what another one computed; and of what is said in it, so that nothing is
// believed of data that were changed.
uint64_t SampleKeys::of(const PackedSample& packed) {
  const uint64_t number = sample_hash(packed.position);
  const Sample& sample = *packed.sample;
  Xxh64 hash;
  hash.update(std::as_bytes(std::span(&number, 1)));
  add(hash, std::span<const char>(sample.key));
  for (size_t decoder = 0; decoder < sample.decoders(); ++decoder) {
    const Sample& own = *for_decoder(packed.sample, decoder);
    for (const auto* texts : {&own.texts, &own.teacher_texts})
      for (const SampleText& text : *texts) {
        add(hash, std::span<const TokenId>(text.ids));
        add(hash, std::span<const uint8_t>(text.answer_mask));
      }
  }
  hash.update(std::as_bytes(std::span(sample.bytes)));
  return hash.value();
}

std::string fingerprint(const model::Parameters& parameters, std::string_view prefix) {
  Xxh64 hash;
  for (const ops::Parameter& parameter : parameters.all()) {
    if (!parameter.name.starts_with(prefix) || parameter.in_base) continue; // checksums tell the base
    const at::Tensor value = parameter.value.cpu().contiguous();
    add(hash, std::span<const char>(parameter.name));
    hash.update({static_cast<const std::byte*>(value.const_data_ptr()), static_cast<size_t>(value.nbytes())});
  }
  return fmt::format("{:016x}", hash.value());
}

} // namespace fvlm::train
