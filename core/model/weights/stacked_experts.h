// Matrices of all experts of a layer in one tensor, as transformers has them in memory: X.experts.gate_up_proj, in
// which the rows of each expert's gate are above those of up, and X.experts.down_proj. Here each expert has tensors of
// its own: a folder's stacks are divided when it is opened, and joined when one is written.
#pragma once
#include "model/weights/whole_model.h"

#include <nlohmann/json.hpp>

#include <filesystem>

namespace fvlm {

// The file with a tensor for each matrix in place of the stacks, whose matrices may be transposed, as in published
// folders of Qwen3-VL. Their rows lie apart then, which not everything can read: `reads_transposed`. Throws Error(data)
// for stacks that do not fit each other.
Safetensors with_experts_apart(const Safetensors& file, bool reads_transposed);

// The stacks of a file by name, and whether each is transposed, as whole_model.json keeps them.
nlohmann::json stacks_of(const Safetensors& file);

// Puts these stacks in place of the matrices. Throws Error(data) at `where` for what stacks_of() cannot have written.
void stack_experts(WholeModelForm& form, const nlohmann::json& stacks, const std::filesystem::path& where);

} // namespace fvlm
