#include "cli/progress.h"

#include "base/text.h"

#include <fmt/format.h>

#include <unistd.h>
#include <utility>

namespace fvlm::cli {

Progress::Progress(std::string label) : label_(std::move(label)), line_(STDERR_FILENO) {}

void Progress::bytes(uint64_t done, uint64_t total) {
  if (line_.due()) line_.show(fmt::format("{}: {} of {}", label_, human_bytes(done), human_bytes(total)));
}

void Progress::steps(const std::string& what, int64_t done, int64_t total) {
  if (line_.due()) line_.show(fmt::format("{} {}: {} of {} steps", label_, what, done, total));
}

void Progress::samples(int64_t done, int64_t total) {
  if (line_.due()) line_.show(fmt::format("{}: {} of {} samples", label_, done, total));
}

} // namespace fvlm::cli
