// PackClasses: the size classes that a stage's packs are padded to. A GPU captures each combination of them that comes,
// so there they are few and depend on each other: classes are fine only where padding costs a part of the step that
// counts.
#pragma once
#include "data/stream/composer.h"
#include "model/pack.h"

#include <cstdint>

namespace fvlm::model {
class Model;
}

namespace fvlm::train {

class PackClasses {
 public:
  // `max`: the most that a pack of the stage holds. `decoder_share`: of the floating-point operations of such a pack,
  // those of the decoder.
  PackClasses(const model::Capacity& max, bool on_gpu, double decoder_share);
  // What packs of at most `used`, in a stage whose packs hold at most `capacity`, are padded to on a GPU, for any
  // share.
  static PackSize most_on_gpu(const PackSize& used, const PackSize& capacity);
  static int64_t row_classes(bool on_gpu, double decoder_share);
  // Of this model's packs, which have frames of so many tokens.
  static double decoder_share(const model::Model& model, const model::Capacity& max, int64_t tokens_per_frame);

  // What a pack of this content is padded to.
  model::Capacity of(const model::Capacity& used) const;
  // Whether repeated frames are encoded once in a pack of so many frames, of which so many differ. Queries that share a
  // frame cannot be deferred to the backward pass of the encoder's own attention, which costs memory for the gradients
  // of all keys and values; where few frames are repeated, that would be more than is saved.
  bool encodes_once(int64_t frames, int64_t encoded) const;

  // Of pairs, in a pack of so many texts.
  int64_t pairs(int64_t used, int64_t texts) const { return on_gpu_ ? texts / 2 : used; }
  // Of texts, and of the labels that a term compares in a pack of so many, with their maximum.
  int64_t sequences(int64_t used, int64_t max) const;
  int64_t compared(int64_t used, int64_t max, int64_t labels) const;

 private:
  int64_t labels(const model::Capacity& used, int64_t rows) const; // of a pack of so many padded rows
  int64_t longest(int64_t used) const;
  int64_t frame_slots(int64_t used) const; // where each is encoded
  int64_t encoder_slots(int64_t encoded, int64_t slots) const;

  model::Capacity max_;
  bool on_gpu_;
  int64_t row_classes_;
};

} // namespace fvlm::train
