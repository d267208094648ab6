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

std::optional<Grammar::Rule> Grammar::left_recursive_rule() const {
  const std::vector<bool> may_be_empty = nodes_with(Way::empty);
  enum Mark : uint8_t { unseen, open, done };
  std::vector<Mark> marks(rules_.size(), unseen);
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
      if (marks[entry.other] == open) return entry.other;
      if (may_be_empty[rules_[entry.other]]) visit.nodes.push_back(entry.next);
      enter(entry.other);
    }
  }
  return {};
}

namespace {

// A grammar without recursion is hardly in more places at once than it has.
size_t most_places_of(size_t nodes) {
  constexpr size_t fewest = 1024;
  return std::max(fewest, nodes);
}

} // namespace

Automaton::Automaton(const Grammar& grammar) : grammar_(grammar), most_places_(most_places_of(grammar.size())) {
  begin_ = add(follow(grammar.rules_.front(), no_frame));
}

Automaton::Automaton(const Automaton& other, State state) : grammar_(other.grammar_), most_places_(other.most_places_) {
  const Known& known = other.states_[static_cast<size_t>(state)];
  // The frames that the state's lead back to. Each has a greater number than its caller.
  std::set<uint32_t> needed;
  for (uint32_t number : known.frames)
    while (number != no_frame && needed.insert(number).second) number = other.frames_[number].second;
  std::map<uint32_t, uint32_t> copies{{no_frame, no_frame}};
  for (const uint32_t number : needed) {
    const auto [node, caller] = other.frames_[number];
    copies[number] = frame(node, copies.at(caller));
  }
  Places places{.frames = {}, .accepts = known.accepts};
  for (const uint32_t number : known.frames) places.frames.push_back(copies.at(number));
  begin_ = add(std::move(places));
}

bool Automaton::is_full() const {
  constexpr size_t most_states = 1 << 16, most_frames = 1 << 20, most_kept_places = 1 << 22;
  return states_.size() >= most_states || frames_.size() >= most_frames || places_ >= most_kept_places;
}

uint32_t Automaton::frame(Grammar::Node node, uint32_t caller) {
  const auto [found, is_new] = numbers_.try_emplace({node, caller}, static_cast<uint32_t>(frames_.size()));
  if (is_new) frames_.push_back(found->first);
  return found->second;
}

Automaton::Places Automaton::follow(Grammar::Node node, uint32_t caller) {
  Places places;
  std::vector<Frame> open{{node, caller}};
  std::set<Frame> seen;
  while (!open.empty()) {
    const auto [at, from] = open.back();
    open.pop_back();
    if (!seen.emplace(at, from).second) continue;
    const Grammar::Entry& entry = grammar_.nodes_[at];
    switch (entry.kind) {
    case Grammar::Kind::end:
      if (from == no_frame)
        places.accepts = true;
      else
        open.push_back(frames_[from]);
      break;
    case Grammar::Kind::byte:
      places.frames.push_back(frame(at, from));
      break;
    case Grammar::Kind::either:
      open.emplace_back(entry.other, from);
      open.emplace_back(entry.next, from);
      break;
    case Grammar::Kind::call: // the last call of a rule returns to where the rule itself was called
      open.emplace_back(grammar_.rules_[entry.other], entry.next == Grammar::end ? from : frame(entry.next, from));
      break;
    }
  }
  return places;
}

// Each frame once. Where they are too many the last ones are left out, which were met last.
Automaton::State Automaton::add(Places places) {
  std::ranges::sort(places.frames);
  if (places.frames.size() > most_places_) places.frames.resize(most_places_);
  if (places.frames.empty() && !places.accepts) return none;
  Known state{.frames = std::move(places.frames), .accepts = places.accepts};
  const auto [found, is_new] = known_.try_emplace({state.frames, state.accepts}, static_cast<State>(states_.size()));
  if (!is_new) return found->second;
  places_ += state.frames.size();
  for (const uint32_t number : state.frames) state.readable |= set_at(number);
  constexpr size_t few = 16;
  if (state.readable.count() > few) {
    state.next_of_many = std::make_unique<std::array<State, 256>>();
    state.next_of_many->fill(none);
  }
  states_.push_back(std::move(state));
  return found->second;
}

const ByteSet& Automaton::set_at(uint32_t frame) const {
  return grammar_.sets_[grammar_.nodes_[frames_[frame].first].other];
}

const Automaton::Places& Automaton::places_behind(uint32_t number) {
  if (behind_.size() < frames_.size()) behind_.resize(frames_.size());
  std::optional<Places>& known = behind_[number];
  if (!known) {
    const auto [node, caller] = frames_[number];
    known = follow(grammar_.nodes_[node].next, caller);
  }
  return *known;
}

Automaton::State Automaton::find_next(State state, uint8_t byte) {
  for (const auto& [known, behind] : states_[static_cast<size_t>(state)].next_of_few)
    if (known == byte) return behind;
  Places next;
  ++step_;
  for (const uint32_t number : states_[static_cast<size_t>(state)].frames) {
    if (!set_at(number).test(byte)) continue;
    const Places& more = places_behind(number);
    next.accepts |= more.accepts;
    met_in_.resize(frames_.size());
    for (const uint32_t each : more.frames)
      if (std::exchange(met_in_[each], step_) != step_) next.frames.push_back(each);
  }
  const State found = add(std::move(next));
  Known& from = states_[static_cast<size_t>(state)];
  if (from.next_of_many)
    (*from.next_of_many)[byte] = found;
  else
    from.next_of_few.emplace_back(byte, found);
  return found;
}

} // namespace fvlm::grammar
