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
  throw Error(ErrorKind::recipe, "the recipe and its functions need more than {}", limit)
      .at(where(place))
      .advise("use fewer stages and sources or shorter functions: a recipe should describe a run and compute little");
}

} // namespace

Allowance::Allowance(const Limits& limits)
    : limits_(limits),
      deadline_(Clock::now() +
                std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limits.seconds))) {}

void Allowance::charge(const Origin& place, uint64_t instructions, uint64_t bytes) {
  spent_ += instructions;
  bytes_ += bytes;
  exhausted_ = true; // reset below if no limit is exceeded
  if (spent_ > limits_.instructions)
    refuse(place, fmt::format("{} instructions", grouped(static_cast<int64_t>(limits_.instructions))));
  if (bytes_ > limits_.memory_bytes) refuse(place, human_bytes(limits_.memory_bytes) + " of memory");
  if (Clock::now() > deadline_) refuse(place, fmt::format("{} seconds", limits_.seconds));
  exhausted_ = false;
}

Limits Allowance::remaining(Limits max) const {
  const auto rest = [](uint64_t limit, uint64_t used) { return limit > used ? limit - used : 0; };
  max.instructions = std::min(max.instructions, rest(limits_.instructions, spent_));
  max.memory_bytes = std::min(max.memory_bytes, rest(limits_.memory_bytes, bytes_));
  if (deadline_ - Clock::now() < std::chrono::duration<double>(max.seconds)) {
    max.seconds = limits_.seconds; // for messages
    max.deadline = deadline_;
  }
  return max;
}

} // namespace fvlm::recipe
