#include "infer/decode_graphs.h"

#include "infer/captured.h"

#include <ATen/ops/add.h>
#include <ATen/ops/argmax.h>

#include <tuple>

namespace fvlm::infer {
namespace {

// Room for 2,048 rows of prompts, the most that a pass reads while answers wait for it, and for the rows of those
// answers. Passes of more rows keep the device busy while the host launches their kernels.
constexpr int64_t max_captured_rows = 2560;

// The first of the largest logits of each row, into `kept` where that exists: a captured pass has to leave its result
// in the memory of the first one, which runs eagerly. On a CPU argmax() compares one element after another, max()
// vectors. On a GPU both give a row to one block: the parts of a row come first.
void find_likeliest(const at::Tensor& logits, at::Tensor& kept) {
  if (logits.is_cpu()) {
    keep(kept, std::get<1>(logits.max(1)));
    return;
  }
  if (logits.size(0) > 32) { // blocks enough
    if (kept.defined())
      at::argmax_out(kept, logits, 1);
    else
      kept = logits.argmax(1);
    return;
  }
  int64_t parts = 128;
  while (logits.size(1) % parts != 0) parts /= 2;
  const int64_t columns = logits.size(1) / parts;
  const auto [largest, places] = logits.reshape({logits.size(0), parts, columns}).max(2);
  const at::Tensor part = std::get<1>(largest.max(1)), place = places.gather(1, part.unsqueeze(1)).squeeze(1);
  if (kept.defined())
    at::add_out(kept, place, part, columns);
  else
    kept = place.add(part, columns);
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
    graph = std::make_unique<Graph>(model::StagedRows(rows, ops_.options().device), captures_);
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
    forward(x, staged, pages);
    return {};
  }
  const auto sizes = model::StagedRows::Sizes::coarse(rows);
  auto& graph = prompt_graphs_[sizes];
  if (graph)
    graph->rows.restage(rows);
  else
    graph = std::make_unique<Graph>(model::StagedRows(rows, ops_.options().device, sizes), captures_);
  tokens.put_into(graph->rows);
  keep(graph->x, embed(graph->rows));
  graph->cache.run([this, &graph = *graph, &pages] {
    const Output output = outputs_of(graph.x, graph.rows, pages);
    keep(graph.output.likeliest, output.likeliest);
    keep(graph.output.logits, output.logits);
    keep(graph.output.hidden, output.hidden);
  });
  return rows.outputs.empty() ? Output() : graph->output;
}

at::Tensor DecodeGraphs::forward(const at::Tensor& x, const model::StagedRows& rows, model::KvPages& pages) {
  model_.select_adapters(rows.adapters);
  return model_.decoder().forward(ops_, x, pages, rows);
}

DecodeGraphs::Output DecodeGraphs::outputs_of(const at::Tensor& x, const model::StagedRows& rows,
                                              model::KvPages& pages) {
  const at::Tensor hidden = forward(x, rows, pages);
  model::Tape no_grad(model::Tape::Mode::forward_only);
  const model::Value last(hidden.index_select(0, rows.outputs));
  const at::Tensor logits = model_.decoder().logits(no_grad, ops_, last).data;
  Output output{logits, {}, last.data};
  find_likeliest(logits, output.likeliest);
  return output;
}

void DecodeGraphs::compute(Graph& graph, model::KvPages& pages, bool wants_logits) {
  const model::Decoder& decoder = model_.decoder();
  const model::Value hidden(forward(decoder.embed(ops_, graph.rows.tokens), graph.rows, pages));
  model::Tape no_grad(model::Tape::Mode::forward_only);
  const at::Tensor logits = decoder.logits(no_grad, ops_, hidden).data;
  find_likeliest(logits, graph.output.likeliest);
  if (wants_logits) keep(graph.output.logits, logits);
}

} // namespace fvlm::infer
