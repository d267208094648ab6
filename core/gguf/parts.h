// The files of an export, by what they are made of.
#pragma once
#include "gguf/file.h"
#include "model/weights/model_directory.h"

#include <filesystem>

namespace fvlm::gguf {

File decoder_file(const ModelDirectory& model, const ElementType& type); // model.gguf
File vision_file(const ModelDirectory& model, const ElementType& type);  // mmproj.gguf

// The keys of the tokenizer in the decoder's folder: a token for each of the `vocabulary` rows of the embedding.
// `end_tokens`: those after which nothing follows.
void add_tokenizer(File& file, const std::filesystem::path& folder, int64_t vocabulary,
                   const std::vector<int64_t>& end_tokens);

// `type`, or what is next to it for a tensor of this shape: vectors keep every bit, and rows that are no whole blocks
// are f16.
const ElementType& fitting_type(const ElementType& type, const std::vector<int64_t>& shape);

} // namespace fvlm::gguf
