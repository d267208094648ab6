#include "recipe/schema/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstring>

namespace fvlm::recipe {
namespace {

// "stages.align.betas[1]" -> "stages.align.betas" -> "stages.align"
std::string parent(const std::string& path) {
  size_t end = path.find_last_of(".[");
  return end == std::string::npos ? "" : path.substr(0, end);
}

bool is_number(const std::string& text) {
  double number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() && std::isfinite(number);
}

} // namespace

std::string key_part(std::string_view key) {
  bool plain =
      !key.empty() && std::ranges::all_of(key, [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
  return plain ? fmt::format(".{}", key) : fmt::format("[\"{}\"]", key);
}

std::string index_part(size_t index_from_one) {
  return fmt::format("[{}]", index_from_one);
}

std::string join_path(std::string_view path, std::string_view part) {
  if (path.empty() && part.starts_with('.')) part.remove_prefix(1);
  return fmt::format("{}{}", path, part);
}

void Reader::record_origin(const Origin& origin, bool whole_value) {
  constexpr uint64_t instructions = 50, bytes = 200; // estimated cost of an entry
  allowance_->charge(origin, instructions, bytes + path_.size() + origin.file.size());
  origins_.insert_or_assign(path_, Written{origin, whole_value});
}

void Reader::inherit_origin(const std::string& path, const std::string& other) {
  if (auto found = origins_.find(other); found != origins_.end()) origins_.insert_or_assign(path, found->second);
}

Origin Reader::origin_of(const std::string& path) const {
  for (std::string at = path;; at = parent(at)) {
    if (auto found = origins_.find(at); found != origins_.end()) return found->second.origin;
    if (at.empty()) return {};
  }
}

const Origin* Reader::value_origin(const std::string& path) const {
  for (std::string at = path; !at.empty(); at = parent(at))
    if (auto found = origins_.find(at); found != origins_.end())
      return found->second.whole_value ? &found->second.origin : nullptr;
  return nullptr;
}

bool Reader::is_valid(std::string_view path) const {
  const auto touches = [&](const std::string& wrong) {
    return wrong == path || (wrong.starts_with(path) && (path.empty() || std::strchr(".[", wrong[path.size()])));
  };
  return std::ranges::none_of(unknown_paths_, touches) &&
         std::ranges::none_of(mistakes.list(), [&](const Mistake& mistake) { return touches(mistake.path); });
}

bool Reader::report(const Origin& origin, std::string what, std::string advice) {
  mistakes.add({origin, path_, std::move(what), std::move(advice)});
  return false;
}

bool Reader::report_at(std::string_view part, std::string what, std::string advice) {
  std::string path = join_path(path_, part);
  mistakes.add({origin_of(path), path, std::move(what), std::move(advice)});
  return false;
}

bool Reader::report_unexpected(const Value& value, std::string_view expected) {
  auto* text = std::get_if<std::string>(&value.data);
  const auto expects = [&](std::string_view word) { return expected.find(word) != std::string_view::npos; };
  bool quoted = text && is_number(*text) && (expects("number") || expects("integer"));
  return report(value.origin, fmt::format("expected {}, got {}", expected, describe_value(value)),
                quoted ? fmt::format("write the number without quotes: {}", *text) : "");
}

Value Reader::call(FunctionId function, double argument, const Origin& origin) {
  if (!call_) {
    report(origin, "a function is not allowed here");
    return {};
  }
  try {
    Value x{argument, origin};
    return call_(function, {&x, 1});
  } catch (const Error& error) {
    if (allowance_->exhausted()) throw;
    std::string what = error.where().empty() || error.where() == where(origin) ? error.what() : error.text();
    report(origin, fmt::format("the function failed at {}: {}", argument, what));
    return {};
  }
}

std::string describe_value(const Value& value) {
  if (auto* flag = std::get_if<bool>(&value.data)) return *flag ? "true" : "false";
  if (auto* whole = std::get_if<int64_t>(&value.data)) return fmt::format("the number {}", *whole);
  if (auto* number = std::get_if<double>(&value.data)) return fmt::format("the number {}", *number);
  if (auto* text = std::get_if<std::string>(&value.data)) {
    bool is_long = text->size() > 60;
    return fmt::format("the string \"{}{}\"", text->substr(0, 60), is_long ? "..." : "");
  }
  return kind_name(value);
}

} // namespace fvlm::recipe
