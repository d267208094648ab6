#include "train/pack_classes.h"

#include "model/model.h"
#include "model/size_class.h"
#include "train/padding.h"

#include <algorithm>
#include <array>

namespace fvlm::train {
namespace {

// Lengths of a pack's longest sequence for which attention has faster kernels. A class is worth its graphs only where
// it is a third of the next one at most.
constexpr std::array<int64_t, 3> length_classes{144, 512, 2048};
constexpr int64_t min_length_ratio = 3;

constexpr int64_t label_classes = 4;   // up to the number of rows
constexpr int64_t few_row_classes = 4; // where the decoder is the smaller part of the work

} // namespace

PackClasses::PackClasses(const model::Capacity& max, bool on_gpu, double decoder_share)
    : max_(max), on_gpu_(on_gpu), row_classes_(row_classes(on_gpu, decoder_share)) {}

int64_t PackClasses::row_classes(bool on_gpu, double decoder_share) {
  return on_gpu && decoder_share < 0.5 ? few_row_classes : classes_of(on_gpu);
}

PackSize PackClasses::most_on_gpu(const PackSize& used, const PackSize& capacity) {
  return {model::size_class(used.frames, capacity.frames, classes_of(true)),
          model::size_class(used.rows, capacity.rows, few_row_classes)};
}

double PackClasses::decoder_share(const model::Model& model, const model::Capacity& max, int64_t tokens_per_frame) {
  if (max.frames == 0) return 1;
  const auto rows = static_cast<double>(max.rows);
  const double decoder = model.decoder().flops(rows, 0, true, true) + model.decoder().head_flops(rows, true, true),
               encoder = static_cast<double>(max.frames) * model.encoder().flops(tokens_per_frame, true);
  return decoder / (decoder + encoder);
}

int64_t PackClasses::frame_slots(int64_t used) const {
  return model::size_class(used, max_.frames, classes_of(on_gpu_));
}

// For so many frames that are encoded. On a CPU some eighths of the frame slots.
int64_t PackClasses::encoder_slots(int64_t encoded, int64_t slots) const {
  if (on_gpu_) return std::min(slots, frame_slots(encoded));
  for (int64_t eighths = 1; eighths <= 6; ++eighths)
    if (const int64_t some = (slots * eighths + 7) / 8; encoded <= some) return some;
  return slots;
}

bool PackClasses::encodes_once(int64_t frames, int64_t encoded) const {
  const int64_t slots = frame_slots(frames), some = encoder_slots(encoded, slots);
  if (encoded >= frames) return false;
  return on_gpu_ ? 6 * some <= 5 * slots && 4 * some <= 3 * max_.frames : some < slots;
}

int64_t PackClasses::sequences(int64_t used, int64_t max) const {
  if (!on_gpu_) return model::size_class(used, max, classes_of(false));
  int64_t some = 4; // segments without rows cost next to nothing
  while (some < used) some *= 4;
  return std::max(used, std::min(some, max));
}

// On a GPU as many quarters of the padded rows as of the rows that are used, which hardly varies from pack to pack.
int64_t PackClasses::labels(const model::Capacity& used, int64_t rows) const {
  if (!on_gpu_) return model::size_class(used.labels, max_.labels, classes_of(false));
  const int64_t parts = (label_classes * used.labels + used.rows - 1) / std::max<int64_t>(used.rows, 1);
  const int64_t some = (parts * rows + label_classes - 1) / label_classes;
  return std::max(used.labels, std::min({some, rows, max_.labels}));
}

int64_t PackClasses::compared(int64_t used, int64_t max, int64_t labels) const {
  return on_gpu_ ? model::size_class(used, std::max(used, std::min(max, labels)), label_classes)
                 : model::size_class(used, max, classes_of(false));
}

int64_t PackClasses::longest(int64_t used) const {
  if (on_gpu_)
    for (const int64_t length : length_classes)
      if (used <= length && length * min_length_ratio <= max_.longest_sequence) return length;
  return max_.longest_sequence;
}

model::Capacity PackClasses::of(const model::Capacity& used) const {
  const int64_t classes = classes_of(on_gpu_);
  model::Capacity capacity = max_;
  capacity.frames = frame_slots(used.frames);
  capacity.encoder_frames = encoder_slots(used.encoder_frames, capacity.frames);
  // Slots that only show what others encode cost little.
  if (on_gpu_ && used.encoder_frames < used.frames && used.bytes == 0)
    capacity.frames = model::size_class(used.frames, max_.frames, 2);
  capacity.bytes = model::size_class(used.bytes, max_.bytes, classes);
  capacity.rows = model::size_class(used.rows, max_.rows, row_classes_);
  capacity.sequences = sequences(used.sequences, max_.sequences);
  capacity.labels = labels(used, capacity.rows);
  capacity.longest_sequence = longest(used.longest_sequence);
  return capacity;
}

} // namespace fvlm::train
