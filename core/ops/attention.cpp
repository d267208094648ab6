#include "ops/attention.h"

#include <limits>

namespace fvlm::ops {

Attention::Output Attention::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     const Packing& packing, const at::Tensor& into) const {
  Output output{this->output(into, q.sizes(), q.scalar_type()), {}};
  if (query().needs_backward) output.saved = make_saved();
  if (query().partial) output.saved.front().fill_(std::numeric_limits<double>::infinity());
  BoundArguments<fvlm_attention_forward> arguments;
  arguments.q = arguments.bind(q);
  arguments.k = arguments.bind(k);
  arguments.v = arguments.bind(v);
  arguments.cu_seqlens_q = arguments.bind(packing.cu_seqlens_q);
  arguments.cu_seqlens_kv = arguments.bind(packing.cu_seqlens_kv);
  arguments.positions_q = arguments.bind(packing.positions_q);
  arguments.positions_kv = arguments.bind(packing.positions_kv);
  arguments.out = arguments.bind(output.out);
  arguments.bind(arguments.saved, output.saved);
  run("attention forward", backend().table().forward, arguments);
  return output;
}

Attention::Gradients Attention::backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                         const Packing& packing, const Output& output, const at::Tensor& d_out,
                                         const Gradients& into, const DeferredQueries& deferred) const {
  Gradients gradients{this->output(into.q, q.sizes(), q.scalar_type()), {}, {}};
  if (!query().queries_alone) {
    gradients.k = this->output(into.k, k.sizes(), k.scalar_type());
    gradients.v = this->output(into.v, v.sizes(), v.scalar_type());
  }
  BoundArguments<fvlm_attention_backward> arguments;
  arguments.q = arguments.bind(q);
  arguments.k = arguments.bind(k);
  arguments.v = arguments.bind(v);
  arguments.out = arguments.bind(output.out);
  arguments.d_out = arguments.bind(d_out);
  arguments.cu_seqlens_q = arguments.bind(packing.cu_seqlens_q);
  arguments.cu_seqlens_kv = arguments.bind(packing.cu_seqlens_kv);
  arguments.positions_q = arguments.bind(packing.positions_q);
  arguments.positions_kv = arguments.bind(packing.positions_kv);
  arguments.bind(arguments.saved, output.saved);
  arguments.d_q = arguments.bind(gradients.q);
  arguments.d_k = arguments.bind(gradients.k);
  arguments.d_v = arguments.bind(gradients.v);
  arguments.guest_q = arguments.bind(deferred.q);
  arguments.guest_d_out = arguments.bind(deferred.d_out);
  arguments.guest_cu_seqlens = arguments.bind(deferred.cu_seqlens);
  run("attention backward", backend().table().backward, arguments, &fvlm_requirements::backward_workspace);
  return gradients;
}

at::Tensor PagedAttention::forward(const at::Tensor& q, const PagedKeys& keys, const AppendedKeys& appended) const {
  const at::Tensor out = output({}, q.sizes(), q.scalar_type());
  BoundArguments<fvlm_paged_attention> arguments;
  arguments.q = arguments.bind(q);
  arguments.k_pages = arguments.bind(keys.k_pages);
  arguments.v_pages = arguments.bind(keys.v_pages);
  arguments.page_table = arguments.bind(keys.page_table);
  arguments.sequences = arguments.bind(keys.sequences);
  arguments.lengths = arguments.bind(keys.lengths);
  arguments.out = arguments.bind(out);
  arguments.k = arguments.bind(appended.k);
  arguments.v = arguments.bind(appended.v);
  arguments.q_norm = arguments.bind(appended.q_norm);
  arguments.k_norm = arguments.bind(appended.k_norm);
  arguments.frequencies = arguments.bind(appended.frequencies);
  run("paged attention", backend().table().forward, arguments);
  return out;
}

} // namespace fvlm::ops
