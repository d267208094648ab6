#include "jinja/parser.h"

#include "base/error.h"
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::jinja {

using Kind = Token::Kind;

void Parser::fail(int line, const std::string& what, const std::string& advice) const {
  throw Error(ErrorKind::data, what).at("{}:{}", where_, line).advise(advice);
}

bool Parser::is_any_name(std::initializer_list<const char*> names) const {
  return std::ranges::any_of(names, [&](const char* name) { return is_name(name); });
}

bool Parser::skip_op(std::string_view op) {
  if (!is_op(op)) return false;
  next();
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!is_name(name)) return false;
  next();
  return true;
}

void Parser::expect_op(std::string_view op) {
  if (!skip_op(op)) fail(current().line, fmt::format("expected '{}' but got {}", op, describe(current())));
}

void Parser::expect_name(std::string_view name) {
  if (!skip_name(name)) fail(current().line, fmt::format("expected '{}' but got {}", name, describe(current())));
}

std::string Parser::expect_any_name() {
  if (current().kind != Kind::name)
    fail(current().line, fmt::format("expected a name but got {}", describe(current())));
  return next().text;
}

std::string Parser::describe(const Token& token) const {
  switch (token.kind) {
  case Kind::data:
    return "text";
  case Kind::variable_begin:
    return "'{{'";
  case Kind::variable_end:
    return "'}}'";
  case Kind::block_begin:
    return "'{%'";
  case Kind::block_end:
    return "'%}'";
  case Kind::string:
    return "the string " + shown(token.text);
  case Kind::end:
    return "the end of the template";
  default:
    return shown(token.text);
  }
}

Block Parser::parse() {
  return parse_block({});
}

// Statements up to one of the tags `ends`, whose name is the current token then.
Block Parser::parse_block(std::initializer_list<const char*> ends) {
  Nested nested(*this);
  Block block;
  const int begin_line = current().line;
  while (current().kind != Kind::end) {
    const int line = current().line;
    if (current().kind == Kind::data) {
      block.push_back({line, Text{next().text}});
    } else if (current().kind == Kind::variable_begin) {
      next();
      ExpressionPtr value = parse_tuple(true, false);
      if (current().kind != Kind::variable_end)
        fail(current().line, fmt::format("expected '}}}}' but got {}", describe(current())));
      next();
      block.push_back({line, Print{std::move(value)}});
    } else {
      next(); // of a block, as nothing else begins here
      if (is_any_name(ends)) return block;
      block.push_back(parse_statement(expect_any_name()));
      block.back().line = line;
    }
  }
  if (ends.size() > 0)
    fail(begin_line, fmt::format("the block that begins here is not closed by {{% {} %}}", *(ends.end() - 1)));
  return block;
}

void Parser::end_of_block() {
  if (current().kind != Kind::block_end)
    fail(current().line, fmt::format("expected '%}}' but got {}", describe(current())));
  next();
}

Block Parser::body_until(const char* end) {
  end_of_block();
  Block body = parse_block({end});
  next();
  end_of_block();
  return body;
}

Statement Parser::parse_statement(const std::string& name) {
  const int line = current().line;
  if (name == "if") return parse_if();
  if (name == "for") return parse_for();
  if (name == "set") return parse_set();
  if (name == "with") return parse_with();
  if (name == "macro") return parse_macro();
  if (name == "filter") return parse_filter_block();
  if (name == "generation") return {line, Generation{body_until("endgeneration")}};
  if (name == "break" || name == "continue") {
    if (loops_ == 0) fail(line, fmt::format("{{% {} %}} is outside of a loop", name));
    end_of_block();
    if (name == "break") return {line, Break{}};
    return {line, Continue{}};
  }
  static const std::vector<std::string> unsupported = {"include", "import",     "from", "extends", "block",
                                                       "call",    "autoescape", "do",   "trans",   "print"};
  if (std::ranges::find(unsupported, name) != unsupported.end())
    fail(line, fmt::format("the tag {{% {} %}} is not supported", name),
         "if, for, set, with, macro, filter, generation, break and continue are");
  fail(line, fmt::format("unknown tag {{% {} %}}", name));
}

