// loss_kernels.cpp: the three matrix products of a linear cross-entropy, one block of the vocabulary at a time.
// Operands that a product reads more than once are packed into panels that fit into a cache.
#include "loss_kernels.h"

#include "common/microkernel.h"
#include "common/transpose.h"
#include "common/vector_math.h"

namespace fvlm::plugins::FVLM_LEVEL {

namespace {

constexpr float log2_e = 1.44269504088896341f;

// Tokens per pass of the d_weight product: their slice of a panel fits into the L1 cache.
constexpr int64_t tokens_per_pass = 128;

int64_t padded_width(int64_t width) {
  return round_up(width, lanes);
}

int64_t min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// Width of the panel that starts at column `first`. A matrix is packed into contiguous panels of tile_columns columns.
int64_t panel_width(int64_t columns, int64_t first) {
  return min(tile_columns, columns - first);
}

// Row stride of d_logits: one cache line more than a block, because columns at a power of two would share few cache
// sets.
int64_t d_logits_stride(int64_t block) {
  return block + 16;
}

int64_t block_count(const LossChunk& chunk, int64_t block) {
  return min(chunk.block, chunk.vocab - block * chunk.block);
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
      pack_rows(row + c, 0, 1, min(width, chunk.width - c), 1.0f, chunk.hidden_panels + c * chunk.rows + r * width, 0,
                width);
    }
  }
}

void pack_hidden(const LossChunk& chunk, const void* hidden, int64_t hidden_row, const int64_t* tokens) {
  if (chunk.is_bfloat16)
    pack_hidden_rows(chunk, static_cast<const Bfloat*>(hidden), hidden_row, tokens);
  else
    pack_hidden_rows(chunk, static_cast<const float*>(hidden), hidden_row, tokens);
}

// Packs the block's weight rows as columns, in panels of tile_columns entries: [width][tile_columns] each.
template <class Element>
void pack_weight_transposed(const LossChunk& chunk, int64_t first, int64_t count, float* to) {
  for (int64_t v = 0; v < count; v += tile_columns) {
    pack_transposed(weight_row<Element>(chunk, first + v), chunk.weight_row, min(tile_columns, count - v), chunk.width,
                    to, tile_columns, chunk.width);
    to += chunk.width * tile_columns;
  }
}

// Packs the block's weight rows without transposing, in panels of columns.
template <class Element>
void pack_weight(const LossChunk& chunk, int64_t first, int64_t count, float* to) {
  const int64_t padded = padded_width(chunk.width);
  for (int64_t c = 0; c < padded; c += tile_columns) {
    const int64_t width = panel_width(padded, c);
    pack_rows(weight_row<Element>(chunk, first) + c, chunk.weight_row, count, min(width, chunk.width - c), 1.0f, to,
              width, width);
    to += count * width;
  }
}

void pack_block(const LossChunk& chunk, bool transposed, int64_t first, int64_t count, float* to) {
  if (transposed)
    chunk.is_bfloat16 ? pack_weight_transposed<Bfloat>(chunk, first, count, to)
                      : pack_weight_transposed<float>(chunk, first, count, to);
  else
    chunk.is_bfloat16 ? pack_weight<Bfloat>(chunk, first, count, to) : pack_weight<float>(chunk, first, count, to);
}

// Computes logits[r][0 .. count) for up to tile_rows rows of the chunk.
void multiply_strip(const LossChunk& chunk, const float* panels, int64_t count, int64_t r, int64_t rows, float* logits,
                    int64_t logits_row) {
  const int64_t padded = padded_width(chunk.width);
  for (int64_t v = 0; v < count; v += tile_columns)
    multiply_tile<false>({chunk.width, chunk.hidden + r * padded, padded, 1, panels + v * chunk.width, tile_columns,
                          logits + v, logits_row},
                         rows, static_cast<int>(round_up(min(tile_columns, count - v), lanes) / lanes));
}

FVLM_INLINE Vector mask_after(Vector x, int64_t position, int64_t limit) {
  const Integers places = iota() + static_cast<int32_t>(position);
  return places < static_cast<int32_t>(limit) ? x : splat(-__builtin_inff());
}

void apply_softcap(const LossChunk& chunk, float* row, int64_t count) {
  const Vector cap = splat(chunk.softcap), inverse = splat(1 / chunk.softcap);
  for (int64_t v = 0; v < count; v += lanes) store(row + v, cap * tanh(load(row + v) * inverse));
}

