#include "data/character_run.h"

#include "data/unicode.h"

#include <limits>
#include <utility>

namespace fvlm {
namespace {

constexpr size_t code_points = 0x110000;

bool take(std::string_view& pattern, std::string_view begin) {
  if (!pattern.starts_with(begin)) return false;
  pattern.remove_prefix(begin.size());
  return true;
}

// A character as it stands between brackets; nothing for what has a meaning there.
std::optional<uint32_t> take_character(std::string_view& pattern) {
  constexpr std::string_view special = "[]^&-";
  if (take(pattern, "\\r")) return '\r';
  if (take(pattern, "\\n")) return '\n';
  if (take(pattern, "\\t")) return '\t';
  const bool escaped = take(pattern, "\\");
  if (pattern.empty()) return {};
  const Decoded decoded = decode_at(pattern, 0);
  const bool is_escapable = decoded.point < 0x80 && !(char_classes()[decoded.point] & class_word);
  if (escaped ? !is_escapable : special.find(pattern.front()) != std::string_view::npos) return {};
  pattern.remove_prefix(decoded.length);
  return decoded.point;
}

// What is between brackets, and the closing one.
bool take_brackets(std::string_view& pattern, std::vector<bool>& characters) {
  while (!take(pattern, "]")) {
    const auto first = take_character(pattern);
    const auto last = first && take(pattern, "-") ? take_character(pattern) : first;
    if (!last || *last < *first) return false;
    for (uint32_t point = *first; point <= *last; ++point) characters[point] = true;
  }
  return true;
}

bool take_class(std::string_view& pattern, std::vector<bool>& characters) {
  if (take(pattern, "[")) return take_brackets(pattern, characters);
  constexpr std::pair<std::string_view, CharClass> properties[] = {{"\\p{L}", class_letter}, {"\\p{N}", class_number}};
  for (const auto& [text, bits] : properties)
    if (take(pattern, text)) {
      for (size_t point = 0; point < code_points; ++point) characters[point] = char_classes()[point] & bits;
      return true;
    }
  return false;
}

} // namespace

std::optional<CharacterRun> CharacterRun::parse(std::string_view pattern) {
  CharacterRun run;
  run.may_begin_with_space_ = take(pattern, "\\s?");
  run.characters_.resize(code_points);
  if (!take_class(pattern, run.characters_)) return {};
  if (take(pattern, "+")) run.most_ = std::numeric_limits<size_t>::max();
  if (take(pattern, "{1,3}")) run.most_ = 3;
  return pattern.empty() ? std::optional(std::move(run)) : std::nullopt;
}

size_t CharacterRun::end(std::string_view text, size_t at) const {
  const Decoded first = decode_at(text, at);
  if (may_begin_with_space_ && (char_classes()[first.point] & class_space)) {
    const size_t second = at + first.length, behind_space = run_end(text, second);
    if (behind_space > second) return behind_space;
  }
  return run_end(text, at);
}

size_t CharacterRun::run_end(std::string_view text, size_t at) const {
  for (size_t count = 0; count < most_ && at < text.size(); ++count) {
    const Decoded decoded = decode_at(text, at);
    if (!characters_[decoded.point]) break;
    at += decoded.length;
  }
  return at;
}

} // namespace fvlm
