// Tensors of a folder that are the rows of several of the model's one below the other, as the queries, keys and values
// of an InternVL in the form of its authors: divided when the folder is opened, and joined when one is written.
#pragma once
#include "model/weights/whole_model.h"

#include <nlohmann/json.hpp>

#include <filesystem>

namespace fvlm {

// The file with the parts in place of each fused tensor. Throws Error(data) for one that is quantized, or whose rows
// the parts do not share evenly.
Safetensors with_divided(const Safetensors& file, const std::vector<WholeModelFamily::Fused>& fused);

// The names of the fused tensors of a file, as whole_model.json keeps them.
nlohmann::json fused_names(const Safetensors& file, const std::vector<WholeModelFamily::Fused>& fused);

// Puts the tensors of these names in place of their parts, but where a part is quantized: transformers reads the parts
// as well. Throws Error(data) at `where` for a name that the family does not have.
void join(WholeModelForm& form, const nlohmann::json& names, const std::vector<WholeModelFamily::Fused>& fused,
          const std::filesystem::path& where);

} // namespace fvlm
