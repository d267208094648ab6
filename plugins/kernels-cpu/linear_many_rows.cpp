// linear_many_rows.cpp: linears of many rows, which are limited by arithmetic. The rows of x become the lanes of
// vectors and the weights are read as they lie, since they are used once a pass and would have to be rearranged each
// time.
#include "common/microkernel.h"
#include "common/transpose.h"
#include "gelu.h"
#include "linear_loops.h"

#include <type_traits>

namespace fvlm::plugins::FVLM_LEVEL {

namespace {

// Columns of x at a time: those of a block of rows are in the L2 cache, and are read by each tile of a group.
constexpr int64_t block_depth = 256;

int64_t rows_in(const LinearProblem& p, int64_t block) {
  const int64_t left = p.rows - block * tile_columns;
  return left < tile_columns ? left : tile_columns;
}

struct NoGelu {};

// y[row + r][feature + f] = gelu(sums[f][r] + bias) + residual
template <class Element, class Form>
void store_group(const LinearProblem& p, Form gelu, const float* sums, int64_t row, int64_t rows, int64_t feature,
                 int64_t features) {
  const auto load_count = [](const Element* from, int64_t count) __attribute__((always_inline)) {
    return load_at(from, 0, count);
  };
  for (int64_t f = 0; f < features; f += lanes) {
    const int64_t count = features - f;
    const Vector bias = p.bias ? load_count(static_cast<const Element*>(p.bias) + feature + f, count) : zero();
    for (int64_t first = 0; first < rows; first += lanes) {
      Vector block[lanes];
#pragma GCC unroll 16
      for (int i = 0; i < lanes; ++i) block[i] = load(sums + (f + i) * tile_columns + first);
      transpose(block);
      for (int64_t r = first; r < rows && r < first + lanes; ++r) {
        Vector value = block[r - first] + bias;
        if constexpr (!std::is_same_v<Form, NoGelu>) value *= gelu.factor(value);
        if (p.residual.data) value += load_count(row_of<const Element>(p.residual, row + r) + feature + f, count);
        store_at(row_of<Element>(p.y, row + r) + feature + f, 0, count, value);
      }
    }
  }
}

// Weights in float32: as they lie, or converted into `wide`.
FVLM_INLINE Product weights_of(const float* weight, int64_t inner, int64_t, int64_t depth, float*) {
  return {depth, weight, inner, 1, nullptr, tile_columns, nullptr, tile_columns};
}
FVLM_INLINE Product weights_of(const Bfloat* weight, int64_t inner, int64_t features, int64_t depth, float* wide) {
  for (int64_t f = 0; f < features; ++f)
    for (int64_t i = 0; i < depth; i += lanes)
      store(wide + f * block_depth + i, load_at(weight + f * inner + i, 0, depth - i));
  return {depth, wide, block_depth, 1, nullptr, tile_columns, nullptr, tile_columns};
}

// Blocks of rows that read the same converted weights.
constexpr int64_t blocks_at_once = 4;
constexpr int64_t block_sums = group_features * tile_columns; // of a group and a block

int vectors_in(const LinearProblem& p, int64_t block) {
  return static_cast<int>((rows_in(p, block) + lanes - 1) / lanes);
}

// sums[block][feature][row] of some features and the blocks [block, last).
template <class WeightElement>
void multiply_group(const LinearProblem& p, int64_t block, int64_t last, int64_t feature, int64_t features,
                    float* sums) {
  alignas(64) float wide[sizeof(WeightElement) == sizeof(float) ? 1 : group_features * block_depth];
  const WeightElement* weight = static_cast<const WeightElement*>(p.weight) + feature * p.inner;
  for (int64_t from = 0; from < p.inner; from += block_depth) {
    const int64_t depth = p.inner - from < block_depth ? p.inner - from : block_depth;
    const Product weights = weights_of(weight + from, p.inner, features, depth, wide);
    for (int64_t each = block; each < last; ++each) {
      const int vectors = vectors_in(p, each);
      Product product = weights;
      product.b = p.converted + (each * p.inner + from) * tile_columns;
      product.c = sums + (each - block) * block_sums;
      for (int64_t f = 0; f < features; f += tile_rows) {
        if (each == 0)
          for (int64_t next = f; next < f + tile_rows; ++next)
            for (int64_t i = 0; i < depth; i += 64 / static_cast<int64_t>(sizeof(WeightElement)))
              __builtin_prefetch(weight + from + (next + group_features) * p.inner + i);
        const int64_t count = features - f < tile_rows ? features - f : tile_rows;
        from == 0 ? multiply_tile<false>(product, count, vectors) : multiply_tile<true>(product, count, vectors);
        product.a += tile_rows * product.a_row;
        product.c += tile_rows * tile_columns;
      }
    }
  }
}

template <class WeightElement, class Element, class Form>
void many_rows(const LinearProblem& p, Form gelu, int64_t first, int64_t last) {
  alignas(64) float sums[blocks_at_once * block_sums] = {};
  const int64_t blocks = (p.rows + tile_columns - 1) / tile_columns;
  for (int64_t feature = first; feature < last; feature += group_features) {
    const int64_t features = last - feature < group_features ? last - feature : group_features;
    for (int64_t block = 0; block < blocks; block += blocks_at_once) {
      const int64_t end = blocks - block < blocks_at_once ? blocks : block + blocks_at_once;
      if (!p.uses_pairs) multiply_group<WeightElement>(p, block, end, feature, features, sums);
      for (int64_t each = block; each < end; ++each) {
        float* own = sums + (each - block) * block_sums;
        if (p.uses_pairs)
          multiply_pairs(p, p.converted + each * (p.inner / 2) * tile_columns, feature, features, vectors_in(p, each),
                         each == 0, own);
        store_group<Element>(p, gelu, own, each * tile_columns, rows_in(p, each), feature, features);
      }
    }
  }
}

template <class Element>
void pack_block(const LinearProblem& p, int64_t block) {
  pack_transposed(row_of<const Element>(p.x, block * tile_columns), p.x.row, rows_in(p, block), p.inner,
                  p.converted + block * p.inner * tile_columns, tile_columns, p.inner);
}

} // namespace

void linear_pack(const LinearProblem& p, int64_t first, int64_t last) {
  for (int64_t block = first; block < last; ++block) {
    if (p.uses_pairs)
      pack_pairs(p, block);
    else
      p.is_bfloat16 ? pack_block<Bfloat>(p, block) : pack_block<float>(p, block);
  }
}

void linear_many_rows(const LinearProblem& p, int64_t first, int64_t last) {
  const auto with = [&](auto gelu) {
    if (p.has_bfloat16_weight) return many_rows<Bfloat, float>(p, gelu, first, last);
    p.is_bfloat16 ? many_rows<Bfloat, Bfloat>(p, gelu, first, last) : many_rows<float, float>(p, gelu, first, last);
  };
  if (!p.gelu) return with(NoGelu{});
  p.gelu->is_exact ? with(ExactGelu{}) : with(SigmoidGelu{p.gelu->linear, p.gelu->cubic});
}

} // namespace fvlm::plugins::FVLM_LEVEL
