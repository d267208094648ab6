// The foveated connector: a query of the decoder reads a frame through the vision tower's layers, and what it saw
// becomes one visual token.
#pragma once
#include "model/parts.h"
#include "model/weights/connector.h"

namespace fvlm::model {

class Foveation {
 public:
  Foveation(const ConnectorConfig& config, Parameters& parameters);

  // The query of every frame in the coarse pass, of every first frame in the fine one.
  Value static_query(Tape& tape, int64_t frames) const;
  Value first_query(Tape& tape) const;

  // The queries that hidden states ask for.
  Value ask(Tape& tape, Operations& ops, const Value& hidden) const;
  // Each frame gets the query of the one before it, a first frame q_init: see Pack::query_source.
  Value shifted(Tape& tape, const Value& queries, const at::Tensor& source) const;

  // Queries, one a frame -> rows that the tower takes; what those saw -> visual tokens.
  Value enter(Tape& tape, Operations& ops, const Value& queries) const;
  Value shown(Tape& tape, Operations& ops, const Value& seen) const;

 private:
  ConnectorConfig config_;
  ops::Weight static_, first_, input_;
  ops::Operations::Layer output_, to_decoder_, to_query_;
};

} // namespace fvlm::model
