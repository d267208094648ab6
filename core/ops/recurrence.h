// Operations that carry a state from row to row of a segment, in place of attention. What they compute is in
// fvlm/kernels.h, FVLM_OP_SHORT_CONVOLUTION and FVLM_OP_DELTA_RULE.
#pragma once
#include "ops/parameter.h"

namespace fvlm::ops {

struct ConvolutionTaps {
  Weight weight; // [width, 1, taps], that of a row itself last; of patches of images [width, 1, side, side]
  Weight bias;   // [width]; undefined: none
  int64_t count() const { return weight.value().numel() / weight.value().size(0); }
};

struct DeltaRule {
  int64_t key_heads, value_heads; // a key's head serves as many of values as there are more of these
  int64_t key_dim, value_dim;
  Weight log_decay, step_bias; // [value_heads]
};

// Sequences that go on where another pass ended.
struct CarriedSequences {
  at::Tensor bounds;        // int32 [sequences + 1]: the rows of each in the pass
  at::Tensor slots, starts; // int32 [sequences]: where its state is; 1 where it begins with zeros
  int64_t longest;          // upper bound of its rows
};

} // namespace fvlm::ops
