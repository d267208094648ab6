#include "recipe/lua_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>

namespace fvlm::recipe {
namespace {

constexpr size_t max_tokens_per_line = 5000; // a longer line is not searched, because all its fields have the same line
constexpr size_t max_calls_per_line = 100;   // candidates on a line
constexpr size_t max_table_entries = 10'000; // further entries get the line of the table

bool is_keyword(std::string_view word) {
  static constexpr std::array<std::string_view, 22> keywords = {
      "and", "break", "do",  "else", "elseif", "end",    "false",  "for",  "function", "goto",  "if",
      "in",  "local", "nil", "not",  "or",     "repeat", "return", "then", "true",     "until", "while"};
  return std::ranges::binary_search(keywords, word);
}

} // namespace

// Splits the text into tokens. Malformed tokens are not reported, because Lua reports them when it compiles the file.
struct SourceMap::Scanner {
  std::string_view text;
  size_t at = 0;
  int line = 1;

  char peek(size_t ahead = 0) const { return at + ahead < text.size() ? text[at + ahead] : '\0'; }

  static bool ends_line(char c) { return c == '\n' || c == '\r'; }

  // Skips one character, or both characters of a line ending.
  void step() {
    char c = text[at++];
    if (!ends_line(c)) return;
    line++;
    if (ends_line(peek()) && peek() != c) at++;
  }

  // The number of '=' in a long bracket "[[" or "[==["; -1: not a long bracket.
  int long_bracket() const {
    if (peek() != '[') return -1;
    size_t level = 0;
    while (peek(1 + level) == '=') level++;
    return peek(1 + level) == '[' ? static_cast<int>(level) : -1;
  }

  std::string_view skip_long(int level) {
    std::string close(static_cast<size_t>(level) + 2, '=');
    close.front() = close.back() = ']';
    size_t first = at + close.size(), last = std::min(text.find(close, first), text.size());
    size_t after = std::min(last + close.size(), text.size());
    while (at < after) step();
    return text.substr(std::min(first, last), last - std::min(first, last));
  }

  std::string_view skip_quoted() {
    char quote = peek();
    size_t first = ++at;
    while (at < text.size() && peek() != quote) {
      if (peek() == '\\' && at + 1 < text.size()) step();
      step();
    }
    size_t last = at;
    if (at < text.size()) at++;
    return text.substr(first, last - first);
  }

  void skip_blank() {
    while (at < text.size()) {
      if (std::isspace(static_cast<unsigned char>(peek()))) {
        step();
      } else if (peek() == '-' && peek(1) == '-') {
        at += 2;
        if (int level = long_bracket(); level >= 0)
          skip_long(level);
        else
          while (at < text.size() && !ends_line(peek())) at++;
      } else {
        return;
      }
    }
  }

