#include "grammar/grammar.h"

#include "base/error.h"

#include <algorithm>
#include <ranges>
#include <set>

namespace fvlm::grammar {

Grammar::Grammar() {
  add({Kind::end, end, 0});
}

Grammar::Node Grammar::add(const Entry& entry) {
  constexpr size_t most = 1 << 16;
  if (nodes_.size() == most)
    throw Error(ErrorKind::usage, "the form is too large: it has more than {} places where a text may be", most)
        .advise("lower its counts (maxItems, maxLength, minLength), or leave parts of it out");
  nodes_.push_back(entry);
  return static_cast<Node>(nodes_.size() - 1);
}

Grammar::Node Grammar::byte_of(const ByteSet& set, Node next) {
  const auto [found, is_new] = set_numbers_.try_emplace(set, static_cast<uint32_t>(sets_.size()));
  if (is_new) sets_.push_back(set);
  return add({Kind::byte, next, found->second});
}

Grammar::Node Grammar::text(std::string_view text, Node next) {
  for (const char c : std::views::reverse(text)) next = byte_of(ByteSet().set(static_cast<uint8_t>(c)), next);
  return next;
}

Grammar::Node Grammar::either(Node one, Node other) {
  return add({Kind::either, one, other});
}

Grammar::Node Grammar::call(Rule rule, Node next) {
  return add({Kind::call, next, rule});
}

Grammar::Rule Grammar::new_rule() {
  rules_.push_back(end);
  return static_cast<Rule>(rules_.size() - 1);
}

Grammar::Node Grammar::forward() {
  const Node node = add({Kind::either, end, end});
  nodes_[node].other = node; // its only other way leads back to itself
  return node;
}

Grammar::Rule Grammar::include(const Grammar& other) {
  const auto first = static_cast<Node>(nodes_.size() - 1);
  const auto rules = static_cast<Rule>(rules_.size());
  const auto moved = [&](Node node) { return node == end ? end : first + node; };
  for (const Entry& entry : other.nodes_ | std::views::drop(1)) // which is the end
    switch (entry.kind) {
    case Kind::byte:
      byte_of(other.sets_[entry.other], moved(entry.next));
      break;
    case Kind::either:
      add({Kind::either, moved(entry.next), moved(entry.other)});
      break;
    default:
      call(rules + entry.other, moved(entry.next));
    }
  for (const Node begin : other.rules_) rules_.push_back(moved(begin));
  return rules;
}

std::vector<bool> Grammar::nodes_with(Way way) const {
  std::vector<bool> found(nodes_.size());
  const auto leads_to_end = [&](const Entry& entry) -> bool {
    switch (entry.kind) {
    case Kind::end:
      return true;
    case Kind::byte:
      return way == Way::any && found[entry.next];
    case Kind::either:
      return found[entry.next] || found[entry.other];
    case Kind::call:
      return found[rules_[entry.other]] && found[entry.next];
    }
    return false;
  };
  // Most nodes lead to earlier ones, so that few rounds are enough.
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    for (Node node = 0; node < nodes_.size(); ++node)
      if (!found[node] && leads_to_end(nodes_[node])) found[node] = has_changed = true;
  }
  return found;
}

std::optional<Grammar::Rule> Grammar::endless_rule() const {
  const std::vector<bool> ends = nodes_with(Way::any);
  for (auto rule = static_cast<Rule>(rules_.size()); rule-- > 0;) // of those that call each other the innermost
    if (!ends[rules_[rule]]) return rule;
  return {};
}

Grammar::Order Grammar::callers_first() const {
  const std::vector<bool> may_be_empty = nodes_with(Way::empty);
  enum Mark : uint8_t { unseen, open, done };
  std::vector<Mark> marks(rules_.size(), unseen);
  Order order;
  // Depth first, with a stack of its own: the rules that are open, and nodes to look at before each is done.
  struct Visit {
    Rule rule;
    std::vector<Node> nodes;
    std::vector<bool> seen;
  };
  for (Rule first = 0; first < rules_.size(); ++first) {
    std::vector<Visit> visits;
    const auto enter = [&](Rule rule) {
      if (marks[rule] == done) return;
      marks[rule] = open;
      visits.push_back({rule, {rules_[rule]}, std::vector<bool>(nodes_.size())});
    };
    enter(first);
    while (!visits.empty()) {
      Visit& visit = visits.back();
      if (visit.nodes.empty()) {
        marks[visit.rule] = done;
        order.rules.push_back(visit.rule);
        visits.pop_back();
        continue;
      }
      const Node node = visit.nodes.back();
      visit.nodes.pop_back();
      if (visit.seen[node]) continue;
      visit.seen[node] = true;
      const Entry& entry = nodes_[node];
      if (entry.kind == Kind::either) visit.nodes.insert(visit.nodes.end(), {entry.next, entry.other});
      if (entry.kind != Kind::call) continue;
      if (marks[entry.other] == open) return {.left_recursive = entry.other};
      if (may_be_empty[rules_[entry.other]]) visit.nodes.push_back(entry.next);
      enter(entry.other);
    }
  }
  std::ranges::reverse(order.rules);
  return order;
}

