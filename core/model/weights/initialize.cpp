#include "model/weights/initialize.h"

#include "base/parallel.h"
#include "base/random.h"

#include <algorithm>
#include <cmath>

namespace fvlm {
namespace {

constexpr uint64_t at_once = 1 << 16; // elements, by one thread

void initialize_piece(std::span<float> out, const Initializer& fill, const RandomStream& stream, uint64_t first) {
  for (uint64_t i = 0; i < out.size(); ++i) switch (fill.kind) {
    case Initializer::Kind::constant:
      out[i] = static_cast<float>(fill.value);
      break;
    case Initializer::Kind::normal:
      out[i] = static_cast<float>(fill.value * stream.normal(first + i));
      break;
    case Initializer::Kind::uniform:
      out[i] = static_cast<float>(fill.value * (2 * stream.uniform(first + i) - 1));
      break;
    case Initializer::Kind::log_uniform:
      out[i] = static_cast<float>(std::log(0.01 + (fill.value - 0.01) * stream.uniform(first + i)));
      break;
    }
}

} // namespace

void initialize_weights(std::span<float> out, const Initializer& fill, uint64_t seed, std::string_view name,
                        uint64_t first) {
  const RandomStream stream(seed, name);
  const auto pieces = static_cast<int64_t>((out.size() + at_once - 1) / at_once);
  in_parallel(pieces, threads_or_cores(0), [&](int64_t piece) {
    const uint64_t from = static_cast<uint64_t>(piece) * at_once;
    initialize_piece(out.subspan(from, std::min(at_once, out.size() - from)), fill, stream, first + from);
  });
}

} // namespace fvlm
