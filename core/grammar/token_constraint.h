// Which tokens of a vocabulary may continue a text so that it stays one of a grammar.
#pragma once
#include "grammar/character_runs.h"
#include "grammar/grammar.h"

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
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
    size_t shared;     // leading bytes that the token before has, too
    size_t characters; // 0: they are no whole ones
  };
  const std::vector<Token>& tokens() const { return tokens_; }
  std::string_view bytes_of(int64_t id) const { return bytes_[static_cast<size_t>(id)]; }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }

  // Its tokens by whether they are whole characters of a set alone, and not too many: few are longer, and how many
  // characters may follow is found one by one.
  static constexpr size_t most_characters = 32;
  struct Split {
    std::vector<bool> all;      // by id, those that are
    std::vector<int64_t> ids;   // of them, by their number of characters
    std::vector<size_t> counts; // by number of characters, how many of them have no more
    std::vector<Token> others;
  };
  std::shared_ptr<const Split> split(const CharacterSet& set) const; // [any thread]

 private:
  std::vector<std::string_view> bytes_; // by id
  std::vector<Token> tokens_;           // in the order of their bytes
  mutable std::mutex lock_;             // of the splits, the last one that was asked for first
  mutable std::deque<std::pair<CharacterSet, std::shared_ptr<const Split>>> splits_;
};

// The texts of a grammar, token by token. What is found out about them is kept for all that have it.
class ConstrainedTexts {
 public:
  using State = Automaton::State;

  ConstrainedTexts(std::shared_ptr<const TokenTable> tokens, std::shared_ptr<const Grammar> grammar);
  // Those that begin in a state of others, of which it keeps nothing else.
  ConstrainedTexts(const ConstrainedTexts& others, State state);

  const Grammar& grammar() const { return *grammar_; }
  const std::shared_ptr<const TokenTable>& table() const { return tokens_; }
  int64_t number() const { return number_; } // which no others have
  State begin() const { return automaton_.begin(); }
  bool accepts(State state) const { return state != Automaton::none && automaton_.accepts(state); }
  // By id, whether the token may follow. Until the next call.
  const std::vector<bool>& allowed(State state);
  State next(State state, int64_t token);
  State next(State state, std::string_view bytes);
  std::string_view bytes_of(int64_t token) const; // empty for one that no text has
  int64_t tokens() const { return tokens_->size(); }
  // Whether so many states are known that it should not go on.
  bool is_full() const { return automaton_.is_full(); }

 private:
  std::shared_ptr<const TokenTable> tokens_;
  std::shared_ptr<const Grammar> grammar_;
  // Allows those of the tokens that may follow.
  void walk(State state, const std::vector<TokenTable::Token>& tokens, std::vector<bool>& allowed);
  // Finds what may follow without a look at tokens that all consist of any characters. False: there are none.
  bool allow_runs(State state, std::vector<bool>& allowed);

  Automaton automaton_;
  CharacterRuns runs_;
  int64_t number_;
  std::map<State, std::vector<bool>> known_; // what may follow there
};

// The texts of the grammars that were asked for last.
class RecentTexts {
 public:
  std::shared_ptr<ConstrainedTexts> of(const std::shared_ptr<const TokenTable>& tokens,
                                       const std::shared_ptr<const Grammar>& grammar);

 private:
  std::deque<std::shared_ptr<ConstrainedTexts>> recent_; // the last one first
};

// What may stand before a text, and is of no grammar: thoughts.
struct Preface {
  std::optional<int64_t> begin; // the token that begins it; nothing: none does
  std::optional<int64_t> end;   // the token that ends it
  std::string end_text;         // that ends it as well
  bool is_open = false;         // it has begun
};

// A token that may stand in place of a text, and the texts that may follow it.
struct Call {
  int64_t token;
  std::shared_ptr<ConstrainedTexts> texts; // of as many tokens
};

// One text.
class TokenConstraint {
 public:
  explicit TokenConstraint(std::shared_ptr<ConstrainedTexts> texts, Preface preface = {},
                           std::optional<Call> call = {});

  // By id, whether the token may follow.
  const std::vector<bool>& allowed();
  // Whether the text may end here.
  bool is_whole() const { return place_ != Place::preface && texts_->accepts(state_); }
  // What may follow the text is the same where this is.
  std::pair<int64_t, Automaton::State> place() const;
  // Whether nothing may follow.
  bool is_over();
  // The token follows. One that is not allowed ends the text: none is allowed behind it, and it may not end.
  void advance(int64_t token);

 private:
  enum class Place { begin, preface, behind, text }; // behind: the preface
  void advance_preface(int64_t token);
  std::shared_ptr<ConstrainedTexts> texts_;
  Automaton::State state_;
  Preface preface_;
  std::optional<Call> call_;
  Place place_;
  std::string preface_end_;   // the last bytes of the preface, which may become `end_text`
  std::vector<bool> allowed_; // before the text
};

} // namespace fvlm::grammar
