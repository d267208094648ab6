#include "patch_encoder.h"

#include "model/flops.h"

#include <ATen/TensorOperators.h>

namespace fvlm {
namespace {

VisionConfig read(ConfigReader& reader, const std::string& model_type) {
  VisionConfig out;
  out.model_type = model_type;
  out.hidden_size = reader.whole("hidden_size", {}, 1, most_features);
  out.patch_size = reader.whole("patch_size", {}, 1);
  out.num_channels = 3;
  return out;
}

nlohmann::json write(const VisionConfig& config) {
  return {{"hidden_size", config.hidden_size}, {"patch_size", config.patch_size}};
}

WeightLayout layout(const VisionConfig& config) {
  const int64_t pixels = config.num_channels * config.patch_size * config.patch_size;
  WeightLayout out;
  out.tensors = {{"projection.weight", {config.hidden_size, pixels}, {Initializer::Kind::normal, 0.02}},
                 {"projection.bias", {config.hidden_size}, {}}};
  return out;
}

int64_t token_count(const VisionConfig& config, int64_t height, int64_t width) {
  return height / config.patch_size * (width / config.patch_size);
}

} // namespace

EncoderFamily patches_family() {
  return {.name = "patches",
          .types = {{"toy_patches", "ToyPatches"}, {"toy_patches_2", "ToyPatches2"}},
          .read = read,
          .write = write,
          .layout = layout,
          .fused_weights = {},
          .tokens_per_frame = token_count};
}

namespace model {
namespace {

class Patches : public Encoder {
 public:
  Patches(const VisionConfig& config, Parameters& parameters)
      : config_(config), projection_{parameters.weight("vision.projection.weight"),
                                     parameters.weight("vision.projection.bias")} {}

  int64_t width() const override { return config_.hidden_size; }
  int64_t tokens_per_frame(int64_t height, int64_t image_width) const override {
    return fvlm::tokens_per_frame(config_, height, image_width);
  }
  Value forward(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments&,
                const PackMaps&) const override {
    const int64_t edge = config_.patch_size, pixels = config_.num_channels * edge * edge;
    const at::Tensor patches =
        frames.unfold(2, edge, edge).unfold(3, edge, edge).permute({0, 2, 3, 1, 4, 5}).reshape({-1, pixels});
    return ops.linear(tape, Value(patches), projection_.weight, projection_.bias);
  }
  double flops(int64_t tokens, bool trains) const override {
    const int64_t pixels = config_.num_channels * config_.patch_size * config_.patch_size;
    return with_backward(ForwardFlops{product_flops(pixels, width()), 0} * static_cast<double>(tokens), trains, false);
  }
  bool trains() const override { return projection_.weight.requires_grad(); }

 private:
  VisionConfig config_;
  ops::Operations::Layer projection_;
};

} // namespace

std::unique_ptr<Encoder> patches_encoder(const VisionConfig& config, Parameters& parameters) {
  return std::make_unique<Patches>(config, parameters);
}

} // namespace model
} // namespace fvlm
