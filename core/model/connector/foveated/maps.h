// The foveated connector's part of a pack: which rows are queries, which frames make a video, and whose visual tokens
// make the query of a frame.
#pragma once
#include "model/encoder/layerwise.h"
#include "model/pack.h"

namespace fvlm::model {

struct FoveatedMaps {
  explicit FoveatedMaps(const PackMaps& maps);

  const Segments& queries;  // one row for each frame that is encoded
  AppendedQueries appended; // the same where such rows go through the encoder with its tokens
  // As many rows as frames show the encoded one: `queries` where none is repeated.
  const Segments &fine_queries, &appended_fine_queries;
  const Segments& videos;  // frames of one sample: the coarse pass
  at::Tensor query_source; // int64 [frames]: the frame before; `frames` for a first one
};

void add_foveated_maps(PackMaps& maps, const FrameLayout& layout);

} // namespace fvlm::model
