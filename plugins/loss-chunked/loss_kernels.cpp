// loss_kernels.cpp: the three products of a linear cross-entropy, a block of the vocabulary at a time. Everything that
// a product reads more than once is packed into panels that fit a cache.
#include "loss_kernels.h"

#include "common/microkernel.h"
#include "common/transpose.h"
#include "common/vector_math.h"

namespace fvlm::plugins::FVLM_LEVEL {

namespace {

constexpr float log2_e = 1.44269504088896341f;

// Tokens of one pass of d_weight's product: a panel's slice of them fits the first-level cache.
constexpr int64_t depth_tokens = 128;

int64_t padded_width(int64_t width) {
  return round_up(width, lanes);
}

int64_t at_most(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// A matrix of `depth` rows cut into panels of tile_columns: panel p is contiguous, its rows panel_width(p) floats long.
int64_t panel_width(int64_t columns, int64_t first) {
  return at_most(tile_columns, columns - first);
}

// Rows of D lie one cache line further apart than a block: reading D by columns would else use few cache sets.
int64_t d_row(int64_t block) {
  return block + 16;
}

int64_t block_count(const LossChunk& chunk, int64_t block) {
  return at_most(chunk.block, chunk.vocab - block * chunk.block);
}

template <class Element>
const Element* weight_row(const LossChunk& chunk, int64_t entry) {
  return static_cast<const Element*>(chunk.weight) + entry * chunk.weight_row;
}

template <class Element>
void pack_hidden_rows(const LossChunk& chunk, const Element* hidden, int64_t hidden_row, const int64_t* tokens) {
  const int64_t padded = padded_width(chunk.width);
  for (int64_t r = 0; r < chunk.rows; ++r) {
    const Element* row = hidden + tokens[r] * hidden_row;
    pack_rows(row, 0, 1, chunk.width, log2_e, chunk.hidden + r * padded, 0, padded);
    if (!chunk.hidden_panels) continue;
    for (int64_t c = 0; c < padded; c += tile_columns) {
      const int64_t width = panel_width(padded, c);
      pack_rows(row + c, 0, 1, at_most(width, chunk.width - c), 1.0f, chunk.hidden_panels + c * chunk.rows + r * width,
                0, width);
    }
  }
}

void pack_hidden(const LossChunk& chunk, const void* hidden, int64_t hidden_row, const int64_t* tokens) {
  if (chunk.bfloat)
    pack_hidden_rows(chunk, static_cast<const Bfloat*>(hidden), hidden_row, tokens);
  else
    pack_hidden_rows(chunk, static_cast<const float*>(hidden), hidden_row, tokens);
}

// The block's weight rows as columns, by panels of tile_columns entries: [width][tile_columns] each.
template <class Element>
void pack_weight_transposed(const LossChunk& chunk, int64_t first, int64_t count, float* to) {
  for (int64_t v = 0; v < count; v += tile_columns) {
    pack_transposed(weight_row<Element>(chunk, first + v), chunk.weight_row, at_most(tile_columns, count - v),
                    chunk.width, to, tile_columns, chunk.width);
    to += chunk.width * tile_columns;
  }
}

// The block's weight rows as they are, by panels of columns.
template <class Element>
void pack_weight(const LossChunk& chunk, int64_t first, int64_t count, float* to) {
  const int64_t padded = padded_width(chunk.width);
  for (int64_t c = 0; c < padded; c += tile_columns) {
    const int64_t width = panel_width(padded, c);
    pack_rows(weight_row<Element>(chunk, first) + c, chunk.weight_row, count, at_most(width, chunk.width - c), 1.0f, to,
              width, width);
    to += count * width;
  }
}

void pack_block(const LossChunk& chunk, bool transposed, int64_t first, int64_t count, float* to) {
  if (transposed)
    chunk.bfloat ? pack_weight_transposed<Bfloat>(chunk, first, count, to)
                 : pack_weight_transposed<float>(chunk, first, count, to);
  else
    chunk.bfloat ? pack_weight<Bfloat>(chunk, first, count, to) : pack_weight<float>(chunk, first, count, to);
}

// logits[r][0 .. count) of a few rows of the chunk.
void multiply_strip(const LossChunk& chunk, const float* panels, int64_t count, int64_t r, int64_t rows, float* logits,
                    int64_t logits_row) {
  const int64_t padded = padded_width(chunk.width);
  for (int64_t v = 0; v < count; v += tile_columns)
    multiply_tile<false>({chunk.width, chunk.hidden + r * padded, padded, 1, panels + v * chunk.width, tile_columns,
                          logits + v, logits_row},
                         rows, static_cast<int>(round_up(at_most(tile_columns, count - v), lanes) / lanes));
}

FVLM_INLINE Vector mask_after(Vector x, int64_t place, int64_t limit) {
  const Integers places = iota() + static_cast<int32_t>(place);
  return places < static_cast<int32_t>(limit) ? x : splat(-__builtin_inff());
}

void logits_block(const LossChunk& chunk, int64_t block, float* scratch) {
  const int64_t first = block * chunk.block, count = block_count(chunk, block);
  float* panels = scratch;
  float* strip = scratch + round_up(chunk.block, tile_columns) * chunk.width;
  pack_block(chunk, true, first, count, panels);
  for (int64_t r = 0; r < chunk.rows; r += tile_rows) {
    const int64_t rows = at_most(tile_rows, chunk.rows - r);
    float* logits = chunk.logits ? chunk.logits + (block * chunk.rows + r) * chunk.block : strip;
    multiply_strip(chunk, panels, count, r, rows, logits, chunk.block);
    for (int64_t i = 0; i < rows; ++i) {
      float* row = logits + i * chunk.block;
      Vector most = splat(-__builtin_inff()), total = zero();
      for (int64_t v = 0; v < count; v += lanes) {
        Vector x = load(row + v);
        if (v + lanes > count) {
          x = mask_after(x, v, count);
          store(row + v, x);
        }
        most = maximum(most, x);
      }
      const float maximum_of_row = largest(most);
      const Vector shift = splat(maximum_of_row);
      for (int64_t v = 0; v < count; v += lanes) total += exp2(load(row + v) - shift);
      chunk.maxima[block * chunk.rows + r + i] = maximum_of_row;
      chunk.sums[block * chunk.rows + r + i] = sum(total);
      const int64_t target = chunk.targets[r + i] - first;
      if (target >= 0 && target < count) chunk.target_logits[r + i] = row[target];
    }
  }
}

void combine(const LossChunk& chunk) {
  const int64_t blocks = (chunk.vocab + chunk.block - 1) / chunk.block;
  for (int64_t r = 0; r < chunk.rows; r += lanes) {
    const int64_t width = at_most(lanes, chunk.rows - r);
    Vector most = splat(-__builtin_inff()), total = zero();
    for (int64_t b = 0; b < blocks; ++b) most = maximum(most, load_part(chunk.maxima + b * chunk.rows + r, width));
    for (int64_t b = 0; b < blocks; ++b) {
      const Vector factor = exp2(load_part(chunk.maxima + b * chunk.rows + r, width) - most);
      total = fma(load_part(chunk.sums + b * chunk.rows + r, width), factor, total);
    }
    for (int64_t i = 0; i < width; ++i) chunk.log_sums[r + i] = most[i] + __builtin_log2f(total[i]);
  }
}

// The block's logits become the gradient of the loss with respect to them.
void differentiate(const LossChunk& chunk, const float* logits, int64_t logits_row, int64_t first, int64_t count,
                   float* d, int64_t d_stride) {
  for (int64_t r = 0; r < chunk.rows; ++r) {
    const Vector log_sum = splat(chunk.log_sums[r]), factor = splat(chunk.d_losses[r]);
    const float* from = logits + r * logits_row;
    float* to = d + r * d_stride;
    for (int64_t v = 0; v < count; v += lanes) store(to + v, exp2(load(from + v) - log_sum) * factor);
    const int64_t target = chunk.targets[r] - first;
    if (target >= 0 && target < count) to[target] -= chunk.d_losses[r];
  }
}

void add_d_hidden(const LossChunk& chunk, const float* d, const float* panels, int64_t count, float* d_hidden,
                  bool first) {
  const int64_t padded = padded_width(chunk.width);
  for (int64_t c = 0; c < padded; c += tile_columns) {
    const int64_t width = panel_width(padded, c);
    const Product p{count, d, d_row(chunk.block), 1, panels + c * count, width, d_hidden + c, padded};
    first ? multiply<false>(p, chunk.rows, width / lanes) : multiply<true>(p, chunk.rows, width / lanes);
  }
}

// out[0 .. count) (+)= d^T hidden, where a row of out holds padded_width floats.
void add_d_weight(const LossChunk& chunk, const float* d, int64_t count, float* out, int64_t out_row, bool add) {
  const int64_t padded = padded_width(chunk.width);
  for (int64_t t = 0; t < chunk.rows; t += depth_tokens) {
    const int64_t depth = at_most(depth_tokens, chunk.rows - t);
    for (int64_t c = 0; c < padded; c += tile_columns) {
      const int64_t width = panel_width(padded, c);
      const Product p{depth,
                      d + t * d_row(chunk.block),
                      1,
                      d_row(chunk.block),
                      chunk.hidden_panels + c * chunk.rows + t * width,
                      width,
                      out + c,
                      out_row};
      add || t > 0 ? multiply<true>(p, count, width / lanes) : multiply<false>(p, count, width / lanes);
    }
  }
}

void gradient_block(const LossChunk& chunk, int64_t block, float* d_hidden, bool first_of_part, float* scratch) {
  const int64_t first = block * chunk.block, count = block_count(chunk, block);
  const int64_t padded = padded_width(chunk.width), stride = d_row(chunk.block);
  float* panels = scratch;
  float* d = panels + round_up(chunk.block, tile_columns) * padded;
  float* rows_of_weight = d + round_up(chunk.rows * stride, 16);
  if (chunk.logits) {
    differentiate(chunk, chunk.logits + block * chunk.rows * chunk.block, chunk.block, first, count, d, stride);
  } else {
    pack_block(chunk, true, first, count, panels);
    for (int64_t r = 0; r < chunk.rows; r += tile_rows)
      multiply_strip(chunk, panels, count, r, at_most(tile_rows, chunk.rows - r), d + r * stride, stride);
    differentiate(chunk, d, stride, first, count, d, stride);
  }
  if (d_hidden) {
    pack_block(chunk, false, first, count, panels);
    add_d_hidden(chunk, d, panels, count, d_hidden, first_of_part);
  }
  if (!chunk.d_weight) return;
  float* d_weight = chunk.d_weight + first * chunk.d_weight_row;
  if (chunk.width == padded) {
    add_d_weight(chunk, d, count, d_weight, chunk.d_weight_row, chunk.add_d_weight);
    return;
  }
  // a row's last vector would reach into the next row
  add_d_weight(chunk, d, count, rows_of_weight, padded, false);
  for (int64_t v = 0; v < count; ++v)
    for (int64_t c = 0; c < chunk.width; c += lanes) {
      const int64_t part = at_most(lanes, chunk.width - c);
      float* to = d_weight + v * chunk.d_weight_row + c;
      Vector x = load(rows_of_weight + v * padded + c);
      if (chunk.add_d_weight) x += load_part(to, part);
      store_part(to, x, part);
    }
}

int64_t logits_scratch(int64_t width, int64_t block) {
  return round_up(block, tile_columns) * width + tile_rows * block;
}

int64_t gradient_scratch(int64_t width, int64_t block, int64_t rows) {
  const int64_t padded = padded_width(width);
  return round_up(block, tile_columns) * padded + round_up(rows * d_row(block), 16) +
         (width == padded ? 0 : block * padded);
}

template <class Element>
void finish_rows(const LossChunk& chunk, const float* parts, int64_t part_count, int64_t part_size,
                 const int64_t* tokens, int64_t first, int64_t last, Element* d_hidden, int64_t d_hidden_row) {
  const int64_t padded = padded_width(chunk.width);
  for (int64_t r = first; r < last; ++r)
    for (int64_t c = 0; c < chunk.width; c += lanes) {
      Vector total = load(parts + r * padded + c);
      for (int64_t p = 1; p < part_count; ++p) total += load(parts + p * part_size + r * padded + c);
      Element* to = d_hidden + tokens[r] * d_hidden_row + c;
      c + lanes <= chunk.width ? store(to, total) : store_part(to, total, chunk.width - c);
    }
}

void finish_d_hidden(const LossChunk& chunk, const float* parts, int64_t part_count, int64_t part_size,
                     const int64_t* tokens, int64_t first, int64_t last, void* d_hidden, int64_t d_hidden_row) {
  if (chunk.bfloat)
    finish_rows(chunk, parts, part_count, part_size, tokens, first, last, static_cast<Bfloat*>(d_hidden), d_hidden_row);
  else
    finish_rows(chunk, parts, part_count, part_size, tokens, first, last, static_cast<float*>(d_hidden), d_hidden_row);
}

} // namespace

const LossKernels& loss_kernels() {
  static constexpr LossKernels kernels{&padded_width, &pack_hidden, &logits_scratch, &gradient_scratch,
                                       &logits_block, &combine,     &gradient_block, &finish_d_hidden};
  return kernels;
}

} // namespace fvlm::plugins::FVLM_LEVEL
