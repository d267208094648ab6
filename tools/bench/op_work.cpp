#include "bench/op_work.h"

#include "ops/measure.h"
#include "plugin/kinds.h"

#include <fvlm/fvlm.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fvlm::bench {
namespace {

double bytes_of(fvlm_dtype dtype) {
  return dtype.bits / 8.0 * dtype.lanes;
}

double number(int64_t count) {
  return static_cast<double>(count);
}

// Number of (query, key) pairs that attend in one segment.
double pairs(const ops::TypicalPacking& filling, bool causal) {
  const double q = number(filling.of_q), kv = number(filling.of_kv);
  if (!causal) return q * kv;
  const double attending = std::min(q, kv); // queries that attend to any key; the last of them attends to all
  return attending * kv - attending * (attending - 1) / 2;
}

// Number of matrix products of one call, in units of the forward pass's.
double products_of(std::string_view operation, const fvlm_attention_query& query) {
  if (operation == "attention forward") return 2;
  return query.queries_alone ? 3 : 5;
}
double products_of(std::string_view operation, const fvlm_loss_query& query) {
  const double backward = (query.needs_d_hidden ? 1 : 0) + (query.needs_d_weight ? 1 : 0);
  return operation == "loss forward" ? 1 : operation == "loss backward" ? backward : 1 + backward;
}

} // namespace

double MinimalWork::seconds(double bytes_a_second, double flops_a_second) const {
  return std::max(bytes / bytes_a_second, flops / flops_a_second);
}

Passes minimal_work(const fvlm_attention_query& query) {
  const ops::TypicalPacking filling = ops::typical_packing(query);
  const double size = bytes_of(query.dtype), segments = number(filling.segments);
  const double of_q = segments * number(filling.of_q) * query.heads_q * query.head_dim * size,
               of_kv = segments * number(filling.of_kv) * query.heads_kv * query.head_dim * size;
  const double product = 2 * segments * pairs(filling, query.causal) * query.heads_q * query.head_dim;
  Passes passes;
  passes.forward = {2 * of_q + 2 * of_kv, 2 * product};
  if (query.needs_backward) passes.backward = {4 * of_q + 4 * of_kv, 5 * product}; // the scores once more
  return passes;
}

// Each row reads keys of its own, as where every row continues another sequence.
Passes minimal_work(const fvlm_paged_attention_query& query) {
  const double rows = number(query.rows), keys = rows * number(ops::typical_keys(query)), size = bytes_of(query.dtype);
  Passes passes;
  passes.forward.bytes = 2 * (rows * query.heads_q + keys * query.heads_kv) * query.head_dim * size;
  passes.forward.flops = 4 * keys * query.heads_q * query.head_dim;
  return passes;
}

Passes minimal_work(const fvlm_loss_query& query) {
  const double size = bytes_of(query.dtype), hidden = number(query.tokens * query.width),
               weight = number(query.vocab * query.width);
  const double product = 2 * hidden * number(query.vocab);
  Passes passes;
  passes.forward = {(hidden + weight) * size, product};
  if (!query.needs_d_hidden && !query.needs_d_weight) return passes;
  passes.backward.bytes = (hidden + weight) * size;
  if (query.needs_d_hidden) passes.backward = passes.backward + MinimalWork{hidden * size, product};
  if (query.needs_d_weight)
    passes.backward = passes.backward + MinimalWork{weight * bytes_of(query.gradient_dtype), product};
  return passes;
}

