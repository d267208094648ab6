#include "infer/calculator.h"

#include "base/file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <variant>

namespace fvlm::infer {
namespace {

using Number = std::variant<int64_t, double>;

double as_double(const Number& number) {
  return std::visit([](auto value) { return static_cast<double>(value); }, number);
}

// Whole numbers stay whole but in a division. Nothing where there is no value.
std::optional<Number> combine(char operation, const Number& left, const Number& right) {
  const int64_t *a = std::get_if<int64_t>(&left), *b = std::get_if<int64_t>(&right);
  if (operation == '/') {
    const double divisor = as_double(right);
    return divisor == 0 ? std::nullopt : std::optional<Number>(as_double(left) / divisor);
  }
  if (a && b) {
    int64_t value = 0;
    const bool overflows = operation == '+'   ? __builtin_add_overflow(*a, *b, &value)
                           : operation == '-' ? __builtin_sub_overflow(*a, *b, &value)
                                              : __builtin_mul_overflow(*a, *b, &value);
    return overflows ? std::nullopt : std::optional<Number>(value);
  }
  const double x = as_double(left), y = as_double(right);
  return operation == '+' ? x + y : operation == '-' ? x - y : x * y;
}

class Expression {
 public:
  explicit Expression(std::string_view text) : rest_(text) {}

  std::optional<Number> value() {
    const auto value = sum();
    return at_end() ? value : std::nullopt;
  }

 private:
  static constexpr int max_depth = 64;

  std::optional<Number> sum() {
    return chain("+-", [this] { return product(); });
  }
  std::optional<Number> product() {
    return chain("*/", [this] { return signed_number(); });
  }

  template <class Operand>
  std::optional<Number> chain(std::string_view operations, const Operand& operand) {
    auto value = operand();
    while (value && !at_end() && operations.find(rest_.front()) != std::string_view::npos) {
      const char operation = take();
      const auto right = operand();
      value = right ? combine(operation, *value, *right) : std::nullopt;
    }
    return value;
  }

  std::optional<Number> signed_number() {
    if (at_end() || ++depth_ > max_depth) return {};
    std::optional<Number> value;
    if (rest_.front() == '-' || rest_.front() == '+') {
      const char sign = take();
      const auto of = signed_number();
      value = of ? combine(sign, Number(int64_t{0}), *of) : std::nullopt;
    } else if (rest_.front() == '(') {
      take();
      value = sum();
      if (at_end() || take() != ')') value.reset();
    } else {
      value = number();
    }
    --depth_;
    return value;
  }

  std::optional<Number> number() {
    const char *begin = rest_.data(), *end = begin + rest_.size();
    const char* digits = std::find_if(begin, end, [](char c) { return c != '.' && (c < '0' || c > '9'); });
    const std::string_view text = rest_.substr(0, static_cast<size_t>(digits - begin));
    rest_.remove_prefix(text.size());
    int64_t whole = 0;
    if (text.find('.') == std::string_view::npos) {
      const auto read = std::from_chars(begin, digits, whole);
      return read.ec == std::errc() && read.ptr == digits ? std::optional<Number>(whole) : std::nullopt;
    }
    double real = 0;
    const auto read = std::from_chars(begin, digits, real);
    return read.ec == std::errc() && read.ptr == digits ? std::optional<Number>(real) : std::nullopt;
  }

  bool at_end() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
    return rest_.empty();
  }
  char take() {
    const char taken = rest_.front();
    rest_.remove_prefix(1);
    return taken;
  }

  std::string_view rest_;
  int depth_ = 0;
};

// Python's repr(): the shortest digits that give the number back, with a point or an exponent.
std::string python_text(double value) {
  std::string text = fmt::format("{}", value);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

} // namespace

std::optional<std::string> calculate(std::string_view expression) {
  std::string plain(expression);
  std::erase(plain, ',');
  const auto value = Expression(plain).value();
  if (!value) return {};
  if (const int64_t* whole = std::get_if<int64_t>(&*value)) return fmt::format("{}", *whole);
  const double real = std::get<double>(*value);
  return std::isfinite(real) ? std::optional(python_text(real)) : std::nullopt;
}

std::unique_ptr<const Calculator> Calculator::of(Tokenizer tokenizer) {
  const auto tokens = ToolTokens::of(tokenizer);
  if (!tokens) return nullptr;
  return std::unique_ptr<const Calculator>(new Calculator(std::move(tokenizer), *tokens));
}

std::unique_ptr<const Calculator> Calculator::of_file(const std::filesystem::path& tokenizer) {
  // Most tokenizers have no such token, and take far longer to parse than to search.
  if (!std::filesystem::exists(tokenizer) || read_file(tokenizer).find(code_start_token) == std::string::npos)
    return nullptr;
  return of(Tokenizer::from_file(tokenizer));
}

std::vector<int64_t> Calculator::following(std::span<const int64_t> answer) const {
  if (answer.empty() || answer.back() != tokens_.code_end) return {};
  const auto start = std::find(answer.rbegin(), answer.rend(), tokens_.code_start);
  if (start == answer.rend()) return {};
  const std::vector<TokenId> ids(start.base(), answer.end() - 1);
  const auto value = calculate(tokenizer_.decode(ids));
  if (!value) return {};
  std::vector<int64_t> tokens{tokens_.output_start};
  for (const TokenId id : tokenizer_.encode(*value, SpecialTokens::as_text, TextPlace::inside)) tokens.push_back(id);
  tokens.push_back(tokens_.output_end);
  return tokens;
}

} // namespace fvlm::infer
