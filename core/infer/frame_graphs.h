// FrameGraphs: encodes the frames of samples that have one frame each, as most questions about pictures do, as CUDA
// graphs. Their number is padded to one of a few sizes, each with a pack of its own on the device, in which only the
// frames change.
#pragma once
#include "model/model.h"
#include "ops/graph_cache.h"

#include <array>
#include <map>
#include <memory>
#include <span>

namespace fvlm::infer {

class FrameGraphs {
 public:
  // Both outlive it.
  FrameGraphs(const model::Model& model, model::Operations& ops) : model_(model), ops_(ops) {}

  // The visual tokens of frames [3, H, W] of one size, each as that of a sample with one frame: [frames * rows of a
  // frame, width]. Does not wait for the device where the frames are in pinned memory.
  at::Tensor encode(std::span<const at::Tensor> frames);
  // Captures a graph of every size, so that no frames [3, H, W] of these have to wait for that, but for sizes
  // that do not fit into memory.
  void prepare(int64_t height, int64_t width);

 private:
  struct Graph {
    explicit Graph(model::Pack made) : pack(std::move(made)), cache("an encoding pass", true) {}
    model::Pack pack;
    ops::GraphCache cache;
    at::Tensor tokens;
  };
  std::unique_ptr<Graph> make_graph(int64_t frames, int64_t height, int64_t width) const;
  at::Tensor encode_together(std::span<const at::Tensor> frames);

  const model::Model& model_;
  model::Operations& ops_;
  std::map<std::array<int64_t, 3>, std::unique_ptr<Graph>> graphs_; // by number of frames, height and width
};

} // namespace fvlm::infer
