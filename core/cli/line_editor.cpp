#include "cli/line_editor.h"

#include "base/descriptor.h"
#include "base/file.h"
#include "base/terminal.h"
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

namespace fvlm::cli {
namespace {

bool is_continuation(char byte) {
  return (byte & 0xC0) == 0x80;
}

uint32_t point_at(const std::string& text, size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  uint32_t point = first < 0x80 ? first : first < 0xE0 ? first & 0x1FU : first < 0xF0 ? first & 0x0FU : first & 0x07U;
  for (++at; at < text.size() && is_continuation(text[at]); ++at)
    point = point << 6 | (static_cast<unsigned char>(text[at]) & 0x3FU);
  return point;
}

// Columns of a character on a terminal.
int columns_of(uint32_t point) {
  using Range = std::pair<uint32_t, uint32_t>;
  static constexpr std::array<Range, 5> marks = {
      {{0x300, 0x36F}, {0x200B, 0x200F}, {0x20D0, 0x20F0}, {0xFE00, 0xFE0F}, {0x1F3FB, 0x1F3FF}}};
  static constexpr std::array<Range, 8> wide = {{{0x1100, 0x115F},
                                                 {0x2E80, 0xA4CF},
                                                 {0xAC00, 0xD7A3},
                                                 {0xF900, 0xFAFF},
                                                 {0xFE30, 0xFE6F},
                                                 {0xFF00, 0xFF60},
                                                 {0x1F300, 0x1FAFF},
                                                 {0x20000, 0x3FFFD}}};
  const auto in = [&](const auto& ranges) {
    return std::ranges::any_of(ranges,
                               [&](const Range& range) { return point >= range.first && point <= range.second; });
  };
  return in(marks) ? 0 : in(wide) ? 2 : 1;
}

} // namespace

LineHistory::LineHistory(const std::filesystem::path& file) : file_(file) {
  if (std::filesystem::exists(file)) {
    lines_ = split(read_file(file), '\n');
    std::erase(lines_, "");
  }
  if (lines_.size() > max_lines) {
    lines_.erase(lines_.begin(), lines_.end() - max_lines);
    write_file_atomic(file, join(lines_, "\n") + "\n");
  }
  const Descriptor writable(open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!writable) fail_to_write(file, "write the history");
}

void LineHistory::add(const std::string& line) {
  if (trimmed(line).empty() || (!lines_.empty() && lines_.back() == line)) return;
  lines_.push_back(line);
  if (!file_ || line.find('\n') != std::string::npos) return;
  const Descriptor to(open(file_->c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  const std::string text = line + "\n";
  if (!to || write(to.get(), text.data(), text.size()) != std::ssize(text)) fail_to_write(*file_, "write the history");
}

void LineEditor::clear() {
  line_.clear();
  draft_.clear();
  escape_.clear();
  pastes_ = false;
  cursor_ = 0;
  place_ = history_.lines().size();
}

size_t LineEditor::before(size_t at) const {
  while (at > 0 && is_continuation(line_[--at])) continue;
  return at;
}

size_t LineEditor::behind(size_t at) const {
  if (at < line_.size()) ++at;
  while (at < line_.size() && is_continuation(line_[at])) ++at;
  return at;
}

size_t LineEditor::word_begin() const {
  size_t at = cursor_;
  while (at > 0 && line_[at - 1] == ' ') --at;
  while (at > 0 && line_[at - 1] != ' ') --at;
  return at;
}

void LineEditor::erase(size_t begin, size_t end) {
  line_.erase(begin, end - begin);
  cursor_ = begin;
}

void LineEditor::insert(char byte) {
  line_.insert(cursor_++, 1, byte);
}

void LineEditor::recall(size_t place) {
  const auto& lines = history_.lines();
  if (place > lines.size() || place == place_) return;
  if (place_ == lines.size()) draft_ = line_;
  place_ = place;
  line_ = place == lines.size() ? draft_ : lines[place];
  cursor_ = line_.size();
}

LineEditor::State LineEditor::feed(char byte) {
  constexpr char ctrl_d = 4, escape = 27;
  if (!escape_.empty()) {
    feed_escape(byte);
  } else if (byte == escape) {
    escape_ = byte;
  } else if (pastes_) {
    feed_pasted(byte);
  } else if (byte == '\n' || byte == '\r') {
    cursor_ = line_.size();
    return State::complete;
  } else if (byte == ctrl_d && line_.empty()) {
    return State::ended;
  } else if (byte == '\t') {
    insert(' ');
  } else if (static_cast<unsigned char>(byte) < ' ' || byte == 127) {
    feed_control(byte);
  } else {
    insert(byte);
  }
  return State::editing;
}

void LineEditor::feed_pasted(char byte) {
  if (byte == '\r') byte = '\n';
  const bool is_control = static_cast<unsigned char>(byte) < ' ' || byte == 127;
  if (!is_control || byte == '\n' || byte == '\t') insert(byte);
}

// With the keys that shells have from Emacs.
void LineEditor::feed_control(char byte) {
  constexpr char backspace = 127;
  switch (byte == backspace ? 'H' : static_cast<char>(byte + '@')) {
  case 'A':
    cursor_ = 0;
    break;
  case 'B':
    cursor_ = before(cursor_);
    break;
  case 'D':
    erase(cursor_, behind(cursor_));
    break;
  case 'E':
    cursor_ = line_.size();
    break;
  case 'F':
    cursor_ = behind(cursor_);
    break;
  case 'H':
    erase(before(cursor_), cursor_);
    break;
  case 'K':
    line_.resize(cursor_);
    break;
  case 'N':
    recall(place_ + 1);
    break;
  case 'P':
    if (place_ > 0) recall(place_ - 1);
    break;
  case 'U':
    erase(0, cursor_);
    break;
  case 'W':
    erase(word_begin(), cursor_);
    break;
  default:
    break; // no key of this editor
  }
}

void LineEditor::feed_escape(char byte) {
  escape_ += byte;
  if (escape_.size() == 2 && (byte == '[' || byte == 'O')) return;
  const bool is_over = escape_.size() == 2 || (byte >= '@' && byte <= '~') || escape_.size() > 16;
  if (!is_over) return;
  const std::string key = std::exchange(escape_, "").substr(1);
  if (key == "[200~" || key == "[201~") {
    pastes_ = key == "[200~";
  } else if (pastes_) {
    return; // keys are no text
  } else if (key == "[A" || key == "OA") {
    if (place_ > 0) recall(place_ - 1);
  } else if (key == "[B" || key == "OB") {
    recall(place_ + 1);
  } else if (key == "[C" || key == "OC") {
    cursor_ = behind(cursor_);
  } else if (key == "[D" || key == "OD") {
    cursor_ = before(cursor_);
  } else if (key == "[H" || key == "OH" || key == "[1~" || key == "[7~") {
    cursor_ = 0;
  } else if (key == "[F" || key == "OF" || key == "[4~" || key == "[8~") {
    cursor_ = line_.size();
  } else if (key == "[3~") {
    erase(cursor_, behind(cursor_));
  }
}

std::string LineEditor::shown(const std::string& mark, int mark_columns, int columns) const {
  const int room = std::max(1, columns - mark_columns - 1);
  size_t begin = cursor_;
  int at = 0; // the cursor's column behind the mark
  while (begin > 0) {
    const int more = columns_of(point_at(line_, before(begin)));
    if (at + more > room) break;
    begin = before(begin);
    at += more;
  }
  size_t end = cursor_;
  for (int used = at; end < line_.size(); end = behind(end))
    if ((used += columns_of(point_at(line_, end))) > room) break;
  std::string visible;
  for (const char byte : line_.substr(begin, end - begin))
    visible += byte == '\n' ? "\u21B5" : byte == '\t' ? " " : std::string(1, byte);
  std::string text = fmt::format("\r{}{}\x1b[K\r", mark, strip_control_characters(visible));
  if (mark_columns + at > 0) text += fmt::format("\x1b[{}C", mark_columns + at);
  return text;
}

} // namespace fvlm::cli
