// Allowance: the work, memory and time that everything between a recipe's file and its Plan shares: Lua, the schedules
// and weights that are functions, and what C++ does with the values that the recipe returned.
#pragma once
#include "recipe/value.h"

#include <chrono>
#include <cstdint>

namespace fvlm::recipe {

struct Limits {
  uint64_t instructions = 50'000'000; // VM instructions and an equivalent charge for string work and allocation
  uint64_t memory_bytes = 256 << 20;
  int nesting = 100;               // tables within tables of the result
  double seconds = 10;             // wall clock, a last resort
  uint64_t source_bytes = 4 << 20; // all Lua files together
  uint64_t values = 100'000;       // of the result; a table counts, and each entry
};

class Allowance {
 public:
  explicit Allowance(const Limits& limits = {});

  // Throws Error(recipe) at `place` where more was spent than there is, each time from then on.
  void charge(const Origin& place, uint64_t instructions, uint64_t bytes = 0);
  bool exhausted() const { return exhausted_; }
  // `most`, reduced to what is left.
  Limits left(Limits most) const;

  const Limits& limits() const { return limits_; }
  uint64_t spent() const { return spent_; } // instructions

 private:
  Limits limits_;
  uint64_t spent_ = 0, bytes_ = 0;
  bool exhausted_ = false;
  std::chrono::steady_clock::time_point deadline_;
};

} // namespace fvlm::recipe
