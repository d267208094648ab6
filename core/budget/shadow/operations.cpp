#include "budget/shadow/operations.h"

#include <algorithm>
#include <array>

namespace fvlm::budget::shadow {

void Operations::inside(int64_t bytes, bool of_reference) const {
  if (of_reference) ledger_.touch(bytes);
}

void Operations::product(int64_t rows, int64_t inner, int64_t columns, bool into_float32) const {
  if (!machine_.widened_products) return;
  const int64_t narrow_copy = into_float32 ? 0 : rows * columns * machine_.element;
  ledger_.touch(4 * (rows * inner + inner * columns + rows * columns) + narrow_copy);
}

Value Operations::linear(Tape& tape, const Value& x, const Weight& weight, bool bias_trains,
                         const SharedGradientPass& pass, const Value& residual) const {
  const bool records = tape.records(x.requires_grad() || weight.trains || bias_trains || residual.requires_grad());
  const int64_t rows = x.data.rows;
  Value y(tensor(rows, weight.rows), records);
  product(rows, weight.columns, weight.rows);
  if (!records) return y;
  tape.push([this, rows, input = weight.trains ? x.saved() : ops::SavedTensor<Tensor>(), in = x.gradient, weight, pass,
             residual = residual.gradient, out = y.gradient] {
    const Tensor d_y = out->take();
    if (pass.waiting && !pass.later) pass.waiting->erase(weight.name);
    if (!d_y.defined()) return;
    if (pass.waiting && pass.later) {
      (*pass.waiting)[weight.name] = {input.get(), d_y};
    } else if (weight.trains) {
      const Tensor read = input.get();
      product(weight.rows, rows, weight.columns, true);
    }
    if (in) {
      Tensor d_x = tensor(rows, weight.columns);
      product(rows, weight.rows, weight.columns);
      in->add(std::move(d_x));
    }
    if (residual) residual->add(d_y);
  });
  return y;
}

Value Operations::gelu_mlp(Tape& tape, const Value& x, const Weight& up, const Weight& down,
                           const Value& residual) const {
  const bool records = tape.records(x.requires_grad() || up.trains || down.trains || residual.requires_grad());
  const int64_t rows = x.data.rows;
  Value inner(tensor(rows, up.rows));
  const Tensor sum = records ? tensor(rows, up.rows) : Tensor();
  product(rows, up.columns, up.rows);
  Value y(tensor(rows, down.rows), records);
  product(rows, down.columns, down.rows);
  if (!records) return y;
  tape.set_recompute(inner, [this, rows, width = up.rows] {
    inside(4 * rows * width, machine_.plain_kernels);
    return tensor(rows, width);
  });
  tape.push([this, rows, in = x.gradient, input = x.saved(), up, down, inner = inner.saved(), sum,
             residual = residual.gradient, out = y.gradient] {
    const Tensor d_y = out->take();
    if (!d_y.defined()) return;
    if (residual) residual->add(d_y);
    if (down.trains) {
      const Tensor read = inner.get();
      product(down.rows, rows, down.columns, true);
    }
    if (!in && !up.trains) return;
    const Tensor d_inner = tensor(rows, up.rows);
    product(rows, down.rows, down.columns);
    if (up.trains) {
      const Tensor read = input.get();
      product(up.rows, rows, up.columns, true);
    }
    if (!in) return;
    Tensor d_x = tensor(rows, up.columns);
    product(rows, up.rows, up.columns);
    in->add(std::move(d_x));
  });
  return y;
}

std::shared_ptr<const void> Operations::fold_scale(Tape& tape, int64_t count, const Weight& weight) const {
  const int64_t rows = count * weight.rows, columns = weight.columns + 1; // a bias beside each
  const bool records = tape.records(weight.trains);
  const Ledger::For workspace(ledger_, Item::workspace);
  const auto held = std::make_shared<const std::array<Tensor, 2>>(
      std::array{tensor(rows, columns), records ? wide(rows, columns) : Tensor()});
  if (records) tape.push([held] {});
  return held;
}

Operations::NormOutput Operations::norm(Tape& tape, const Value& x, const Value& residual, bool trains,
                                        int64_t statistics) const {
  const bool records = tape.records(x.requires_grad() || residual.requires_grad() || trains);
  const int64_t rows = x.data.rows, columns = x.data.columns;
  Tensor y = tensor(rows, columns), sum;
  if (residual.defined()) sum = tensor(rows, columns);
  Tensor saved;
  if (records) saved = wide(rows, statistics);
  inside(4 * rows * columns, machine_.plain_kernels);
  const Tensor s = residual.defined() ? sum : x.data;
  NormOutput normed{Value(std::move(y), records), residual.defined() ? Value(std::move(sum), records) : x};
  if (!records) return normed;
  tape.set_recompute(normed.y, [this, rows, columns, s] {
    inside(4 * rows * columns, machine_.plain_kernels);
    return tensor(rows, columns);
  });
  const int64_t inside_backward = (statistics == 1 ? 4 : 1) * 4 * rows * columns;
  tape.push([this, s, saved, inside_backward, x = x.gradient, residual = residual.gradient, y = normed.y.gradient,
             sum = residual.defined() ? normed.sum.gradient : nullptr] {
    const Tensor d_y = y->take(), d_sum = sum ? sum->take() : x && d_y.defined() ? x->take() : Tensor();
    Tensor d_s;
    if (d_y.defined()) {
      d_s = another(s);
      inside(inside_backward, machine_.plain_kernels);
    } else {
      d_s = d_sum;
    }
    if (!d_s.defined()) return;
    if (residual) residual->add(d_s);
    if (x) x->add(std::move(d_s));
  });
  return normed;
}

Operations::NormOutput Operations::rmsnorm(Tape& tape, const Value& x, const Value& residual, bool trains) const {
  return norm(tape, x, residual, trains, 1);
}

Value Operations::layernorm(Tape& tape, const Value& x, bool trains) const {
  return norm(tape, x, {}, trains, 2).y;
}

Value Operations::swiglu(Tape& tape, const Value& gate_up) const {
  const int64_t rows = gate_up.data.rows, width = gate_up.data.columns / 2;
  const bool records = tape.records(gate_up.requires_grad());
  Value y(tensor(rows, width), records);
  inside(4 * rows * width, machine_.plain_kernels);
  if (!records) return y;
  tape.set_recompute(y, [this, rows, width, both = gate_up.data] {
    inside(4 * rows * width, machine_.plain_kernels);
    return tensor(rows, width);
  });
  tape.push([this, rows, width, gate_up, out = y.gradient] {
    const Tensor d_y = out->take();
    if (!d_y.defined()) return;
    Tensor d = another(gate_up.data);
    inside(4 * 4 * rows * width, machine_.plain_kernels);
    gate_up.gradient->add(std::move(d));
  });
  return y;
}

Value Operations::layerscale(Tape& tape, const Value& x, bool trains, const Value& residual) const {
  const bool records = tape.records(x.requires_grad() || residual.requires_grad() || trains);
  Value y(another(x.data), records);
  inside(4 * x.data.rows * x.data.columns, machine_.plain_kernels);
  if (!records) return y;
  tape.push([this, x, trains, residual = residual.gradient, out = y.gradient] {
    Tensor d_y = out->take();
    if (!d_y.defined()) return;
    if (x.requires_grad() || trains) {
      Tensor d_x = another(x.data);
      inside(4 * x.data.rows * x.data.columns, machine_.plain_kernels);
      if (x.requires_grad()) x.gradient->add(std::move(d_x));
    }
    if (residual) residual->add(std::move(d_y));
  });
  return y;
}

namespace {

bool lie_together(const Heads& q, const Heads& k, const Heads& v, int64_t head_dim) {
  return q.value.requires_grad() && q.value.gradient == k.value.gradient && k.value.gradient == v.value.gradient &&
         (q.count + k.count + v.count) * head_dim == q.value.data.columns;
}

} // namespace

Value Operations::attention(Tape& tape, Heads q, Heads k, Heads v, const Segments& of_q, const Segments& of_kv,
                            int64_t head_dim, bool rotary, const Value& lent) const {
  const bool records = tape.records(q.value.requires_grad() || k.value.requires_grad() || v.value.requires_grad());
  // Plugins do not rotate: it is done before, in place.
  if (rotary && !machine_.plain_attention && tape.records(q.value.requires_grad())) {
    Value turned(q.value.data, true);
    tape.push([in = q.value.gradient, out = turned.gradient] {
      if (out->empty()) return;
      in->add(out->take_exclusive());
    });
    q.value = k.value = v.value = turned;
  }
  const int64_t rows = q.value.data.rows, width = q.count * head_dim, kv_rows = k.value.data.rows,
                kv_width = k.count * head_dim;
  // Of a segment: scores and weights, forward; gradients of both besides, backward. q and k as they are rotated.
  const int64_t scores = 4 * q.count * of_q.longest * of_kv.longest;
  const int64_t turned = rotary ? 4 * (rows * width + kv_rows * kv_width) : 0;
  struct {
    Tensor out, saved, rest;
  } output;
  output.out = tensor(rows, width);
  if (records && !machine_.plain_attention) output.saved = wide(rows, q.count);
  if (records && rotary && machine_.keeps_rests) output.rest = make(ledger_, rows, width, 1);
  inside(4 * rows * width + turned + 2 * scores, machine_.plain_attention);
  Value y(output.out, records);
  if (!records) return y;
  if (machine_.takes_guests && lent.requires_grad() && lie_together(q, k, v, head_dim))
    lent.gradient->accept_deferred_queries();
  const bool is_guest = of_q.longest == 1 && k.value.requires_grad() && k.value.gradient->take_in();
  tape.push(
      [this, q, k, v, output, head_dim, rows, width, kv_rows, kv_width, scores, turned, is_guest, out = y.gradient] {
        const Tensor gradient = out->take();
        if (!gradient.defined()) return;
        if (is_guest) {
          inside(4 * (rows * width + 2 * kv_rows * kv_width) + 4 * scores, machine_.plain_attention);
          if (q.value.requires_grad()) q.value.gradient->add(tensor(rows, width));
          return;
        }
        const auto inside_backward = [&] {
          const int64_t results = 4 * (rows * width + 2 * kv_rows * kv_width);
          inside(results + turned + 4 * scores, machine_.plain_attention);
        };
        if (lie_together(q, k, v, head_dim)) {
          Tensor d = another(q.value.data);
          inside_backward();
          q.value.gradient->add(std::move(d));
          return;
        }
        // Straight into the gradient of q's value and of k's and v's, where nothing lies there yet; else beside.
        Tensor beside_q, beside_k, beside_v;
        if (!q.value.requires_grad())
          beside_q = tensor(rows, width);
        else if (q.value.gradient->empty())
          q.value.gradient->add(another(q.value.data));
        else
          beside_q = (q.value.gradient->accumulator(q.value.data), tensor(rows, width));
        const bool direct = k.value.requires_grad() && k.value.gradient->empty();
        if (direct)
          k.value.gradient->add(another(k.value.data));
        else if (k.value.requires_grad())
          k.value.gradient->accumulator(k.value.data);
        if (!direct) beside_k = tensor(kv_rows, kv_width), beside_v = tensor(kv_rows, kv_width);
        inside_backward();
      });
  return y;
}

// The hidden states without those that have no target, and so many times all logits.
void Operations::logits(int64_t rows, const Weight& head, int64_t copies) const {
  if (!machine_.plain_loss) return;
  const int64_t widened = machine_.widened_products ? 4 * (head.rows * head.columns + rows * head.columns) : 0;
  ledger_.touch(machine_.element * rows * head.columns + widened + 4 * copies * rows * head.rows);
}

Value Operations::cross_entropy(Tape& tape, const Value& hidden, const Weight& head) const {
  const bool records = tape.records(hidden.requires_grad() || head.trains);
  const int64_t rows = hidden.data.rows;
  Value losses(wide(rows), records);
  Tensor saved;
  if (records) saved = wide(rows, machine_.plain_loss ? head.rows : 1);
  logits(rows, head, records ? 1 : 2); // the saved ones are one of two
  if (!records) return losses;
  tape.push([this, hidden, saved, head, rows, out = losses.gradient] {
    const Tensor d_losses = out->take();
    if (!d_losses.defined()) return;
    Tensor d_hidden = another(hidden.data);
    logits(rows, head, 1);
    if (hidden.requires_grad()) hidden.gradient->add(std::move(d_hidden));
  });
  return losses;
}

Tensor Operations::weighted_cross_entropy(Tape& tape, const Value& hidden, const Weight& head) const {
  if (!tape.keeps_steps() || !tape.records(hidden.requires_grad() || head.trains))
    return cross_entropy(tape, hidden, head).data;
  Tensor losses = wide(hidden.data.rows), d_hidden = another(hidden.data);
  logits(hidden.data.rows, head, 2);
  if (hidden.requires_grad()) tape.push([d = d_hidden, in = hidden.gradient]() mutable { in->add(std::move(d)); });
  return losses;
}

// A part's gradient comes as one of all of `x`.
static void push_gradient_of_part(Tape& tape, const Value& x, const Value& part) {
  if (!part.requires_grad()) return;
  Tensor shape = x.data;
  shape.block.reset(); // its size alone
  tape.push([shape, in = x.gradient, out = part.gradient] {
    const Tensor d_part = out->take();
    if (d_part.defined()) in->accumulator(shape);
  });
}

Value Operations::gather_rows(Tape& tape, const Value& x, int64_t rows) const {
  Value y(tensor(rows, x.data.columns), tape.records(x.requires_grad()));
  push_gradient_of_part(tape, x, y);
  return y;
}

Value Operations::embed(Tape& tape, const Weight& table, const Value& visual, int64_t rows) const {
  const int64_t width = table.columns;
  Value y(tensor(rows + 1, width), tape.records(table.trains || visual.requires_grad()));
  if (!y.requires_grad()) return y;
  tape.push([this, table, rows, width, shown = visual.defined() ? visual.data.rows : 0, in = visual.gradient,
             out = y.gradient] {
    const Tensor d_y = out->take();
    if (!d_y.defined()) return;
    if (in) {
      const Tensor picked = tensor(shown, width);
      in->add(tensor(shown, width));
    }
    if (!table.trains) return;
    ledger_.touch(4 * rows * width);
  });
  return y;
}

Value Operations::broadcast_row(Tape& tape, const Weight& row, int64_t rows) const {
  Value y(tensor(rows, row.columns), tape.records(row.trains));
  if (y.requires_grad()) tape.push([out = y.gradient] { const Tensor d_y = out->take(); });
  return y;
}

Value Operations::strided_rows(Tape& tape, const Value& x, int64_t step) const {
  return gather_rows(tape, x, x.data.rows / step);
}

Value Operations::slice_columns(Tape& tape, const Value& x, int64_t count) const {
  Value y(x.data, tape.records(x.requires_grad()));
  y.data.columns = count;
  y.data.bytes = x.data.rows * count * machine_.element;
  push_gradient_of_part(tape, x, y);
  return y;
}

Value Operations::scale(Tape& tape, const Value& x) const {
  Value y(another(x.data), tape.records(x.requires_grad()));
  if (!y.requires_grad()) return y;
  tape.push([in = x.gradient, out = y.gradient] {
    const Tensor d_y = out->take();
    if (d_y.defined()) in->add(another(d_y));
  });
  return y;
}

} // namespace fvlm::budget::shadow
