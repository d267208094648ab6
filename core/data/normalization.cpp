#include "data/normalization.h"

#include "data/unicode.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace fvlm {
namespace {

struct Singleton {
  uint32_t point, to;
};
struct Pair {
  uint32_t point, first, second;
};
struct CombiningRange {
  uint32_t first, last, kind;
};

#include "data/normalization.inc"

// Syllables of Hangul are computed: a leading consonant, a vowel and perhaps a trailing consonant.
constexpr uint32_t syllable_base = 0xAC00, leading_base = 0x1100, vowel_base = 0x1161, trailing_base = 0x11A7;
constexpr uint32_t leading_count = 19, vowel_count = 21, trailing_count = 28;
constexpr uint32_t syllable_count = leading_count * vowel_count * trailing_count;

uint32_t combining_class(uint32_t point) {
  const auto* found = std::ranges::upper_bound(combining_ranges, point, {}, &CombiningRange::first);
  if (found == std::begin(combining_ranges)) return 0;
  --found;
  return point <= found->last ? found->kind : 0;
}

template <class Entry, size_t Count>
const Entry* entry_of(const Entry (&table)[Count], uint32_t point) {
  const auto* found = std::ranges::lower_bound(table, point, {}, &Entry::point);
  return found != std::end(table) && found->point == point ? found : nullptr;
}

void append_decomposed(std::vector<uint32_t>& out, uint32_t point) {
  if (point - syllable_base < syllable_count) {
    const uint32_t index = point - syllable_base, trailing = index % trailing_count;
    out.push_back(leading_base + index / (vowel_count * trailing_count));
    out.push_back(vowel_base + index / trailing_count % vowel_count);
    if (trailing > 0) out.push_back(trailing_base + trailing);
    return;
  }
  if (const Pair* pair = entry_of(pairs, point)) {
    append_decomposed(out, pair->first);
    append_decomposed(out, pair->second);
  } else if (const Singleton* single = entry_of(singletons, point)) {
    append_decomposed(out, single->to);
  } else {
    out.push_back(point);
  }
}

// Sorts each run of marks by combining class; marks of a class keep their order.
void reorder(std::vector<uint32_t>& points) {
  for (size_t begin = 0; begin < points.size();) {
    if (combining_class(points[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin;
    while (end < points.size() && combining_class(points[end]) != 0) ++end;
    std::stable_sort(points.begin() + static_cast<std::ptrdiff_t>(begin),
                     points.begin() + static_cast<std::ptrdiff_t>(end),
                     [](uint32_t a, uint32_t b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

const std::unordered_map<uint64_t, uint32_t>& compositions() {
  static const auto table = [] {
    std::unordered_map<uint64_t, uint32_t> made;
    for (const Pair& entry : pairs)
      if (!std::ranges::binary_search(not_composed, entry.point))
        made.emplace(uint64_t{entry.first} << 32 | entry.second, entry.point);
    return made;
  }();
  return table;
}

// The character that two compose to, or 0.
uint32_t composed(uint32_t first, uint32_t second) {
  if (first - leading_base < leading_count && second - vowel_base < vowel_count)
    return syllable_base + ((first - leading_base) * vowel_count + second - vowel_base) * trailing_count;
  const bool open_syllable = first - syllable_base < syllable_count && (first - syllable_base) % trailing_count == 0;
  if (open_syllable && second > trailing_base && second < trailing_base + trailing_count)
    return first + second - trailing_base;
  auto found = compositions().find(uint64_t{first} << 32 | second);
  return found == compositions().end() ? 0 : found->second;
}

void compose(std::vector<uint32_t>& points) {
  constexpr size_t none = SIZE_MAX;
  size_t starter = none, kept = 0;
  uint32_t last_class = 0; // of the mark before, where it was not composed with the starter
  for (const uint32_t point : std::vector<uint32_t>(points)) {
    const uint32_t kind = combining_class(point);
    const bool adjacent = starter != none && starter + 1 == kept;
    if (starter != none && (adjacent || (last_class < kind && last_class != 0)))
      if (uint32_t joined = composed(points[starter], point)) {
        points[starter] = joined;
        continue;
      }
    if (kind == 0) starter = kept;
    last_class = kind;
    points[kept++] = point;
  }
  points.resize(kept);
}

} // namespace

bool may_need_nfc(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Decoded decoded = decode_at(text, at);
    if (decoded.point >= 0x300)
      return true; // every character below is composed already, and none
                   // combines
    at += decoded.length;
  }
  return false;
}

std::string to_nfc(std::string_view text) {
  std::vector<uint32_t> points;
  points.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Decoded decoded = decode_at(text, at);
    append_decomposed(points, decoded.point);
    at += decoded.length;
  }
  reorder(points);
  compose(points);
  std::string made;
  made.reserve(text.size());
  for (uint32_t point : points) append_utf8(made, point);
  return made;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string made;
  made.reserve(text.size());
  size_t at = 0;
  for (size_t found; (found = text.find(from, at)) != std::string_view::npos; at = found + from.size())
    made.append(text.substr(at, found - at)).append(to);
  return made.append(text.substr(at));
}

std::string normalize(const std::vector<Normalizer>& steps, std::string_view text) {
  std::string made(text);
  for (const Normalizer& step : steps) {
    if (step.kind == Normalizer::Kind::nfc && may_need_nfc(made)) made = to_nfc(made);
    if (step.kind == Normalizer::Kind::prepend && !made.empty()) made.insert(0, step.to);
    if (step.kind == Normalizer::Kind::replace) made = replace_all(made, step.from, step.to);
  }
  return made;
}

} // namespace fvlm