Passes minimal_work(const fvlm_kernels_query& query) {
  const double size = bytes_of(query.dtype), rows = number(query.rows * query.width) * size;
  Passes passes;
  if (query.op == FVLM_OP_LINEAR) {
    const bool gated = query.options & FVLM_WITH_SWIGLU, trains = query.options & FVLM_WITH_BACKWARD;
    const double weight = (gated ? 2 : 1) * number(query.width * query.inner),
                 input = number(query.rows * query.inner) * size;
    const double product = 2 * number(query.rows) * weight;
    const bool keeps = (query.options & FVLM_WITH_GELU) && trains, adds = query.options & FVLM_WITH_RESIDUAL;
    const double results = gated && trains ? 3 : keeps || adds ? 2 : 1;
    passes.forward = {input + weight * size + results * rows, product};
    passes.backward = {2 * input + weight * (size + bytes_of(query.gradient_dtype)) + rows, 2 * product};
  } else if (query.op == FVLM_OP_EXPERTS) {
    // Of the experts, those that are chosen where each is as likely as another.
    const double each = 3 * number(query.inner * query.width), missed = 1 - number(query.chosen) / query.experts,
                 used = query.experts * (1 - std::pow(missed, number(query.rows)));
    const double weight = query.options & FVLM_INT4_WEIGHTS   ? 0.5 + 4 / number(sdk::int4_group(query.inner))
                          : query.options & FVLM_INT8_WEIGHTS ? 1
                                                              : size;
    passes.forward = {used * each * weight + 2 * rows, 2 * number(query.rows) * query.chosen * each};
  } else if (query.op == FVLM_OP_FOLD_ROW_SCALE) {
    const double weights = number(query.rows * query.width * query.inner), wide = std::max(size, 4.0);
    passes.forward.bytes = 2 * weights * size + 3 * rows;
    passes.backward.bytes = weights * (size + wide + bytes_of(query.gradient_dtype));
  } else if (query.op == FVLM_OP_DELTA_RULE) {
    const double keys = 2 * number(query.rows) * query.key_heads * query.key_dim * size;
    const double products = 3 * 2 * number(query.rows * query.width) * query.key_dim; // by the definition
    passes.forward = {keys + 2 * rows, products};
    passes.backward = {2 * keys + 3 * rows, 2 * products};
  } else if (const TableOperation* operation = find_operation(query.op)) {
    const double sum = query.options & FVLM_WITH_RESIDUAL ? 2 : 0; // the residual, and its sum with x
    passes.forward.bytes = (operation->rows_forward + sum) * rows;
    passes.backward.bytes = operation->rows_backward * rows;
  }
  if (!(query.options & FVLM_WITH_BACKWARD)) passes.backward = {};
  return passes;
}

MinimalWork minimal_work(std::string_view operation, const ops::CalledQuery& query, double bytes) {
  struct Work {
    std::string_view operation;
    double bytes;
    MinimalWork operator()(const fvlm_attention_query& of) const {
      return {bytes, products_of(operation, of) * minimal_work(of).forward.flops / 2};
    }
    MinimalWork operator()(const fvlm_paged_attention_query& of) const {
      return {bytes, minimal_work(of).forward.flops};
    }
    MinimalWork operator()(const fvlm_loss_query& of) const {
      return {bytes, products_of(operation, of) * minimal_work(of).forward.flops};
    }
    MinimalWork operator()(const fvlm_kernels_query& of) const { return {bytes, minimal_work(of).forward.flops}; }
    MinimalWork operator()(const fvlm_optimizer_query& of) const { return minimal_work(of).forward; }
  };
  return std::visit(Work{operation, bytes}, query);
}

std::string shape_of(const ops::CalledQuery& query) {
  struct Shape {
    std::string operator()(const fvlm_attention_query& of) const { return KindOf<fvlm_attention_v1>::shape(of); }
    std::string operator()(const fvlm_paged_attention_query& of) const {
      return KindOf<PagedAttentionTable>::shape(of);
    }
    std::string operator()(const fvlm_loss_query& of) const { return KindOf<fvlm_loss_v1>::shape(of); }
    std::string operator()(const fvlm_kernels_query& of) const { return KindOf<fvlm_kernels_v1>::shape(of); }
    std::string operator()(const fvlm_optimizer_query& of) const { return fmt::format("{} parameters", of.elements); }
  };
  return std::visit(Shape(), query);
}

// Master and both moments are read and written, the second always in float32; the gradient is read, the copy written.
Passes minimal_work(const fvlm_optimizer_query& query) {
  const double state = bytes_of(query.state_dtype), copy = bytes_of(query.parameter_dtype);
  Passes passes;
  passes.forward.bytes =
      number(query.elements) * (4 * 4 + 2 * state + bytes_of(query.gradient_dtype) + (copy < 4 ? copy : 0));
  return passes;
}

} // namespace fvlm::bench
