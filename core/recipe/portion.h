// Portion: which samples of a source are read where a share of them is held out for evaluations. These are evenly
// spread, and each sample stays on its side when others are appended to the source.
#pragma once
#include <cmath>
#include <cstdint>

namespace fvlm::plan {

class Portion {
 public:
  enum class Side { held_out, rest };

  Portion() = default; // all samples
  Portion(double held_out_share, Side side) : held_out_(std::llround(held_out_share * unit)), side_(side) {}

  // How many of the first `all` samples are read.
  int64_t count(int64_t all) const {
    const int64_t held_out = all * held_out_ / unit;
    return side_ == Side::held_out ? held_out : all - held_out;
  }
  // The place of the i-th sample that is read among the first `all`.
  int64_t place(int64_t i, int64_t all) const {
    int64_t low = i, high = all - 1;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (count(middle + 1) > i)
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }
  bool shares_samples_with(const Portion& other) const { return held_out_ != other.held_out_ || side_ == other.side_; }

 private:
  static constexpr int64_t unit = 1'000'000;
  int64_t held_out_ = 0; // parts of `unit`
  Side side_ = Side::rest;
};

} // namespace fvlm::plan
