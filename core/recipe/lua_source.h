// SourceMap: the tokens of a Lua file. Finds the line on which each field of a table constructor stands, for Lua itself
// tells the line of a call only (best effort: what is not found falls back to the line of the call). And finds what a
// recipe may not be written with, because the Lua that distributions ship breaks on it.
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
  int line = 0;                             // of the key, or of an item's first word
  std::shared_ptr<const TableSource> table; // the value is written as { ... }
  std::string variable;                     // the value is this name alone
  bool reference = false;                   // the value is a variable or a field of one: nil if misspelt
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
  // How many tokens the searches below have looked at: they are charged for.
  uint64_t tokens_read() const { return tokens_read_; }

  // What the file must not contain. Tokens are cut exactly as Lua does, so nothing hides from this.
  std::optional<Refusal> refused() const;

  // The { } of the call `name { }`, `name "x" { }` or `name("x", { })` that begins, or whose arguments begin, on `line`
  // (before Lua 5.4.7 a call has the line of its first word). Where several calls stand there, the one that looks most
  // like a table with these keys. Null: not found.
  const TableSource* call(std::string_view name, int line, const std::vector<std::string>& keys) const;

  // The { } last assigned to `variable`, if it has these keys. "return" finds the file's last `return { }`.
  const TableSource* assigned(std::string_view variable, const std::vector<std::string>& keys) const;

 private:
  enum class Kind : uint8_t { name, string, number, symbol, end };
  struct Token {
    Kind kind;
    int line;
    std::string_view text; // of a string: without its quotes
    bool is(std::string_view symbol) const { return kind == Kind::symbol && text == symbol; }
    bool word(std::string_view keyword) const { return kind == Kind::name && text == keyword; }
  };
  struct Scanner;
  struct Call {
    std::string_view name; // of what is called: "stage" in `fvlm.stage "align" {`
    size_t brace;          // of the table that is its last argument
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
  std::vector<Token> tokens_;           // with an end token
  std::vector<uint32_t> after_bracket_; // of an opening one: the token after the one that closes it
  std::map<std::string_view, std::vector<size_t>> assignments_; // name -> the braces after `name =`
  mutable std::map<size_t, std::shared_ptr<const TableSource>> parsed_;
  mutable std::map<int, std::vector<Call>> calls_; // by line
  mutable uint64_t tokens_read_ = 0;
};

} // namespace fvlm::recipe
