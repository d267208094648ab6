#include "budget/shadow/tape.h"

namespace fvlm::budget::shadow {
namespace {

bool is_sole_owner(const Tensor& tensor) {
  return tensor.block.use_count() == 1;
}

} // namespace

Tensor make(Ledger& ledger, int64_t rows, int64_t columns, int64_t element) {
  const int64_t bytes = rows * columns * element;
  return {ledger.hold(bytes), rows, columns, bytes, &ledger};
}

Tensor another(const Tensor& like) {
  return {like.ledger->hold(like.bytes), like.rows, like.columns, like.bytes, like.ledger};
}

void Gradient::add(Tensor gradient) {
  if (sum_.defined() && is_sole_owner(sum_)) return; // in place
  sum_ = !sum_.defined() || is_sole_owner(gradient) ? std::move(gradient) : another(sum_);
}

const Tensor& Gradient::accumulator(const Tensor& like) {
  if (!sum_.defined() || !is_sole_owner(sum_)) sum_ = another(like);
  return sum_;
}

Tensor Gradient::take_exclusive() {
  if (sum_.defined() && !is_sole_owner(sum_)) sum_ = another(sum_);
  return take();
}

} // namespace fvlm::budget::shadow
