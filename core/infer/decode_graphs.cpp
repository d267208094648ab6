#include "infer/decode_graphs.h"

#include "infer/captured.h"

#include <tuple>

namespace fvlm::infer {
namespace {

// Room for 2,048 rows of prompts, the most that a pass reads while answers wait for it, and for the rows of those
// answers. Passes of more rows keep the device busy while the host launches their kernels.
constexpr int64_t max_captured_rows = 2560;

// The first of the largest logits of each row. On a CPU argmax() compares one element after another, max() vectors. On
// a GPU both give a row to one block: the parts of a row come first.
at::Tensor likeliest_tokens(const at::Tensor& logits) {
  if (logits.is_cpu()) return std::get<1>(logits.max(1));
  int64_t parts = 64;
  while (logits.size(1) % parts != 0) parts /= 2;
  const int64_t columns = logits.size(1) / parts;
  const auto [largest, places] = logits.reshape({logits.size(0), parts, columns}).max(2);
  const at::Tensor part = largest.argmax(1, /*keepdim=*/true);
  return places.gather(1, part).add(part, columns).squeeze(1);
}

} // namespace

void DeviceTokens::put_into(model::StagedRows& staged) const {
  if (!tokens.defined()) return;
  if (rows.defined())
    staged.tokens.index_copy_(0, rows, tokens.to(staged.tokens.scalar_type()));
  else
    staged.tokens.narrow(0, 0, tokens.size(0)).copy_(tokens);
}

const DecodeGraphs::Output& DecodeGraphs::run(const model::PassRows& rows, model::KvPages& pages, bool wants_logits,
                                              const DeviceTokens& tokens) {
  auto& graph = graphs_[{model::StagedRows::Sizes::of(rows), wants_logits}];
  if (graph)
    graph->rows.restage(rows);
  else
    graph = std::make_unique<Graph>(model::StagedRows(rows, ops_.options().device));
  tokens.put_into(graph->rows);
  graph->cache.run([this, &graph = *graph, &pages, wants_logits] { compute(graph, pages, wants_logits); });
  return graph->output;
}

DecodeGraphs::Output DecodeGraphs::run_prompts(const model::PassRows& rows, const Embed& embed, model::KvPages& pages,
                                               const DeviceTokens& tokens, bool may_capture) {
  if (!device::runtime() || !may_capture || rows.size() > max_captured_rows) {
    model::StagedRows staged(rows, ops_.options().device);
    tokens.put_into(staged);
    const at::Tensor x = embed(staged);
    if (!rows.outputs.empty()) return outputs_of(x, staged, pages);
    model_.decoder().forward(ops_, x, pages, staged);
    return {};
  }
  const auto sizes = model::StagedRows::Sizes::coarse(rows);
  auto& graph = prompt_graphs_[sizes];
  if (graph)
    graph->rows.restage(rows);
  else
    graph = std::make_unique<Graph>(model::StagedRows(rows, ops_.options().device, sizes));
  tokens.put_into(graph->rows);
  keep(graph->x, embed(graph->rows));
  graph->cache.run([this, &graph = *graph, &pages] {
    const Output output = outputs_of(graph.x, graph.rows, pages);
    keep(graph.output.likeliest, output.likeliest);
    keep(graph.output.logits, output.logits);
  });
  return rows.outputs.empty() ? Output() : graph->output;
}

DecodeGraphs::Output DecodeGraphs::outputs_of(const at::Tensor& x, const model::StagedRows& rows,
                                              model::KvPages& pages) {
  const model::Decoder& decoder = model_.decoder();
  const at::Tensor hidden = decoder.forward(ops_, x, pages, rows);
  model::Tape no_grad(model::Tape::Mode::forward_only);
  const model::Value last(hidden.index_select(0, rows.outputs));
  const at::Tensor logits = decoder.logits(no_grad, ops_, last).data;
  return {logits, likeliest_tokens(logits)};
}

void DecodeGraphs::compute(Graph& graph, model::KvPages& pages, bool wants_logits) {
  const model::Decoder& decoder = model_.decoder();
  const at::Tensor x = decoder.embed(ops_, graph.rows.tokens);
  const model::Value hidden(decoder.forward(ops_, x, pages, graph.rows));
  model::Tape no_grad(model::Tape::Mode::forward_only);
  const at::Tensor logits = decoder.logits(no_grad, ops_, hidden).data;
  keep(graph.output.likeliest, likeliest_tokens(logits));
  if (wants_logits) keep(graph.output.logits, logits);
}

} // namespace fvlm::infer