Statement Parser::parse_if() {
  If made;
  while (true) {
    ExpressionPtr condition = parse_tuple(false, false);
    end_of_block();
    made.branches.emplace_back(std::move(condition), parse_block({"elif", "else", "endif"}));
    const std::string end = next().text;
    if (end == "elif") continue;
    if (end == "else")
      made.otherwise = body_until("endif");
    else
      end_of_block();
    return {0, std::move(made)};
  }
}

Statement Parser::parse_for() {
  For made;
  made.target = parse_target(true, false);
  expect_name("in");
  made.items = parse_tuple(false, false);
  if (skip_name("if")) made.condition = parse_expression();
  if (is_name("recursive")) fail(current().line, "a recursive loop is not supported");
  end_of_block();
  ++loops_;
  made.body = parse_block({"else", "endfor"});
  --loops_;
  if (next().text == "else")
    made.otherwise = body_until("endfor");
  else
    end_of_block();
  return {0, std::move(made)};
}

Statement Parser::parse_set() {
  Target target = parse_target(true, true);
  if (skip_op("=")) {
    ExpressionPtr value = parse_tuple(true, false);
    end_of_block();
    return {0, Set{std::move(target), std::move(value)}};
  }
  ExpressionPtr filter;
  while (skip_op("|")) filter = parse_filter(std::move(filter));
  return {0, SetBlock{std::move(target), std::move(filter), body_until("endset")}};
}

Statement Parser::parse_with() {
  With made;
  while (current().kind != Kind::block_end) {
    if (!made.values.empty()) expect_op(",");
    Target target = parse_target(false, false);
    expect_op("=");
    made.values.emplace_back(std::move(target), parse_expression());
  }
  made.body = body_until("endwith");
  return {0, std::move(made)};
}

Statement Parser::parse_macro() {
  Macro made;
  made.name = expect_any_name();
  expect_op("(");
  while (!is_op(")")) {
    if (!made.parameters.empty()) expect_op(",");
    std::string name = expect_any_name();
    ExpressionPtr fallback;
    if (skip_op("="))
      fallback = parse_expression();
    else if (!made.parameters.empty() && made.parameters.back().second)
      fail(current().line, fmt::format("parameter '{}' needs a default, as those before it have one", name));
    made.parameters.emplace_back(std::move(name), std::move(fallback));
  }
  next();
  const int loops = std::exchange(loops_, 0); // a macro does not end the loop around it
  made.body = body_until("endmacro");
  loops_ = loops;
  return {0, std::move(made)};
}

Statement Parser::parse_filter_block() {
  ExpressionPtr filter = parse_filter(nullptr);
  while (skip_op("|")) filter = parse_filter(std::move(filter));
  return {0, FilterBlock{std::move(filter), body_until("endfilter")}};
}

Target Parser::parse_target(bool tuple, bool attribute) {
  Nested nested(*this);
  std::vector<Target> targets;
  bool several = false;
  while (true) {
    if (tuple && several && (is_name("in") || is_op(")") || is_op("=") || current().kind == Kind::block_end)) break;
    if (skip_op("(")) {
      targets.push_back(parse_target(true, attribute));
      expect_op(")");
    } else {
      Target target;
      const int line = current().line;
      target.name = expect_any_name();
      for (const char* constant : {"true", "false", "none", "True", "False", "None"})
        if (target.name == constant) fail(line, fmt::format("cannot assign to '{}'", constant));
      if (attribute && skip_op(".")) target.attribute = expect_any_name();
      targets.push_back(std::move(target));
    }
    if (!tuple || !skip_op(",")) break;
    several = true;
  }
  if (!several) return std::move(targets.front());
  Target made;
  made.elements = std::move(targets);
  return made;
}

} // namespace fvlm::jinja
