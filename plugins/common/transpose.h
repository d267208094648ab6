// transpose.h: copies between row-major operands and the padded float32 buffers of the microkernels, transposed or not.
#pragma once

#include "common/simd.h"

namespace fvlm::plugins::FVLM_LEVEL {

template <int... I>
struct Lanes {};
template <int Count, int... I>
struct MakeLanes : MakeLanes<Count - 1, Count - 1, I...> {};
template <int... I>
struct MakeLanes<0, I...> {
  using type = Lanes<I...>;
};
using AllLanes = typename MakeLanes<lanes>::type;

// Exchanges the off-diagonal Step x Step blocks of a pair of rows.
template <int Step, int... I>
FVLM_INLINE void exchange(Vector& low, Vector& high, Lanes<I...>) {
  const Vector a = low, b = high;
  low = __builtin_shufflevector(a, b, ((I & Step) ? I - Step + lanes : I)...);
  high = __builtin_shufflevector(a, b, ((I & Step) ? I + lanes : I + Step)...);
}

template <int Step>
FVLM_INLINE void exchange_all(Vector (&rows)[lanes]) {
#pragma GCC unroll 16
  for (int r = 0; r < lanes; ++r)
    if ((r & Step) == 0) exchange<Step>(rows[r], rows[r + Step], AllLanes{});
}

FVLM_INLINE void transpose(Vector (&rows)[lanes]) {
  if constexpr (lanes >= 16) exchange_all<8>(rows);
  if constexpr (lanes >= 8) exchange_all<4>(rows);
  exchange_all<2>(rows);
  exchange_all<1>(rows);
}

// Adds the halves of 2 * Step vectors, crosswise, into the first Step ones.
template <int Step>
FVLM_INLINE void add_halves(Vector (&rows)[lanes]) {
#pragma GCC unroll 8
  for (int r = 0; r < Step; ++r) {
    exchange<Step>(rows[r], rows[r + Step], AllLanes{});
    rows[r] += rows[r + Step];
  }
}

// The sum of each vector, in the lane of its index. Overwrites the vectors.
FVLM_INLINE Vector sums_of(Vector (&rows)[lanes]) {
  if constexpr (lanes >= 16) add_halves<8>(rows);
  if constexpr (lanes >= 8) add_halves<4>(rows);
  add_halves<2>(rows);
  add_halves<1>(rows);
  return rows[0];
}

// to[c * to_row + r] = from[r * from_row + c] for r < rows, c < columns. Rows are padded with zeros to whole vectors,
// columns to padded_columns.
template <class Element>
inline void pack_transposed(const Element* from, int64_t from_row, int64_t rows, int64_t columns, float* to,
                            int64_t to_row, int64_t padded_columns) {
  for (int64_t r = 0; r < rows; r += lanes) {
    const int64_t height = rows - r < lanes ? rows - r : lanes;
    for (int64_t c = 0; c < padded_columns; c += lanes) {
      const int64_t width = columns - c < lanes ? columns - c : lanes;
      Vector block[lanes];
      if (height == lanes && width == lanes) {
#pragma GCC unroll 16
        for (int i = 0; i < lanes; ++i) block[i] = load(from + (r + i) * from_row + c);
      } else {
        for (int i = 0; i < lanes; ++i)
          block[i] = i < height && width > 0 ? load_part(from + (r + i) * from_row + c, width) : zero();
      }
      transpose(block);
      const int64_t kept = padded_columns - c < lanes ? padded_columns - c : lanes;
      if (kept == lanes) {
#pragma GCC unroll 16
        for (int i = 0; i < lanes; ++i) store(to + (c + i) * to_row + r, block[i]);
      } else {
        for (int i = 0; i < kept; ++i) store(to + (c + i) * to_row + r, block[i]);
      }
    }
  }
}

// to[r * to_row + c] = factor * from[r * from_row + c]. Columns are padded with zeros to padded_columns (whole
// vectors).
template <class Element>
inline void pack_rows(const Element* from, int64_t from_row, int64_t rows, int64_t columns, float factor, float* to,
                      int64_t to_row, int64_t padded_columns) {
  const Vector f = splat(factor);
  for (int64_t r = 0; r < rows; ++r) {
    int64_t c = 0;
    for (; c + lanes <= columns; c += lanes) store(to + c, load(from + c) * f);
    if (c < columns) {
      store(to + c, load_part(from + c, columns - c) * f);
      c += lanes;
    }
    for (; c < padded_columns; c += lanes) store(to + c, zero());
    from += from_row;
    to += to_row;
  }
}

// The inverse of pack_rows(): to[r * to_row + c] = factor * from[r * from_row + c].
template <class Element>
inline void unpack_rows(const float* from, int64_t from_row, int64_t rows, int64_t columns, float factor, Element* to,
                        int64_t to_row) {
  const Vector f = splat(factor);
  for (int64_t r = 0; r < rows; ++r) {
    int64_t c = 0;
    for (; c + lanes <= columns; c += lanes) store(to + c, load(from + c) * f);
    if (c < columns) store_part(to + c, load(from + c) * f, columns - c);
    from += from_row;
    to += to_row;
  }
}

} // namespace fvlm::plugins::FVLM_LEVEL
