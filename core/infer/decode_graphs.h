// DecodeGraphs: passes of a decoder over pages, as CUDA graphs: all layers, head and the likeliest tokens are one
// launch, and the embedding too where every row is the newest token of a sequence. Rows, lengths and the page table are
// rewritten in place before each.
#pragma once
#include "model/model.h"
#include "ops/graph_cache.h"

#include <functional>
#include <map>
#include <memory>
#include <utility>

namespace fvlm::infer {

// Tokens that only the device has: int64, and the rows of a pass that have them, int64; undefined: the first ones.
struct DeviceTokens {
  at::Tensor tokens, rows;

  // In place of those of the rows. Does nothing where there are none.
  void put_into(model::StagedRows& staged) const;
};

class DecodeGraphs {
 public:
  // Both outlive it.
  DecodeGraphs(const model::Model& model, model::Operations& ops, bool captures = true)
      : model_(model), ops_(ops), captures_(captures) {}

  struct Output {
    at::Tensor logits;    // [rows and padding, vocabulary]; undefined where they are not wanted
    at::Tensor likeliest; // int64 [rows and padding]
    at::Tensor hidden;    // [rows and padding, width], of a pass that reads prompts: the last hidden states
  };
  // The output of each row, in memory that the next run overwrites. Without a GPU the pass is computed eagerly, with it
  // the first of each size.
  const Output& run(const model::PassRows& rows, model::KvPages& pages, bool wants_logits,
                    const DeviceTokens& tokens = {});
  // A pass that also reads rows of prompts. `embed` makes the embeddings of all rows, padding included. Has the logits
  // and likeliest tokens of its outputs; without any, undefined ones. A pass of very many rows is computed eagerly,
  // and so is one that may not be captured, since others like it are rare.
  using Embed = std::function<at::Tensor(const model::StagedRows&)>;
  Output run_prompts(const model::PassRows& rows, const Embed& embed, model::KvPages& pages,
                     const DeviceTokens& tokens = {}, bool may_capture = true);
  // To be called before the pages move.
  void clear() { graphs_.clear(), prompt_graphs_.clear(); }

 private:
  struct Graph {
    Graph(model::StagedRows staged, bool captures) : rows(std::move(staged)), cache("a decoding pass", captures) {}
    model::StagedRows rows;
    ops::GraphCache cache;
    at::Tensor x; // embeddings, of a pass that reads prompts
    Output output;
  };
  void compute(Graph& graph, model::KvPages& pages, bool wants_logits);
  at::Tensor forward(const at::Tensor& x, const model::StagedRows& rows, model::KvPages& pages);
  Output outputs_of(const at::Tensor& x, const model::StagedRows& rows, model::KvPages& pages);

  const model::Model& model_;
  model::Operations& ops_;
  bool captures_;
  std::map<std::pair<model::StagedRows::Sizes, bool>, std::unique_ptr<Graph>> graphs_;
  std::map<model::StagedRows::Sizes, std::unique_ptr<Graph>> prompt_graphs_;
};

} // namespace fvlm::infer
