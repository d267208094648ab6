// Which tokens of a vocabulary may continue a text so that it stays one of a grammar.
#pragma once
#include "grammar/grammar.h"

#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

namespace fvlm::grammar {

// The tokens that stand for bytes, by these. Texts outlive it.
class TokenTable {
 public:
  // bytes_of(id) is empty for tokens that no text has, special ones among them.
  TokenTable(int64_t tokens, const std::function<std::string_view(int64_t)>& bytes_of);

  struct Token {
    std::string_view bytes;
    int64_t id;
    size_t shared; // leading bytes that the token before has, too
  };
  const std::vector<Token>& tokens() const { return tokens_; }
  std::string_view bytes_of(int64_t id) const { return bytes_[static_cast<size_t>(id)]; }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }

 private:
  std::vector<std::string_view> bytes_; // by id
  std::vector<Token> tokens_;           // in the order of their bytes
};

class TokenConstraint {
 public:
  TokenConstraint(std::shared_ptr<const TokenTable> tokens, std::shared_ptr<const Grammar> grammar);

  // By id, whether the token may follow.
  const std::vector<bool>& allowed();
  // Whether the text may end here.
  bool is_whole() const { return state_ != Automaton::none && automaton_.accepts(state_); }
  // A number for what may follow the text: equal ones of this constraint mean the same.
  int64_t place() const { return (forgotten_ << 32) + state_; }
  // Whether nothing may follow.
  bool is_over();
  // The token follows. One that is not allowed ends the text: none is allowed behind it, and it may not end.
  void advance(int64_t token);

 private:
  std::shared_ptr<const TokenTable> tokens_;
  std::shared_ptr<const Grammar> grammar_;
  Automaton automaton_;
  Automaton::State state_;
  int64_t forgotten_ = 0; // times that states were forgotten, whose numbers then mean others
  std::map<Automaton::State, std::vector<bool>> known_; // what may follow there
};

} // namespace fvlm::grammar
