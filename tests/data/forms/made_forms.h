// The same samples in every form in which data lie on disk.
#pragma once
#include "../samples/sample_maker.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::test {

inline constexpr int made_samples = 24;

// "jsonl", "json", "folder", "imagefolder", "jsonl.gz", "jsonl.zst", "parquet".
const std::vector<std::string>& made_forms();

// Writes the samples to `folder` and returns what a recipe names. Sample 6 has half of an image and sample 9 no answer;
// the others answer "number 7", as "7" is their number.
fs::path write_form(const std::string& form, const fs::path& folder);

std::string gzip(std::string_view bytes);
std::string zstandard(std::string_view bytes);
// What a model would get of the i-th sample; 0: it is broken, which `reason` says.
uint64_t digest_of(const Shard& shard, int64_t i, std::string& reason);

} // namespace fvlm::test
