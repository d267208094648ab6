// Exports a model directory as GGUF: model.gguf with the decoder and its tokenizer, and mmproj.gguf with the encoder
// and the connector, as llama.cpp reads them.
#pragma once
#include "gguf/element_type.h"
#include "model/weights/transfer.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace fvlm::gguf {

struct ExportRequest {
  std::filesystem::path model, out; // a model directory, and a folder that does not exist yet
  const ElementType* type = nullptr;
  bool decoder_only = false; // without mmproj.gguf
};

struct ExportReport {
  struct FileReport {
    std::string name;
    uint64_t parameters = 0, bytes = 0;      // of its tensors
    std::map<std::string, uint64_t> tensors; // how many of each element type
  };
  std::vector<FileReport> files;
  std::map<std::string, uint64_t> overflowed; // tensor -> finite numbers that became infinite
};

// Checks the checksums of the model first. Throws Error(data) for a model that llama.cpp does not know, or knows
// otherwise than it was trained.
ExportReport export_model(const ExportRequest& request, const TransferProgress& progress);

} // namespace fvlm::gguf
