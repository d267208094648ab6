// Parameter groups by the names of parameters: which of them each belongs to, and which a stage trains.
#pragma once
#include "base/error.h"
#include "model/weights/model_directory.h"
#include "recipe/plan.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fvlm::budget {

// Of a group, or else that of the key "default".
std::optional<double> number_of(const plan::ByGroup& numbers, const std::string& group);

// A parameter's name in the model directory: "connector.q_static" for the model's own "q_static".
std::string directory_name(const std::string& parameter);

// Names of a model's parameters in the model directory.
std::vector<std::string> parameter_names(const ModelDescription& description);

// Patterns with an index in place of each that counts from the end: "decoder.model.layers.-1.*" is the last of what the
// model's parameters, by their names, have at that place. Without those that count beyond the first.
std::vector<std::string> with_indices(const std::vector<std::string>& patterns, const std::vector<std::string>& names);
// The same for the patterns of a recipe's groups, and of what its quantization skips.
plan::Model with_indices(plan::Model model, const std::vector<std::string>& names);
plan::Quantization with_indices(plan::Quantization quantization, const std::vector<std::string>& names);

// The group of a parameter by its name in the model directory: the recipe's own groups, of which no pattern counts from
// the end, go before connector, vision and decoder. Throws Error(recipe) where two patterns match it.
std::string group_of(const plan::Model& model, const std::string& name);

bool trains(const plan::Stage& stage, const std::string& group);

// Whether fvlm.muon leaves a parameter of a group, by its name in the model directory, to AdamW (`others`): what is no
// matrix inside a layer, and all of the groups that it does not update. Never with another optimizer.
bool is_of_others(const plan::Optimizer& optimizer, const std::string& group, const std::string& name,
                  std::span<const int64_t> shape);

// Base learning rate of a group's parameters: of those that the stage's optimizer updates itself, or of those that it
// leaves to `others`. Throws Error(recipe) where it has none.
double base_rate(const plan::Optimizer& optimizer, const std::string& group, bool of_others);

// Throws Error(recipe): nothing is in this group of the recipe's.
[[noreturn]] void refuse_empty_group(const std::string& group);

// Whether a pattern of `skip`, which does not count from the end, matches a parameter or its module.
bool is_skipped(const std::string& pattern, const std::string& name);

// Throws an Error where a pattern of `skip` matches nothing of a model, by the names of its parameters: what it means
// to leave alone would be quantized. An output head may be tied to the embedding, which nobody quantizes.
void require_matches(const std::vector<std::string>& skip, const std::vector<std::string>& names,
                     ErrorKind kind = ErrorKind::recipe, const char* written_as = "quantization.skip");

// Whether a parameter computes through the recipe's quantizer where a stage is aware of it: a matrix that a vector is
// multiplied with and that nobody skips. Embeddings are looked up, a head that is tied to one with them. Of the
// quantization no pattern counts from the end.
bool is_quantized(const plan::Quantization& quantization, const std::string& name, std::span<const int64_t> shape);

// A group as a stage has it. Of what Muon leaves to AdamW `lr` is the rate where that is the whole group, and
// `others_lr` where it is a part.
struct GroupLine {
  std::string name;
  int64_t tensors = 0, parameters = 0;
  bool trained = false;
  std::optional<double> lr, others_lr, weight_decay; // of one that is trained
};

// Every group of the model that holds something, in the Plan's order. Throws as group_of(), and for a group whose
// patterns match nothing.
std::vector<GroupLine> group_lines(const plan::Model& model, const plan::Stage& stage,
                                   const ModelDescription& described);

} // namespace fvlm::budget
