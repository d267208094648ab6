// A context-free grammar of bytes, and the texts that it has: byte by byte, which states a text may be in.
#pragma once
#include <array>
#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
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

  size_t size() const { return nodes_.size(); }

  // A rule that calls itself before it has read a byte; nothing where there is none.
  std::optional<Rule> left_recursive_rule() const;
  // A rule of which no text comes to an end; nothing where there is none.
  std::optional<Rule> endless_rule() const;
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

  std::vector<Entry> nodes_;
  std::vector<ByteSet> sets_;
  std::unordered_map<ByteSet, uint32_t> set_numbers_;
  std::vector<Node> rules_;
};

// Reads texts of a grammar, which outlives it. States are found as texts reach them, and kept. A text that may be read
// in more ways than a state has room for is read in some of them, so that fewer texts go on from there, and none that
// the grammar does not have.
class Automaton {
 public:
  using State = int32_t;
  static constexpr State none = -1; // of texts that the grammar does not have, whatever follows

  explicit Automaton(const Grammar& grammar);
  // Begins in a state of another one, and knows no other state.
  Automaton(const Automaton& other, State state);
  State begin() const { return begin_; }
  State next(State state, uint8_t byte) {
    const Known& known = states_[static_cast<size_t>(state)];
    if (!known.readable.test(byte)) return none;
    if (known.next_of_many && (*known.next_of_many)[byte] != none) return (*known.next_of_many)[byte];
    return find_next(state, byte);
  }
  // Whether the text is whole.
  bool accepts(State state) const { return states_[static_cast<size_t>(state)].accepts; }
  // Whether so much is known that another one should begin in the state that a text is in.
  bool is_full() const;

 private:
  static constexpr uint32_t no_frame = UINT32_MAX;
  // A place in the grammar, and the frame of the place where its rule was called.
  using Frame = std::pair<Grammar::Node, uint32_t>;
  struct Known {
    std::vector<uint32_t> frames = {}; // at bytes, one of which is read next
    bool accepts = false;
    ByteSet readable = {};
    // By byte, where it is known. Few states read many bytes, those inside of a string above all.
    std::vector<std::pair<uint8_t, State>> next_of_few = {};
    std::unique_ptr<std::array<State, 256>> next_of_many = {};
  };
  // Where a text may be next, and whether it may end.
  struct Places {
    std::vector<uint32_t> frames = {};
    bool accepts = false;
  };
  State find_next(State state, uint8_t byte);
  // Once the frame's byte is read.
  const Places& places_behind(uint32_t frame);
  const ByteSet& set_at(uint32_t frame) const; // that is read there
  State add(Places places);
  uint32_t frame(Grammar::Node node, uint32_t caller);
  // The frames that this place leads to without a byte.
  Places follow(Grammar::Node node, uint32_t caller);

  const Grammar& grammar_;
  size_t most_places_; // of a state
  std::vector<Frame> frames_;
  std::map<Frame, uint32_t> numbers_;         // of frames
  std::vector<std::optional<Places>> behind_; // by frame, where it is known
  std::vector<uint32_t> met_in_;              // by frame, the last of find_next's steps that met it
  uint32_t step_ = 0;
  std::vector<Known> states_;
  std::map<std::pair<std::vector<uint32_t>, bool>, State> known_;
  size_t places_ = 0; // of all states
  State begin_;
};

} // namespace fvlm::grammar
