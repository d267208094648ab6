// graphs.h: cuDNN attention graphs, whose execution plans are built once per shape and strides.
#pragma once
#include <fvlm/cuda.hpp>

#include <cstdint>
#include <memory>

struct cudnnContext;

namespace fvlm::plugins {

// The tensors of a graph. A plan binds pointers by these numbers.
enum Slot {
  slot_q,
  slot_k,
  slot_v,
  slot_out,
  slot_lse,
  slot_lengths_q,
  slot_lengths_kv,
  slot_d_out,
  slot_d_q,
  slot_d_k,
  slot_d_v,
  slot_offsets, // and the ragged offsets of q, k, v, out, d_out, d_q, d_k, d_v, in this order
  slot_count = slot_offsets + 8
};

// Row and head strides in elements. Those of d_out to d_v matter for backward graphs only.
struct Layout {
  std::int64_t row_stride = 0, head_stride = 0;
};

// Everything that a plan depends on; compared as a whole.
struct GraphShape {
  bool backward = false, lse = false, deterministic = false, causal = false, bfloat = false;
  // every segment has the maximum length and starts tokens / segments rows after the previous one;
  bool uniform = false;
  // no lengths or offsets are read
  std::int64_t heads_q = 0, heads_kv = 0, head_dim = 0, segments = 0;
  std::int64_t max_q = 0, max_kv = 0, tokens_q = 0, tokens_kv = 0;
  std::int64_t window = 0; // 0: none
  float scale = 0;
  Layout layout[8]; // q, k, v, out, d_out, d_q, d_k, d_v

  bool operator<(const GraphShape& other) const;
};

// Whether the loaded cuDNN takes ragged segments on the device. All do on sm_90 and sm_100.
sdk::Support supports_ragged_segments(fvlm_device device);

// Owns a cuDNN handle. Used by one thread at a time.
class Cudnn {
 public:
  Cudnn();
  ~Cudnn();
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;
  cudnnContext* get() const { return handle_; }
  void set_stream(void* stream) const;

 private:
  cudnnContext* handle_ = nullptr;
};

class Graph {
 public:
  // Builds the execution plan, which takes tens of milliseconds or more. Throws Failure(UNSUPPORTED) with cuDNN's
  // reason.
  Graph(const Cudnn& cudnn, const GraphShape& shape);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  std::uint64_t workspace() const;
  void run(const Cudnn& cudnn, void* const (&slots)[slot_count], void* workspace) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace fvlm::plugins
