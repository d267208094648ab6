#include "recipe/lua_pattern.h"

#include "recipe/sandbox_interpreter.h"

#include <array>
#include <cctype>
#include <cstring>

namespace fvlm::recipe {
namespace {

constexpr size_t no_match = static_cast<size_t>(-1);
constexpr char escape = '%';
constexpr std::string_view specials = "^$*+?.([%-";

bool in_class(unsigned char c, char letter) {
  bool in = false;
  switch (std::tolower(static_cast<unsigned char>(letter))) {
  case 'a':
    in = std::isalpha(c);
    break;
  case 'c':
    in = std::iscntrl(c);
    break;
  case 'd':
    in = std::isdigit(c);
    break;
  case 'g':
    in = std::isgraph(c);
    break;
  case 'l':
    in = std::islower(c);
    break;
  case 'p':
    in = std::ispunct(c);
    break;
  case 's':
    in = std::isspace(c);
    break;
  case 'u':
    in = std::isupper(c);
    break;
  case 'w':
    in = std::isalnum(c);
    break;
  case 'x':
    in = std::isxdigit(c);
    break;
  default:
    return static_cast<unsigned char>(letter) == c;
  }
  return std::isupper(static_cast<unsigned char>(letter)) ? !in : in;
}

// A backtracking matcher. Every position it tries and every member of a set it compares is charged.
class Matcher {
 public:
  Matcher(lua_State* L, std::string_view subject, std::string_view pattern)
      : L_(L), self_(Interpreter::of(L)), subject_(subject), pattern_(pattern) {}

  // The end of the match that starts at `at`, or no_match.
  size_t match(size_t at) {
    captured_ = 0;
    depth_ = 0;
    return match_from(at, 0);
  }

  // Pushes all captures, or the whole match if the pattern has none.
  int push_captures(size_t first, size_t last) {
    size_t count = captured_ == 0 ? 1 : captured_;
    luaL_checkstack(L_, static_cast<int>(count), "too many captures");
    for (size_t i = 0; i < count; i++) push_capture(i, first, last);
    return static_cast<int>(count);
  }

  int push_own_captures() { return captured_ == 0 ? 0 : push_captures(0, 0); }

  void push_capture(size_t index, size_t first, size_t last) {
    if (index >= captured_) {
      if (index != 0) luaL_error(L_, "invalid capture index %%%d", static_cast<int>(index + 1));
      lua_pushlstring(L_, subject_.data() + first, last - first);
      return;
    }
    const Capture& capture = captures_[index];
    if (capture.state == Capture::State::open) luaL_error(L_, "unfinished capture");
    if (capture.state == Capture::State::position)
      lua_pushinteger(L_, static_cast<lua_Integer>(capture.first) + 1);
    else
      lua_pushlstring(L_, subject_.data() + capture.first, capture.length);
  }

 private:
  struct Capture {
    enum class State : uint8_t { open, closed, position };
    State state;
    size_t first, length;
  };

  char pattern_at(size_t at) const { return at < pattern_.size() ? pattern_[at] : '\0'; }
  unsigned char subject_at(size_t at) const { return static_cast<unsigned char>(subject_[at]); }

  // One past the single-character item at `item`.
  size_t item_end(size_t item) {
    char c = pattern_[item++];
    if (c == escape) {
      if (item == pattern_.size()) luaL_error(L_, "malformed pattern (ends with '%%')");
      return item + 1;
    }
    if (c != '[') return item;
    if (pattern_at(item) == '^') item++;
    do { // the first member may be ']'
      if (item == pattern_.size()) luaL_error(L_, "malformed pattern (missing ']')");
      if (pattern_[item++] == escape && item < pattern_.size()) item++;
      self_.charge(L_, 1);
    } while (pattern_at(item) != ']');
    return item + 1;
  }

  // Whether `c` is in the set from the '[' at `open` to the ']' at `close`.
  bool in_set(unsigned char c, size_t open, size_t close) {
    bool if_found = true;
    size_t at = open + 1;
    if (pattern_[at] == '^') {
      if_found = false;
      at++;
    }
    for (; at < close; at++) {
      self_.charge(L_, 1);
      auto member = static_cast<unsigned char>(pattern_[at]);
      if (member == escape) {
        if (in_class(c, pattern_[++at])) return if_found;
      } else if (pattern_[at + 1] == '-' && at + 2 < close) {
        if (member <= c && c <= static_cast<unsigned char>(pattern_[at + 2])) return if_found;
        at += 2;
      } else if (member == c) {
        return if_found;
      }
    }
    return !if_found;
  }

