// What became of the samples of a stage: how many were read, used, truncated, and skipped for which reason.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fvlm {

// Why a sample is not used. The order is part of checkpoints: more go to the end.
enum class SkipReason {
  text,      // its JSON, text or fields are broken, or a member of it is missing
  media,     // its image or video cannot be decoded
  overlong,  // the recipe drops texts longer than max_text_tokens
  no_answer, // max_text_tokens left nothing of its answer, or flags say not to learn it
  too_large, // it fits into no pack
  frames,    // its images or its video have more frames than max_frames
};
inline constexpr size_t skip_reasons = 6;

// As in metrics ("skipped.media"), and for people ("image or video").
const char* name_of(SkipReason reason);
const char* words_of(SkipReason reason);

struct Cursor;

struct SampleCounts {
  int64_t read = 0, used = 0; // read: used and skipped
  int64_t cut = 0;            // of those used, with a text that max_text_tokens truncated
  std::array<int64_t, skip_reasons> skipped{};

  int64_t all_skipped() const { return read - used; }
  // "12,000 samples read, 11,990 used, 10 skipped (8 image or video, 2 overlong), 40 truncated to max_text_tokens".
  std::string text() const;
};

// For metrics: "samples_read", "samples_used", "samples_truncated", and "skipped.media" where some are.
std::vector<std::pair<std::string, double>> numbers_of(const SampleCounts& counts);
// Takes in one of those numbers; false: it is none.
bool take_number(SampleCounts& counts, std::string_view name, double number);

// Of the stage, up to the cursor.
SampleCounts sample_counts(const Cursor& cursor);

// Throws Error(data) where there is none to learn from.
void require_used(const Cursor& cursor, const std::string& stage);

} // namespace fvlm
