#include "infer/frame_graphs.h"

#include "base/log.h"
#include "infer/captured.h"
#include "ops/out_of_memory.h"

#include <ATen/ops/concat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace fvlm::infer {
namespace {

// Operations are prepared, and a graph is captured, for each of these.
constexpr std::array<int64_t, 6> sizes = {1, 4, 8, 16, 32, 64};

} // namespace

at::Tensor FrameGraphs::encode(std::span<const at::Tensor> frames) {
  std::vector<at::Tensor> tokens;
  for (size_t begin = 0; begin < frames.size(); begin += static_cast<size_t>(sizes.back()))
    tokens.push_back(
        encode_together(frames.subspan(begin, std::min(static_cast<size_t>(sizes.back()), frames.size() - begin))));
  return tokens.size() == 1 ? tokens[0] : at::concat(tokens);
}

void FrameGraphs::prepare(int64_t height, int64_t width) {
  const at::Tensor blank = at::zeros({3, height, width}, at::kFloat);
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) { // the largest first, whose memory the others share
    const std::vector<at::Tensor> frames(static_cast<size_t>(*size), blank);
    try {
      for (int pass = 0; pass < 2; ++pass) (void)encode_together(frames); // the second is captured
    } catch (const std::exception& error) {
      if (!ops::is_out_of_memory(error)) throw;
      graphs_.erase({*size, height, width});
      log_warning("the memory does not hold {} pictures at once: requests that come together may fail", *size);
    }
  }
}

std::unique_ptr<FrameGraphs::Graph> FrameGraphs::make_graph(int64_t frames, int64_t height, int64_t width) const {
  const model::FrameReader reader = model_.frame_reader(height, width);
  const model::Sample one{at::zeros({1, 3, height, width}), {{{0}, {false}}}};
  const std::vector<model::Sample> samples(static_cast<size_t>(frames), one);
  const auto options = ops_.tensor_options();
  auto graph = std::make_unique<Graph>(
      make_pack(samples, model::Capacity::of(samples, reader.rows_per_frame), reader, options, model::Frames::apart));
  graph->pack.frames = at::zeros({frames, 3, height, width}, options.dtype(at::kFloat));
  return graph;
}

at::Tensor FrameGraphs::encode_together(std::span<const at::Tensor> frames) {
  const auto count = std::ssize(frames);
  const int64_t size = *std::ranges::lower_bound(sizes, count), height = frames[0].size(1), width = frames[0].size(2);
  auto& graph = graphs_[{size, height, width}];
  if (!graph) graph = make_graph(size, height, width);
  for (int64_t i = 0; i < count; ++i) // the slots behind them hold frames of an earlier call
    graph->pack.frames[i].copy_(frames[static_cast<size_t>(i)], /*non_blocking=*/true);
  graph->cache.run([this, &graph = *graph] {
    model::Tape no_grad(model::Tape::Mode::forward_only);
    keep(graph.tokens,
         model_.encode(no_grad, ops_, graph.pack, model_.config().connector->inference_mode()).tokens.data);
  });
  return graph->tokens.narrow(0, 0, count * (graph->tokens.size(0) / size)).clone();
}

} // namespace fvlm::infer
