// Model directories out of other folders: import from two Hugging Face folders, export in another element type.
#pragma once
#include "model/weights/model_directory.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fvlm {

// Called now and then with the bytes written so far and in all.
using TransferProgress = std::function<void(uint64_t done, uint64_t total)>;

struct ImportRequest {
  std::filesystem::path vision, decoder, out;
  std::optional<std::filesystem::path> connector;               // safetensors; none: fresh from the seed
  ConnectorConfig connector_config = plan::default_connector(); // sizes are those of `connector` where there is one
  uint64_t seed = 42;
  std::optional<DType> dtype; // none: encoder and decoder as they are, the connector as in its file or F32
  std::string name;
  std::function<void()> check_before_writing; // throws to refuse folders whose models are right; may be empty
};

struct TransferReport {
  struct PartReport {
    std::string name;
    uint64_t parameters = 0, bytes = 0;
    std::map<DType, uint64_t> tensors; // how many of each element type
  };
  std::vector<PartReport> parts;
  std::map<std::string, uint64_t> overflowed; // tensor -> finite numbers that became infinite
};

TransferReport import_model(const ImportRequest& request, const TransferProgress& progress);

// Checks the checksums of `model` first.
TransferReport export_model(const std::filesystem::path& model, const std::filesystem::path& out, DType dtype,
                            const TransferProgress& progress);

} // namespace fvlm
