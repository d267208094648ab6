// Model directories out of other folders, and other folders out of them: import from Hugging Face folders, export in
// another element type or as the folder that a model was imported from.
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
  std::vector<std::string> new_tokens = {}; // that the decoder gets, see new_tokens.h
  // Throws to refuse folders whose models are right; may be empty.
  std::function<void(const ModelDescription&)> check_before_writing;
};

// Of a folder of one model that has an encoder, a connector and a decoder: see whole_model.h.
struct WholeImportRequest {
  std::filesystem::path model, out;
  std::optional<DType> dtype; // none: as it is
  std::string name;
  std::vector<std::string> new_tokens = {}; // that the decoder gets, see new_tokens.h
  // Throws to refuse a folder whose model is right; may be empty.
  std::function<void(const ModelDescription&, int64_t image_token_id)> check_before_writing;
};

struct TransferReport {
  struct PartReport {
    std::string name;
    uint64_t parameters = 0, bytes = 0;
    std::map<DType, uint64_t> tensors; // how many of each element type
  };
  std::vector<PartReport> parts;
  std::map<std::string, uint64_t> overflowed; // tensor -> finite numbers that became infinite
  std::map<std::string, uint64_t> not_finite; // tensor -> numbers that were infinite or NaN before
  // Quantized weights that are stored as plain numbers, by the form in which they were.
  struct Dequantized {
    uint64_t weights = 0, bytes_before = 0, bytes = 0; // of their codes; as they are stored now
  };
  std::map<std::string, Dequantized> dequantized;
};

TransferReport import_model(const ImportRequest& request, const TransferProgress& progress);
TransferReport import_whole_model(const WholeImportRequest& request, const TransferProgress& progress);

// Checks the checksums of `model` first.
TransferReport export_model(const std::filesystem::path& model, const std::filesystem::path& out, DType dtype,
                            const TransferProgress& progress);
// In the form of the folder that `model` was imported from. dtype: none: as it is.
TransferReport export_whole_model(const std::filesystem::path& model, const std::filesystem::path& out,
                                  std::optional<DType> dtype, const TransferProgress& progress);

} // namespace fvlm
