// model/model.h without numbers: the ways of a pack through towers and connector, and what they keep.
#pragma once
#include "budget/shadow/operations.h"
#include "model/connector/foveated/settings.h"
#include "model/weights/blocks.h"
#include "recipe/plan.h"

#include <functional>
#include <map>
#include <memory>
#include <string>

namespace fvlm::budget {

// Sizes of a pack's buffers, all of them full.
struct PackShape {
  int64_t frames = 0, rows = 0; // rows of the decoder: visual tokens and text
  int64_t visual_rows = 0;      // of those: each text of a sample is read behind all its frames
  int64_t sequences = 0, labels = 0;
  int64_t longest_sequence = 0, longest_video = 0;
  std::string mode = "coarse_fine"; // how its frames are read
};

struct ModelShape {
  VisionConfig vision;
  connector::Foveated connector;
  DecoderConfig decoder;
  int64_t image_size = 0; // of the frames
  plan::Speed speed;
};

} // namespace fvlm::budget

namespace fvlm::budget::shadow {

class Model {
 public:
  // `trains`: by a parameter's name in the model directory.
  using Trains = std::function<bool(const std::string& name)>;
  Model(Operations& ops, const ModelShape& shape, const Trains& trains, const plan::ActivationCheckpointing& recompute);

  // Elements of the buffers of what trains and of what does not.
  int64_t trained() const { return trained_; }
  int64_t fixed() const { return fixed_; }

  struct Seen {
    Value tokens, coarse, queries;
    SharedGradientPass next;
  };
  Seen see(Tape& tape, const PackShape& pack) const;
  Value read(Tape& tape, const Value& visual, const PackShape& pack, const SharedGradientPass& pass = {}) const;
  Weight head() const;

 private:
  struct VisualCache {
    std::vector<Value> layers; // keys and values
    std::shared_ptr<const void> folded_attention, folded_mlp;
  };
  int64_t patches() const { return image_grid() * image_grid(); }
  int64_t image_grid() const { return shape_.image_size / shape_.vision.patch_size; }
  bool trains(const std::string& name) const { return trains_.at(name); }
  std::string vision_layer(int64_t layer, const char* rest) const;
  std::string decoder_layer(int64_t layer, const char* rest) const;
  Weight weight(const std::string& name, int64_t rows, int64_t columns) const {
    return {rows, columns, trains(name), name};
  }

  bool rides(const Tape& tape) const;
  bool shares_products(const Tape& tape, const PackShape& pack) const;
  // Where `x` rides along, it becomes what it saw.
  VisualCache encode(Tape& tape, const PackShape& pack, Value& x) const;
  Value embed(Tape& tape, int64_t frames, const Value& riders) const;
  Value layer_norm(Tape& tape, const Value& x, const std::string& name) const;
  Value vision_linear(Tape& tape, const Value& x, const std::string& name, int64_t rows, int64_t columns) const;
  Value finish_layer(Tape& tape, int64_t layer, const Value& x, const Value& read) const;
  Value read(Tape& tape, int64_t layer, const Value& x, const VisualCache& cache) const;
  Value attend(Tape& tape, const Value& query, const VisualCache& cache) const;
  Value enter(Tape& tape, const Value& queries) const;
  Value shown(Tape& tape, const Value& seen) const;
  Value look(Tape& tape, const Value& queries, const VisualCache& cache) const;
  Value queries_from(Tape& tape, const Value& tokens, const PackShape& pack, const SharedGradientPass& pass) const;
  Value decode(Tape& tape, const Value& x, int64_t longest, const SharedGradientPass& pass) const;

  Operations& ops_;
  ModelShape shape_;
  plan::ActivationCheckpointing recompute_;
  std::map<std::string, bool> trains_; // by the name in the model directory
  int64_t trained_ = 0, fixed_ = 0;
};

} // namespace fvlm::budget::shadow
