// rope_kernels.cpp: rotary position embedding. The sines and cosines of a row are computed once for all heads.
#include "common/vector_math.h"
#include "row_loops.h"

namespace fvlm::plugins::FVLM_LEVEL {

namespace {

// Pairs of dimensions per pass: their angles stay in the L1 cache, whatever rotary_dim is.
constexpr int64_t max_pairs = 64;

// Sine and cosine of `count` angles. Angles are reduced in double: at position 8,000 one in float32 is off by 5e-4.
void angles_of(const double* inv_freq, double position, int64_t count, bool inverse, float* sines, float* cosines) {
  constexpr double magic = 6755399441055744.0; // 1.5 * 2^52: adding it rounds to the nearest integer
  float remainder[max_pairs];
  int32_t quarters[max_pairs];
  for (int64_t i = 0; i < count; ++i) {
    const double angle = inv_freq[i] * position;
    const double nearest = (angle + magic) - magic;
    remainder[i] = static_cast<float>(angle - nearest);
    quarters[i] = static_cast<int32_t>(nearest);
  }
  for (int64_t i = count; i < round_up(count, lanes); ++i) {
    remainder[i] = 0;
    quarters[i] = 0;
  }
  for (int64_t i = 0; i < count; i += lanes) {
    Integers quarter;
    std::memcpy(&quarter, quarters + i, sizeof quarter);
    Vector sine, cosine;
    sin_cos(load(remainder + i), quarter, sine, cosine);
    store(sines + i, inverse ? -sine : sine);
    store(cosines + i, cosine);
  }
}

template <class Element>
void rotate_rows(const RopeProblem& p, int64_t first, int64_t last) {
  const int64_t half = p.rotary_dim / 2;
  float sines[max_pairs], cosines[max_pairs];
  for (int64_t r = first; r < last; ++r) {
    const Element* x = row_of<const Element>(p.x, r);
    Element* out = row_of<Element>(p.out, r);
    for (int64_t pair = 0; pair < half; pair += max_pairs) {
      const int64_t count = half - pair < max_pairs ? half - pair : max_pairs;
      angles_of(p.inv_freq + pair, p.positions[r * p.positions_row], count, p.inverse, sines, cosines);
      for (int64_t h = 0; h < p.heads; ++h) {
        const Element *from = x + h * p.x_head + pair, *from_high = from + half;
        Element *to = out + h * p.out_head + pair, *to_high = to + half;
        for (int64_t i = 0; i < count; i += lanes) {
          const Vector low = load_at(from, i, count), high = load_at(from_high, i, count);
          const Vector sine = load(sines + i), cosine = load(cosines + i);
          store_at(to, i, count, low * cosine - high * sine);
          store_at(to_high, i, count, high * cosine + low * sine);
        }
      }
    }
    if (x == out || p.rotary_dim == p.head_dim) continue;
    for (int64_t h = 0; h < p.heads; ++h)
      for (int64_t i = p.rotary_dim; i < p.head_dim; ++i) out[h * p.out_head + i] = x[h * p.x_head + i];
  }
}

} // namespace

void rope(const RopeProblem& p, int64_t first, int64_t last) {
  p.is_bfloat16 ? rotate_rows<Bfloat>(p, first, last) : rotate_rows<float>(p, first, last);
}

} // namespace fvlm::plugins::FVLM_LEVEL