  bool matches_one(size_t at, size_t item, size_t end) {
    self_.charge(L_, 1);
    if (at >= subject_.size()) return false;
    unsigned char c = subject_at(at);
    switch (pattern_[item]) {
    case '.':
      return true;
    case escape:
      return in_class(c, pattern_[item + 1]);
    case '[':
      return in_set(c, item, end - 1);
    default:
      return static_cast<unsigned char>(pattern_[item]) == c;
    }
  }

  size_t match_balanced(size_t at, size_t item) {
    if (item + 1 >= pattern_.size()) luaL_error(L_, "malformed pattern (missing arguments to '%%b')");
    if (at >= subject_.size() || subject_[at] != pattern_[item]) return no_match;
    char open = pattern_[item], close = pattern_[item + 1];
    size_t depth = 1;
    while (++at < subject_.size()) {
      self_.charge(L_, 1);
      if (subject_[at] == close) {
        if (--depth == 0) return at + 1;
      } else if (subject_[at] == open) {
        depth++;
      }
    }
    return no_match;
  }

  size_t match_longest(size_t at, size_t item, size_t end) {
    size_t count = 0;
    while (matches_one(at + count, item, end)) count++;
    for (;; count--) {
      if (size_t found = match_from(at + count, end + 1); found != no_match) return found;
      if (count == 0) return no_match;
    }
  }

  size_t match_shortest(size_t at, size_t item, size_t end) {
    while (true) {
      if (size_t found = match_from(at, end + 1); found != no_match) return found;
      if (!matches_one(at, item, end)) return no_match;
      at++;
    }
  }

  size_t open_capture(size_t at, size_t item, Capture::State state) {
    if (captured_ >= captures_.size()) luaL_error(L_, "too many captures");
    captures_[captured_++] = {state, at, 0};
    size_t found = match_from(at, item);
    if (found == no_match) captured_--;
    return found;
  }

  size_t close_capture(size_t at, size_t item) {
    size_t index = captured_;
    while (index > 0 && captures_[index - 1].state != Capture::State::open) index--;
    if (index == 0) luaL_error(L_, "invalid pattern capture");
    Capture& capture = captures_[index - 1];
    capture.state = Capture::State::closed;
    capture.length = at - capture.first;
    size_t found = match_from(at, item);
    if (found == no_match) capture.state = Capture::State::open;
    return found;
  }

  // Matches a back reference: the end of the text of capture `digit`, if it occurs again at `at`.
  size_t match_back(size_t at, char digit) {
    int index = digit - '1';
    if (index < 0 || index >= static_cast<int>(captured_) ||
        captures_[static_cast<size_t>(index)].state == Capture::State::open)
      luaL_error(L_, "invalid capture index %%%d", index + 1);
    const Capture& capture = captures_[static_cast<size_t>(index)];
    if (capture.state == Capture::State::position) return no_match;
    self_.charge_bytes(L_, capture.length);
    std::string_view again = subject_.substr(capture.first, capture.length);
    return subject_.substr(at).starts_with(again) ? at + again.size() : no_match;
  }

  bool at_frontier(size_t at, size_t item, size_t end) {
    unsigned char before = at == 0 ? '\0' : subject_at(at - 1);
    unsigned char here = at < subject_.size() ? subject_at(at) : '\0';
    return !in_set(before, item, end - 1) && in_set(here, item, end - 1);
  }

  size_t match_from(size_t at, size_t item) {
    constexpr int max_depth = 200;
    if (++depth_ > max_depth) luaL_error(L_, "pattern too complex");
    size_t found = match_items(at, item);
    depth_--;
    return found;
  }

