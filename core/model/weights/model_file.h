// fvlm.json of a model directory: what it is, where it comes from, its parts, and a checksum for each tensor.
#pragma once
#include "model/weights/connector.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fvlm {

// What a part does in a model. A model may have several parts of a role.
enum class Role { encoder, connector, decoder };
const char* name_of(Role role); // "encoder"

struct ModelFile {
  static constexpr const char* name = "fvlm.json";
  // Format 1 has no list of parts: it always has vision/, connector.safetensors and decoder/. It is read, not written.
  static constexpr int64_t format_version = 2;

  struct Part {
    std::string name; // before the names of its tensors: "vision" in "vision.layernorm.weight"
    Role role = Role::encoder;
    std::string location;         // in the directory: a Hugging Face folder; of a connector its safetensors file
    std::string model_type;       // of an encoder or decoder; empty: config.json alone says it
    ConnectorConfig connector;    // of a connector
    std::string encoder, decoder; // of a connector: the parts that it stands between; empty: the only one of that role
    // Of a part with adapters, which `location` holds: where its frozen weights are.
    struct Base {
      std::string folder;
      uint64_t checksum = 0;
    };
    std::optional<Base> base;
  };

  std::string model, stage, plan_hash;
  int64_t step = 0;
  std::vector<Part> parts;
  // XXH64 of each tensor's bytes, by the name that starts with its part. It finds damage; against an adversary no
  // checksum in the same folder would help. None: the directory was put together by another program, which may leave
  // out all but format_version and the parts.
  std::optional<std::map<std::string, uint64_t, std::less<>>> checksums;

  static ModelFile read(const std::filesystem::path& folder);
  // Of a model that has one part of the role. Throws Error(data) at `folder` for others.
  const Part& sole_part(Role role, const std::filesystem::path& folder) const;
  std::string text() const;
};

// The Hugging Face folder of a model directory's decoder, with its tokenizer. Throws Error(data) unless there is one
// decoder.
std::filesystem::path decoder_folder(const std::filesystem::path& model);
// The folder of its encoder; nothing unless it has exactly one.
std::optional<std::filesystem::path> encoder_folder(const std::filesystem::path& model);

} // namespace fvlm
