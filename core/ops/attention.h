// Packed attention through a chosen table: see fvlm/attention.h for the layout.
#pragma once
#include "ops/backend.h"
#include "ops/guests.h"

namespace fvlm::ops {

// Where the segments lie: int32 tensors on the device. Positions are needed where the query asks for rotary.
struct Packing {
  at::Tensor cu_seqlens_q, cu_seqlens_kv;
  at::Tensor positions_q, positions_kv;
};

class Attention : public Prepared<fvlm_attention_v1> {
 public:
  Attention(Backend<fvlm_attention_v1> backend, const Query& query) : Prepared(std::move(backend), query) {}

  struct Output {
    at::Tensor out;
    std::vector<at::Tensor> saved; // for backward; empty where the query does not ask for one
  };
  Output forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Packing& packing,
                 const at::Tensor& into = {}) const;

  struct Gradients {
    at::Tensor q, k, v; // k and v undefined where the query asks for that of queries alone
  };
  Gradients backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Packing& packing,
                     const Output& output, const at::Tensor& d_out, const Gradients& into = {},
                     const Guests& guests = {}) const;
};

} // namespace fvlm::ops