Automaton::Automaton(const Grammar& grammar)
    : grammar_(grammar), ends_(grammar.nodes_with(Grammar::Way::any)),
      may_end_(grammar.nodes_with(Grammar::Way::empty)), order_(grammar.callers_first().rules),
      place_in_order_(order_.size()), most_callers_(std::max<size_t>(1024, grammar.size())) {
  find_kinds();
  for (size_t place = 0; place < order_.size(); ++place) place_in_order_[order_[place]] = place;
  (void)frame(Grammar::end, set_of({})); // end_of_text, no_callers
  begin_ = add(follow({{grammar.rules_.front(), set_of({end_of_text})}}));
}

Automaton::Automaton(const Automaton& other, State state)
    : grammar_(other.grammar_), kinds_(other.kinds_), examples_(other.examples_), ends_(other.ends_),
      may_end_(other.may_end_), order_(other.order_), place_in_order_(other.place_in_order_),
      most_callers_(other.most_callers_) {
  const Known& known = other.states_[static_cast<size_t>(state)];
  const auto callers_of = [&](uint32_t number) -> const FrameNumbers& {
    return *other.sets_[other.frames_[number].second];
  };
  // The frames that the state's lead back to.
  std::set<uint32_t> needed{end_of_text};
  std::vector<uint32_t> open = known.frames;
  while (!open.empty()) {
    const uint32_t number = open.back();
    open.pop_back();
    if (!needed.insert(number).second) continue;
    open.insert(open.end(), callers_of(number).begin(), callers_of(number).end());
  }
  std::map<uint32_t, uint32_t> copies;
  const auto copied = [&](FrameNumbers numbers) {
    for (uint32_t& number : numbers) number = copies.at(number);
    return numbers;
  };
  for (const uint32_t number : needed)
    copies[number] = frame(other.frames_[number].first, set_of(copied(callers_of(number))));
  begin_ = add({.frames = copied(known.frames), .accepts = known.accepts});
}

void Automaton::find_kinds() {
  size_t count = 1;
  for (const ByteSet& set : grammar_.sets_) {
    std::map<std::pair<uint8_t, bool>, uint8_t> numbers; // of those that the set divides
    for (size_t byte = 0; byte < kinds_.size(); ++byte)
      kinds_[byte] = numbers.try_emplace({kinds_[byte], set.test(byte)}, numbers.size()).first->second;
    count = numbers.size();
  }
  examples_.resize(count);
  for (size_t byte = 0; byte < kinds_.size(); ++byte) examples_[kinds_[byte]] = static_cast<uint8_t>(byte);
}

bool Automaton::is_full() const {
  constexpr size_t most_states = 1 << 16, most_frames = 1 << 20, most_kept = 1 << 22;
  return states_.size() >= most_states || frames_.size() >= most_frames || kept_ >= most_kept;
}

uint32_t Automaton::frame(Grammar::Node node, uint32_t callers) {
  const auto [found, is_new] = frame_numbers_.try_emplace({node, callers}, static_cast<uint32_t>(frames_.size()));
  if (is_new) frames_.push_back(found->first);
  return found->second;
}

// Where they are too many the last ones are left out, which were met last. A grammar without recursion has hardly more
// at once than it has places.
uint32_t Automaton::set_of(FrameNumbers callers) {
  if (callers.size() > most_callers_) callers.resize(most_callers_);
  const auto [found, is_new] = set_numbers_.try_emplace(std::move(callers), static_cast<uint32_t>(sets_.size()));
  if (is_new) {
    kept_ += found->first.size();
    sets_.push_back(&found->first);
  }
  return found->second;
}

