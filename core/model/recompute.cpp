#include "model/recompute.h"

#include "base/error.h"
#include "base/text.h"
#include "recipe/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace fvlm::model {
namespace {

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

} // namespace

Recompute Recompute::all() {
  return {[](int64_t) { return true; }, false};
}

Recompute Recompute::every(int64_t nth) {
  return {[nth](int64_t layer) { return layer % nth == 0; }, false};
}

Recompute Recompute::only(std::vector<int64_t> layers) {
  return {[layers = std::move(layers)](int64_t layer) { return std::ranges::find(layers, layer) != layers.end(); },
          false};
}

Recompute Recompute::light_only() {
  Recompute light;
  light.light = true;
  return light;
}

Recompute Recompute::from_plan(const plan::Recompute& plan) {
  return {[plan](int64_t layer) { return plan.covers(layer); }, plan.light};
}

Recompute Recompute::parse(std::string_view text, int64_t depth) {
  const auto fail = [text](const std::string& what) {
    return Error(ErrorKind::usage, "recompute '{}': {}", text, what)
        .advise("none, light, all, every:2 (layers 0, 2, 4, ...) or layers:0,3");
  };
  if (text == "none") return none();
  if (text == "light") return light_only();
  if (text == "all") return all();
  if (text.starts_with("every:")) {
    const auto nth = whole_number(text.substr(6));
    if (!nth || *nth < 1) throw fail("expected a whole number of 1 or more after every:");
    return every(*nth);
  }
  if (!text.starts_with("layers:")) throw fail("there is no such choice");
  std::vector<int64_t> layers;
  for (const std::string& word : split(text.substr(7), ',')) {
    const auto layer = whole_number(word);
    if (!layer) throw fail(fmt::format("'{}' is not a layer's number", word));
    if (*layer < 0 || *layer >= depth)
      throw fail(fmt::format("there is no layer {}: layers are 0 to {}", *layer, depth - 1));
    layers.push_back(*layer);
  }
  return only(std::move(layers));
}

} // namespace fvlm::model
