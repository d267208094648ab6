// A pack of the loader as samples of a model.
#pragma once
#include "data/stream/host_pack.h"
#include "model/pack.h"

#include <functional>

namespace fvlm::feed {

// Which tokens of a text have a loss; as long as the text.
using LabelFunction = std::function<std::vector<bool>(const SampleText& text)>;

// Whether the texts of a sample share its frames, or each makes a sample by itself.
enum class Texts { share_frames, apart };

// Whether the encoder reads a repeated frame once, or as often as it is repeated.
enum class Repeats { share_encoding, apart };

// In the pack's order. Their frames, or the bytes of their texts, lie in the pack's memory. `image_size`: pixels a
// side.
std::vector<model::Sample> model_samples(const HostPack& pack, int64_t image_size, const LabelFunction& labels,
                                         Texts texts = Texts::share_frames, Repeats repeats = Repeats::share_encoding);

// Frames of a pack on their way to its slots.
struct HostFrames {
  at::Tensor frames;           // [n, 3, H, W]; undefined: none
  std::vector<int64_t> copies; // slots that each takes, one after the other; empty: one

  // Into the first of `slots`, which are on any device; the others become zero.
  void copy_to(const at::Tensor& slots) const;
};
// The frames of those samples, in the pack's memory where texts share them.
HostFrames frames_of(const HostPack& pack, int64_t image_size, Texts texts = Texts::share_frames,
                     Repeats repeats = Repeats::share_encoding);

} // namespace fvlm::feed
