// Allowance: the limit on instructions, memory and time for turning a recipe file into a Plan. Everything on the way is
// charged to it: running Lua, sampling schedules and weights that are functions, and reading the returned values in
// C++.
#pragma once
#include "recipe/value.h"

#include <chrono>
#include <cstdint>
#include <optional>

namespace fvlm::recipe {

struct Limits {
  uint64_t instructions = 50'000'000; // VM instructions, and an equivalent charge for string operations and allocation
  uint64_t memory_bytes = 256 << 20;
  int nesting = 100;               // of tables in the result
  double seconds = 10;             // wall-clock time, as a last resort
  uint64_t source_bytes = 4 << 20; // of all Lua files together
  uint64_t values = 100'000;       // in the result, counting tables and their entries
  // When `seconds` are over, where they began before.
  std::optional<std::chrono::steady_clock::time_point> deadline = {};
};

class Allowance {
 public:
  explicit Allowance(const Limits& limits = {});

  // Throws Error(recipe) at `place` once a limit is exceeded, and on every later call.
  void charge(const Origin& place, uint64_t instructions, uint64_t bytes = 0);
  bool exhausted() const { return exhausted_; }
  // `max`, reduced to what remains.
  Limits remaining(Limits max) const;

  const Limits& limits() const { return limits_; }
  uint64_t spent() const { return spent_; } // in instructions

 private:
  Limits limits_;
  uint64_t spent_ = 0, bytes_ = 0;
  bool exhausted_ = false;
  std::chrono::steady_clock::time_point deadline_;
};

} // namespace fvlm::recipe
