#include "model/weights/fresh.h"

#include "base/random.h"

namespace fvlm {

void fill_fresh(std::span<float> out, const Fill& fill, uint64_t seed, std::string_view name, uint64_t first) {
  RandomStream stream(seed, name);
  for (uint64_t i = 0; i < out.size(); ++i) switch (fill.kind) {
    case Fill::Kind::constant:
      out[i] = static_cast<float>(fill.value);
      break;
    case Fill::Kind::normal:
      out[i] = static_cast<float>(fill.value * stream.normal(first + i));
      break;
    case Fill::Kind::uniform:
      out[i] = static_cast<float>(fill.value * (2 * stream.uniform(first + i) - 1));
      break;
    }
}

} // namespace fvlm
