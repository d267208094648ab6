// tower_probe vision|bytes|decoder FOLDER IN OUT: one tower of a Hugging Face folder by itself. IN holds `frames`, with
// `grids` [images, 2] where they are cells of images and those behind the last image padding, or `ids` with `lengths`
// (bytes, of which those behind the last text are padding), and `d_hidden`, what flows back into the last hidden
// states; OUT gets `hidden`, and every gradient.
#include "../ops/tools.h"
#include "model/decoder/llama/llama.h"
#include "model/encoder/encoder.h"
#include "model/loading.h"
#include "model/pack.h"
#include "ops/rows.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/unbind.h>
#include <fmt/format.h>

#include <algorithm>

using namespace fvlm;
using namespace fvlm::model;
using at::Tensor;

namespace {

struct Tower {
  Tower(const WeightLayout& layout, const std::string& folder, const std::vector<FusedNames>& read_together,
        const HuggingFaceFolder& source)
      : parameters(blocks_of(layout, folder, read_together), {}) {
    registry.add_static(ops::reference_manifest(), [] { return &ops::reference_entry; });
    operations.emplace(registry, ops::OperationsOptions{});
    const auto views = bind(*source.weights, layout);
    for (size_t i = 0; i < views.size(); ++i)
      if (layout.tensors[i].parameter)
        parameters.at(folder + layout.tensors[i].name).value.copy_(tensor_over(*views[i]));
  }
  Registry registry{RegistryOptions{}};
  std::optional<Operations> operations;
  Parameters parameters;
};

void finish(Tower& tower, Tape& tape, const Value& hidden, const Safetensors& in, const std::string& folder,
            const std::string& out) {
  std::map<std::string, Tensor> all{{"hidden", hidden.data}};
  hidden.gradient->add(tensor_over(in.at("d_hidden")).clone());
  tape.backward();
  tower.parameters.zero_missing_gradients();
  for (const auto& parameter : tower.parameters.all())
    if (parameter.gradient.defined()) all[parameter.name.substr(folder.size())] = parameter.gradient;
  write_tensors(out, all);
}

void probe_vision(const std::string& path, const Safetensors& in, const std::string& out) {
  const auto source = HuggingFaceFolder::open(path);
  const VisionConfig config = read_vision_config(source.config, path);
  Tower tower(layout_of(config), "vision.", fused_weights(config), source);
  const auto encoder = make_encoder(config, tower.parameters);
  const Tensor frames = tensor_over(in.at("frames"));
  const int64_t count = frames.size(0), rows = encoder->tokens_per_frame(frames.size(2), frames.size(3));
  Segments tokens{at::arange(count + 1, at::kInt) * rows, {}, rows};
  PackMaps maps;
  if (encoder->reads_cells()) {
    CellLayout layout{{}, count};
    std::vector<int64_t> lengths;
    for (const Tensor& grid : tensor_over(in.at("grids")).unbind()) {
      layout.images.push_back({grid[0].item<int64_t>(), grid[1].item<int64_t>()});
      lengths.push_back(layout.images.back().cells() * rows);
    }
    tokens = model::segments_of(lengths, std::ssize(lengths) + 1, count * rows,
                                *std::max_element(lengths.begin(), lengths.end()), at::kCPU);
    encoder->add_maps(maps, layout);
  }
  Tape tape;
  finish(tower, tape, encoder->forward(tape, *tower.operations, frames, tokens, maps), in, "vision.", out);
}

Segments segments_of(const Tensor& lengths, int64_t rows) {
  std::vector<int64_t> each;
  for (int64_t i = 0; i < lengths.numel(); ++i) each.push_back(lengths[i].item<int64_t>());
  return model::segments_of(each, std::ssize(each), rows, *std::max_element(each.begin(), each.end()), at::kCPU);
}

void probe_bytes(const std::string& path, const Safetensors& in, const std::string& out) {
  const auto source = HuggingFaceFolder::open(path);
  const VisionConfig config = read_vision_config(source.config, path);
  Tower tower(layout_of(config), "vision.", fused_weights(config), source);
  const auto encoder = make_encoder(config, tower.parameters);
  const Tensor ids = tensor_over(in.at("ids"));
  Tape tape;
  finish(tower, tape,
         encoder->forward(tape, *tower.operations, ids, segments_of(tensor_over(in.at("lengths")), ids.numel()), {}),
         in, "vision.", out);
}

void probe_decoder(const std::string& path, const Safetensors& in, const std::string& out) {
  const auto source = HuggingFaceFolder::open(path);
  const DecoderConfig config = read_decoder_config(source.config, path);
  Tower tower(layout_of(config), "decoder.", fused_weights(config), source);
  const Llama llama(config, tower.parameters, "decoder");
  const Tensor ids = tensor_over(in.at("ids")), lengths = tensor_over(in.at("lengths"));
  const Segments segments = segments_of(lengths, ids.numel());
  Tape tape;
  const Value x =
      ops::embed(tape, llama.embedding(), {}, {ids, at::ones({ids.numel(), 1}), {}}, tower.operations->options().dtype);
  finish(tower, tape, llama.forward(tape, *tower.operations, x, segments, {}, false, {}), in, "decoder.", out);
}

} // namespace

int main(int count, char** words) {
  if (count != 5) return 2;
  try {
    const Safetensors in = Safetensors::open(words[3]);
    const std::string_view what = words[1];
    (what == "vision" ? probe_vision : what == "bytes" ? probe_bytes : probe_decoder)(words[2], in, words[4]);
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "error: {}\n", error.text());
    return error.exit_code();
  }
}
