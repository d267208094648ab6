// SourceMap: the tokens of a Lua file. It finds the line of each field of a table constructor, because Lua itself only
// reports the line of a call (best effort: otherwise the line of the call is used). It also finds source code that is
// refused because it triggers memory bugs in the Lua versions that distributions ship.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::recipe {

struct TableSource;

struct FieldSource {
  int line = 0;                             // of the key, or of the first token of an item
  std::shared_ptr<const TableSource> table; // if the value is written as { ... }
  std::string variable;                     // if the value is a single name
  bool reference = false;                   // the value is a variable or a field of one, which is nil if misspelled
};

struct TableSource {
  int line = 0; // of the opening brace
  std::map<std::string, FieldSource, std::less<>> fields;
  std::vector<FieldSource> items;
};

struct Refusal {
  int line;
  std::string what, advice;
};

class SourceMap {
 public:
  explicit SourceMap(std::string text);
  SourceMap(const SourceMap&) = delete; // tokens point into the text
  SourceMap& operator=(const SourceMap&) = delete;
  const std::string& text() const { return text_; }
  uint64_t memory() const {
    return text_.capacity() + tokens_.capacity() * sizeof(Token) + after_bracket_.capacity() * sizeof(uint32_t);
  }
  // The number of tokens that the searches below have read, for charging.
  uint64_t tokens_read() const { return tokens_read_; }

  // The first construct that is refused, if any. Tokens are split exactly as Lua does, so this cannot be evaded.
  std::optional<Refusal> refused() const;

  // The { } of a call `name { }`, `name "x" { }` or `name("x", { })` that starts, or whose arguments start, on `line`
  // (before Lua 5.4.7 a call has the line of its first token). Of several calls, the one whose table matches these keys
  // best. Null: not found.
  const TableSource* call(std::string_view name, int line, const std::vector<std::string>& keys) const;

  // The { } last assigned to `variable`, if it has these keys. "return" finds the file's last `return { }`.
  const TableSource* assigned(std::string_view variable, const std::vector<std::string>& keys) const;

 private:
  enum class Kind : uint8_t { name, string, number, symbol, end };
  struct Token {
    Kind kind;
    int line;
    std::string_view text; // a string has no quotes
    bool is(std::string_view symbol) const { return kind == Kind::symbol && text == symbol; }
    bool word(std::string_view keyword) const { return kind == Kind::name && text == keyword; }
  };
  struct Scanner;
  struct Call {
    std::string_view name; // of the called function: "stage" in `fvlm.stage "align" {`
    size_t brace;          // of the table that is the last argument
  };

  void match_brackets();
  size_t skip_bracket(size_t at) const { return after_bracket_[at]; }
  size_t skip_expression(size_t at) const;
  std::shared_ptr<const TableSource> table_at(size_t brace) const;
  std::shared_ptr<const TableSource> parse_table(size_t brace) const;
  FieldSource parse_field(size_t first, size_t end, int line) const;
  std::string_view called_name(size_t argument) const;
  void add_calls(size_t word, std::map<size_t, std::string_view>& arguments) const;
  std::optional<size_t> table_argument(size_t argument) const;
  const std::vector<Call>& calls_on(int line) const;

  std::string text_;
  std::vector<Token> tokens_;           // ends with an end token
  std::vector<uint32_t> after_bracket_; // at an opening bracket: the token after the closing one
  std::map<std::string_view, std::vector<size_t>> assignments_; // name -> the braces after `name =`
  mutable std::map<size_t, std::shared_ptr<const TableSource>> parsed_;
  mutable std::map<int, std::vector<Call>> calls_; // by line
  mutable uint64_t tokens_read_ = 0;
};

} // namespace fvlm::recipe
