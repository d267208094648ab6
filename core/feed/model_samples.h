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

struct ModelSampleOptions {
  Texts texts = Texts::share_frames;
  Repeats repeats = Repeats::share_encoding;
  bool contents = true; // of frames; otherwise they have a size alone
};

// In the pack's order. The bytes of their texts, and their frames if those are normalised, lie in the pack's memory.
// `image_size`: pixels a side.
std::vector<model::Sample> model_samples(const HostPack& pack, int64_t image_size, const LabelFunction& labels,
                                         const ModelSampleOptions& options = {});

// Frames of a pack on their way to its slots.
struct HostFrames {
  at::Tensor frames;           // float32 [n, 3, H, W], normalised, or bytes [n, H, W, 3]; undefined: none
  std::vector<int64_t> copies; // slots that each takes, one after the other; empty: one
  const NormalizationTable* normalization = nullptr; // of bytes

  std::vector<int64_t> shape_of(int64_t slots) const; // [slots, 3, H, W]
  // Normalised, into the first of `slots`, which are on any device; the others become zero. `table`: of bytes, on a
  // device that is no CPU.
  void copy_to(const at::Tensor& slots, const at::Tensor& table = {}) const;
};
// float32 [3 * 256].
at::Tensor table_on(at::Device device, const NormalizationTable& normalization);
// Bytes [n, H, W, 3] to float32 [n, 3, H, W] on the same device, as fvlm::normalise().
void normalise(const at::Tensor& pixels, const at::Tensor& table, const at::Tensor& into);

// The frames of those samples, in the pack's memory where texts share them.
HostFrames frames_of(const HostPack& pack, int64_t image_size, Texts texts = Texts::share_frames,
                     Repeats repeats = Repeats::share_encoding);

} // namespace fvlm::feed
