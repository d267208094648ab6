#include "grammar/token_constraint.h"

#include "base/utf8.h"
#include "grammar/pieces.h"

#include <algorithm>
#include <atomic>
#include <span>

namespace fvlm::grammar {

namespace {

void find_shared(std::vector<TokenTable::Token>& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string_view before = i > 0 ? tokens[i - 1].bytes : std::string_view(), own = tokens[i].bytes;
    tokens[i].shared = static_cast<size_t>(std::ranges::mismatch(before, own).in2 - own.begin());
  }
}

} // namespace

TokenTable::TokenTable(int64_t tokens, const std::function<std::string_view(int64_t)>& bytes_of) {
  bytes_.reserve(static_cast<size_t>(tokens));
  for (int64_t id = 0; id < tokens; ++id) {
    bytes_.push_back(bytes_of(id));
    const std::string_view bytes = bytes_.back();
    const size_t characters = is_utf8(bytes) ? static_cast<size_t>(characters_in(bytes)) : 0;
    if (!bytes.empty()) tokens_.push_back({bytes, id, 0, characters});
  }
  std::ranges::sort(tokens_, {}, &Token::bytes);
  find_shared(tokens_);
}

std::shared_ptr<const TokenTable::Split> TokenTable::split(const CharacterSet& set) const {
  constexpr size_t most_kept = 16;
  std::lock_guard lock(lock_);
  auto found = std::ranges::find(splits_, set, [](const auto& each) { return each.first; });
  if (found == splits_.end()) {
    auto split = std::make_shared<Split>();
    split->all.resize(bytes_.size());
    std::vector<std::vector<int64_t>> by_count(most_characters + 1);
    for (const Token& token : tokens_) {
      if (token.characters == 0 || token.characters > most_characters || !consists_of(token.bytes, set)) {
        split->others.push_back(token);
        continue;
      }
      split->all[static_cast<size_t>(token.id)] = true;
      by_count[token.characters].push_back(token.id);
    }
    for (const std::vector<int64_t>& ids : by_count) {
      split->ids.insert(split->ids.end(), ids.begin(), ids.end());
      split->counts.push_back(split->ids.size());
    }
    find_shared(split->others);
    splits_.emplace_front(set, std::move(split));
    if (splits_.size() > most_kept) splits_.pop_back();
    found = splits_.begin();
  }
  return found->second;
}

namespace {

int64_t next_number() {
  static std::atomic<int64_t> last = 0;
  return ++last;
}

} // namespace

ConstrainedTexts::ConstrainedTexts(std::shared_ptr<const TokenTable> tokens, std::shared_ptr<const Grammar> grammar)
    : tokens_(std::move(tokens)), grammar_(std::move(grammar)), automaton_(*grammar_), number_(next_number()) {}

ConstrainedTexts::ConstrainedTexts(const ConstrainedTexts& others, State state)
    : tokens_(others.tokens_), grammar_(others.grammar_), automaton_(others.automaton_, state), number_(next_number()) {
}

const std::vector<bool>& ConstrainedTexts::allowed(State state) {
  constexpr size_t most_known = 512;
  if (const auto found = known_.find(state); found != known_.end()) return found->second;
  if (known_.size() == most_known) known_.clear();
  std::vector<bool>& allowed = known_[state];
  if (state != Automaton::none && allow_runs(state, allowed)) return allowed;
  allowed.resize(static_cast<size_t>(tokens_->size()));
  if (state != Automaton::none) walk(state, tokens_->tokens(), allowed);
  return allowed;
}

bool ConstrainedTexts::allow_runs(State state, std::vector<bool>& allowed) {
  constexpr size_t most = TokenTable::most_characters;
  const auto run = runs_.of(automaton_, state, most);
  if (!run || (run->length < most && !run->is_longest)) return false;
  const auto split = tokens_->split(run->set);
  const size_t count = split->counts[run->length];
  const std::span<const int64_t> ids(split->ids);
  const bool is_most = 2 * count > ids.size();
  allowed = is_most ? split->all : std::vector<bool>(split->all.size());
  for (const int64_t id : is_most ? ids.subspan(count) : ids.first(count)) allowed[static_cast<size_t>(id)] = !is_most;
  walk(state, split->others, allowed);
  return true;
}

void ConstrainedTexts::walk(State state, const std::vector<TokenTable::Token>& tokens, std::vector<bool>& allowed) {
  // The states behind the leading bytes of a token, as far as it can be read. Tokens that share bytes share them.
  std::vector<State> states{state};
  for (const TokenTable::Token& token : tokens) {
    if (token.shared >= states.size()) continue; // the token before could not be read so far
    states.resize(token.shared + 1);
    while (states.size() <= token.bytes.size()) {
      const State next = automaton_.next(states.back(), static_cast<uint8_t>(token.bytes[states.size() - 1]));
      if (next == Automaton::none) break;
      states.push_back(next);
    }
    allowed[static_cast<size_t>(token.id)] = states.size() > token.bytes.size();
  }
}

