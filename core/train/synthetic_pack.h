// A pack of samples that nobody wrote, which fills its buffers: to see what a step on it takes.
#pragma once
#include "data/stream/composer.h"
#include "data/stream/frame_pool.h"
#include "data/stream/host_pack.h"
#include "recipe/plan.h"

#include <memory>
#include <vector>

namespace fvlm::train {

struct SyntheticPack {
  HostPack host;
  std::vector<std::shared_ptr<const Sample>> samples;
};

// Every frame and row of `size` is used where samples as large as the stage's mix lets through allow it. All text is
// learnt. Texts of an encoder of bytes are as long as it reads. `most_samples` 0: any number. `allocate`: memory for
// the frames. Each of the decoders, of vocabularies of these sizes, has texts of its own. Tokens, bytes and pixels are
// random, since what a GPU takes of time and power depends on them; packs of other `number`s have others.
// `shown_rows`: of each frame, that the texts show, see budget::most_rows_per_frame(); 0: all.
SyntheticPack make_synthetic_pack(const plan::Stage& stage, const plan::VisualRows& visual_rows, const PackSize& size,
                                  int64_t most_samples, int64_t image_size, const std::vector<int64_t>& vocabularies,
                                  const AllocateHost& allocate = allocate_host, uint64_t number = 0,
                                  int64_t shown_rows = 0);

// The same without memory for the frames.
SyntheticPack make_synthetic_samples(const plan::Stage& stage, const plan::VisualRows& visual_rows,
                                     const PackSize& size, int64_t most_samples,
                                     const std::vector<int64_t>& vocabularies, uint64_t number = 0,
                                     int64_t shown_rows = 0);

} // namespace fvlm::train
