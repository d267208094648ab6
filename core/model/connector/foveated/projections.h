// The linear layers of the foveated connector: they project the decoder's query of a frame into the encoder, and the
// result of attending to the frame's tokens back to one visual token of the decoder.
#pragma once
#include "model/part.h"

namespace fvlm::model {

class Projections {
 public:
  Projections(double visual_scale, Parameters& parameters);

  // q_static, the query of every frame in the coarse pass; q_init, that of a first frame in the fine pass.
  Value static_query(Tape& tape, int64_t frames) const;
  Value first_query(Tape& tape, int64_t frames = 1) const;

  // Queries from the decoder's hidden states.
  Value query_from_hidden(Tape& tape, Operations& ops, const Value& hidden) const;
  // Each frame gets the query made from the previous frame, a first frame q_init: see maps.h.
  Value shift_right(Tape& tape, const Value& queries, const at::Tensor& source) const;

  // Queries, one for each frame, to the encoder's width; the encoder's output to visual tokens.
  Value project_query(Tape& tape, Operations& ops, const Value& queries) const;
  Value to_visual_tokens(Tape& tape, Operations& ops, const Value& attended) const;

 private:
  double visual_scale_;
  ops::Weight static_, first_, input_;
  ops::Operations::Layer output_, to_decoder_, to_query_;
};

} // namespace fvlm::model
