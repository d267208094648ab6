#include "objective/loss.h"

#include "objective/manifold/settings.h"
#include "ops/rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>

namespace fvlm::objective {
namespace {

// Of each text's visual rows [texts + 1, width]; the last text is that of padding.
struct Columns {
  at::Tensor text;      // int64 [rows]: whose each row is
  at::Tensor count;     // [texts + 1, 1]
  at::Tensor deviation; // [rows, width]: of each row from its text's mean
  at::Tensor mean, std; // [texts + 1, width]

  Columns(const at::Tensor& rows, const model::Pack& pack) {
    const at::Tensor ends = pack.texts.cu_seqlens.slice(0, 1).to(at::kLong);
    const int64_t texts = ends.size(0);
    // A padding row stands behind all rows of the decoder. Texts that the pack has room for and does not hold end
    // there.
    const at::Tensor row = pack.sequence.visual_rows;
    const at::Tensor is_padding = row.ge(pack.sequence.tokens.size(0));
    text = at::bucketize(row, ends, false, true).masked_fill(is_padding, texts);
    const auto sums = [&](const at::Tensor& values) {
      return at::zeros({texts + 1, values.size(1)}, values.options()).index_add(0, text, values);
    };
    count = sums(at::ones({rows.size(0), 1}, rows.options()));
    mean = sums(rows) / count.clamp_min(1);
    deviation = rows - mean.index_select(0, text);
    std = at::sqrt(sums(deviation * deviation) / (count - 1).clamp_min(1));
  }
};

class ManifoldLoss : public Loss {
 public:
  explicit ManifoldLoss(const Manifold& term) : term_(term) {}

  bool reads_label_losses() const override { return false; }
  std::vector<at::Tensor> compute(const LossInputs& in, const ops::Value&) const override {
    const at::Tensor none = at::zeros({}, in.weight.options());
    if (!in.visual.data.defined()) return {none, none};
    ops::Value visual = model::visual_rows(in.tape, in.visual, in.pack);
    if (in.policy.connector().deepstack_layers() > 0) // its columns are no rows that enter the decoder
      visual = in.ops.slice_columns(in.tape, visual, 0, in.policy.decoder().width());
    const auto type = visual.data.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const Columns columns(visual.data.to(type), in.pack);
    const Statistics target = embedding(in.policy.decoder(), type);
    const int64_t texts = columns.mean.size(0) - 1;
    const at::Tensor counts = columns.count.ge(term_.min_visual_rows()).to(type); // [texts + 1, 1]
    counts.narrow(0, texts, 1).zero_();
    const at::Tensor of_mean = columns.mean - target.mean, of_std = columns.std - target.std;
    const at::Tensor losses = (of_mean * of_mean + of_std * of_std).mean(1, true) * counts;
    if (visual.requires_grad()) {
      const at::Tensor factor = counts * (in.weight * (2.0 / static_cast<double>(columns.mean.size(1)))).to(type);
      const at::Tensor by_mean = of_mean * factor / columns.count.clamp_min(1);
      // Where the rows of a text are equal, they have no deviation, and no direction in which it would grow.
      const at::Tensor by_deviation =
          (of_std * factor / ((columns.count - 1).clamp_min(1) * columns.std)).masked_fill(columns.std.eq(0), 0);
      const at::Tensor gradient =
          by_mean.index_select(0, columns.text) + by_deviation.index_select(0, columns.text) * columns.deviation;
      visual.gradient->add(gradient.to(visual.data.scalar_type()));
    }
    return {losses.sum(), counts.sum()};
  }

 private:
  struct Statistics {
    at::Tensor mean, std; // [width]
  };

  // In slices, as the table may be larger than all else that a step reads; a frozen one is read once.
  Statistics embedding(const model::Decoder& decoder, at::ScalarType type) const {
    if (const auto known = embeddings_.find(&decoder); known != embeddings_.end()) return known->second;
    const ops::Weight table = decoder.embedding();
    const double scale = decoder.token_scale();
    constexpr int64_t slice = 4096;
    const at::Tensor& rows = table.value();
    const int64_t count = rows.size(0);
    const auto sum = [&](const auto& of_slice) {
      const at::Tensor all = at::zeros({rows.size(1)}, rows.options().dtype(type));
      for (int64_t first = 0; first < count; first += slice)
        all.add_(of_slice(rows.narrow(0, first, std::min(slice, count - first)).to(type)).sum(0));
      return all;
    };
    const at::Tensor mean = sum([](const at::Tensor& values) { return values; }) / count;
    const at::Tensor squares = sum([&](const at::Tensor& values) {
      const at::Tensor deviation = values - mean;
      return deviation * deviation;
    });
    const Statistics found{mean * scale, at::sqrt(squares / (count - 1)) * scale};
    if (!table.requires_grad()) embeddings_[&decoder] = found;
    return found;
  }

  const Manifold& term_;
  mutable std::map<const model::Decoder*, Statistics> embeddings_;
};

} // namespace

std::unique_ptr<Loss> manifold_loss(const plan::ObjectiveTerm& term) {
  return std::make_unique<ManifoldLoss>(static_cast<const Manifold&>(term));
}

} // namespace fvlm::objective
