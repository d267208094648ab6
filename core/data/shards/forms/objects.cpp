// JSON objects in a list, or one behind the other. Only their brackets and strings are looked at, as much as it takes
// to find where each ends. Behind a damaged one the scan resumes where the next one begins as the first did: `{"id"`.
#include "data/shards/shard_form.h"
#include "data/shards/shard_index.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {
namespace {

constexpr uint64_t chunk_size = uint64_t{1} << 20;
constexpr size_t max_depth = 256, max_key = 200;

bool is_space(int c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

class ObjectScan {
 public:
  ObjectScan(const RetryingFile& file, IndexWriter& index) : file_(file), index_(index) {}

  void scan() {
    uint64_t at = behind_spaces(peek(0) == 0xef ? 3 : 0); // a UTF-8 mark
    const bool is_list = peek(at) == '[';
    if (is_list) ++at;
    bool is_closed = !is_list;
    for (at = behind_spaces(at); peek(at) >= 0; at = behind_spaces(at)) {
      const int c = peek(at);
      if (c == '{') {
        at = object(at);
        continue;
      }
      const bool ends = is_list && c == ']' && behind_spaces(at + 1) == file_.size();
      is_closed = is_closed || ends;
      if (!ends && (c != ',' || is_closed)) {
        const uint64_t next = next_object(at + 1);
        report(at, next, is_list ? "neither a comma nor the end of the list" : "no JSON object");
        at = next;
        continue;
      }
      ++at;
    }
    if (!is_closed) index_.report({file_.size(), "the list has no end: the file was cut short"});
  }

 private:
  int peek(uint64_t at) {
    if (at < chunk_at_ || at >= chunk_at_ + chunk_.size()) {
      if (at >= file_.size()) return -1;
      chunk_.resize(std::min(chunk_size, file_.size() - at));
      chunk_at_ = at;
      file_.read(at, chunk_);
    }
    return static_cast<int>(chunk_[at - chunk_at_]);
  }

  uint64_t behind_spaces(uint64_t at) {
    while (is_space(peek(at))) ++at;
    return at;
  }

  // Of a place behind all that were asked for.
  int64_t line(uint64_t at) {
    for (; counted_ < at; ++counted_) line_ += peek(counted_) == '\n';
    return line_;
  }

  // Returns where to continue.
  uint64_t object(uint64_t begin) {
    ShardSample sample{.key = fmt::format("item {} (line {})", ++items_, line(begin))};
    const auto end = end_of_object(begin);
    if (start_.empty()) start_ = start_of_object(begin);
    const uint64_t next = end ? *end : next_object(begin + 1);
    sample.members = {{"json", begin, next - begin}};
    if (!end)
      sample.damage = fmt::format("it is no JSON object from line {} on: {}", line(std::min(wrong_at_, next)), wrong_);
    index_.add(sample);
    return next;
  }

  void report(uint64_t at, uint64_t next, const char* what) {
    index_.report({at, fmt::format("line {}: {}{}", line(at), what,
                                   next == file_.size() ? ", and no object is found behind it" : "")});
  }

  std::nullopt_t refuse(uint64_t at, const char* what) {
    wrong_at_ = at;
    wrong_ = what;
    return std::nullopt;
  }

  // Where the string that begins at `at` ends, behind its quotation mark.
  std::optional<uint64_t> end_of_string(uint64_t at) {
    for (++at;; ++at) {
      const int c = peek(at);
      if (c == '"') return at + 1;
      if (c < 0x20) return refuse(at, c < 0 ? "the file ends in a text" : "a text has a line break or the like");
      if (c == '\\') ++at;
    }
  }

  std::optional<uint64_t> end_of_object(uint64_t at) {
    std::string open; // brackets
    bool wants_key = false;
    while (true) {
      at = behind_spaces(at);
      const int c = peek(at);
      if (c < 0) return refuse(at, "the file ends in it");
      if (wants_key && c != '"' && !(c == '}' && last_ == '{')) return refuse(at, "a key was expected");
      last_ = static_cast<char>(c);
      switch (c) {
      case '"': {
        const auto end = end_of_string(at);
        if (!end) return std::nullopt;
        at = behind_spaces(*end);
        const int next = peek(at);
        if (next != (wants_key ? ':' : ',') && (wants_key || (next != '}' && next != ']')))
          return refuse(at, wants_key ? "a colon was expected" : "a comma was expected");
        wants_key = false;
        continue;
      }
      case '{':
      case '[':
        open.push_back(last_);
        if (open.size() > max_depth) return refuse(at, "it is nested too deeply");
        break;
      case '}':
      case ']':
        if (open.back() != (c == '}' ? '{' : '[')) return refuse(at, "a bracket closes what is not open");
        open.pop_back();
        if (open.empty()) return at + 1;
        break;
      default: // a number or a word
        if (std::string_view(",:+-.0123456789eEtrufalsn").find(last_) == std::string_view::npos)
          return refuse(at, "it is no JSON");
      }
      wants_key = c == '{' || (c == ',' && open.back() == '{');
      ++at;
    }
  }

  // As far as its first key, which tells an object of the list from those in it.
  std::string start_of_object(uint64_t at) {
    std::string start;
    for (int quotes = 0; quotes < 2 && start.size() < max_key; ++at) {
      const int c = peek(at);
      if (c < 0) return "";
      start.push_back(static_cast<char>(c));
      quotes += c == '"';
    }
    return start;
  }

  uint64_t next_object(uint64_t at) {
    const std::string start = start_.empty() ? "{" : start_;
    for (; at + start.size() <= file_.size(); ++at) {
      size_t i = 0;
      while (i < start.size() && peek(at + i) == static_cast<uint8_t>(start[i])) ++i;
      if (i == start.size()) return at;
    }
    return file_.size();
  }

  const RetryingFile& file_;
  IndexWriter& index_;
  std::vector<std::byte> chunk_;
  uint64_t chunk_at_ = 0, counted_ = 0, wrong_at_ = 0;
  int64_t line_ = 1, items_ = 0;
  char last_ = 0;
  const char* wrong_ = "";
  std::string start_;
};

} // namespace

void scan_objects(const RetryingFile& file, IndexWriter& index) {
  ObjectScan(file, index).scan();
}

} // namespace fvlm
