#include "quantize/weight_schemes.h"

#include "base/error.h"
#include "base/text.h"
#include "budget/parameter_groups.h"
#include "model/weights/blocks.h"
#include "quantize/own_head.h"

namespace fvlm::quantize {
namespace {

// Weights that one product reads are of one scheme, or none is quantized.
void require_whole_blocks(const ModelDescription& description, const WeightSchemes& schemes) {
  for (const ModelPart& part : description.parts) {
    std::vector<FusedNames> fused;
    if (const auto* encoder = std::get_if<VisionConfig>(&part.config)) fused = fused_weights(*encoder);
    if (const auto* decoder = std::get_if<DecoderConfig>(&part.config)) fused = fused_weights(*decoder);
    for (const ParameterBlock& block : blocks_of(description.layout(part), part.name + ".", fused))
      for (const ParameterSpec& spec : block)
        if (schemes.contains(spec.name) != schemes.contains(block.front().name))
          throw Error(ErrorKind::usage, "{} and {} are read as one matrix: quantize both or neither",
                      block.front().name, spec.name)
              .advise("let --skip name both");
  }
}

// A connector never quantizes activations. A head does where the layers do, since a config.json is read that says the
// same of all modules of a part.
const PackedScheme& scheme_of(const plan::Quantization& quantization, Role role, bool is_head) {
  const PackedScheme& layers = packed_scheme(quantization.scheme);
  if (is_head) {
    const PackedScheme& head = packed_scheme(quantization.head);
    if (layers.quantizes_activations && head.bits != layers.bits)
      throw Error(ErrorKind::usage, "--head {} with activations in int8: expected --head int8", head.name)
          .advise("leave out --activations, or w8a8 of --schemes");
    return head.bits == layers.bits ? layers : head;
  }
  return role == Role::connector && layers.quantizes_activations ? packed_scheme("int8") : layers;
}

} // namespace

std::string head_scheme(const std::string& name) {
  const PackedScheme* scheme = find_packed_scheme(name);
  if (!scheme || scheme->quantizes_activations)
    throw Error(ErrorKind::usage, "--head: expected int8 or int4, got '{}'", name);
  return name;
}

ModelDescription description_of(const ModelDirectory& directory, const plan::Quantization& quantization) {
  ModelDescription description = directory.description();
  if (!quantization.head.empty()) give_own_heads(description);
  return description;
}

WeightSchemes weight_schemes(const ModelDescription& description, const plan::Quantization& planned) {
  const auto quantization = budget::with_indices(planned, budget::parameter_names(description));
  WeightSchemes schemes;
  for (const ModelPart& part : description.parts)
    for (const TensorSpec& spec : description.layout(part).tensors) {
      const std::string name = part.name + "." + spec.name;
      if (spec.parameter && budget::is_quantized(quantization, name, spec.shape))
        schemes.emplace(name, &scheme_of(quantization, part.role(), is_packable_head(name, spec.shape)));
    }
  if (schemes.empty())
    throw Error(ErrorKind::usage, "every linear weight is skipped: there is nothing to quantize")
        .advise("narrow the patterns of --skip");
  require_whole_blocks(description, schemes);
  return schemes;
}

} // namespace fvlm::quantize