uint32_t Automaton::union_of(const SetNumbers& sets) {
  if (sets.size() == 1) return *sets.begin();
  std::set<uint32_t> all;
  for (const uint32_t set : sets) all.insert(sets_[set]->begin(), sets_[set]->end());
  return set_of({all.begin(), all.end()});
}

std::map<Grammar::Node, Automaton::SetNumbers> Automaton::returned(const std::vector<Frame>& begins) const {
  std::map<Grammar::Node, SetNumbers> all;
  std::set<uint32_t> seen;
  std::vector<Frame> open = begins;
  while (!open.empty()) {
    const auto [node, callers] = open.back();
    open.pop_back();
    all[node].insert(callers);
    if (!may_end_[node]) continue;
    for (const uint32_t number : *sets_[callers])
      if (seen.insert(number).second) open.push_back(frames_[number]);
  }
  return all;
}

// A rule is read once all that call it here are known: those that it is called by come before it. Its own end needs no
// look at its callers, as these go on behind a rule that may be empty.
Automaton::Places Automaton::follow(const std::vector<Frame>& begins) {
  Places places;
  std::vector<Frame> open;
  for (const auto& [node, callers] : returned(begins)) {
    open.emplace_back(node, union_of(callers));
    places.accepts |= node == Grammar::end && callers.contains(no_callers);
  }
  std::set<Frame> seen;
  std::map<Grammar::Node, SetNumbers> at_bytes;
  std::map<size_t, SetNumbers> called; // by place in the order of rules
  while (true) {
    while (!open.empty()) {
      const auto [node, callers] = open.back();
      open.pop_back();
      if (!ends_[node] || !seen.emplace(node, callers).second) continue;
      const Grammar::Entry& entry = grammar_.nodes_[node];
      switch (entry.kind) {
      case Grammar::Kind::end:
        break;
      case Grammar::Kind::byte:
        at_bytes[node].insert(callers);
        break;
      case Grammar::Kind::either:
        open.emplace_back(entry.other, callers);
        open.emplace_back(entry.next, callers);
        break;
      case Grammar::Kind::call: // the last call of a rule returns to where the rule itself was called
        called[place_in_order_[entry.other]].insert(entry.next == Grammar::end ? callers
                                                                               : set_of({frame(entry.next, callers)}));
        if (may_end_[grammar_.rules_[entry.other]]) open.emplace_back(entry.next, callers);
        break;
      }
    }
    if (called.empty()) break;
    const auto first = called.extract(called.begin());
    open.emplace_back(grammar_.rules_[order_[first.key()]], union_of(first.mapped()));
  }
  for (const auto& [node, callers] : at_bytes) places.frames.push_back(frame(node, union_of(callers)));
  std::ranges::sort(places.frames);
  return places;
}

Automaton::State Automaton::add(Places places) {
  if (places.frames.empty() && !places.accepts) return none;
  Known state{.frames = std::move(places.frames), .accepts = places.accepts};
  const auto [found, is_new] = known_.try_emplace({state.frames, state.accepts}, static_cast<State>(states_.size()));
  if (!is_new) return found->second;
  kept_ += state.frames.size();
  ByteSet readable;
  for (const uint32_t number : state.frames) readable |= set_at(number);
  for (const uint8_t byte : examples_) state.next.push_back(readable.test(byte) ? unknown : none);
  states_.push_back(std::move(state));
  return found->second;
}

const ByteSet& Automaton::set_at(uint32_t frame) const {
  return grammar_.sets_[grammar_.nodes_[frames_[frame].first].other];
}

Automaton::State Automaton::find_next(State state, uint8_t byte) {
  FrameNumbers read;
  for (const uint32_t number : states_[static_cast<size_t>(state)].frames)
    if (set_at(number).test(byte)) read.push_back(number);
  const auto [found, is_new] = behind_.try_emplace(std::move(read), none);
  if (is_new) {
    std::vector<Frame> begins;
    for (const uint32_t number : found->first) {
      const auto [node, callers] = frames_[number];
      begins.emplace_back(grammar_.nodes_[node].next, callers);
    }
    kept_ += begins.size();
    found->second = add(follow(begins));
  }
  return states_[static_cast<size_t>(state)].next[kinds_[byte]] = found->second;
}

} // namespace fvlm::grammar
