// Parses the tokens of a template to its tree, with the grammar of Jinja 3.1.
#pragma once
#include "jinja/lexer.h"
#include "jinja/tree.h"

#include <initializer_list>
#include <string>
#include <string_view>

namespace fvlm::jinja {

class Parser {
 public:
  Parser(std::vector<Token> tokens, std::string where) : tokens_(std::move(tokens)), where_(std::move(where)) {}

  // Throws Error(data) at "where:line", for what is not supported too.
  Block parse();

 private:
  // Statements, in parser.cpp.
  Block parse_block(std::initializer_list<const char*> ends);
  Statement parse_statement(const std::string& name);
  Statement parse_if();
  Statement parse_for();
  Statement parse_set();
  Statement parse_with();
  Statement parse_macro();
  Statement parse_filter_block();
  Target parse_target(bool tuple, bool attribute);
  Block body_until(const char* end);
  void end_of_block();

  // Expressions, in parse_expression.cpp.
  ExpressionPtr parse_expression() { return parse_conditional(); }
  ExpressionPtr parse_tuple(bool conditional, bool parentheses);
  ExpressionPtr parse_conditional();
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_comparison();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenation();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_operand() { return parse_unary(true); }
  ExpressionPtr parse_unary(bool with_filters);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr object);
  ExpressionPtr parse_filters(ExpressionPtr subject);
  ExpressionPtr parse_filter(ExpressionPtr subject);
  ExpressionPtr parse_test(ExpressionPtr subject);
  ExpressionPtr parse_subscript(ExpressionPtr object);
  ArgumentNodes parse_arguments();
  using Rule = ExpressionPtr (Parser::*)();
  ExpressionPtr parse_binary(Rule operand, std::initializer_list<const char*> ops);
  std::string dotted_name();

  template <class Node>
  ExpressionPtr make(int line, Node node);

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is_op(std::string_view op) const { return current().kind == Token::Kind::op && current().text == op; }
  bool is_name(std::string_view name) const { return current().kind == Token::Kind::name && current().text == name; }
  bool is_any_name(std::initializer_list<const char*> names) const;
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  void expect_name(std::string_view name);
  std::string expect_any_name();
  std::string describe(const Token& token) const;
  [[noreturn]] void fail(int line, const std::string& what, const std::string& advice = "") const;

  // Counts how deep the grammar is nested, for as long as it lives.
  class Nested;

  std::vector<Token> tokens_;
  std::string where_;
  size_t at_ = 0;
  int nesting_ = 0, loops_ = 0;
};

class Parser::Nested {
 public:
  explicit Nested(Parser& parser) : parser_(parser) {
    if (++parser_.nesting_ > max_nesting)
      parser_.fail(parser_.current().line, "the template is nested too deeply here");
  }
  ~Nested() { --parser_.nesting_; }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;

 private:
  static constexpr int max_nesting = 240;
  Parser& parser_;
};

} // namespace fvlm::jinja