void logits_block(const LossChunk& chunk, int64_t block, float* scratch) {
  const int64_t first = block * chunk.block, count = block_count(chunk, block);
  float* panels = scratch;
  float* strip = scratch + round_up(chunk.block, tile_columns) * chunk.width;
  pack_block(chunk, true, first, count, panels);
  for (int64_t r = 0; r < chunk.rows; r += tile_rows) {
    const int64_t rows = min(tile_rows, chunk.rows - r);
    float* logits = chunk.logits ? chunk.logits + (block * chunk.rows + r) * chunk.block : strip;
    multiply_strip(chunk, panels, count, r, rows, logits, chunk.block);
    for (int64_t i = 0; i < rows; ++i) {
      float* row = logits + i * chunk.block;
      if (chunk.softcap != 0) apply_softcap(chunk, row, count);
      Vector row_max = splat(-__builtin_inff()), total = zero();
      for (int64_t v = 0; v < count; v += lanes) {
        Vector x = load(row + v);
        if (v + lanes > count) {
          x = mask_after(x, v, count);
          store(row + v, x);
        }
        row_max = maximum(row_max, x);
      }
      const float maximum_of_row = largest(row_max);
      const Vector shift = splat(maximum_of_row);
      for (int64_t v = 0; v < count; v += lanes) total += exp2(load(row + v) - shift);
      chunk.maxima[block * chunk.rows + r + i] = maximum_of_row;
      chunk.sums[block * chunk.rows + r + i] = sum(total);
      const int64_t target = chunk.targets[r + i] - first;
      if (target >= 0 && target < count) chunk.target_logits[r + i] = row[target];
    }
  }
}

void reduce_log_sum_exps(const LossChunk& chunk) {
  const int64_t blocks = (chunk.vocab + chunk.block - 1) / chunk.block;
  for (int64_t r = 0; r < chunk.rows; r += lanes) {
    const int64_t width = min(lanes, chunk.rows - r);
    Vector maxima = splat(-__builtin_inff()), total = zero();
    for (int64_t b = 0; b < blocks; ++b) maxima = maximum(maxima, load_part(chunk.maxima + b * chunk.rows + r, width));
    for (int64_t b = 0; b < blocks; ++b) {
      const Vector factor = exp2(load_part(chunk.maxima + b * chunk.rows + r, width) - maxima);
      total = fma(load_part(chunk.sums + b * chunk.rows + r, width), factor, total);
    }
    for (int64_t i = 0; i < width; ++i) chunk.log_sum_exps[r + i] = maxima[i] + __builtin_log2f(total[i]);
  }
}

// d_logits times the derivative of the softcap, by the logits after it.
FVLM_INLINE float softcap_backward(const LossChunk& chunk, float d_logit, float logit) {
  const float part = logit / chunk.softcap;
  return d_logit * (1 - part * part);
}

// Computes the gradient of the loss with respect to the block's logits before the softcap. `logits` are those after it
// and may be the same memory as d_logits.
void cross_entropy_backward(const LossChunk& chunk, const float* logits, int64_t logits_row, int64_t first,
                            int64_t count, float* d_logits, int64_t d_logits_row) {
  for (int64_t r = 0; r < chunk.rows; ++r) {
    const Vector log_sum_exp = splat(chunk.log_sum_exps[r]), factor = splat(chunk.d_losses[r]);
    const float* from = logits + r * logits_row;
    float* to = d_logits + r * d_logits_row;
    const int64_t target = chunk.targets[r] - first;
    const bool has_target = target >= 0 && target < count;
    const float target_logit = has_target ? from[target] : 0;
    if (chunk.softcap == 0) {
      for (int64_t v = 0; v < count; v += lanes) store(to + v, exp2(load(from + v) - log_sum_exp) * factor);
      if (has_target) to[target] -= chunk.d_losses[r];
      continue;
    }
    const Vector inverse = splat(1 / chunk.softcap);
    for (int64_t v = 0; v < count; v += lanes) {
      const Vector logit = load(from + v), part = logit * inverse;
      store(to + v, exp2(logit - log_sum_exp) * factor * (1.0f - part * part));
    }
    if (has_target) to[target] -= softcap_backward(chunk, chunk.d_losses[r], target_logit);
  }
}