ConstrainedTexts::State ConstrainedTexts::next(State state, int64_t token) {
  const std::string_view bytes = bytes_of(token);
  return bytes.empty() ? Automaton::none : next(state, bytes);
}

ConstrainedTexts::State ConstrainedTexts::next(State state, std::string_view bytes) {
  for (const char c : bytes)
    if (state != Automaton::none) state = automaton_.next(state, static_cast<uint8_t>(c));
  return state;
}

std::string_view ConstrainedTexts::bytes_of(int64_t token) const {
  return token < tokens_->size() ? tokens_->bytes_of(token) : std::string_view();
}

std::shared_ptr<ConstrainedTexts> RecentTexts::of(const std::shared_ptr<const TokenTable>& tokens,
                                                  const std::shared_ptr<const Grammar>& grammar) {
  constexpr size_t most = 4;
  std::erase_if(recent_, [](const auto& texts) { return texts->is_full(); });
  const auto found = std::ranges::find_if(
      recent_, [&](const auto& texts) { return texts->table() == tokens && texts->grammar() == *grammar; });
  auto texts = found != recent_.end() ? *found : std::make_shared<ConstrainedTexts>(tokens, grammar);
  if (found != recent_.end()) recent_.erase(found);
  recent_.push_front(texts);
  if (recent_.size() > most) recent_.pop_back();
  return texts;
}

TokenConstraint::TokenConstraint(std::shared_ptr<ConstrainedTexts> texts, Preface preface, std::optional<Call> call)
    : texts_(std::move(texts)), state_(texts_->begin()), preface_(std::move(preface)), call_(std::move(call)),
      place_(preface_.is_open ? Place::preface
             : preface_.begin ? Place::begin
                              : Place::behind) {}

const std::vector<bool>& TokenConstraint::allowed() {
  if (place_ == Place::text || (place_ == Place::behind && !call_)) return texts_->allowed(state_);
  if (place_ == Place::preface) {
    allowed_.assign(static_cast<size_t>(texts_->tokens()), true);
  } else {
    allowed_ = texts_->allowed(state_);
    if (place_ == Place::begin) allowed_[static_cast<size_t>(*preface_.begin)] = true;
    if (call_) allowed_[static_cast<size_t>(call_->token)] = true;
  }
  return allowed_;
}

std::pair<int64_t, Automaton::State> TokenConstraint::place() const {
  if (place_ == Place::text || (place_ == Place::behind && !call_)) return {texts_->number(), state_};
  // The same texts may be those of answers that may call tools, and of others.
  const int behind_none = 1 + 2 * static_cast<int>(place_) + (call_ ? 1 : 0);
  return {texts_->number(), Automaton::none - behind_none};
}

bool TokenConstraint::is_over() {
  return std::ranges::find(allowed(), true) == allowed().end();
}

// White space behind the preface is of no text.
void TokenConstraint::advance_preface(int64_t token) {
  preface_end_ += texts_->bytes_of(token);
  const size_t at = preface_end_.find(preface_.end_text);
  const bool is_over = at != std::string::npos || token == preface_.end;
  if (!is_over) {
    const size_t kept = std::min(preface_end_.size(), preface_.end_text.size() - 1);
    preface_end_.erase(0, preface_end_.size() - kept);
    return;
  }
  place_ = Place::behind;
  if (at == std::string::npos) return;
  const size_t begin = preface_end_.find_first_not_of(" \t\r\n", at + preface_.end_text.size());
  if (begin == std::string::npos) return;
  place_ = Place::text;
  state_ = texts_->next(state_, std::string_view(preface_end_).substr(begin));
}

void TokenConstraint::advance(int64_t token) {
  if (place_ == Place::preface) return advance_preface(token);
  if (place_ == Place::begin && token == preface_.begin) {
    place_ = Place::preface;
    return;
  }
  if (std::exchange(place_, Place::text) != Place::text && call_ && token == call_->token) {
    texts_ = call_->texts;
    state_ = texts_->begin();
    return;
  }
  state_ = texts_->next(state_, token);
  if (state_ == Automaton::none || !texts_->is_full()) return;
  texts_ = std::make_shared<ConstrainedTexts>(*texts_, state_);
  state_ = texts_->begin();
}

} // namespace fvlm::grammar
