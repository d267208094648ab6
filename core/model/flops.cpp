#include "model/flops.h"

namespace fvlm::model {
namespace {

double causal_pairs(int64_t length) {
  return 0.5 * static_cast<double>(length) * static_cast<double>(length + 1);
}

} // namespace

double product_flops(int64_t in, int64_t out) {
  return 2.0 * static_cast<double>(in) * static_cast<double>(out);
}

double attention_pair_flops(int64_t width) {
  return 4.0 * static_cast<double>(width);
}

double with_backward(const ForwardFlops& forward, bool weights, bool inputs, bool keys) {
  return forward.products * (1 + (weights ? 1 : 0) + (inputs ? 1 : 0)) +
         forward.attention * (1 + (inputs ? (keys ? 2 : 1) : 0));
}

void Work::add(int64_t own_frames, int64_t visual_rows, std::span<const int64_t> texts) {
  frames += static_cast<double>(own_frames);
  frame_pairs += causal_pairs(own_frames);
  for (const int64_t text : texts) {
    rows += static_cast<double>(visual_rows + text);
    pairs += causal_pairs(visual_rows + text);
  }
}

} // namespace fvlm::model
