// The part of a pack's decoder rows that one rank of a context computes: see ops/ring_attention.h.
#pragma once
#include "model/pack.h"

#include <vector>

namespace fvlm::model {

// Rows of a pack that can be divided among the ranks.
inline int64_t divisible_rows(int64_t rows, const ops::ContextGroup& context) {
  const int64_t chunks = 2 * context.ranks;
  return (rows + chunks - 1) / chunks * chunks;
}

struct ContextPart {
  std::vector<int64_t> labels; // which of the pack's labels this rank has, in order
  int64_t used_rows = 0;       // of its rows, those of a sequence
};

// Leaves of the decoder's rows those that this rank has, and of the labels those that they predict. Positions, targets
// and weights stay as they are in the whole pack. Of the frames, which every rank encodes, it leaves all: a visual
// token whose row another rank has goes nowhere and gets no gradient here, so that the sum over the ranks has it once.
// `label_slots` tells how many labels there is room for, by how many the rank with the most has, so that shapes are the
// same on all ranks. Tensors are in host memory.
ContextPart keep_part(Pack& pack, const ops::ContextGroup& context,
                      const std::function<int64_t(int64_t labels)>& label_slots);

} // namespace fvlm::model
