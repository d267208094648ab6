#include "recipe/allowance.h"

#include "base/error.h"
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace fvlm::recipe {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void refuse(const Origin& place, const std::string& limit) {
  throw Error(ErrorKind::recipe, fmt::format("the recipe and its functions take more than {}", limit))
      .at(where(place))
      .advise("a recipe describes a run and computes little: fewer stages and sources, shorter functions");
}

} // namespace

Allowance::Allowance(const Limits& limits)
    : limits_(limits),
      deadline_(Clock::now() +
                std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limits.seconds))) {}

void Allowance::charge(const Origin& place, uint64_t instructions, uint64_t bytes) {
  spent_ += instructions;
  bytes_ += bytes;
  exhausted_ = true; // unless this comes to its end
  if (spent_ > limits_.instructions)
    refuse(place, fmt::format("{} instructions", grouped(static_cast<int64_t>(limits_.instructions))));
  if (bytes_ > limits_.memory_bytes) refuse(place, human_bytes(limits_.memory_bytes) + " of memory");
  if (Clock::now() > deadline_) refuse(place, fmt::format("{} seconds", limits_.seconds));
  exhausted_ = false;
}

Limits Allowance::left(Limits most) const {
  const auto rest = [](uint64_t all, uint64_t taken) { return all > taken ? all - taken : 0; };
  most.instructions = std::min(most.instructions, rest(limits_.instructions, spent_));
  most.memory_bytes = std::min(most.memory_bytes, rest(limits_.memory_bytes, bytes_));
  most.seconds = std::min(most.seconds, std::chrono::duration<double>(deadline_ - Clock::now()).count());
  return most;
}

} // namespace fvlm::recipe
