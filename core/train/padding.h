// How large a pack gets in training: cut into the parts that are computed side by side, each rounded up to a size
// class.
#pragma once
#include "model/size_class.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace fvlm::train {

// A GPU pays for each class with a captured graph, a CPU for padded rows. PackClasses::row_classes() has half as many
// on a GPU where the decoder is the smaller part of the work.
inline int64_t classes_of(bool on_gpu) {
  return on_gpu ? 8 : 32;
}

// Of `count` samples in `parts` parts, the first of part `part`.
inline size_t first_of_part(size_t count, size_t parts, size_t part) {
  return part * count / parts;
}

struct PackPadding {
  int64_t parts = 1;                       // replicas that a pack is split over
  int64_t row_classes = classes_of(false); // see PackClasses

  // Rows of the decoder that are computed for a pack of these samples' rows.
  int64_t rows(const std::vector<int64_t>& samples, int64_t capacity) const {
    const size_t count = std::clamp<size_t>(static_cast<size_t>(parts), 1, std::max<size_t>(samples.size(), 1));
    int64_t all = 0;
    for (size_t part = 0; part < count; ++part) {
      int64_t rows = 0;
      for (size_t i = first_of_part(samples.size(), count, part); i < first_of_part(samples.size(), count, part + 1);
           ++i)
        rows += samples[i];
      all += model::size_class(rows, capacity, row_classes);
    }
    return all;
  }
};

} // namespace fvlm::train
