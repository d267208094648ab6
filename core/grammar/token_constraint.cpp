#include "grammar/token_constraint.h"

#include <algorithm>

namespace fvlm::grammar {

TokenTable::TokenTable(int64_t tokens, const std::function<std::string_view(int64_t)>& bytes_of) {
  bytes_.reserve(static_cast<size_t>(tokens));
  for (int64_t id = 0; id < tokens; ++id) {
    bytes_.push_back(bytes_of(id));
    if (!bytes_.back().empty()) tokens_.push_back({bytes_.back(), id, 0});
  }
  std::ranges::sort(tokens_, {}, &Token::bytes);
  for (size_t i = 1; i < tokens_.size(); ++i) {
    const std::string_view before = tokens_[i - 1].bytes, own = tokens_[i].bytes;
    tokens_[i].shared = static_cast<size_t>(std::ranges::mismatch(before, own).in2 - own.begin());
  }
}

TokenConstraint::TokenConstraint(std::shared_ptr<const TokenTable> tokens, std::shared_ptr<const Grammar> grammar)
    : tokens_(std::move(tokens)), grammar_(std::move(grammar)), automaton_(*grammar_), state_(automaton_.begin()) {}

const std::vector<bool>& TokenConstraint::allowed() {
  constexpr size_t most_known = 32;
  if (const auto found = known_.find(state_); found != known_.end()) return found->second;
  if (known_.size() == most_known) known_.clear();
  std::vector<bool>& allowed = known_[state_];
  allowed.resize(static_cast<size_t>(tokens_->size()));
  if (state_ == Automaton::none) return allowed;
  // The states behind the leading bytes of a token, as far as it can be read. Tokens that share bytes share them.
  std::vector<Automaton::State> states{state_};
  for (const TokenTable::Token& token : tokens_->tokens()) {
    if (token.shared >= states.size()) continue; // the token before could not be read so far
    states.resize(token.shared + 1);
    while (states.size() <= token.bytes.size()) {
      const Automaton::State next =
          automaton_.next(states.back(), static_cast<uint8_t>(token.bytes[states.size() - 1]));
      if (next == Automaton::none) break;
      states.push_back(next);
    }
    allowed[static_cast<size_t>(token.id)] = states.size() > token.bytes.size();
  }
  return allowed;
}

bool TokenConstraint::is_over() {
  return std::ranges::find(allowed(), true) == allowed().end();
}

void TokenConstraint::advance(int64_t token) {
  const std::string_view bytes = token < tokens_->size() ? tokens_->bytes_of(token) : std::string_view();
  if (bytes.empty()) state_ = Automaton::none;
  for (const char c : bytes)
    if (state_ != Automaton::none) state_ = automaton_.next(state_, static_cast<uint8_t>(c));
  constexpr int64_t most_states = 1 << 16;
  if (state_ == Automaton::none || automaton_.states() < most_states) return;
  state_ = automaton_.forget_others(state_);
  ++forgotten_;
  known_.clear();
}

} // namespace fvlm::grammar
