#include "model/context_part.h"

#include "base/error.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

namespace fvlm::model {
namespace {

// The chosen elements, and `padding` behind them.
at::Tensor chosen(const at::Tensor& all, const std::vector<int64_t>& indices, int64_t slots, double padding) {
  at::Tensor some = at::full({slots}, padding, all.options());
  some.narrow(0, 0, std::ssize(indices)).copy_(all.index_select(0, at::tensor(indices, at::kLong)));
  return some;
}

std::vector<int64_t> selected(const std::vector<int64_t>& rows, const int64_t* places, int64_t own) {
  std::vector<int64_t> here;
  for (const int64_t row : rows)
    if (places[row] < own) here.push_back(places[row]);
  return here;
}

} // namespace

ContextPart keep_part(Pack& pack, const ops::ContextGroup& context,
                      const std::function<int64_t(int64_t labels)>& label_slots) {
  const int64_t rows = pack.sequence.tokens.size(0), own = rows / context.ranks;
  const auto part_of = [&](const at::Tensor& all) { return ops::RingBounds::own(all, context); };
  // Where each row of the pack is here; those of other ranks, and the one past the last, are past the last.
  at::Tensor places = at::full({rows + 1}, own, at::kLong);
  places.index_copy_(0, part_of(at::arange(rows, at::kLong)), at::arange(own, at::kLong));
  const int64_t* place = places.const_data_ptr<int64_t>();

  ContextPart part;
  std::vector<int64_t> labels_of(static_cast<size_t>(context.ranks));
  const int64_t *label_rows = pack.labels.rows.const_data_ptr<int64_t>(),
                *targets = pack.labels.targets.const_data_ptr<int64_t>();
  for (int64_t label = 0; label < pack.labels.rows.size(0); ++label) {
    if (targets[label] < 0) continue;
    ++labels_of[static_cast<size_t>(ops::RingBounds::rank_of(label_rows[label], rows, context.ranks))];
    if (place[label_rows[label]] < own) part.labels.push_back(label);
  }
  const int64_t slots = label_slots(*std::ranges::max_element(labels_of));
  Labels& labels = pack.labels;
  labels = {chosen(places.index_select(0, labels.rows), part.labels, slots, 0),
            chosen(labels.targets, part.labels, slots, -1),
            chosen(labels.sequences, part.labels, slots, static_cast<double>(pack.texts.cu_seqlens.size(0) - 2)),
            chosen(labels.weights, part.labels, slots, 0)};

  if (pack.texts.last.defined())
    throw Error(ErrorKind::usage, "--context-parallel: rows of the decoder attend to each other in both directions, "
                                  "and ranks share causal attention alone")
        .advise("train it without --context-parallel");
  pack.sequence.tokens = part_of(pack.sequence.tokens);
  pack.sequence.is_text = part_of(pack.sequence.is_text);
  if (pack.sequence.visual_rows.defined())
    pack.sequence.visual_rows = places.index_select(0, pack.sequence.visual_rows);
  pack.texts.ring = ops::RingBounds::of(pack.texts.cu_seqlens, rows, context.ranks);
  const at::Tensor& positions = pack.texts.positions; // on one axis or several, see ops::Segments
  pack.texts.positions = positions.dim() == 1 ? part_of(positions) : part_of(positions.t()).t().contiguous();
  pack.texts.cu_seqlens = pack.texts.ring[context.rank][ops::RingBounds::both_chunks];
  pack.texts.uniform_lengths = false;
  part.used_rows = pack.texts.cu_seqlens[-1].item<int64_t>();
  pack.text_rows = selected(pack.text_rows, place, own);
  return part;
}

} // namespace fvlm::model