  size_t match_items(size_t at, size_t item) {
    while (item < pattern_.size()) {
      self_.charge(L_, 1);
      char next = pattern_at(item + 1);
      switch (pattern_[item]) {
      case '(':
        if (next == ')') return open_capture(at, item + 2, Capture::State::position);
        return open_capture(at, item + 1, Capture::State::open);
      case ')':
        return close_capture(at, item + 1);
      case '$':
        if (item + 1 == pattern_.size()) return at == subject_.size() ? at : no_match;
        break;
      case escape:
        if (next == 'b') {
          at = match_balanced(at, item + 2);
          if (at == no_match) return no_match;
          item += 4;
          continue;
        }
        if (next == 'f') {
          item += 2;
          if (pattern_at(item) != '[') luaL_error(L_, "missing '[' after '%%f' in pattern");
          size_t end = item_end(item);
          if (!at_frontier(at, item, end)) return no_match;
          item = end;
          continue;
        }
        if (std::isdigit(static_cast<unsigned char>(next))) {
          at = match_back(at, next);
          if (at == no_match) return no_match;
          item += 2;
          continue;
        }
        break;
      default:
        break;
      }
      size_t end = item_end(item);
      switch (pattern_at(end)) {
      case '?':
        if (matches_one(at, item, end))
          if (size_t found = match_from(at + 1, end + 1); found != no_match) return found;
        item = end + 1;
        continue;
      case '+':
        if (!matches_one(at, item, end)) return no_match;
        return match_longest(at + 1, item, end);
      case '*':
        return match_longest(at, item, end);
      case '-':
        return match_shortest(at, item, end);
      default:
        if (!matches_one(at, item, end)) return no_match;
        at++;
        item = end;
      }
    }
    return at;
  }

  lua_State* L_;
  Interpreter& self_;
  std::string_view subject_, pattern_;
  std::array<Capture, 32> captures_;
  size_t captured_ = 0;
  int depth_ = 0;
};

std::string_view text_at(lua_State* L, int argument) {
  size_t length = 0;
  const char* text = luaL_checklstring(L, argument, &length);
  return {text, length};
}

// The start of a search, counted from 0. Past the end of the text there is no match.
size_t search_start(lua_State* L, size_t length) {
  lua_Integer start = luaL_optinteger(L, 3, 1);
  if (start > 0) return static_cast<size_t>(start) - 1;
  if (start == 0 || start < -static_cast<lua_Integer>(length)) return 0;
  return length - static_cast<size_t>(-start);
}

int find_plain(lua_State* L, std::string_view subject, std::string_view wanted, size_t start) {
  Interpreter::of(L).charge_bytes(L, subject.size() - start + wanted.size());
  const void* found = memmem(subject.data() + start, subject.size() - start, wanted.data(), wanted.size());
  if (!found) return lua_pushnil(L), 1;
  auto at = static_cast<lua_Integer>(static_cast<const char*>(found) - subject.data());
  lua_pushinteger(L, at + 1);
  lua_pushinteger(L, at + static_cast<lua_Integer>(wanted.size()));
  return 2;
}

int search(lua_State* L, bool find) {
  std::string_view subject = text_at(L, 1), pattern = text_at(L, 2);
  size_t start = search_start(L, subject.size());
  if (start > subject.size()) return lua_pushnil(L), 1;
  if (find && (lua_toboolean(L, 4) || pattern.find_first_of(specials) == std::string_view::npos))
    return find_plain(L, subject, pattern, start);
  bool anchored = pattern.starts_with('^');
  if (anchored) pattern.remove_prefix(1);
  Matcher matcher(L, subject, pattern);
  do {
    size_t end = matcher.match(start);
    if (end == no_match) continue;
    if (!find) return matcher.push_captures(start, end);
    lua_pushinteger(L, static_cast<lua_Integer>(start) + 1);
    lua_pushinteger(L, static_cast<lua_Integer>(end));
    return matcher.push_own_captures() + 2;
  } while (!anchored && ++start <= subject.size());
  return lua_pushnil(L), 1;
}

// Upvalues: subject, pattern, next start, end of the last match + 1.
int next_match(lua_State* L) {
  std::string_view subject = text_at(L, lua_upvalueindex(1)), pattern = text_at(L, lua_upvalueindex(2));
  auto start = static_cast<size_t>(lua_tointeger(L, lua_upvalueindex(3)));
  auto last_end = static_cast<size_t>(lua_tointeger(L, lua_upvalueindex(4)));
  Matcher matcher(L, subject, pattern);
  for (; start <= subject.size(); start++) {
    size_t end = matcher.match(start);
    if (end == no_match || end + 1 == last_end) continue;
    lua_pushinteger(L, static_cast<lua_Integer>(end));
    lua_replace(L, lua_upvalueindex(3));
    lua_pushinteger(L, static_cast<lua_Integer>(end) + 1);
    lua_replace(L, lua_upvalueindex(4));
    return matcher.push_captures(start, end);
  }
  return 0;
}

class Replacer {
 public:
  Replacer(lua_State* L, Matcher& matcher, std::string_view subject) : L_(L), matcher_(matcher), subject_(subject) {
    luaL_argexpected(L, lua_isstring(L, 3) || lua_isfunction(L, 3) || lua_istable(L, 3), 3, "string/function/table");
    luaL_buffinit(L, &out_);
  }