void add_d_hidden(const LossChunk& chunk, const float* d_logits, const float* panels, int64_t count, float* d_hidden,
                  bool first) {
  const int64_t padded = padded_width(chunk.width);
  for (int64_t c = 0; c < padded; c += tile_columns) {
    const int64_t width = panel_width(padded, c);
    const Product p{count, d_logits, d_logits_stride(chunk.block), 1, panels + c * count, width, d_hidden + c, padded};
    first ? multiply<false>(p, chunk.rows, width / lanes) : multiply<true>(p, chunk.rows, width / lanes);
  }
}

// out[0 .. count) (+)= d_logits^T hidden, where a row of out has padded_width floats.
void add_d_weight(const LossChunk& chunk, const float* d_logits, int64_t count, float* out, int64_t out_row, bool add) {
  const int64_t padded = padded_width(chunk.width);
  for (int64_t t = 0; t < chunk.rows; t += tokens_per_pass) {
    const int64_t depth = min(tokens_per_pass, chunk.rows - t);
    for (int64_t c = 0; c < padded; c += tile_columns) {
      const int64_t width = panel_width(padded, c);
      const Product p{depth,
                      d_logits + t * d_logits_stride(chunk.block),
                      1,
                      d_logits_stride(chunk.block),
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
  const int64_t padded = padded_width(chunk.width), stride = d_logits_stride(chunk.block);
  float* panels = scratch;
  float* d_logits = panels + round_up(chunk.block, tile_columns) * padded;
  float* d_weight_scratch = d_logits + round_up(chunk.rows * stride, 16);
  if (chunk.logits) {
    cross_entropy_backward(chunk, chunk.logits + block * chunk.rows * chunk.block, chunk.block, first, count, d_logits,
                           stride);
  } else {
    pack_block(chunk, true, first, count, panels);
    for (int64_t r = 0; r < chunk.rows; r += tile_rows)
      multiply_strip(chunk, panels, count, r, min(tile_rows, chunk.rows - r), d_logits + r * stride, stride);
    for (int64_t r = 0; chunk.softcap != 0 && r < chunk.rows; ++r) apply_softcap(chunk, d_logits + r * stride, count);
    cross_entropy_backward(chunk, d_logits, stride, first, count, d_logits, stride);
  }
  if (d_hidden) {
    pack_block(chunk, false, first, count, panels);
    add_d_hidden(chunk, d_logits, panels, count, d_hidden, first_of_part);
  }
  if (!chunk.d_weight) return;
  float* d_weight = chunk.d_weight + first * chunk.d_weight_row;
  if (chunk.width == padded) {
    add_d_weight(chunk, d_logits, count, d_weight, chunk.d_weight_row, chunk.add_d_weight);
    return;
  }
  // Storing whole vectors would overwrite the next row, so the product goes to scratch first.
  add_d_weight(chunk, d_logits, count, d_weight_scratch, padded, false);
  for (int64_t v = 0; v < count; ++v)
    for (int64_t c = 0; c < chunk.width; c += lanes) {
      const int64_t part = min(lanes, chunk.width - c);
      float* to = d_weight + v * chunk.d_weight_row + c;
      Vector x = load(d_weight_scratch + v * padded + c);
      if (chunk.add_d_weight) x += load_part(to, part);
      store_part(to, x, part);
    }
}

int64_t logits_scratch(int64_t width, int64_t block) {
  return round_up(block, tile_columns) * width + tile_rows * block;
}

int64_t gradient_scratch(int64_t width, int64_t block, int64_t rows) {
  const int64_t padded = padded_width(width);
  return round_up(block, tile_columns) * padded + round_up(rows * d_logits_stride(block), 16) +
         (width == padded ? 0 : block * padded);
}

template <class Element>
void sum_partial_d_hidden(const LossChunk& chunk, const float* parts, int64_t part_count, int64_t part_size,
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
  if (chunk.is_bfloat16)
    sum_partial_d_hidden(chunk, parts, part_count, part_size, tokens, first, last, static_cast<Bfloat*>(d_hidden),
                         d_hidden_row);
  else
    sum_partial_d_hidden(chunk, parts, part_count, part_size, tokens, first, last, static_cast<float*>(d_hidden),
                         d_hidden_row);
}

} // namespace

const LossKernels& loss_kernels() {
  static constexpr LossKernels kernels{&padded_width, &pack_hidden,         &logits_scratch, &gradient_scratch,
                                       &logits_block, &reduce_log_sum_exps, &gradient_block, &finish_d_hidden};
  return kernels;
}

} // namespace fvlm::plugins::FVLM_LEVEL
