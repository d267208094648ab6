#include "infer/decode_graphs.h"

#include <tuple>

namespace fvlm::infer {
namespace {

// A captured pass may leave its result only in memory that was there before: that of the first, eager one.
void keep(at::Tensor& kept, const at::Tensor& result) {
  if (kept.defined())
    kept.copy_(result);
  else
    kept = result;
}

// The first of the largest logits of each row. On a CPU argmax() compares one element after another, max() vectors.
at::Tensor likeliest_tokens(const at::Tensor& logits) {
  return logits.is_cpu() ? std::get<1>(logits.max(1)) : logits.argmax(1);
}

} // namespace

const DecodeGraphs::Output& DecodeGraphs::run(const model::PassRows& rows, model::KvPages& pages, bool wants_logits,
                                              const at::Tensor& tokens) {
  auto& graph = graphs_[{model::StagedRows::Sizes::of(rows), wants_logits}];
  if (graph)
    graph->rows.restage(rows);
  else
    graph = std::make_unique<Graph>(model::StagedRows(rows, ops_.options().device));
  if (tokens.defined()) graph->rows.tokens.narrow(0, 0, tokens.size(0)).copy_(tokens);
  graph->cache.run([this, &graph = *graph, &pages, wants_logits] { compute(graph, pages, wants_logits); });
  return graph->output;
}

DecodeGraphs::Output DecodeGraphs::run_eagerly(const model::PassRows& rows, const model::StagedRows& staged,
                                               const at::Tensor& x, model::KvPages& pages) {
  const model::Decoder& decoder = model_.decoder();
  const at::Tensor hidden = decoder.forward(ops_, x, pages, staged);
  if (rows.outputs.empty()) return {};
  model::Tape no_grad(model::Tape::Mode::forward_only);
  const model::Value last(hidden.index_select(0, staged.outputs));
  const at::Tensor logits = decoder.logits(no_grad, ops_, last).data;
  return {logits, likeliest_tokens(logits)};
}

void DecodeGraphs::compute(Graph& graph, model::KvPages& pages, bool wants_logits) {
  const model::Decoder& decoder = model_.decoder();
  const at::Tensor x = decoder.embedding().value().index_select(0, graph.rows.tokens);
  const model::Value hidden(decoder.forward(ops_, x, pages, graph.rows));
  model::Tape no_grad(model::Tape::Mode::forward_only);
  const at::Tensor logits = decoder.logits(no_grad, ops_, hidden).data;
  keep(graph.output.likeliest, likeliest_tokens(logits));
  if (wants_logits) keep(graph.output.logits, logits);
}

} // namespace fvlm::infer
