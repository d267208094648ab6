// Numbers between bounds, as JSON writes them, without an exponent.
#pragma once
#include "grammar/grammar.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <string>

namespace fvlm::grammar {

// A number's size in decimal digits.
struct Decimal {
  std::string whole, fraction; // before and behind the point, without zeros that say nothing; of 0.5 "0" and "5"
  bool is_negative = false;
  bool is_excluded = false; // as a bound: whether it is outside
};

struct NumberRange {
  std::optional<Decimal> low, high;

  bool is_open() const { return !low && !high; }
  // A bound of JSON Schema: its keyword and its value. Throws Error(usage) where it is no number, or
  // has too many digits.
  void add(const std::string& keyword, const nlohmann::ordered_json& value);
};

// A node from which texts of these numbers end a rule; none where there is none. Integers have at most 18 digits. Other
// numbers have as many decimals as leave the bounds' numbers 15 digits, so that doubles distinguish them.
std::optional<Grammar::Node> number_in(const NumberRange& range, Grammar& grammar, bool is_integer);

} // namespace fvlm::grammar
