#include "jinja/template.h"

#include "base/error.h"
#include "jinja/interpreter.h"
#include "jinja/parser.h"

namespace fvlm::jinja {

struct Tree {
  Block block;
  bool has_generation = false;
};

Template::Template(std::string_view source, std::string where) : where_(std::move(where)) {
  if (source.size() > Limits::source_bytes)
    throw Error(ErrorKind::data, "the template has {} bytes, at most {} are read", source.size(), Limits::source_bytes)
        .at(where_);
  auto tokens = tokenize(source, where_);
  Tree tree;
  for (size_t i = 0; i + 1 < tokens.size(); ++i)
    tree.has_generation |= tokens[i].kind == Token::Kind::block_begin && tokens[i + 1].kind == Token::Kind::name &&
                           tokens[i + 1].text == "generation";
  tree.block = Parser(std::move(tokens), where_).parse();
  tree_ = std::make_shared<const Tree>(std::move(tree));
}

Rendered Template::render(const Variables& variables, const std::tm& now, const Limits& limits) const {
  Runtime runtime(where_, limits, now);
  return Interpreter(runtime, variables).run(tree_->block);
}

bool Template::has_generation() const {
  return tree_->has_generation;
}

} // namespace fvlm::jinja
