#include "base/glob.h"

#include "base/error.h"
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <glob.h>
#include <optional>

namespace fvlm {
namespace {

constexpr size_t max_names = 1'000'000;
constexpr size_t max_length = 4096; // of a pattern: that of a path

[[noreturn]] void fail(std::string_view pattern, std::string what) {
  throw Error(ErrorKind::data, std::move(what))
      .at(std::string(pattern))
      .advise("braces contain a range of numbers, {0000..0999}, or a list, {train,extra}");
}

// The index of the brace that closes the one at `open`.
size_t closing(std::string_view pattern, size_t open) {
  int depth = 0;
  for (size_t i = open; i < pattern.size(); ++i) {
    if (pattern[i] == '{') ++depth;
    if (pattern[i] == '}' && --depth == 0) return i;
  }
  fail(pattern, fmt::format("the brace at character {} is not closed", open + 1));
}

std::optional<int64_t> whole(std::string_view text) {
  int64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  bool good = error == std::errc{} && end == text.data() + text.size() && number >= 0 && !text.empty();
  return good ? std::optional(number) : std::nullopt;
}

// Splits at commas that are not within inner braces.
std::vector<std::string_view> list_of(std::string_view inside) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i < inside.size(); ++i) {
    if (inside[i] == '{') ++depth;
    if (inside[i] == '}') --depth;
    if (inside[i] != ',' || depth > 0) continue;
    parts.push_back(inside.substr(begin, i - begin));
    begin = i + 1;
  }
  parts.push_back(inside.substr(begin));
  return parts;
}

std::vector<std::string> choices(std::string_view pattern, std::string_view inside) {
  std::vector<std::string> all;
  auto parts = list_of(inside);
  if (parts.size() > 1) {
    for (auto part : parts)
      for (auto& each : expand_braces(part)) all.push_back(std::move(each));
    return all;
  }
  size_t dots = inside.find("..");
  auto first = dots == std::string_view::npos ? std::nullopt : whole(inside.substr(0, dots));
  auto last = dots == std::string_view::npos ? std::nullopt : whole(inside.substr(dots + 2));
  if (!first || !last) fail(pattern, fmt::format("'{{{}}}' is neither a range nor a list", inside));
  if (*last < *first) fail(pattern, fmt::format("the range {{{}}} ends before it begins", inside));
  if (static_cast<uint64_t>(*last - *first) >= max_names)
    fail(pattern, fmt::format("the range {{{}}} has more than {} names", inside, max_names));
  for (int64_t number = *first; number <= *last; ++number) all.push_back(fmt::format("{:0{}}", number, dots));
  return all;
}

} // namespace

std::vector<std::string> expand_braces(std::string_view pattern) {
  if (pattern.size() > max_length)
    fail(pattern.substr(0, 40), fmt::format("the pattern has more than {} characters", max_length));
  size_t open = pattern.find_first_of("{}");
  if (open == std::string_view::npos) return {std::string(pattern)};
  if (pattern[open] == '}') fail(pattern, fmt::format("the brace at character {} was never opened", open + 1));
  size_t close = closing(pattern, open);
  auto middles = choices(pattern, pattern.substr(open + 1, close - open - 1));
  auto ends = expand_braces(pattern.substr(close + 1));
  if (middles.size() * ends.size() > max_names)
    fail(pattern, fmt::format("the pattern has more than {} names", max_names));
  std::vector<std::string> all;
  all.reserve(middles.size() * ends.size());
  for (const auto& middle : middles)
    for (const auto& end : ends) all.push_back(fmt::format("{}{}{}", pattern.substr(0, open), middle, end));
  return all;
}

Matches match_files(std::string_view pattern) {
  Matches matches;
  for (auto& name : expand_braces(pattern)) {
    std::error_code ignored;
    if (name.find_first_of("*?[") == std::string::npos) {
      bool there = std::filesystem::exists(name, ignored);
      (there ? matches.files : matches.nothing).push_back(std::move(name));
      continue;
    }
    glob_t found{};
    int status = glob(name.c_str(), GLOB_NOSORT, nullptr, &found);
    std::vector<std::string> files(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    globfree(&found);
    if (status == GLOB_NOSPACE) throw Error(ErrorKind::data, "out of memory for the matching files").at(name);
    std::ranges::sort(files);
    if (files.empty()) matches.nothing.push_back(std::move(name));
    for (auto& file : files) matches.files.push_back(std::move(file));
  }
  return matches;
}

std::string advise_folder(const std::string& folder) {
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::path(folder) / "metadata.jsonl", ignored)) return "";
  for (const char* pattern :
       {"*.tar", "*.tar.gz", "*.tgz", "*.tar.zst", "*.parquet", "*.jsonl", "*.jsonl.gz", "*.jsonl.zst"}) {
    const auto shards = (std::filesystem::path(folder) / pattern).lexically_normal().string();
    if (const size_t count = match_files(shards).files.size(); count > 0)
      return fmt::format("\"{}\" matches the {} in it", shards, counted(static_cast<int64_t>(count), "shard"));
  }
  return "";
}

} // namespace fvlm
