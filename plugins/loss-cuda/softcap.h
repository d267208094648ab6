// softcap.h: the bound of the logits, as the kernels take it. softcap.cuh applies it.
#pragma once

namespace fvlm::plugins {

struct Softcap {
  Softcap() = default;
  explicit Softcap(float bound_) : bound(bound_), rate(bound_ == 0 ? 0 : 2 * 1.44269504088896340736f / bound_) {}

  float bound = 0; // 0: the logits are not bounded
  float rate = 0;  // 2 log2(e) / bound
};

} // namespace fvlm::plugins