  void add(std::string_view text) {
    Interpreter::of(L_).charge_bytes(L_, text.size());
    luaL_addlstring(&out_, text.data(), text.size());
  }

  void add_replacement(size_t first, size_t last) {
    if (lua_isstring(L_, 3)) return add_template(first, last);
    if (lua_istable(L_, 3)) {
      matcher_.push_capture(0, first, last);
      lua_gettable(L_, 3);
    } else {
      lua_pushvalue(L_, 3);
      lua_call(L_, matcher_.push_captures(first, last), 1);
    }
    if (!lua_toboolean(L_, -1)) {
      lua_pop(L_, 1);
      return add(subject_.substr(first, last - first));
    }
    if (!lua_isstring(L_, -1)) luaL_error(L_, "invalid replacement value (a %s)", luaL_typename(L_, -1));
    luaL_addvalue(&out_);
  }

  void push_result() { luaL_pushresult(&out_); }

 private:
  void add_template(size_t first, size_t last) {
    std::string_view text = text_at(L_, 3);
    while (!text.empty()) {
      size_t plain = std::min(text.find(escape), text.size());
      add(text.substr(0, plain));
      text.remove_prefix(plain);
      if (text.empty()) return;
      char what = text.size() > 1 ? text[1] : '\0';
      if (what == escape) {
        add("%");
      } else if (what == '0') {
        add(subject_.substr(first, last - first));
      } else if (std::isdigit(static_cast<unsigned char>(what))) {
        matcher_.push_capture(static_cast<size_t>(what - '1'), first, last);
        luaL_addvalue(&out_);
      } else {
        luaL_error(L_, "invalid use of '%%' in replacement string");
      }
      text.remove_prefix(2);
    }
  }

  lua_State* L_;
  Matcher& matcher_;
  std::string_view subject_;
  luaL_Buffer out_;
};

} // namespace

int pattern_find(lua_State* L) {
  return search(L, true);
}
int pattern_match(lua_State* L) {
  return search(L, false);
}

int pattern_gmatch(lua_State* L) {
  std::string_view subject = text_at(L, 1);
  text_at(L, 2);
  size_t start = std::min(search_start(L, subject.size()), subject.size() + 1);
  lua_settop(L, 2);
  lua_pushinteger(L, static_cast<lua_Integer>(start));
  lua_pushinteger(L, 0);
  lua_pushcclosure(L, next_match, 4);
  return 1;
}

int pattern_gsub(lua_State* L) {
  std::string_view subject = text_at(L, 1), pattern = text_at(L, 2);
  lua_Integer max_replacements = luaL_optinteger(L, 4, static_cast<lua_Integer>(subject.size()) + 1);
  bool anchored = pattern.starts_with('^');
  if (anchored) pattern.remove_prefix(1);
  Matcher matcher(L, subject, pattern);
  Replacer out(L, matcher, subject);
  lua_Integer replaced = 0;
  size_t at = 0, last_end = no_match;
  while (replaced < max_replacements) {
    size_t end = matcher.match(at);
    if (end != no_match && end != last_end) {
      replaced++;
      out.add_replacement(at, end);
      at = last_end = end;
    } else if (at < subject.size()) {
      out.add(subject.substr(at++, 1));
    } else {
      break;
    }
    if (anchored) break;
  }
  out.add(subject.substr(std::min(at, subject.size())));
  out.push_result();
  lua_pushinteger(L, replaced);
  return 2;
}

} // namespace fvlm::recipe
