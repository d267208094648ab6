#include "grammar/number_range.h"

#include "base/error.h"
#include "grammar/json_parts.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

namespace fvlm::grammar {
namespace {

using Node = Grammar::Node;

constexpr size_t most_digits = 18, exact_digits = 15; // of a number's text; of what a double has exactly

// From the shortest text that means the value, which may have an exponent.
Decimal decimal_of(const nlohmann::ordered_json& value) {
  std::string text = value.dump();
  Decimal decimal{.whole = "", .fraction = "", .is_negative = text.starts_with('-')};
  if (decimal.is_negative) text.erase(0, 1);
  int exponent = 0;
  if (const size_t e = text.find('e'); e != std::string::npos) {
    const size_t digits = e + (text[e + 1] == '+' ? 2 : 1);
    std::from_chars(text.data() + digits, text.data() + text.size(), exponent);
    text.resize(e);
  }
  const size_t point = std::min(text.find('.'), text.size());
  std::string all = text.substr(0, point) + (point < text.size() ? text.substr(point + 1) : "");
  int64_t before_point = static_cast<int64_t>(point) + exponent;
  if (before_point < 1) {
    all.insert(0, static_cast<size_t>(1 - before_point), '0');
    before_point = 1;
  }
  const auto whole = static_cast<size_t>(before_point);
  if (all.size() < whole) all.resize(whole, '0');
  decimal.whole = all.substr(0, whole);
  decimal.whole.erase(0, std::min(decimal.whole.find_first_not_of('0'), whole - 1));
  decimal.fraction = all.substr(whole);
  decimal.fraction.resize(decimal.fraction.find_last_not_of('0') + 1);
  if (decimal.whole == "0" && decimal.fraction.empty()) decimal.is_negative = false;
  return decimal;
}

// Whether one of the sizes, signs aside, is less than the other.
bool is_smaller(const Decimal& one, const Decimal& other) {
  return std::tuple(one.whole.size(), one.whole, one.fraction) <
         std::tuple(other.whole.size(), other.whole, other.fraction);
}

bool is_less(const Decimal& one, const Decimal& other) {
  if (one.is_negative != other.is_negative) return one.is_negative;
  return one.is_negative ? is_smaller(other, one) : is_smaller(one, other);
}

// Sizes between two bounds, digit by digit: a bound counts only as long as the digits so far are its own.
class Sizes {
 public:
  Sizes(Grammar& grammar, size_t decimals) : g_(grammar), decimals_(decimals) {}

  std::optional<Node> between(const Decimal& low, const Decimal* high) {
    std::optional<Node> all;
    for (whole_ = low.whole.size(); whole_ <= (high ? std::min(high->whole.size(), most_digits) : most_digits);
         ++whole_)
      all = either(all, from(0, whole_ == low.whole.size() ? &low : nullptr,
                             high && whole_ == high->whole.size() ? high : nullptr));
    return all;
  }

 private:
  std::optional<Node> either(std::optional<Node> one, std::optional<Node> other) {
    return one && other ? g_.either(*one, *other) : one ? one : other;
  }

  // The bound's digit at this place of a number with `whole_` digits before the point.
  char digit(const Decimal& bound, size_t at) const {
    if (at < whole_) return bound.whole[at];
    return at - whole_ < bound.fraction.size() ? bound.fraction[at - whole_] : '0';
  }
  bool has_more(const Decimal& bound, size_t at) const { return at - whole_ < bound.fraction.size(); }

  // From this digit on, behind digits that are those of `low` and of `high` where these are given.
  std::optional<Node> from(size_t at, const Decimal* low, const Decimal* high) {
    const bool is_free = at > 0 && !low && !high;
    const std::pair rest{whole_ - std::min(at, whole_), whole_ + decimals_ - at};
    if (const auto found = free_.find(rest); is_free && found != free_.end()) return found->second;
    std::optional<Node> all;
    if (at >= whole_ && (!low || (!has_more(*low, at) && !low->is_excluded)) &&
        (!high || has_more(*high, at) || !high->is_excluded))
      all = Grammar::end;
    if (at < whole_ + decimals_) {
      std::optional<Node> more = digits(at, low, high);
      if (more && at == whole_) more = g_.text(".", *more);
      all = either(all, more);
    }
    if (is_free) free_.emplace(rest, *all);
    return all;
  }

  std::optional<Node> digits(size_t at, const Decimal* low, const Decimal* high) {
    const char least = low ? digit(*low, at) : at == 0 && whole_ > 1 ? '1' : '0', most = high ? digit(*high, at) : '9';
    if (least > most) return {};
    if (low && high && least == most) return one_of(least, most, from(at + 1, low, high));
    std::optional<Node> all;
    if (low) all = one_of(least, least, from(at + 1, low, nullptr));
    if (high) all = either(all, one_of(most, most, from(at + 1, nullptr, high)));
    const auto first = static_cast<char>(low ? least + 1 : least), last = static_cast<char>(high ? most - 1 : most);
    return first > last ? all : either(all, one_of(first, last, from(at + 1, nullptr, nullptr)));
  }

  std::optional<Node> one_of(char first, char last, std::optional<Node> next) {
    return next ? std::optional(g_.byte_of(byte_range(first, last), *next)) : std::nullopt;
  }

  Grammar& g_;
  size_t decimals_, whole_ = 1;
  std::map<std::pair<size_t, size_t>, Node> free_; // digits that no bound limits, by how many are left
};

} // namespace

void NumberRange::add(const std::string& keyword, const nlohmann::ordered_json& value) {
  const bool is_low = keyword.ends_with("inimum");
  if (!value.is_number()) throw Error(ErrorKind::usage, "{}: expected a number", keyword);
  Decimal bound = decimal_of(value);
  if (bound.whole.size() > most_digits && bound.is_negative == is_low) return; // all numbers have fewer digits
  const size_t digits = bound.fraction.size() + (bound.whole == "0" ? 0 : bound.whole.size());
  if (digits > (bound.fraction.empty() ? most_digits : exact_digits))
    throw Error(ErrorKind::usage, "{}: expected at most {} digits, or {} of a whole number, got {}", keyword,
                exact_digits, most_digits, value.dump());
  bound.is_excluded = keyword.starts_with("exclusive");
  std::optional<Decimal>& known = is_low ? low : high;
  const bool is_stricter = !known || (is_low ? is_less(*known, bound) : is_less(bound, *known));
  if (is_stricter || (bound.is_excluded && !is_less(*known, bound) && !is_less(bound, *known))) known = bound;
}

std::optional<Grammar::Node> number_in(const NumberRange& range, Grammar& grammar, bool is_integer) {
  const Decimal zero{.whole = "0", .fraction = ""};
  const auto &low = range.low, &high = range.high;
  size_t whole = 1;
  for (const auto& bound : {low, high})
    if (bound) whole = std::max(whole, bound->whole.size());
  Sizes sizes(grammar, is_integer ? 0 : exact_digits - std::min(whole, exact_digits));
  std::optional<Node> positive, negative;
  if (!high || !high->is_negative)
    positive = sizes.between(low && !low->is_negative ? *low : zero, high ? &*high : nullptr);
  // The sizes of negative numbers, between the bounds without their signs. Zero may have a sign, too.
  if (!low || low->is_negative)
    negative = sizes.between(high && !is_less(zero, *high) ? *high : zero, low ? &*low : nullptr);
  if (!negative) return positive;
  const Node with_sign = grammar.text("-", *negative);
  return positive ? grammar.either(*positive, with_sign) : with_sign;
}

} // namespace fvlm::grammar
