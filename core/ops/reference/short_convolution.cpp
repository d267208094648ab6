// Short convolutions in plain ATen.
#include "ops/reference/common.h"
#include "ops/reference/row_chunks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace fvlm::ops::reference {
namespace {

using at::Tensor;

// What each row's sum is made of: rows of the pass, and behind them those of the states, [segments * reach].
class Convolution {
 public:
  Convolution(const Tensor& x, const fvlm_tensor* weight, const fvlm_tensor* bias, const RowPlaces& places,
              const Tensor& states)
      : places_(places), taps_(upcast(weight)), all_(at::concat({x, states.flatten(0, 1)})), reach_(states.size(1)) {
    sum = upcast(x) * tap(0);
    for (int64_t distance = 1; distance <= reach_; ++distance)
      sum.addcmul_(upcast(rows_before(distance)), tap(distance));
    if (bias) sum.add_(upcast(bias));
  }

  Tensor sum; // [rows, width], float32 or wider

  // Behind the last row of each segment: [segments, reach, width].
  Tensor states_after() const {
    const int64_t segments = places_.begins.size(0), rows = places_.each.size(0);
    const Tensor last = places_.lengths.unsqueeze(1) + at::arange(-reach_, 0, places_.each.options());
    const Tensor carried = rows + at::arange(segments, places_.each.options()).unsqueeze(1) * reach_ + reach_;
    const Tensor from = at::where(last.ge(0), places_.begins.unsqueeze(1) + last, carried + last);
    return all_.index_select(0, from.flatten()).view({segments, reach_, all_.size(1)});
  }

  Tensor weight_gradient(const Tensor& d_sum) const { // [width, taps]
    std::vector<Tensor> by_tap;
    for (int64_t distance = reach_; distance >= 0; --distance) by_tap.push_back((d_sum * rows_before(distance)).sum(0));
    return at::stack(by_tap, 1);
  }

  Tensor input_gradient(const Tensor& d_sum) const {
    const int64_t rows = d_sum.size(0);
    const Tensor padded = at::concat({d_sum, at::zeros({1, d_sum.size(1)}, d_sum.options())});
    const Tensor left = places_.lengths.index_select(0, places_.segment) - places_.index;
    Tensor d = d_sum * tap(0);
    for (int64_t distance = 1; distance <= reach_; ++distance) {
      const Tensor behind = (places_.each + distance).masked_fill_(left.le(distance), rows);
      d.addcmul_(padded.index_select(0, behind), tap(distance));
    }
    return d;
  }

 private:
  Tensor tap(int64_t distance) const { return taps_.select(1, reach_ - distance); }
  Tensor rows_before(int64_t distance) const {
    const Tensor carried = places_.each.size(0) + places_.segment * reach_ + (reach_ + places_.index - distance);
    const Tensor from = at::where(places_.index.ge(distance), places_.each - distance, carried);
    return all_.index_select(0, from.masked_fill_(places_.nowhere, 0)); // any for rows of no segment
  }

  const RowPlaces& places_;
  Tensor taps_, all_;
  int64_t reach_;
};

} // namespace

void Kernels::short_convolution_forward(const fvlm_call&, const Query& query, const fvlm_convolution_forward& a) {
  if (query.rows == 0) return;
  const Tensor x = torch_tensor(a.x);
  const RowPlaces places(torch_tensor(a.cu_seqlens), query.rows);
  const CarriedStates states(a.states, a.slots, a.starts);
  const Convolution convolution(x, a.weight, a.bias, places,
                                states.before(query.segments, {query.taps - 1, query.width}, x.options()));
  const Tensor y = convolution.sum * convolution.sum.sigmoid();
  store(torch_tensor(a.y), y.masked_fill(places.nowhere.unsqueeze(1), 0));
  states.replace(convolution.states_after(), places);
}

void Kernels::short_convolution_backward(const fvlm_call&, const Query& query, const fvlm_convolution_backward& a) {
  const Tensor x = torch_tensor(a.x);
  Tensor d_weight = at::zeros({query.width, query.taps}, x.options().dtype(wide(x.scalar_type())));
  Tensor d_bias = d_weight.sum(1);
  if (query.rows > 0) {
    const RowPlaces places(torch_tensor(a.cu_seqlens), query.rows);
    const Convolution convolution(x, a.weight, a.bias, places,
                                  CarriedStates().before(query.segments, {query.taps - 1, query.width}, x.options()));
    const Tensor gate = convolution.sum.sigmoid();
    const Tensor d_sum =
        (upcast(a.d_y) * gate * (1 + convolution.sum * (1 - gate))).masked_fill_(places.nowhere.unsqueeze(1), 0);
    d_weight = convolution.weight_gradient(d_sum), d_bias = d_sum.sum(0);
    store(torch_tensor(a.d_x), convolution.input_gradient(d_sum));
  }
  if (a.d_weight) store(torch_tensor(a.d_weight), d_weight, a.accumulate);
  if (a.d_bias) store(torch_tensor(a.d_bias), d_bias, a.accumulate);
}

} // namespace fvlm::ops::reference
