#include "data/stream/check_samples.h"

#include "base/parallel.h"
#include "base/text.h"
#include "data/shards/retrying_file.h"
#include "data/stream/prefetcher.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm {
namespace {

constexpr int64_t samples_at_once = 512; // between two reports of progress

// As training would: measured, then decoded.
MeasuredSample tried(const SampleSource& source, const DrawnSample& drawn) {
  MeasuredSample measured = measure(source, drawn);
  if (!measured.sample || measured.sample->frames * source.frame_elements() == 0) return measured;
  try {
    std::vector<float> frames(static_cast<size_t>(measured.sample->distinct_frames() * source.frame_elements()));
    source.decode(drawn, *measured.sample, frames);
  } catch (const ReadError&) {
    throw;
  } catch (const Error& error) {
    measured.sample = nullptr;
    measured.skipped.reason = reason_of(error);
    measured.skipped.skip = SkipReason::media;
  }
  return measured;
}

} // namespace

int64_t CheckedSamples::broken() const {
  return std::ranges::count_if(skipped, &SkippedSample::broken);
}

std::string CheckedSamples::broken_text(size_t most) const {
  std::vector<std::string> lines;
  for (const SkippedSample& sample : skipped) {
    if (!sample.broken) continue;
    if (lines.size() == most) break;
    lines.push_back(fmt::format("{}: {}", place_of(sample), sample.reason));
  }
  return join(lines, "\n  ");
}

CheckedSamples check_samples(const SampleSource& source, const Order& order, int64_t most, int threads,
                             const std::function<void(int64_t done)>& progress) {
  CheckedSamples checked;
  auto state = order.begin();
  for (bool ended = false; !ended;) {
    std::vector<DrawnSample> drawn;
    while (std::ssize(drawn) < samples_at_once && (most == 0 || state.position < most)) {
      const auto next = order.next(state);
      if (!next) break;
      drawn.push_back(*next);
    }
    ended = drawn.empty();
    std::vector<MeasuredSample> all(drawn.size());
    in_parallel(std::ssize(drawn), threads_or_cores(threads), [&](int64_t i) {
      MeasuredSample& measured = all[static_cast<size_t>(i)];
      measured = tried(source, drawn[static_cast<size_t>(i)]);
    });
    for (MeasuredSample& measured : all) {
      ++checked.counts.read;
      if (measured.sample) {
        ++checked.counts.used;
        checked.counts.cut += measured.sample->truncated_tokens > 0;
      } else {
        ++checked.counts.skipped[static_cast<size_t>(measured.skipped.skip)];
        checked.skipped.push_back(std::move(measured.skipped));
      }
    }
    if (progress) progress(checked.counts.read);
  }
  return checked;
}

} // namespace fvlm
