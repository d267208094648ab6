// The manifest of a preprocessed folder: its inputs, to detect stale folders, and the list of its shards.
#pragma once
#include "data/preprocess.h"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace fvlm {

struct PreprocessedShard {
  std::string file; // below the folder: "0/00012.tar"
  uint64_t bytes = 0;
  int64_t samples = 0;
};

struct PreprocessManifest {
  std::vector<std::vector<PreprocessedShard>> sources;
  int64_t broken = 0;
};

// Describes the inputs: settings, the hashes of the tokenizer and of the chat template, and content_hash() of each
// source.
nlohmann::json made_from(const PreprocessInput& input);

void write_manifest(const std::filesystem::path& folder, const nlohmann::json& made_from,
                    const PreprocessManifest& manifest);

// Whether the folder was written by `preprocess`.
bool has_manifest(const std::filesystem::path& folder);
void remove_manifest(const std::filesystem::path& folder);

} // namespace fvlm
