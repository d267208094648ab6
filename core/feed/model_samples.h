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

// In the pack's order. Their frames, or the bytes of their texts, lie in the pack's memory. `image_size`: pixels a
// side.
std::vector<model::Sample> model_samples(const HostPack& pack, int64_t image_size, const LabelFunction& labels,
                                         Texts texts = Texts::share_frames);

// The frames of those samples, one after the other: [frames, 3, H, W], in the pack's memory where texts share them.
at::Tensor frames_of(const HostPack& pack, int64_t image_size, Texts texts = Texts::share_frames);

} // namespace fvlm::feed
