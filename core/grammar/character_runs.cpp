#include "grammar/character_runs.h"

#include <algorithm>
#include <array>
#include <map>

namespace fvlm::grammar {
namespace {

using State = Automaton::State;

constexpr int first_lead = 0xc2, last_lead = 0xf4; // bytes that begin a character beyond ASCII

// Which first bytes have which second ones, and how many more.
struct Encoding {
  int first, last, low, high, more;
};
constexpr std::array<Encoding, 8> encodings{{{first_lead, 0xdf, 0x80, 0xbf, 0},
                                             {0xe0, 0xe0, 0xa0, 0xbf, 1},
                                             {0xe1, 0xec, 0x80, 0xbf, 1},
                                             {0xed, 0xed, 0x80, 0x9f, 1},
                                             {0xee, 0xef, 0x80, 0xbf, 1},
                                             {0xf0, 0xf0, 0x90, 0xbf, 2},
                                             {0xf1, 0xf3, 0x80, 0xbf, 2},
                                             {last_lead, last_lead, 0x80, 0x8f, 2}}};

// Whether every one of these bytes, and `more` others that continue a character, lead from one state to the other.
bool all_lead(Automaton& automaton, State from, int low, int high, int more, State to) {
  State seen = Automaton::none;
  for (int byte = low; byte <= high; ++byte) {
    const State behind = automaton.next(from, static_cast<uint8_t>(byte));
    if (behind == Automaton::none || (more == 0 && behind != to)) return false;
    if (more > 0 && behind != seen && !all_lead(automaton, behind, 0x80, 0xbf, more - 1, to)) return false;
    seen = behind;
  }
  return true;
}

bool all_beyond_ascii_lead(Automaton& automaton, State from, State to) {
  return std::ranges::all_of(encodings, [&](const Encoding& each) {
    for (int lead = each.first; lead <= each.last; ++lead) {
      const State behind = automaton.next(from, static_cast<uint8_t>(lead));
      if (behind == Automaton::none || !all_lead(automaton, behind, each.low, each.high, each.more, to)) return false;
    }
    return true;
  });
}

bool reads_none(Automaton& automaton, State state, const CharacterSet& set) {
  const auto reads = [&](int byte) { return automaton.next(state, static_cast<uint8_t>(byte)) != Automaton::none; };
  for (int byte = 0; byte < static_cast<int>(all_beyond); ++byte)
    if (set.test(static_cast<size_t>(byte)) && reads(byte)) return false;
  for (int lead = first_lead; set.test(all_beyond) && lead <= last_lead; ++lead)
    if (reads(lead)) return false;
  return true;
}

} // namespace

bool consists_of(std::string_view text, const CharacterSet& set) {
  return std::ranges::all_of(
      text, [&](char byte) { return set.test(std::min<size_t>(static_cast<uint8_t>(byte), all_beyond)); });
}

const CharacterRuns::Step& CharacterRuns::step(Automaton& automaton, State state) {
  const auto [found, is_new] = steps_.try_emplace(state, Step{{}, Automaton::none});
  if (!is_new) return found->second;
  std::map<State, CharacterSet> sets;
  for (int byte = 0; byte < static_cast<int>(all_beyond); ++byte)
    if (const State next = automaton.next(state, static_cast<uint8_t>(byte)); next != Automaton::none)
      sets[next].set(static_cast<size_t>(byte));
  Step& step = found->second;
  for (const auto& [next, set] : sets)
    if (set.count() > step.set.count()) step = {set, next};
  if (step.next != Automaton::none && all_beyond_ascii_lead(automaton, state, step.next)) step.set.set(all_beyond);
  return step;
}

std::optional<CharacterRuns::Run> CharacterRuns::of(Automaton& automaton, State state, size_t most) {
  constexpr size_t small = 26; // letters
  const Step& first = step(automaton, state);
  if (first.set.count() < small) return {};
  Run run{first.set, 0, false};
  for (; run.length < most; ++run.length) {
    const Step& next = step(automaton, state);
    if (next.set != run.set) break;
    if (next.next == state) return Run{run.set, most, false};
    state = next.next;
  }
  run.is_longest = run.length < most && reads_none(automaton, state, run.set);
  return run;
}

} // namespace fvlm::grammar
