#include "grammar/characters.h"

#include "base/utf8.h"
#include "grammar/json_parts.h"

#include <algorithm>
#include <optional>
#include <string>

namespace fvlm::grammar {
namespace {

using Node = Grammar::Node;

constexpr uint32_t last_ascii = 0x7f, last_character = 0x10ffff, first_surrogate = 0xd800, last_surrogate = 0xdfff;

std::string bytes_of_character(uint32_t character) {
  std::string bytes;
  append_utf8(bytes, character);
  return bytes;
}

// Parts of a range whose characters have as many bytes, and of which each byte takes any value between those of the
// part's first and last character.
void split(CharacterRange range, std::vector<CharacterRange>& parts) {
  for (const uint32_t last : {uint32_t{0x7f}, uint32_t{0x7ff}, uint32_t{0xffff}})
    if (range.first <= last && last < range.second) {
      split({range.first, last}, parts);
      return split({last + 1, range.second}, parts);
    }
  if (range.second <= last_ascii) return parts.push_back(range);
  for (uint32_t low = 0x3f; low <= 0x3ffff; low = low << 6 | 0x3f) { // what the last bytes say
    if ((range.first & ~low) == (range.second & ~low)) break;
    if ((range.first & low) != 0) {
      split({range.first, range.first | low}, parts);
      return split({(range.first | low) + 1, range.second}, parts);
    }
    if ((range.second & low) != low) {
      split({range.first, (range.second & ~low) - 1}, parts);
      return split({range.second & ~low, range.second}, parts);
    }
  }
  parts.push_back(range);
}

} // namespace

CharacterRanges normal(CharacterRanges ranges) {
  CharacterRanges valid, merged;
  for (const auto& [first, last] : ranges) {
    if (first < first_surrogate) valid.emplace_back(first, std::min(last, first_surrogate - 1));
    if (last > last_surrogate) valid.emplace_back(std::max(first, last_surrogate + 1), last);
  }
  std::ranges::sort(valid);
  for (const auto& [first, last] : valid)
    if (!merged.empty() && first <= merged.back().second + 1)
      merged.back().second = std::max(merged.back().second, last);
    else
      merged.emplace_back(first, last);
  return merged;
}

CharacterRanges all_but(const CharacterRanges& ranges) {
  CharacterRanges others;
  uint32_t begin = 0;
  for (const auto& [first, last] : ranges) {
    if (first > begin) others.emplace_back(begin, first - 1);
    begin = last + 1;
  }
  if (begin <= last_character) others.emplace_back(begin, last_character);
  return normal(others);
}

Node CharacterNodes::one_of(const CharacterRanges& ranges, Node next) {
  const bool is_ascii = ranges.back().second <= last_ascii;
  if (!is_ascii) {
    const auto [found, is_new] = rules_.try_emplace(ranges, 0);
    if (!is_new) return g_.call(found->second, next);
    found->second = g_.new_rule();
  }
  const Node end = is_ascii ? next : Grammar::end;
  ByteSet ascii;
  std::optional<Node> all;
  std::vector<CharacterRange> parts;
  for (const CharacterRange& range : ranges) split(range, parts);
  for (const auto& [first, last] : parts) {
    if (last <= last_ascii) {
      ascii |= byte_range(static_cast<int>(first), static_cast<int>(last));
      continue;
    }
    const std::string from = bytes_of_character(first), to = bytes_of_character(last);
    Node node = end;
    for (size_t i = from.size(); i-- > 0;)
      node = g_.byte_of(byte_range(static_cast<uint8_t>(from[i]), static_cast<uint8_t>(to[i])), node);
    all = all ? g_.either(node, *all) : node;
  }
  if (ascii.any()) {
    const Node node = g_.byte_of(ascii, end);
    all = all ? g_.either(node, *all) : node;
  }
  if (is_ascii) return *all;
  g_.define(rules_.at(ranges), *all);
  return g_.call(rules_.at(ranges), next);
}

} // namespace fvlm::grammar
