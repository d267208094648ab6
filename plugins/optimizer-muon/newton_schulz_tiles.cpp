// newton_schulz_tiles.cpp: the matrix products of the iteration, compiled once per instruction set.
#include "common/microkernel.h"
#include "common/transpose.h"
#include "newton_schulz.h"

namespace fvlm::plugins::FVLM_LEVEL {
namespace {

constexpr int64_t depth_per_block = 128; // 32 KiB of one panel, which stay in the L1 cache for all rows of the tile

int64_t vectors_of(int64_t width) {
  return (width + lanes - 1) / lanes;
}

void gram(const GramTask& task) {
  alignas(64) float tile[panel_width * panel_width];
  const int64_t height = task.x.width(task.p), width = task.x.width(task.q), vectors = vectors_of(width);
  for (int64_t k = 0; k < task.x.rows; k += depth_per_block) {
    const int64_t depth = task.x.rows - k < depth_per_block ? task.x.rows - k : depth_per_block;
    const Product product{depth, task.x.at(task.p, k), 1, panel_width, task.x.at(task.q, k), panel_width,
                          tile,  panel_width};
    if (k == 0) {
      multiply<false>(product, height, vectors);
    } else {
      multiply<true>(product, height, vectors);
    }
  }
  const Vector alpha = splat(task.alpha), beta = splat(task.beta);
  for (int64_t r = 0; r < height; ++r) {
    const int64_t row = task.p * panel_width + r;
    for (int64_t v = 0; v < vectors; ++v) {
      float* element = tile + r * panel_width + v * lanes;
      Vector value = load(element) * alpha;
      if (task.beta != 0) value = fma(load(task.x.at(task.q, row) + v * lanes), beta, value);
      store(element, value);
      store(task.out.at(task.q, row) + v * lanes, value);
    }
  }
  if (task.p != task.q) {
    pack_transposed(tile, panel_width, height, width, task.out.at(task.p, task.q * panel_width), panel_width, width);
  }
}

void update(const UpdateTask& task) {
  const int64_t rows = task.end - task.begin;
  const Vector alpha = splat(task.alpha);
  for (int64_t q = 0; q < task.y.count(); ++q) {
    const int64_t vectors = vectors_of(task.y.width(q));
    for (int64_t p = 0; p < task.y.count(); ++p) {
      const Product product{
          task.y.width(p), task.y.at(p, task.begin),   panel_width, 1, task.polynomial.at(q, p * panel_width),
          panel_width,     task.out.at(q, task.begin), panel_width};
      if (p == 0) {
        multiply<false>(product, rows, vectors);
      } else {
        multiply<true>(product, rows, vectors);
      }
    }
    for (int64_t r = task.begin; r < task.end; ++r) {
      for (int64_t v = 0; v < vectors; ++v) {
        float* out = task.out.at(q, r) + v * lanes;
        store(out, fma(load(task.y.at(q, r) + v * lanes), alpha, load(out)));
      }
    }
  }
}

void transpose_tile(const float* from, int64_t rows, int64_t columns, float* to) {
  pack_transposed(from, panel_width, rows, columns, to, panel_width, columns);
}

double sum_of_squares(const float* tile, int64_t rows, int64_t columns) {
  double total = 0;
  for (int64_t r = 0; r < rows; ++r) {
    Vector squares = zero();
    for (int64_t c = 0; c < columns; c += lanes) {
      const Vector values = load(tile + r * panel_width + c);
      squares = fma(values, values, squares);
    }
    total += static_cast<double>(sum(squares));
  }
  return total;
}

} // namespace

const NewtonSchulzKernels& newton_schulz_kernels() {
  static const NewtonSchulzKernels kernels{gram, update, transpose_tile, sum_of_squares};
  return kernels;
}

} // namespace fvlm::plugins::FVLM_LEVEL
