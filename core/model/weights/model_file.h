// fvlm.json of a model directory: what it is, where it comes from, and a checksum for each tensor.
#pragma once
#include "model/weights/connector.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace fvlm {

struct ModelFile {
  static constexpr const char* name = "fvlm.json";
  static constexpr int64_t format_version = 1;

  std::string model, stage, plan_hash;
  int64_t step = 0;
  ConnectorConfig connector = plan::default_connector();
  // XXH64 of each tensor's bytes, by the name that starts with its part. It finds damage; against an adversary no
  // checksum in the same folder would help. None: the directory was put together by another program, which may leave
  // out all but format_version and connector.
  std::optional<std::map<std::string, uint64_t, std::less<>>> checksums;

  static ModelFile read(const std::filesystem::path& folder);
  std::string text() const;
};

} // namespace fvlm