  Token next() {
    skip_blank();
    Token token{Kind::end, line, {}};
    if (at >= text.size()) return token;
    auto word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
    size_t first = at;
    char c = peek();
    if (int level = long_bracket(); level >= 0) {
      token.kind = Kind::string;
      token.text = skip_long(level);
      return token;
    }
    if (c == '"' || c == '\'') {
      token.kind = Kind::string;
      token.text = skip_quoted();
      return token;
    }
    bool digit =
        std::isdigit(static_cast<unsigned char>(c)) || (c == '.' && std::isdigit(static_cast<unsigned char>(peek(1))));
    if (digit) {
      token.kind = Kind::number;
      while (word(peek()) || peek() == '.') at++;
    } else if (word(c)) {
      token.kind = Kind::name;
      while (word(peek())) at++;
    } else {
      static constexpr std::array<std::string_view, 10> longer = {
          "...", "..", "==", "~=", "<=", ">=", "::", "//", "<<", ">>"};
      token.kind = Kind::symbol;
      auto found = std::ranges::find_if(longer, [&](std::string_view s) { return text.substr(at).starts_with(s); });
      at += found != longer.end() ? found->size() : 1;
    }
    token.text = text.substr(first, at - first);
    return token;
  }
};

SourceMap::SourceMap(std::string text) : text_(std::move(text)) {
  Scanner scanner{text_};
  do tokens_.push_back(scanner.next());
  while (tokens_.back().kind != Kind::end);
  match_brackets();
  for (size_t i = 0; i + 2 < tokens_.size(); i++) {
    if (tokens_[i].word("return") && tokens_[i + 1].is("{")) assignments_["return"].push_back(i + 1);
    if (tokens_[i].kind == Kind::name && tokens_[i + 1].is("=") && tokens_[i + 2].is("{"))
      assignments_[tokens_[i].text].push_back(i + 2);
  }
}

// Each of these constructs triggers a bug of Lua 5.4.4 to 5.4.7, which Debian 12 and Ubuntu 24.04 ship
// (lua.org/bugs.html).
std::optional<Refusal> SourceMap::refused() const {
  struct Bracket {
    bool index;    // the [ of t[...], not of a key
    size_t fields; // length of the chain that contains the bracket
  };
  std::vector<Bracket> open;
  size_t indices = 0; // number of index brackets in `open`
  size_t fields = 0;  // consecutive .a.b[c]
  constexpr size_t max_fields = 200, max_brackets = 150;
  auto comparison = [](const Token& t) {
    return t.is("<") || t.is(">") || t.is("<=") || t.is(">=") || t.is("==") || t.is("~=");
  };
  auto bitwise = [](const Token& t) { return t.is("&") || t.is("|") || t.is("~") || t.is("<<") || t.is(">>"); };
  for (size_t i = 0; i < tokens_.size(); i++) {
    const Token& token = tokens_[i];
    if (token.word("_ENV")) return Refusal{token.line, "_ENV is not allowed in a recipe", "use plain names"};
    if (indices > 0 && comparison(token)) // Lua would read the index from an uninitialized register
      return Refusal{token.line, "a comparison inside [ ] is not allowed", "put it into a local variable first"};
    if (bitwise(token) && tokens_[i + 1].is("(")) { // the same bug, with many constants
      size_t end = skip_bracket(i + 1);
      for (size_t inner = i + 2; inner < end; inner++)
        if (tokens_[inner].word("and") || tokens_[inner].word("or"))
          return Refusal{token.line, fmt::format("'and' or 'or' after the operator '{}' is not allowed", token.text),
                         "put it into a local variable first"};
    }
    if (token.is("(") || token.is("{") || token.is("[")) {
      bool index = token.is("[") && i > 0 &&
                   (tokens_[i - 1].is(")") || tokens_[i - 1].is("]") ||
                    (tokens_[i - 1].kind == Kind::name && !is_keyword(tokens_[i - 1].text)));
      open.push_back({index, fields});
      if (open.size() > max_brackets) // Lua's own limit is 200 levels, and its error has no line
        return Refusal{token.line, fmt::format("more than {} nested brackets", max_brackets),
                       "put part of it into a local variable"};
      indices += index ? 1 : 0;
      fields = 0;
    } else if ((token.is(")") || token.is("}") || token.is("]")) && !open.empty()) {
      fields = open.back().index ? open.back().fields + 1 : open.back().fields + fields;
      indices -= open.back().index ? 1 : 0;
      open.pop_back();
    } else if (token.is(".") && tokens_[i + 1].kind == Kind::name) {
      fields++;
      i++;
    } else {
      fields = 0;
    }
    if (fields > max_fields) // an error message would search through them recursively
      return Refusal{token.line, fmt::format("more than {} nested field accesses in one expression", max_fields),
                     "put part of it into a local variable"};
  }
  return std::nullopt;
}

void SourceMap::match_brackets() {
  after_bracket_.assign(tokens_.size(),
                        static_cast<uint32_t>(tokens_.size() - 1)); // an unclosed bracket extends to the end
  std::vector<size_t> open;
  for (size_t at = 0; at < tokens_.size(); at++) {
    const Token& token = tokens_[at];
    if (token.is("(") || token.is("[") || token.is("{")) {
      open.push_back(at);
    } else if ((token.is(")") || token.is("]") || token.is("}")) && !open.empty()) {
      after_bracket_[open.back()] = static_cast<uint32_t>(at + 1);
      open.pop_back();
    }
  }
}

// The separator or bracket that ends the expression starting at `at`.
size_t SourceMap::skip_expression(size_t at) const {
  int blocks = 0;
  while (tokens_[at].kind != Kind::end) {
    tokens_read_++;
    const Token& token = tokens_[at];
    if (token.is("(") || token.is("[") || token.is("{")) {
      at = skip_bracket(at);
      continue;
    }
    if (token.is(")") || token.is("]") || token.is("}")) return at;
    if (blocks == 0 && (token.is(",") || token.is(";"))) return at;
    if (token.word("function") || token.word("if") || token.word("do") || token.word("repeat")) blocks++;
    if (token.word("end") || token.word("until")) blocks--;
    at++;
  }
  return at;
}

FieldSource SourceMap::parse_field(size_t first, size_t end, int line) const {
  FieldSource field;
  field.line = line;
  if (first >= end) return field;
  const Token& token = tokens_[first];
  if (token.is("{") && skip_bracket(first) == end) field.table = table_at(first);
  if (token.kind != Kind::name || is_keyword(token.text)) return field;
  if (first + 1 == end) field.variable = token.text;
  // a reference is name, name.name or name["x"]: only dots, names and brackets follow the first name
  size_t at = first + 1;
  while (at < end) {
    if (tokens_[at].is(".") && tokens_[at + 1].kind == Kind::name)
      at += 2;
    else if (tokens_[at].is("["))
      at = skip_bracket(at);
    else
      break;
  }
  field.reference = at == end;
  return field;
}

std::shared_ptr<const TableSource> SourceMap::parse_table(size_t brace) const {
  auto table = std::make_shared<TableSource>();
  table->line = tokens_[brace].line;
  size_t at = brace + 1;
  while (tokens_[at].kind != Kind::end && !tokens_[at].is("}") &&
         table->fields.size() + table->items.size() < max_table_entries) {
    int line = tokens_[at].line;
    size_t value = at;
    std::string key;
    bool keyed = false;
    if (tokens_[at].kind == Kind::name && tokens_[at + 1].is("=")) {
      key = tokens_[at].text;
      value = at + 2;
      keyed = true;
    } else if (tokens_[at].is("[")) {
      size_t after = skip_bracket(at);
      if (after == at + 3 && tokens_[at + 1].kind == Kind::string) key = tokens_[at + 1].text;
      value = std::min(after + 1, tokens_.size() - 1);
      keyed = true;
    }
    size_t end = skip_expression(value);
    FieldSource field = parse_field(value, end, line);
    if (!keyed)
      table->items.push_back(std::move(field));
    else if (!key.empty())
      table->fields.insert_or_assign(std::move(key), std::move(field));
    at = end;
    if (tokens_[at].is(",") || tokens_[at].is(";"))
      at++;
    else
      break;
  }
  return table;
}

std::shared_ptr<const TableSource> SourceMap::table_at(size_t brace) const {
  if (auto found = parsed_.find(brace); found != parsed_.end()) return found->second;
  return parsed_[brace] = parse_table(brace);
}

// The name before the arguments of a call, for a call that starts on an earlier line. Empty where it is not a call, or
// has too many arguments in between.
std::string_view SourceMap::called_name(size_t argument) const {
  constexpr size_t max_distance = 100;
  for (size_t at = argument; at > 0 && argument - at < max_distance;) {
    tokens_read_++;
    const Token& before = tokens_[--at];
    if (before.kind == Kind::string) continue;
    if (!before.is(")"))
      return before.kind == Kind::name && !is_keyword(before.text) ? before.text : std::string_view();
    const size_t close = at;
    while (at > 0 && argument - at < max_distance && !(tokens_[at].is("(") && skip_bracket(at) == close + 1)) at--;
  }
  return {};
}

// Adds the positions of the arguments of all calls in an expression like `a.b "x" { }` that starts at `word`, with the
// name of the called function. The name is empty for the result of a call with a table and for an indexed value.
void SourceMap::add_calls(size_t word, std::map<size_t, std::string_view>& arguments) const {
  if (tokens_[word].kind != Kind::name || is_keyword(tokens_[word].text)) return;
  std::string_view name = tokens_[word].text;
  for (size_t at = word + 1;;) {
    tokens_read_++;
    const Token& token = tokens_[at];
    if ((token.is(".") || token.is(":")) && tokens_[at + 1].kind == Kind::name) {
      name = tokens_[at + 1].text;
      at += 2;
    } else if (token.kind == Kind::string) {
      at++;
    } else if (token.is("{") || token.is("(")) {
      if (!arguments.emplace(at, name).second) return; // the rest was added before
      if (token.is("{")) name = {};
      at = skip_bracket(at);
    } else if (token.is("[")) {
      name = {};
      at = skip_bracket(at);
    } else {
      return;
    }
  }
}

// The opening brace of the last argument, if that is a table.
std::optional<size_t> SourceMap::table_argument(size_t argument) const {
  if (tokens_[argument].is("{")) return argument;
  std::optional<size_t> brace;
  for (size_t at = argument + 1;;) {
    size_t end = skip_expression(at);
    if (tokens_[at].is("{") && skip_bracket(at) == end) brace = at;
    if (!tokens_[end].is(",")) return brace;
    at = end + 1;
  }
}

const std::vector<SourceMap::Call>& SourceMap::calls_on(int line) const {
  auto [kept, is_new] = calls_.try_emplace(line);
  if (!is_new) return kept->second;
  auto first = std::partition_point(tokens_.begin(), tokens_.end(), [&](const Token& t) { return t.line < line; });
  auto last = std::partition_point(first, tokens_.end(), [&](const Token& t) { return t.line <= line; });
  if (static_cast<size_t>(last - first) > max_tokens_per_line) return kept->second;
  std::map<size_t, std::string_view> arguments;
  // In a table, Lua reads one token ahead, so a name at the end of a line counts as on the next line.
  const auto begin = static_cast<size_t>(first - tokens_.begin()), end = static_cast<size_t>(last - tokens_.begin());
  for (size_t at = begin > 0 ? begin - 1 : 0; at < end; at++) {
    tokens_read_++;
    add_calls(at, arguments);
    const Token& token = tokens_[at];
    if (at >= begin && at > 0 && (token.is("{") || token.is("(")) && !arguments.contains(at))
      if (std::string_view name = called_name(at); !name.empty()) arguments.emplace(at, name);
  }
  std::vector<Call> calls;
  for (const auto& [argument, name] : arguments) {
    if (name.empty()) continue;
    if (auto brace = table_argument(argument)) calls.push_back({name, *brace});
  }
  if (calls.size() <= max_calls_per_line) kept->second = std::move(calls);
  return kept->second;
}

const TableSource* SourceMap::call(std::string_view name, int line, const std::vector<std::string>& keys) const {
  const TableSource* best = nullptr;
  int best_score = std::numeric_limits<int>::min();
  for (const Call& call : calls_on(line)) {
    tokens_read_ += 1 + keys.size();
    const TableSource* table = table_at(call.brace).get();
    // The constructor may be called through a local variable of another name.
    bool all_there =
        !keys.empty() && std::ranges::all_of(keys, [&](const std::string& key) { return table->fields.contains(key); });
    if (call.name != name && !all_there) continue;
    int score = call.name == name ? 1000 : 0;
    score -= static_cast<int>(table->fields.size());
    for (const auto& key : keys) score += table->fields.contains(key) ? 3 : -1;
    if (score > best_score) {
      best = table;
      best_score = score;
    }
  }
  return best;
}

const TableSource* SourceMap::assigned(std::string_view variable, const std::vector<std::string>& keys) const {
  auto found = assignments_.find(variable);
  if (found == assignments_.end()) return nullptr;
  size_t tried = 0;
  for (auto brace = found->second.rbegin(); brace != found->second.rend() && tried < 20; ++brace, ++tried) {
    tokens_read_ += 1 + keys.size();
    const TableSource* table = table_at(*brace).get();
    if (std::ranges::all_of(keys, [&](const std::string& key) { return table->fields.contains(key); })) return table;
  }
  return nullptr;
}

} // namespace fvlm::recipe
