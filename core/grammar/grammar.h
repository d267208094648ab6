// A context-free grammar of bytes, and the texts that it has: byte by byte, which states a text may be in.
#pragma once
#include <array>
#include <bitset>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fvlm::grammar {

using ByteSet = std::bitset<256>;

// Built from the back: each function takes what follows, `next`, and returns where its own part begins.
class Grammar {
 public:
  using Node = uint32_t;
  using Rule = uint32_t;
  static constexpr Node end = 0; // of a rule; of the whole text in the first rule

  Grammar();
  Node byte_of(const ByteSet& set, Node next);
  Node text(std::string_view text, Node next);
  Node either(Node one, Node other);
  // What the rule describes, then `next`. A rule may call itself, but not before it has read a byte. It may be empty.
  Node call(Rule rule, Node next);
  Rule new_rule(); // the first one is the whole text
  void define(Rule rule, Node begin) { rules_[rule] = begin; }
  // A node that leads on from where it is used before what it leads to exists: for loops.
  Node forward();
  void lead(Node forward, Node to) { nodes_[forward].next = to; }

  // The whole text of another grammar.
  Rule include(const Grammar& other);

  size_t size() const { return nodes_.size(); }

  // A rule that calls itself before it has read a byte; nothing where there is none.
  std::optional<Rule> left_recursive_rule() const { return callers_first().left_recursive; }
  // A rule of which no text comes to an end; nothing where there is none.
  std::optional<Rule> endless_rule() const;
  // Whether none of the whole text does.
  bool is_endless() const { return !nodes_with(Way::any)[rules_.front()]; }
  // Whether they were built alike.
  bool operator==(const Grammar&) const = default;

 private:
  friend class Automaton;
  enum class Kind : uint8_t { end, byte, either, call };
  struct Entry {
    Kind kind;
    Node next;
    uint32_t other; // byte: the set; either: the other node; call: the rule
    bool operator==(const Entry&) const = default;
  };
  Node add(const Entry& entry);
  // By node, whether a way leads from it to the end of its rule: any, or one that reads no byte.
  enum class Way { any, empty };
  std::vector<bool> nodes_with(Way way) const;
  // Each rule before those that it calls before it has read a byte; or a rule that calls itself so.
  struct Order {
    std::vector<Rule> rules = {};
    std::optional<Rule> left_recursive = {};
  };
  Order callers_first() const;

  std::vector<Entry> nodes_;
  std::vector<ByteSet> sets_;
  std::unordered_map<ByteSet, uint32_t> set_numbers_;
  std::vector<Node> rules_;
};

// Reads texts of a grammar, which outlives it and has no left recursive rule. States are found as texts reach them, and
// kept. What calls a rule at the same place of a text shares one reading of it, so that the ways to read a text do not
// multiply. Where more places call a rule than there is room for, some are left out, so that fewer texts go on from
// there, and none that the grammar does not have.
class Automaton {
 public:
  using State = int32_t;
  static constexpr State none = -1; // of texts that the grammar does not have, whatever follows

  explicit Automaton(const Grammar& grammar);
  // Begins in a state of another one, and knows no other state.
  Automaton(const Automaton& other, State state);
  State begin() const { return begin_; }
  State next(State state, uint8_t byte) {
    const State next = states_[static_cast<size_t>(state)].next[kinds_[byte]];
    return next == unknown ? find_next(state, byte) : next;
  }
  // Whether the text is whole.
  bool accepts(State state) const { return states_[static_cast<size_t>(state)].accepts; }
  // Whether so much is known that another one should begin in the state that a text is in.
  bool is_full() const;

 private:
  // A place in the grammar, and the number of the set of its callers: where its rule returns to.
  using Frame = std::pair<Grammar::Node, uint32_t>;
  using FrameNumbers = std::vector<uint32_t>; // in order, each once
  using SetNumbers = std::set<uint32_t>;
  // The frame to which the first rule returns, and its set of callers, which no other frame has.
  static constexpr uint32_t end_of_text = 0, no_callers = 0;
  struct Known {
    FrameNumbers frames = {}; // at bytes, one of which is read next
    bool accepts = false;
    std::vector<State> next = {}; // by kind of byte
  };
  // Where a text may be next, and whether it may end.
  struct Places {
    FrameNumbers frames = {};
    bool accepts = false;
  };

  static constexpr State unknown = -2;

  void find_kinds();
  State find_next(State state, uint8_t byte);
  State add(Places places);
  const ByteSet& set_at(uint32_t frame) const; // that is read there
  uint32_t frame(Grammar::Node node, uint32_t callers);
  uint32_t set_of(FrameNumbers callers);
  uint32_t union_of(const SetNumbers& sets);
  // The frames that these lead to without a byte.
  Places follow(const std::vector<Frame>& begins);
  // By node, the callers of these, and of those that their rules return to without a byte.
  std::map<Grammar::Node, SetNumbers> returned(const std::vector<Frame>& begins) const;

  const Grammar& grammar_;
  std::array<uint8_t, 256> kinds_ = {}; // of bytes that the same sets of the grammar have
  std::vector<uint8_t> examples_;       // one byte of each kind
  std::vector<bool> ends_;    // by node, whether a way leads from it to the end of its rule; others are not followed
  std::vector<bool> may_end_; // by node, whether one does without another byte
  std::vector<Grammar::Rule> order_;   // of rules, callers first
  std::vector<size_t> place_in_order_; // by rule
  size_t most_callers_;                // of a set
  std::vector<Frame> frames_;          // each behind its callers
  std::map<Frame, uint32_t> frame_numbers_;
  std::map<FrameNumbers, uint32_t> set_numbers_;
  std::vector<const FrameNumbers*> sets_; // of callers
  std::map<FrameNumbers, State> behind_;  // the frames, one byte of each read
  std::vector<Known> states_;
  std::map<std::pair<FrameNumbers, bool>, State> known_;
  size_t kept_ = 0; // numbers of frames in all of these
  State begin_;
};

} // namespace fvlm::grammar
