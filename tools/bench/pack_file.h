// Packs as batch files, which `trace` and PyTorch read too.
#pragma once
#include "train/synthetic_pack.h"

#include <filesystem>

namespace fvlm::bench {

struct PackOfFile {
  train::SyntheticPack pack;
  int64_t image_size = 0;
};
// Reads a batch with labelled texts and square frames. Throws Error(data).
PackOfFile read_pack(const std::filesystem::path& file, int64_t vocabulary);

void write_pack(const train::SyntheticPack& pack, int64_t image_size, const std::filesystem::path& file);

} // namespace fvlm::bench
