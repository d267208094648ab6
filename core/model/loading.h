// From the bytes of safetensors to tensors, and from a model directory to a model.
#pragma once
#include "model/model.h"
#include "model/weights/attached_adapter.h"

#include <filesystem>
#include <functional>

namespace fvlm::model {

at::ScalarType scalar_type(DType dtype);
DType dtype_of(at::ScalarType type);

// Over the mapped bytes where they are aligned, else a copy.
at::Tensor tensor_over(const TensorView& view);

// What a parameter's file has, with its rows as the parameter has them; and the way back, of the parameter's value or
// of another tensor with its rows, such as the gradient.
at::Tensor in_memory(const ops::Parameter& parameter, const at::Tensor& of_file);
at::Tensor in_file(const ops::Parameter& parameter, const at::Tensor& rows);

// Of a model with one encoder, one connector, and the decoders that read it.
ModelConfig config_of(const ModelDescription& description);

// Reads every parameter of the model from its directory, in the model's dtype. Lets go of each file page it has read.
std::unique_ptr<Model> load_model(const ModelDirectory& directory, const ArenaOptions& options);
std::unique_ptr<Model> load_model(const std::filesystem::path& folder, const ArenaOptions& options);
// In the mode of the connector that a word on the command line names, which may change the connector's settings.
// Throws Error(usage) for another word.
struct ModelInMode {
  std::unique_ptr<Model> model;
  std::string mode;
};
ModelInMode load_model_in_mode(const std::filesystem::path& folder, const ArenaOptions& options, std::string_view mode);

// The parameter of the directory that the model calls `name`: the model has names of its own for its encoder and its
// decoders, and none for the connector.
const fvlm::Parameter& find_parameter(const ModelDirectory& directory, const std::string& name);

// Into a model of the same parts: all, or those that are wanted. Throws Error(data) where they do not fit.
using IsWanted = std::function<bool(const ops::Parameter& parameter)>;
void load_weights(const ModelDirectory& directory, Model& model, const IsWanted& is_wanted = {});

// The model with an adapter that was read beside it, in the memory of the model but for what differs.
std::unique_ptr<Model> load_attached(const AttachedAdapter& adapter, const ModelDirectory& directory,
                                     const Model& model, const ArenaOptions& options);

// A quantized weight: codes and scales as a file has them, to what fvlm/quantizer.h lays out.
void load_packed(const TensorView& codes, const TensorView& scale, const std::string& file, ops::Parameter& parameter);

// Writes tensors of any device and layout as one file.
void write_tensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors);

} // namespace fvlm::model
